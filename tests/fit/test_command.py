"""``mmlape fit``: what it writes, what it trains, and how it ends."""

import json
import os
import re
import runpy

import numpy as np
import pytest
import torch
from mmengine.config import Config
from own_data import coco, image, label_map, names
from tool_runs import REPO

import mmlape
from mmlape import registry
from mmlape.apps.fit.models import MODELS
from mmlape.apps.report import names_of
from mmlape.shipped import find_config


def boxes(folder, count=6):
    coco(folder / 'train.json', names(count), masks=True)
    for name in names(count):
        image(folder / name)


def maps(folder, count=6):
    for number in range(count):
        image(folder / 'images' / f'{number}.jpg')
        label_map(folder / 'masks' / f'{number}.png', np.tile(np.arange(40) // 20, (24, 1)))


def test_models_are_listed(commands):
    text = commands('fit.py', '--list')
    assert 'lape-adapter' in text
    assert '27.7 M' in text


def test_validations_that_find_nothing_are_told(capsys):
    show_scores = runpy.run_path(str(REPO / 'tools/fit.py'))['show_scores']
    show_scores({'box AP': 0.5}, True)
    show_scores({}, False)
    show_scores({}, True)
    told = 'note: no validation has found anything, so there are no scores: train longer'
    assert capsys.readouterr().out.splitlines() == [f'  {"box AP":<32} 0.5', told]


def test_label_maps_have_no_score(commands, tmp_path):
    maps(tmp_path / 'roads')
    options = ('--model', 'micro-segmenter', '--dry-run', '--score', 0.5)
    said = commands.refused('fit.py', 'roads', *options)
    assert said == 'error: --score is for boxes, and the data are label maps'


def test_the_model_of_the_package_is_a_start(commands, tmp_path):
    boxes(tmp_path / 'cells')
    out = commands(
        'fit.py', 'cells', '--model', 'micro-adapter', '--weights', 'nuclei', '--dry-run'
    )
    assert 'note: starts from the whole model of ' in out
    assert 'its images went through DarkBackground too' in out
    assert (tmp_path / 'fits/cells/data/weights.pth').is_file()


def test_a_dry_run_writes_configs_and_a_picture(commands, tmp_path):
    boxes(tmp_path / 'cells')
    out = commands('fit.py', 'cells', '--model', 'micro-adapter', '--dry-run', '--epochs', '3')
    assert 'COCO, 5 + 1 images, 2 classes: cat, dog' in out
    assert 'as the network sees them: fits/cells/training_batch.jpg' in out
    assert sorted(path.name for path in (tmp_path / 'fits/cells').rglob('*')) == [
        'data', 'fit.py', 'resolved.py', 'train.json', 'training_batch.jpg', 'val.json',
    ]  # fmt: skip
    short, resolved = (
        Config.fromfile(tmp_path / f'fits/cells/{name}.py') for name in ('fit', 'resolved')
    )
    assert '_base_' not in (tmp_path / 'fits/cells/resolved.py').read_text()
    assert short.model == resolved.model
    assert short.train_cfg == resolved.train_cfg
    message = commands.refused('fit.py', 'cells', '--model', 'micro-adapter', '--dry-run')
    assert (
        'fits/cells holds a config already: `mmlape train fits/cells/fit.py` trains it' in message
    )
    (tmp_path / 'fits/cells/training').mkdir()
    (tmp_path / 'fits/cells/training/epoch_1.pth').touch()
    message = commands.refused('fit.py', 'cells', '--model', 'micro-adapter', '--dry-run')
    assert (
        'holds a training already: `mmlape train fits/cells/fit.py --resume` continues' in message
    )
    (tmp_path / 'fits/cells').rename(tmp_path / 'moved')
    message = commands.refused('train.py', 'moved/fit.py', '--resume')
    assert message.endswith('where it was written; --work-dir moved/training goes on beside it')
    message = commands.refused('train.py', 'moved/fit.py', '--work-dir', 'moved/training')
    assert 'the data are not there' in message and message.endswith('does not exist')


def test_wrong_data_are_refused_by_a_dry_run_which_writes_nothing(commands, tmp_path):
    boxes(tmp_path / 'cells')
    file = tmp_path / 'cells' / 'train.json'
    content = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            content | dict(annotations=[dict(b, segmentation=[[]]) for b in content['annotations']])
        )
    )
    arguments = ['fit.py', 'cells', '--model', 'micro-adapter', '--dry-run']
    said = commands.refused(*arguments)
    assert 'error: the data do not fit the config: train data (CocoDataset' in said
    assert 'no usable box is left' in said and '(a polygon of 0 numbers, not of' in said
    assert not (tmp_path / 'fits' / 'cells').exists()
    for box in content['annotations']:
        box.pop('iscrowd')
    file.write_text(json.dumps(content), encoding='utf-8-sig')
    said = commands(*arguments)
    assert "note: train part: 6 boxes had no number 'iscrowd'" in said
    assert 'note: train part: the annotation file is written anew as UTF-8' in said


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['nowhere'], "error: argument data: there is no folder 'nowhere'"),
        (['cells', '--model', 'segmenter'], 'error: --model segmenter is for segment'),
        (['cells', '--epochs', '0'], 'error: --epochs'),
        (['cells', '--weights', 'none.pth'], 'error: .*none.pth.*--weights none'),
        (['cells', '--model', 'micro-adapter', '--out', 'file/out'], 'error: .*file'),
        (
            ['cells', '--model', 'micro-adapter', '--log', 'tensorbord'],
            'error: argument --log: must be of',
        ),
        ([], 'name the folder'),
    ],
)
def test_mistakes_end_in_one_line_and_write_nothing(arguments, message, commands, tmp_path):
    boxes(tmp_path / 'cells')
    (tmp_path / 'file').touch()
    said = commands.refused('fit.py', *arguments)
    assert re.search(message, said)
    assert '\n' not in said.strip().rpartition('error:')[2]
    assert not (tmp_path / 'fits').exists()


def test_files_of_the_user_are_not_overwritten(commands, tmp_path):
    boxes(tmp_path / 'data')
    before = (tmp_path / 'data/train.json').read_bytes()
    message = commands.refused(
        'fit.py', 'data', '--out', '.', '--model', 'micro-adapter', '--dry-run'
    )
    assert 'data/train.json is there already' in message and 'another --out' in message
    assert (tmp_path / 'data/train.json').read_bytes() == before
    assert not (tmp_path / 'fit.py').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ('make', 'model', 'best', 'way'),
    [
        (boxes, 'micro-adapter', 'coco/segm_mAP', ['--full']),
        (maps, 'micro-segmenter', 'mIoU', []),
        (maps, 'segmenter', 'mIoU', ['--lora', '2']),
        (maps, 'segmenter', 'mIoU', ['--frozen', '--views', '2']),
    ],
)
def test_from_a_folder_to_answers(make, model, best, way, commands, tmp_path, monkeypatch):
    monkeypatch.setenv(
        'PYTHONPATH',
        os.pathsep.join(
            filter(None, [str(mmlape.__path__[0] + '/..'), os.environ.get('PYTHONPATH')])
        ),
    )
    make(tmp_path / 'data')
    options = ['--size', '64', '--workers', '0', '--ema', '--patience', '5', *way]
    options += ['--epochs', '4' if '--views' in way else '2']
    options += ['--score-thr', '0'] if make is boxes else []
    if model == 'segmenter':
        backbone = Config.fromfile(find_config(MODELS[model].config)).model.backbone
        network = registry.MODELS.build(dict(backbone, init_cfg=None))
        torch.save(network.state_dict(), tmp_path / 'weights.pth')
        options += ['--weights', f'mmlape:{tmp_path}/weights.pth']
    out = commands('fit.py', 'data', '--model', model, '--out', 'run', *options)
    assert names_of([best])[best] in out
    assert 'mmlape predict run/training IMAGES' in out
    run = tmp_path / 'run'
    assert (run / 'curves.png').stat().st_size > 1000
    report = (run / 'report.html').read_text()
    for said in ('training images (of 5)', ' million', 'The training data as the'):
        assert said in report
    rows = (run / 'curves.csv').read_text().splitlines()
    assert best in rows[0].split(',')
    assert len(list((run / 'pictures').glob('*.jpg'))) == 1
    (found,) = mmlape.load(run / 'training').predict(str(next(tmp_path.glob('data/**/0.jpg'))))
    assert found.classes == (('cat', 'dog') if make is boxes else ('class 0', 'class 1'))
    scores = [
        json.loads(line)
        for line in next(run.glob('training/*/vis_data/scalars.json')).read_text().splitlines()
    ]
    assert [row['step'] for row in scores if best in row] == [1, 2]
    if model == 'segmenter':
        state = torch.load(run / 'training/epoch_2.pth', weights_only=False)['state_dict']
        before = network.state_dict()
        assert all(torch.equal(state[f'backbone.{name}'], before[name]) for name in before)
        assert any('.lora_' in name for name in state) == ('--lora' in way)
        assert (run / 'features').is_dir() == ('--views' in way)

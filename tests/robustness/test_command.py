"""``mmlape robustness`` from the command line to the table, for classifiers, detectors and segmentors."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from config_utils import CONFIGS, use_scope, write_image
from mmengine.config import Config
from mmengine.registry import MODELS
from tool_runs import Commands, check_png

from mmlape.research.datasets import build_digit_cells, build_digit_scenes
from mmlape.research.robustness import CORRUPTIONS, read_record, timm_config

SYNSETS = ('n01440764', 'n01443537', 'n02119789')
FEW = ('--corruptions', 'fog', 'jpeg_compression', '--severities', '1', '5')
WORK = Path('work_dirs/config')


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(CONFIGS.parent / 'tools'))
    use_scope('mmengine')
    return Commands(tmp_path, monkeypatch, capsys)


def write_images(folder: Path) -> str:
    for name in SYNSETS:
        for number in range(2):
            write_image(folder / name / f'{number}.png', (44, 40), seed=number)
    return str(folder)


def classifier(folder: Path) -> tuple[Path, Path]:
    """A shipped config in small, on images of three of ImageNet's classes, and its weights."""
    cfg = Config.fromfile(CONFIGS / 'imagenet/deit-t-lape_8xb128_in1k.py')
    cfg.model.backbone.arch = dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2)
    cfg.model.head.in_channels = 16
    loader = cfg.test_dataloader
    loader.update(batch_size=4, num_workers=0, persistent_workers=False)
    pipeline = loader.dataset.pipeline
    data = dict(type='mmlape.SynsetFolder', folder=write_images(folder / 'val'), pipeline=pipeline)
    loader.dataset = data
    return written(cfg, folder)


def written(cfg: Config, folder: Path) -> tuple[Path, Path]:
    """The files of a config and of weights that it starts from."""
    use_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch.save(dict(state_dict=model.state_dict()), folder / 'a.pth')
    cfg.dump(folder / 'config.py')
    return folder / 'config.py', folder / 'a.pth'


@pytest.mark.slow
def test_a_classifier_on_all_of_it(run, tmp_path):
    files = classifier(tmp_path)
    renditions = write_images(tmp_path / 'r')
    out = run('robustness.py', *files, *FEW, '--imagenet-r', renditions)
    record = read_record(WORK / 'robustness.json')
    keys = ['clean', 'fog/1', 'fog/5', 'jpeg_compression/1', 'jpeg_compression/5', 'imagenet-r']
    assert list(record['results']) == keys and record['imagenet'] is True
    assert {'accuracy/top1', 'accuracy/top5'} == set(record['results']['fog/1'])
    assert '6 test sets.' in out and 'jpeg_compression/1     top-1 accuracy' in out
    assert (WORK / 'robustness.md').read_text() in out and '| ImageNet-R |' in out
    check_png(WORK / 'robustness.png')

    # The same command does what is left, and nothing else.
    content = json.loads((WORK / 'robustness.json').read_text())
    measured = content['results'].pop('fog/5')
    content['results']['clean']['accuracy/top1'] = 12.5
    (WORK / 'robustness.json').write_text(json.dumps(content))
    out = run('robustness.py', *files, *FEW, '--imagenet-r', renditions)
    assert '6 test sets, 5 of them done before' in out and 'fog/1 ' not in out
    results = read_record(WORK / 'robustness.json')['results']
    assert results['fog/5'] == measured and results['clean']['accuracy/top1'] == 12.5

    said = run.refused('robustness.py', *files, *FEW, '--seed', '1')
    assert 'another seed (0, now 1)' in said

    # The published folders in place of corrupting.
    for severity in '15':
        for name in ('fog', 'jpeg_compression'):
            write_images(tmp_path / 'c' / name / severity)
    there = ('--imagenet-c', tmp_path / 'c', '--work-dir', 'other')
    out = run('robustness.py', *files, *FEW, *there)
    same = read_record(Path('other/robustness.json'))['results']
    assert same['fog/1'] == same['fog/5'] and 'fog/5' in out
    shutil.copytree(tmp_path / 'c', tmp_path / 'c2')
    another = ('--imagenet-c', tmp_path / 'c2', *there[2:])
    assert 'holds results of another images' in run.refused('robustness.py', *files, *FEW, *another)
    (tmp_path / 'c/fog/5').rename(tmp_path / 'c/fog/6')
    assert '--imagenet-c: there is neither' in run.refused('robustness.py', *files, *FEW, *there)

    records = [WORK / 'robustness.json', Path('other/robustness.json')]
    both = f'a={records[0]},{records[1]}'
    out = run('robustness_table.py', both, f'b={records[0]}', '--out', 'two')
    assert (Path('two') / 'robustness.md').read_text() in out and '±' in out
    check_png(Path('two/robustness.png'))
    said = run.refused('robustness_table.py', str(records[0]))
    assert 'expected NAME=RECORD' in said


def test_what_cannot_be_measured_is_said_at_once(run, tmp_path):
    config, weights = classifier(tmp_path)
    assert 'invalid choice' in run.refused(
        'robustness.py', config, weights, '--corruptions', 'fogg'
    )
    assert 'there is no checkpoint' in run.refused('robustness.py', config, tmp_path / 'b.pth')
    assert 'timm has no model' in run.refused('robustness.py', 'timm/vit_tinny', weights)
    other = tmp_path / 'b.pth'
    torch.save(dict(state_dict={'head.fc.weight': torch.zeros(2, 3)}), other)
    assert 'does not fit' in run.refused('robustness.py', config, other, *FEW)
    assert not (WORK / 'robustness.json').exists()


def test_a_model_of_timm(run, tmp_path, monkeypatch):
    import timm

    cfg = timm_config(
        'deit3_small_patch16_384'
    )  # its crop is 1.0; others', of 0.9, are rounded down
    assert cfg.test_dataloader.dataset.pipeline[1]['scale'] == 384
    assert timm_config('vit_tiny_patch16_224').test_dataloader.dataset.pipeline[1]['scale'] == 248
    steps = timm_config('convnext_atto').test_dataloader.dataset.pipeline
    assert (steps[1]['scale'], steps[2]['crop_size']) == (303, 288)  # trained at 224
    for name, scale, side in (('eva02_base_patch14_448', 448, 448), ('dm_nfnet_f0', 284, 256)):
        steps = timm_config(name).test_dataloader.dataset.pipeline
        assert (steps[1]['type'], steps[1]['scale']) == ('Resize', (scale, scale))
        assert steps[2]['crop_size'] == side
    settings = replace(timm.get_pretrained_cfg('vit_tiny_patch16_224'), crop_mode='border')
    with monkeypatch.context() as patched:
        patched.setattr(timm, 'get_pretrained_cfg', lambda name: settings)
        with pytest.raises(ValueError, match="crop_mode='border', expected one of center, squash"):
            timm_config('vit_tiny_patch16_224')
    cfg = timm_config('lape_deit_tiny_patch16_224')
    pipeline, preprocessor = cfg.test_dataloader.dataset.pipeline, cfg.model.data_preprocessor
    assert (pipeline[1]['scale'], pipeline[1]['edge'], pipeline[2]['crop_size']) == (
        256,
        'short',
        224,
    )
    assert preprocessor.mean == pytest.approx([123.675, 116.28, 103.53])
    assert preprocessor.std == pytest.approx([58.395, 57.12, 57.375]) and preprocessor.to_rgb

    write_images(tmp_path / 'imagenet/val')
    (tmp_path / 'imagenet/meta').mkdir()
    lines = [f'{name}/{i}.png {label}' for label, name in enumerate(SYNSETS) for i in range(2)]
    (tmp_path / 'imagenet/meta/val.txt').write_text('\n'.join(lines))
    torch.save(timm.create_model('test_vit').state_dict(), tmp_path / 'a.pth')
    place = f'test_dataloader.dataset.data_root={tmp_path / "imagenet"}'
    options = ('--cfg-options', place, 'test_dataloader.num_workers=0')
    run('robustness.py', 'timm/test_vit', tmp_path / 'a.pth', *FEW, *options)
    record = read_record(Path('work_dirs/test_vit/robustness.json'))
    assert record['name'] == 'test_vit' and len(record['results']) == 5 and record['imagenet']


@pytest.mark.slow
def test_a_segmentor(run, tmp_path):
    """All 15, on the shipped micro Segmenter."""
    build_digit_cells(tmp_path / 'cells', num_train=2, num_val=3)
    cfg = Config.fromfile(CONFIGS / 'experiments/segmenter_vit-micro_mask_digit-cells.py')
    cfg.test_dataloader.dataset.data_root = str(tmp_path / 'cells')
    run('robustness.py', *written(cfg, tmp_path), '--severities', '1')
    record = read_record(WORK / 'robustness.json')
    assert list(record['results']) == ['clean', *(f'{name}/1' for name in CORRUPTIONS)]
    assert {'mIoU', 'mAcc', 'aAcc'} <= set(record['results']['snow/1']) and not record['imagenet']
    assert '| mIoU | 1 |' in (WORK / 'robustness.md').read_text()


@pytest.mark.slow
def test_a_detector(run, tmp_path):
    build_digit_scenes(tmp_path / 'scenes', num_train=1, num_val=2)
    cfg = Config.fromfile(CONFIGS / 'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes.py')
    cfg.test_dataloader.dataset.data_root = f'{tmp_path / "scenes"}/'
    cfg.test_evaluator.ann_file = str(tmp_path / 'scenes/annotations/instances_val.json')
    run('robustness.py', *written(cfg, tmp_path), *FEW, '--rgb')
    record = read_record(WORK / 'robustness.json')
    assert len(record['results']) == 5
    assert 'coco/bbox_mAP' in record['results']['fog/5']

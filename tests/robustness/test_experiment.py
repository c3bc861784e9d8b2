"""``mmlape experiment robustness``: what it compares, one run, and the tables of what is done."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
from config_utils import CONFIGS
from mmengine.registry import MODELS

from mmlape.norm import DTN
from mmlape.position import LaPE
from mmlape.research.datasets import build_digit_scenes as build_scenes
from mmlape.research.experiments import robustness as experiment
from mmlape.research.experiments.table import replace_table
from mmlape.research.robustness import CORRUPTIONS, SEVERITIES, Record, cell_key

CLONE = CONFIGS.parent
TOOL = runpy.run_path(str(CLONE / 'tools/experiments/robustness.py'))
NETWORKS = [(key, name) for key, group in experiment.GROUPS.items() for name in group.networks]


def options_of(folder, *further):
    given = ['--work-dir', str(folder), '--seeds', '2', *map(str, further)]
    return TOOL['PARSER'].parse_args(given)


@pytest.mark.parametrize(('key', 'network'), NETWORKS)
def test_a_network_is_what_its_name_says(key, network, tmp_path):
    cfg = experiment.network_config(options_of(tmp_path, '--iterations', 60), key, network, 1)
    backbone = MODELS.build(cfg.model.backbone)
    assert any(isinstance(each, DTN) for each in backbone.modules()) == ('DTN' in network)
    assert any(isinstance(each, LaPE) for each in backbone.modules()) == ('LaPE' in network)
    assert cfg.randomness.seed == 1 and '_40' in cfg.test_dataloader.dataset.data_root
    assert cfg.train_cfg.max_iters == cfg.default_hooks.checkpoint.interval == 60
    assert cfg.param_scheduler[-1].end == 60


def test_schedules_are_the_demos():
    """Without --iterations, but for digit cells."""
    options = options_of('work')
    lengths = [
        experiment.network_config(options, key, next(iter(group.networks)), 0).train_cfg.max_iters
        for key, group in experiment.GROUPS.items()
    ]
    assert lengths == [200, 1500, 1000]


@pytest.mark.slow
def test_the_tables_of_what_is_done(tmp_path, capsys):
    """A group with some runs is shown, with runs that are whole; the page keeps what is of other groups."""
    clone = tmp_path / 'clone'
    (clone / 'docs/images').mkdir(parents=True)
    shutil.copy(CLONE / experiment.PAGE, clone / experiment.PAGE)
    (clone / experiment.FIGURES).parent.mkdir(parents=True)
    options = options_of(tmp_path / 'work', '--table', '--write-docs')
    with pytest.raises(ValueError, match='no run is done in'):
        experiment.run_experiment(options, clone)
    for number, network in enumerate(experiment.GROUPS['detector'].networks):
        for seed in range(2):
            cfg = experiment.network_config(options, 'detector', network, seed)
            path = Path(cfg.work_dir, 'robustness.json')
            run_with = dict(iterations=400, images=20)
            record = Record(path, run_with, dict(name=network, imagenet=False))
            record.results = {
                cell_key(name, s): {'coco/bbox_mAP': 0.1 * number + 0.02 * seed, 'data_time': 1.0}
                for name in CORRUPTIONS
                for s in SEVERITIES[: 5 if number or not seed else 4]  # one is not finished
            }
            record.put('clean', {'coco/bbox_mAP': 0.5})
    experiment.run_experiment(options, clone)
    table = (tmp_path / 'work/detector.md').read_text()
    page = (clone / experiment.PAGE).read_text()
    assert table in capsys.readouterr().out
    assert (
        experiment.summary_of(json.loads((clone / experiment.FIGURES).read_text())['detector'])
        in page
    )
    assert '| RetinaNet, LayerNorm | 50.0 | 0.0 |' in table
    assert '| RetinaNet, DTN | 50.0 ± 0.0 | 11.0 ± 1.4 |' in table
    assert (
        'Seeds: 1 of "RetinaNet, LayerNorm", 2 of "RetinaNet, DTN"; 400 iterations, 20 images'
        in table
    )
    pictures = [path.name for path in (clone / 'docs/images').iterdir()]
    assert pictures == ['robustness-detector.png'] and (tmp_path / 'work/detector.png').is_file()
    figures = json.loads((clone / experiment.FIGURES).read_text())
    assert experiment.table_of(figures['detector']) == table and [*figures] == ['detector']
    assert set(figures['detector']['RetinaNet, DTN'][0]['results']['clean']) == {'coco/bbox_mAP'}
    experiment.write_docs(clone, {'segmentor': figures['detector']})
    assert [*json.loads((clone / experiment.FIGURES).read_text())] == ['detector', 'segmentor']
    assert experiment.summary_of(figures['detector']) in (clone / experiment.PAGE).read_text()


def test_the_page_says_what_was_measured():
    text, figures = (
        (CLONE / experiment.PAGE).read_text(encoding='utf-8'),
        CLONE / experiment.FIGURES,
    )
    for key, found in json.loads(figures.read_text(encoding='utf-8')).items():
        assert (
            replace_table(text, experiment.summary_of(found), *experiment.table_marks(key)) == text
        )
        assert all(runs for runs in found.values())


@pytest.mark.slow
def test_a_run(tmp_path, monkeypatch, capsys):
    """Data, training and test of a detector; what is done is not done again."""

    def build_digit_scenes(root, num_val):
        return build_scenes(root, num_train=16, num_val=num_val)

    group = experiment.GROUPS['detector']
    group = group._replace(build=build_digit_scenes, networks={'RetinaNet, DTN': {}})
    monkeypatch.setitem(experiment.GROUPS, 'detector', group)
    given = ['--only', 'detector', '--seeds', 1, '--images', 2, '--iterations', 2]
    given += ['--data-root', tmp_path]
    options = options_of(tmp_path / 'work', *given)
    experiment.run_experiment(options, tmp_path)
    assert 'Seeds: 1 of "RetinaNet, DTN"; 2 iterations, 2 images.' in capsys.readouterr().out
    (run,) = experiment.done(options, 'detector')['RetinaNet, DTN']
    assert len(run['results']) == 1 + len(CORRUPTIONS) * len(SEVERITIES)
    monkeypatch.setattr(experiment, 'train', None)
    monkeypatch.setattr(experiment.robust.run, '_test', None)
    experiment.run_experiment(options, tmp_path)
    assert 'trained' not in capsys.readouterr().out


def test_wrong_options(tmp_path, capsys):
    for option, value, said in [
        ('--images', 0, '--images: must be at least 1, got 0'),
        ('--only', 'all', "invalid choice: 'all'"),
    ]:
        with pytest.raises(SystemExit):
            options_of(tmp_path, option, value)
        assert said in capsys.readouterr().err

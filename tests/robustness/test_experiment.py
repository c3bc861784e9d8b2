"""``mmlape experiment_robustness``: what it compares, and the table of what is done."""

import sys
from pathlib import Path

import pytest
from config_utils import CONFIGS
from mmengine.registry import MODELS

from mmlape.norm import DTN
from mmlape.position import LaPE
from mmlape.robustness import CORRUPTIONS, SEVERITIES, Record, cell_key

sys.path.insert(0, str(CONFIGS.parent / 'tools'))

import experiment_robustness as experiment


def options_of(folder, *further):
    return experiment.parse_arguments(['--work-dir', str(folder), '--seeds', '2', *further])


@pytest.mark.parametrize('variant', experiment.VARIANTS)
def test_a_variant_is_what_its_name_says(variant, tmp_path):
    cfg = experiment.config_of(options_of(tmp_path, '--iterations', '60'), variant, 1)
    backbone = MODELS.build(cfg.model.backbone)
    assert any(isinstance(each, DTN) for each in backbone.modules()) == ('DTN' in variant)
    assert any(isinstance(each, LaPE) for each in backbone.modules()) == ('LaPE' in variant)
    assert cfg.randomness.seed == 1 and cfg.test_dataloader.dataset.indices == 40
    assert cfg.train_cfg.max_iters == cfg.default_hooks.checkpoint.interval == 60
    assert cfg.param_scheduler[-1].end == 60


def test_the_table_of_what_is_done(tmp_path, capsys):
    arguments = ['--work-dir', str(tmp_path), '--seeds', '2', '--table']
    with pytest.raises(SystemExit, match='no run of "LayerNorm, default" is done'):
        experiment.main(arguments)
    options = options_of(tmp_path)
    for number, variant in enumerate(experiment.VARIANTS):
        for seed in range(2):
            path = Path(experiment.config_of(options, variant, seed).work_dir, 'robustness.json')
            record = Record(path, {}, dict(name=variant, imagenet=False))
            record.results = {
                cell_key(name, s): {'mIoU': 10.0 * number + 2 * seed}
                for name in CORRUPTIONS
                for s in SEVERITIES[: 5 if number or not seed else 4]  # one is not finished
            }
            record.put('clean', {'mIoU': 50.0})
    experiment.main(arguments)
    table = (tmp_path / 'results.md').read_text()
    assert table in capsys.readouterr().out
    assert '| LayerNorm, default | 50.0 | 0.0 |' in table
    assert '| DTN, default | 50.0 ± 0.0 | 21.0 ± 1.4 |' in table
    assert 'Seeds: 1 of "LayerNorm, default", 2 of "LayerNorm, LaPE"' in table
    assert (tmp_path / 'results.png').is_file()


def test_wrong_options(tmp_path, capsys):
    with pytest.raises(SystemExit):
        options_of(tmp_path, '--images', '0')
    assert '--images must be at least 1, got 0' in capsys.readouterr().err

"""Every config of Long ListOps parses, reads its files, trains a step, and says what it is; the short one learns."""

import pytest
from config_utils import CONFIGS, listops_configs, read_classifier, train_a_step
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmpretrain.structures import DataSample

from mmlape.research.datasets import build_list_ops
from mmlape.training import check_config, check_data_is_there

FOLDER = CONFIGS / 'listops'
SHORT = FOLDER / 'listops-short_transformer-micro.py'
PAPER = [path for path in listops_configs() if path != SHORT]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    sizes = dict(num_train=100, num_val=20, num_test=5, length=(10, 60))
    return build_list_ops(tmp_path_factory.mktemp('data') / 'list_ops', **sizes)


@pytest.mark.parametrize('kind', ['transformer', 'bigbird', 'reformer'])
def test_a_step_trains_everything(kind, root):
    """On batches of sequences of different lengths, as they are read; at the sizes of the table, but for two layers."""
    cfg = read_classifier(FOLDER / f'listops_{kind}-dtn.py')
    backbone = cfg.model.backbone
    backbone.arch, backbone.norm_cfg.layers = dict(embed_dims=64, depth=2, num_heads=4), 2
    cfg.model.head.update(in_channels=64, mid_channels=[64])
    if kind == 'bigbird':
        backbone.attention = backbone.attention[:2]
    dataset = DATASETS.build(dict(cfg.train_dataloader.dataset, data_root=str(root)))
    items = [dataset[index] for index in range(3)]
    batch = {key: [item[key] for item in items] for key in ('inputs', 'data_samples')}
    assert len({item['inputs'].shape for item in items}) > 1
    assert all(isinstance(item['data_samples'], DataSample) for item in items)
    model, unmoved, decay = train_a_step(cfg, batch)
    # after the last attention the class token is on its own, which DTN normalises by itself
    alone = ('positions.weight', 'ratio_mean.omega', 'ratio_var.omega')
    assert unmoved == {f'backbone.blocks.1.norm2.{name}' for name in alone}
    for name, value in decay.items():
        dtn = any(part in name for part in ('ratio_', '.positions.'))
        assert value == (0 if dtn else 0.1), name
    assert len(model.test_step(batch)) == 3


def test_data_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = Config.fromfile(PAPER[0])
    check_config(cfg)
    with pytest.raises(ValueError, match='`mmlape build list_ops data/list_ops` makes them'):
        check_data_is_there(cfg, ['train'])


def test_the_short_one_runs_through_the_runner(root, tmp_path):
    """Four iterations of training, and a validation."""
    cfg = Config.fromfile(SHORT)
    cfg.work_dir, cfg.experiment_name = str(tmp_path), f'listops-{tmp_path.name}'
    cfg.env_cfg.dist_cfg = None
    cfg.train_cfg.update(max_iters=4, val_interval=4)
    cfg.model.backbone.norm_cfg = dict(type='mmlape.DTN')
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].dataset.data_root = str(root)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert 0 <= runner.message_hub.log_scalars['val/accuracy/top1'].current() <= 100
    lr = runner.message_hub.log_scalars['train/lr'].data[0]
    assert list(lr) == pytest.approx([3e-3 * step / 40 for step in range(len(lr))])

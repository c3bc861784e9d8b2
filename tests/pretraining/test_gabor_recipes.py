"""The Gabor paper's section 5: commands of configs/ablations train as many values as its tables print, and no more."""

import argparse
import copy
import re
import shlex
from functools import cache

import pytest
import timm
import torch
import yaml
from config_utils import CONFIGS, REPO, use_scope
from docs_pages import read_page
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import HOOKS
from mmengine.registry import MODELS as CLASSIFIERS
from mmpretrain.structures import DataSample
from mmpretrain.utils import register_all_modules

from mmlape.backbones import freeze_all_but_position
from mmlape.checkpoints import convert_with_report
from mmlape.cli.arguments import add_common_options, find_config
from mmlape.cli.options import merge_overrides
from mmlape.registry import MODELS
from mmlape.training import PositionOnlyHook

PAGE = CONFIGS / 'ablations' / 'README.md'
ROW = r'\| (.+?) \| `mmlape train (.+?)` \| ([\d.]+) \|'
TABLES = {
    f'Gabor, Table {table["table"]}': {row[1]: row[2:4] for row in table['rows']}
    for table in yaml.safe_load((REPO / 'tests/data/published_tables.yaml').read_text())
    if table['paper'] == 'Gabor'
}
FIRST = 'deit-t-no-position_2xb256-50e_in1k'
SECOND = 'deit-t-gabor-attention_position-only_2xb256-50e_in1k'
THIRD = 'deit-b-gabor_position-only_2xb256-10e_in1k'
# Rows that are published weights as they are.
UNTRAINED = {'ViT-B LE', 'DeiT-B LE'}


def commands(heading: str) -> dict:
    """By row, the command and the figure."""
    text = PAGE.read_text().split(f'\n## {heading}\n')[1].partition('\n## ')[0]
    return {label: (command, figure) for label, command, figure in re.findall(ROW, text)}


@cache
def file_of(name: str) -> Config:
    return Config.fromfile(find_config(name))


def config_of(command: str) -> Config:
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    options = parser.parse_args(shlex.split(command))
    return merge_overrides(copy.deepcopy(file_of(options.config)), options.cfg_options)


def build(cfg: Config, device: str = 'meta') -> torch.nn.Module:
    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')
    with torch.device(device):
        return CLASSIFIERS.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))


@pytest.mark.parametrize('heading', TABLES)
def test_rows_are_the_tables(heading):
    """Every row of the paper has a command, and the published figure."""
    found = {label: float(figure) for label, (_, figure) in commands(heading).items()}
    expected = {label: top_1 for label, (_, top_1) in TABLES[heading].items()}
    assert found == {k: v for k, v in expected.items() if k not in UNTRAINED}


@pytest.mark.parametrize('heading', TABLES)
def test_as_many_values_are_trained_as_printed(heading):
    for label, (command, _) in commands(heading).items():
        cfg, printed = config_of(command), TABLES[heading][label][0]
        with torch.device('meta'):
            backbone = MODELS.build(cfg.model.backbone)
        hooks = [hook['type'] for hook in cfg.custom_hooks]
        if printed is None:  # what the others start from
            assert not hooks and cfg.load_from is None
            with pytest.raises(ValueError, match='has parameters'):
                freeze_all_but_position(backbone)
            continue
        assert hooks == ['mmlape.PositionOnlyHook']
        names = freeze_all_but_position(backbone)
        count = sum(backbone.get_parameter(name).numel() for name in names)
        assert abs(count / 1000 - float(printed[:-1])) < 0.1, (label, count)  # cut off or rounded


def test_the_figure_of_channels():
    """Figure 11: position channels beside queries and keys, and edge markers in the values."""
    text = PAGE.read_text().split('\n## Gabor, Figure 11\n')[1]
    (command,) = re.findall(r'`mmlape train (.+?)`', text, re.DOTALL)
    cfg = config_of(command)
    position = MODELS.build(cfg.model.backbone).blocks[0].attn.position
    assert position.channels == 16 and position.query.embed_dims == 3 * 16
    assert position.value.embed_dims == 192 and position.value.gabor_x is None


@pytest.mark.parametrize(
    ('name', 'epochs', 'rate', 'least'),
    [(FIRST, 50, 1e-5, None), (SECOND, 50, 1e-3, 1e-5), (THIRD, 10, 1e-3, 1e-5)],
)
def test_the_recipe(name, epochs, rate, least):
    """Section 5.1."""
    cfg = file_of(name)
    assert cfg.train_cfg.max_epochs == epochs
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', rate, 0.05)
    assert [s['type'] for s in cfg.param_scheduler] == (['CosineAnnealingLR'] if least else [])
    assert all(s['eta_min'] == least and s.get('begin', 0) == 0 for s in cfg.param_scheduler)
    loader = cfg.train_dataloader
    assert loader.batch_size * 2 == 512 == cfg.auto_scale_lr.base_batch_size
    assert loader.sampler.type == 'DefaultSampler' and loader.sampler.shuffle
    steps = [step['type'] for step in loader.dataset.pipeline]
    assert 'RandAugment' in steps and 'RandomErasing' not in steps
    assert {augment['type'] for augment in cfg.model.train_cfg.augments} == {'Mixup', 'CutMix'}
    assert cfg.model.head.loss.label_smooth_val == 0.1 == cfg.model.backbone.drop_path_rate


def test_the_second_step_starts_from_the_first():
    first, second = file_of(FIRST), file_of(SECOND)
    assert second.load_from == f'work_dirs/{FIRST}/epoch_{first.train_cfg.max_epochs}.pth'
    assert second.model.init_cfg is None
    missing = set(build(second).state_dict()) - set(build(first).state_dict())
    assert missing and all('.attn.position.' in name for name in missing)
    assert isinstance(HOOKS.build(second.custom_hooks[0]), PositionOnlyHook)


@pytest.mark.parametrize('name', [FIRST, THIRD])
def test_weights_of_timm_fill_all_but_position(name):
    """The classifier's head with them, which stays as it is."""
    model = build(file_of(name))
    assert model.init_cfg['source'] == 'timm'
    source = dict(model.backbone.state_dict())
    source = {k: v for k, v in source.items() if not k.startswith('position.')}
    dims = model.backbone.embed_dims
    source.update(pos_embed=torch.empty(1, 197, dims, device='meta'))
    source.update({'head.weight': torch.empty(1000, dims, device='meta')})
    source.update({'head.bias': torch.empty(1000, device='meta')})
    _, report = convert_with_report(source, 'timm', model)
    report.demand(0.95)
    assert all(part.startswith('backbone.position.') for part in report.fresh)
    assert {'head.layers.head.weight', 'head.layers.head.bias'} <= set(report.taken)
    assert list(report.left_out) == ['backbone.pos_embed']


def test_a_classifier_with_the_weights_of_timm_computes_what_timm_does(tmp_path):
    """By an ``init_cfg`` of the model; what is frozen then is the published network, its head included."""
    torch.manual_seed(0)
    source = timm.create_model('deit_tiny_patch16_224', depth=2).eval()
    torch.nn.init.normal_(source.head.weight)
    torch.nn.init.normal_(source.head.bias)
    torch.save(dict(model=source.state_dict()), tmp_path / 'deit.pth')
    cfg = copy.deepcopy(file_of(FIRST))
    weights = str(tmp_path / 'deit.pth')
    cfg.model.init_cfg = dict(type='mmlape.Pretrained', source='deit', checkpoint=weights)
    cfg.model.backbone.update(
        arch=dict(embed_dims=192, depth=2, num_heads=3, mlp_ratio=4),
        position=dict(type='mmlape.LearnedPosition'),
    )
    model = build(cfg, 'cpu').eval()
    model.init_weights()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(images), source(images), rtol=1e-4, atol=1e-4)


def test_the_page_says_how_timm_does_it():
    assert any('position_only=True' in line for line in read_page(PAGE).text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize('name', [FIRST, SECOND, THIRD])
def test_a_step(name):
    """Of a network of two layers, with the config's own optimizer and hook."""
    cfg = copy.deepcopy(file_of(name))
    cfg.model.init_cfg = None
    cfg.model.backbone.arch = dict(embed_dims=192, depth=2, num_heads=3, mlp_ratio=2)
    cfg.model.head.in_channels = 192
    model = build(cfg, 'cpu')
    model.init_weights()
    if cfg.custom_hooks:
        freeze_all_but_position(model)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    samples = [DataSample().set_gt_label(label) for label in (1, 2)]
    data = dict(inputs=torch.randint(0, 256, (2, 3, 64, 64)), data_samples=samples)
    torch.manual_seed(3)
    assert model.train().train_step(data, wrapper)['loss'].isfinite()
    after = model.state_dict()
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    expected = [key for key in before if 'position' in key] if cfg.custom_hooks else list(before)
    assert moved <= set(expected)
    # Of the last layer only the class token is read: queries of the others have gradients of zero.
    assert len(moved) > 0.75 * len(expected)

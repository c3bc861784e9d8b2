"""Commands of configs/ablations/README.md build the networks that their rows name; figures are the published ones."""

import argparse
import copy
import re
import shlex
from functools import cache
from operator import attrgetter

import pytest
import timm
import torch
import yaml
from config_utils import CONFIGS, REPO, use_scope
from mmengine.config import Config
from mmengine.registry import HOOKS
from mmengine.registry import MODELS as CLASSIFIERS
from mmpretrain.utils import register_all_modules

from mmlape.backbones import freeze_all_but_position
from mmlape.checkpoints import convert_with_report
from mmlape.cli.arguments import add_common_options
from mmlape.cli.options import merge_overrides
from mmlape.registry import MODELS
from mmlape.shipped import find_config, shipped_configs
from mmlape.training import PositionOnlyHook

pytestmark = pytest.mark.usefixtures('cheap_values', 'found_once')

PAGE = CONFIGS / 'ablations' / 'README.md'
ROW = r'\| (.+?) \| `mmlape train (.+?)` \| ([\d.]+|-) \|'
PVT = ['LN', 'LN', 'LN', 'LN']
PVT_DTN = ['DTN', 'DTN', 'DTN', 'LN']


def plain(heads=6, **facts):
    """A ViT of 12 layers with LayerNorm, and what else is said of it."""
    common = dict(norms=['LN'] * 12, after=0, position='LearnedPosition', inside=None)
    return {**common, 'joining': 'DefaultJoining', 'heads': heads, **facts}


def normed(name, heads, layers=10, **facts):
    """The same with another norm in its first layers, after which the class token joins."""
    norms = [name] * layers + ['LN'] * (12 - layers)
    return plain(heads, norms=norms, after=layers, **facts)


def zoo(heads, figures):
    """Table 3: groups are heads."""
    rows = dict(
        LN=plain(heads),
        BN=normed('TokenBN', heads),
        IN=normed('TokenIN', heads),
        GN=normed('TokenGN', heads, norm=dict(num_groups=heads)),
        SN=normed('SwitchableNorm', heads, norm=dict(use_bn=True)),
        ScaleNorm=normed('ScaleNorm', heads),
        PowerNorm=normed('PowerNorm', heads, norm=dict(num_groups=heads, warmup_iters=3000)),
        DTN=normed('DTN', heads, norm=dict(num_heads=heads, pool=1)),
        DyT=normed('DyT', heads),
        Derf=normed('Derf', heads),
    )
    return {name: (figure, rows[name]) for name, figure in zip(rows, figures.split(), strict=True)}


def ratios(value):
    return {'ratio_mean.value': value, 'ratio_var.value': value}


def pvt(norms, heads, inside=None, **facts):
    facts = dict(norms=norms, after=0, position='LearnedPosition', inside=inside, **facts)
    return dict(facts, joining='DefaultJoining', heads=heads, depths=[2, 2, 2, 2])


def lape(position='LearnedPosition', layers=range(12), **joined):
    named = dict(dict(progressive=True, layers=list(layers)), **joined)
    return plain(3, position=position, joining='LaPE', joined=named)


def joinings(position):
    """Rows of LaPE's Table 7."""
    of = dict(position=position)
    return [
        plain(3, **of),
        plain(3, joining='SharedJoining', **of),
        lape(position, progressive=False),
        lape(position),
    ]


def named_rows(label, figures, rows):
    names = ('default', 'shared', 'LaPE (sharing)', 'LaPE')
    return {f'{label}, {n}': pair for n, *pair in zip(names, figures.split(), rows, strict=True)}


def lite(layers=7, norm='norm_channel_gain_bias'):
    facts = lape(progressive=False, layers=range(layers), norm=norm)
    return dict(facts, norms=['LN'] * 7, heads=4)


LITE = dict(plain(4), norms=['LN'] * 7)
STAR, STAR_DTN = plain(9), normed('DTN', 9, norm={'positions.init': 'local'})
FORMS = {
    'w': 'identity',
    'g w': 'scalar_gain',
    'g * w': 'channel_gain',
    'g * w + b': 'channel_gain_bias',
    'Norm(w)': 'norm',
    'g Norm(w)': 'norm_scalar_gain',
    'g * Norm(w)': 'norm_channel_gain',
    'g * Norm(w) + b': 'norm_channel_gain_bias',
}
FORM_FIGURES = '70.67 71.22 71.13 70.85 72.56 72.49 71.80 73.11'
LITE_FIGURES = '74.084 74.636 74.518 74.250 75.238 75.192 - 75.424'
FIRST_LAYERS_FIGURES = '74.062 74.716 75.468 75.652 75.658 75.660 75.424'
UNIFORM = {'positions.__class__.__name__': 'UniformMap'}
SMALL_SWIN, LEVIT = dict(depths=[2, 2, 18, 2]), dict(depths=[2, 3, 4])
# Transcribed from the papers: by heading and row, the figure and the network.
EXPECTED = {
    'DTN, Table 3, ViT-S': zoo(6, '79.9 77.3 77.7 78.3 80.1 80.0 79.8 80.6 - -'),
    'DTN, Table 3, ViT-S*': zoo(9, '80.6 77.2 77.6 79.5 81.0 80.6 80.4 81.7 - -'),
    'DTN, Table 5': {
        '(a) LN': ('80.6', STAR),
        '(b) IN': ('77.6', normed('TokenIN', 9)),
        '(c) ratio 0, learned map': ('81.2', normed('DTN', 9, norm=ratios(0))),
        '(d) ratio 0.5, learned map': ('81.3', normed('DTN', 9, norm=ratios(0.5))),
        '(e) DTN': ('81.7', STAR_DTN),
    },
    'DTN, section 4.3': {
        'equation 7': ('73.2', normed('DTN', 4, norm={'positions.init': 'local'})),
        'truncated normal': ('72.7', normed('DTN', 4, norm={'positions.init': 'random'})),
    },
    'DTN, Table 8': {
        '0': ('80.6', STAR),
        '4': ('81.2', normed('DTN', 9, 4)),
        '6': ('81.4', normed('DTN', 9, 6)),
        '8': ('81.5', normed('DTN', 9, 8)),
        '10': ('81.7', STAR_DTN),
    },
    'DTN, Table 10, ViT-S*': {
        'LN': ('80.6', STAR),
        'LN, equation 6 in the attention': ('80.8', plain(9, inside='QuadraticBias')),
        'DTN without relative position': ('81.4', normed('DTN', 9, norm=UNIFORM)),
        'DTN': ('81.7', STAR_DTN),
    },
    'DTN, Table 10, PVT-Tiny': {
        'LN': ('75.1', pvt(PVT, [1, 2, 5, 8])),
        'LN, equation 6 in the attention': ('75.4', pvt(PVT, [1, 2, 5, 8], 'QuadraticBias')),
        'DTN without relative position': ('75.9', pvt(PVT_DTN, [4, 4, 5, 8], norm=UNIFORM)),
        'DTN': ('76.3', pvt(PVT_DTN, [4, 4, 5, 8], norm={'positions.init': 'local'})),
    },
    'DTN, Table 10, networks with a relative position': {
        'Swin-S, LN': ('83.0', dict(SMALL_SWIN, norms=PVT, inside='RelativePositionBias')),
        'Swin-S, DTN': ('83.5', dict(SMALL_SWIN, norms=['DTN'] * 4)),
        'LeViT-128S, batch norm': ('76.7', dict(LEVIT, inside='RelativePositionBias')),
        'LeViT-128S, DTN': ('77.3', dict(LEVIT, norms=['DTN'] * 3)),
    },
    'LaPE, Table 7': {
        'relative, default': (
            '72.82',
            plain(3, position='NoPosition', inside='RelativePositionBias', normed_bias=False),
        ),
        'relative, LaPE': (
            '-',
            plain(3, position='NoPosition', inside='RelativePositionBias', normed_bias=True),
        ),
        **named_rows('1-D sinusoids', '67.70 70.66 72.22 72.52', joinings(('SinusoidalPosition', 1))),
        **named_rows('2-D sinusoids', '71.46 71.47 72.49 72.68', joinings(('SinusoidalPosition', 2))),
        **named_rows('learned', '71.54 72.00 72.86 73.11', joinings('LearnedPosition')),
        'learned, unshared': ('71.90', plain(3, joining='UnsharedJoining')),
    },
    'LaPE, Table 8': {
        'default': ('71.54', plain(3)),
        **{
            label: (figure, lape(norm=norm))
            for (label, norm), figure in zip(FORMS.items(), FORM_FIGURES.split(), strict=True)
        },
    },
    'LaPE, arXiv v1, Table 5': {
        'default': ('74.984', LITE),
        **{
            label: (figure, lite(norm=norm))
            for (label, norm), figure in zip(FORMS.items(), LITE_FIGURES.split(), strict=True)
            if figure != '-'
        },
    },
    'LaPE, arXiv v1, Table 6': {
        'default': ('74.984', LITE),
        **{
            str(count): (figure, lite(count))
            for count, figure in enumerate(FIRST_LAYERS_FIGURES.split(), start=1)
        },
    },
}  # fmt: skip


@pytest.fixture(scope='module')
def found_once():
    """Each command looks for its config among all that are shipped."""
    configs = shipped_configs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmlape.shipped.shipped_configs', lambda: configs)
        yield


def rows_of_page() -> dict:
    """By heading and row, the command and the figure."""
    found = {}
    for part in PAGE.read_text().split('\n## ')[1:]:
        heading, _, text = part.partition('\n')
        rows = re.findall(ROW, text)
        assert len({label for label, *_ in rows}) == len(rows)
        if rows and not heading.startswith('Gabor'):  # they are below
            found[heading] = {label: (command, figure) for label, command, figure in rows}
    return found


ROWS = rows_of_page()


@cache
def _options(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    return parser.parse_args(shlex.split(command))


def config_of(command: str) -> Config:
    options = _options(command)
    return merge_overrides(copy.deepcopy(file_of(options.config)), options.cfg_options)


@cache
def file_of(name: str) -> Config:
    return Config.fromfile(find_config(name))


@cache  # rows of several tables; they are of shapes alone
def backbone_of(command: str) -> torch.nn.Module:
    with torch.device('meta'):
        return MODELS.build(config_of(command).model.backbone)


def facts_of(model, asked: dict) -> dict:
    """What a backbone is, in the terms of what is asked."""
    stages = model.stages()
    blocks = [block for stage in stages for block in stage.blocks]
    norms = [block.norm1 for block in blocks if hasattr(block, 'norm1')]
    insides = {
        type(position).__name__ if position is not None else None
        for position in (getattr(block.attn, 'position', None) for block in blocks)
    }
    facts: dict = dict(depths=[len(stage.blocks) for stage in stages])
    if 'norms' in asked:
        kinds = [[type(block.norm1).__name__ for block in stage.blocks] for stage in stages]
        assert kinds == [[type(block.norm2).__name__ for block in stage.blocks] for stage in stages]
        if len(stages) > 1:
            assert all(len(set(kind)) == 1 for kind in kinds)
        facts['norms'] = kinds[0] if len(stages) == 1 else [kind[0] for kind in kinds]
    facts['inside'] = insides.pop() if len(insides) == 1 else insides
    facts['after'] = stages[-1].prefix_after
    heads = [stage.blocks[0].attn.num_heads for stage in stages]
    facts['heads'] = heads[0] if len(stages) == 1 else heads
    facts['norm'] = {
        path: attrgetter(path)(norm)
        for norm in norms
        if type(norm).__name__ != 'LN'
        for path in asked.get('norm', ())
    }
    if 'position' in asked:
        joined = {
            (type(s.position.embedding).__name__, type(s.position.joining).__name__) for s in stages
        }
        ((embedding, facts['joining']),) = joined
        axes = getattr(stages[0].position.embedding, 'axes', None)
        facts['position'] = embedding if axes is None else (embedding, axes)
    if 'joined' in asked:
        joining = stages[0].position.joining
        facts['joined'] = dict(progressive=joining.progressive, layers=list(joining.layers))
        if 'norm' in asked['joined']:
            facts['joined']['norm'] = form_of(joining.norms[0], joining.embed_dims)
    if 'normed_bias' in asked:
        facts['normed_bias'] = blocks[0].attn.position.pe_norm is not None
    return facts  # fmt: skip


def form_of(norm: torch.nn.Module, channels: int) -> str:
    """The row of Table 8 that a layer's module is, by its parameters and what it does without them."""
    norm = norm.to_empty(device='cpu')
    for name, value in (('weight', 1.0), ('bias', 0.0)):
        if getattr(norm, name, None) is not None:
            torch.nn.init.constant_(getattr(norm, name), value)
    rows = torch.randn(1, 4, channels)
    parts = [] if torch.equal(norm(rows), rows) else ['norm']
    sizes = {name: parameter.numel() for name, parameter in norm.named_parameters()}
    gains = {0: [], 1: ['scalar_gain'], channels: ['channel_gain']}
    parts += gains[sizes.get('weight', 0)] + ['bias'] * (sizes.get('bias') == channels)
    return '_'.join(parts) or 'identity'


def test_no_row_is_missing_or_made_up():
    expected = {
        heading: {row: figure for row, (figure, _) in rows.items()}
        for heading, rows in EXPECTED.items()
    }
    assert expected == {
        h: {row: figure for row, (_, figure) in rows.items()} for h, rows in ROWS.items()
    }


@pytest.mark.parametrize('heading', EXPECTED)
def test_commands_build_what_rows_name(heading):
    for label, (_, facts) in EXPECTED[heading].items():
        model = backbone_of(ROWS[heading][label][0])
        found = facts_of(model, facts)
        assert {key: found[key] for key in facts} == facts, label


# The other one is of two networks, each with its own recipe.
OF_ONE_NETWORK = [heading for heading in EXPECTED if not heading.endswith('relative position')]


@pytest.mark.parametrize('heading', OF_ONE_NETWORK)
def test_rows_differ_in_the_backbone_alone(heading):
    """Recipe, data and head of a table are one."""
    seen = []
    for command, _ in ROWS[heading].values():
        cfg = config_of(command).to_dict()
        del cfg['model']['backbone']
        cfg.pop('filename', None)
        seen.append(cfg)
    assert all(cfg == seen[0] for cfg in seen[1:])


# Section 5 of the Gabor paper: commands train as many values as its tables print, and no more.
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

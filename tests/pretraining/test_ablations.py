"""Commands of configs/ablations/README.md build the networks that their rows name; figures are the published ones."""

import argparse
import copy
import re
import shlex
from functools import cache

import pytest
import torch
from config_utils import CONFIGS, ablation_configs, use_scope
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS as CLASSIFIERS
from mmpretrain.structures import DataSample
from mmpretrain.utils import register_all_modules

from mmlape.cli.arguments import add_common_options, find_config
from mmlape.cli.options import merge_overrides
from mmlape.registry import MODELS

PAGE = CONFIGS / 'ablations' / 'README.md'
ROW = r'\| (.+?) \| `mmlape train (.+?)` \| ([\d.]+) \|'
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
    'DTN, Table 3, ViT-S': zoo(6, '79.9 77.3 77.7 78.3 80.1 80.0 79.8 80.6'),
    'DTN, Table 3, ViT-S*': zoo(9, '80.6 77.2 77.6 79.5 81.0 80.6 80.4 81.7'),
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
            '73.11',
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


def rows_of_page() -> dict:
    """By heading and row, the command and the figure."""
    found = {}
    for part in PAGE.read_text().split('\n## ')[1:]:
        heading, _, text = part.partition('\n')
        rows = re.findall(ROW, text)
        assert len({label for label, *_ in rows}) == len(rows)
        if rows and not heading.startswith('Gabor'):  # test_gabor_recipes.py has those
            found[heading] = {label: (command, figure) for label, command, figure in rows}
    return found


ROWS = rows_of_page()


def config_of(command: str) -> Config:
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    options = parser.parse_args(shlex.split(command))
    return merge_overrides(copy.deepcopy(file_of(options.config)), options.cfg_options)


@cache
def file_of(name: str) -> Config:
    return Config.fromfile(find_config(name))


@cache  # rows of several tables; they are of shapes alone
def backbone_of(command: str) -> torch.nn.Module:
    with torch.device('meta'):
        return MODELS.build(config_of(command).model.backbone)


def attribute(thing, path: str):
    for name in path.split('.'):
        thing = getattr(thing, name)
    return thing


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
        path: attribute(norm, path)
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


TRAINED_WHOLE = [path for path in ablation_configs() if path.stem.endswith('_8xb128_in1k')]


@pytest.mark.slow
@pytest.mark.parametrize('path', TRAINED_WHOLE, ids=lambda path: path.stem)
def test_a_step_trains_all_of_it(path):
    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')
    cfg = Config.fromfile(path)
    model = CLASSIFIERS.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    model.init_weights()
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    samples = [DataSample().set_gt_label(label) for label in (1, 2)]
    data = dict(inputs=torch.randint(0, 256, (2, 3, 64, 64)), data_samples=samples)
    losses = model.train().train_step(data, wrapper)
    assert losses['loss'].isfinite()
    # The table's initial zeros and ones move too; what has no gradient would stay.
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []

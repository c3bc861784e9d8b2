"""Initial values of every registered part are those of the tables in docs/initial_values.md, and of timm's networks."""

import ast
import math
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import NamedTuple

import pytest
import timm
import torch
from docs_pages import REPO
from registered import (
    BACKBONES,
    ceit,
    compact,
    component,
    eomt,
    levit,
    pvt,
    registered,
    sequence,
    swin,
    t2t,
    vit,
)
from scipy import stats
from torch import nn

from mmlape import necks
from mmlape.checkpoints import convert
from mmlape.registry import MODELS

PAGE = REPO / 'docs' / 'initial_values.md'
NECKS = {
    name: value
    for name, value in vars(necks).items()
    if isinstance(value, type) and value.__module__ == necks.__name__
}
# Networks with enough of what others have little of, and variants that start otherwise.
WIDE = dict(embed_dims=128, depth=1, num_heads=4, mlp_ratio=2)
SAMPLES = {
    **BACKBONES,
    'LaPEWarmStart': vit(joining=component('LaPEWarmStart')),
    'ViT, wide': vit(arch=WIDE, num_registers=4, with_dist_token=True),
    'CeiT, wide': ceit(arch=dict(WIDE, depth=4), out_type='cls_token'),
    'T2T-ViT, wide': t2t(arch=WIDE, tokens=component('TransformerTokens'), token_dims=32),
    'CCT, wide': compact(
        arch=WIDE, stem=component('ConvPoolStem', num_convs=2), block=component('StreamNormBlock', layer_scale=0.5)
    ),
    'CVT, wider': compact(arch=dict(WIDE, embed_dims=512, mlp_ratio=1), out_type='pooled'),
    'DTN, 24 heads': vit(arch=dict(embed_dims=48, depth=3, num_heads=24), norm_cfg=component('DTN', layers=3)),
    'QuadraticBias, 150 heads': vit(
        arch=dict(embed_dims=150, depth=1, num_heads=150), attention_position=component('QuadraticBias')
    ),
    'Swin, wide windows': swin(window_size=7),
    'LeViT, wide': levit(arch=dict(embed_dims=[64] * 3, depths=[1] * 3, num_heads=[2] * 3, key_dims=8)),
    'Gabor, wide': vit(arch=WIDE, position=component('GaborPosition'), attention_position=False),
    'differential, wide': vit(arch=dict(WIDE, depth=8), attention=component('DifferentialAttention')),
    'LSH, wide': vit(arch=WIDE, attention=component('LSHAttention')),
    'PVTv2': pvt('V2'),
    'factorized, wide': vit(arch=WIDE, position=component('FactorizedPosition')),
    'attention pooling, wide': vit(
        arch=dict(WIDE, embed_dims=512), out_type=component('AttentionPooling')
    ),
    'SimpleFeaturePyramid': lambda: necks.SimpleFeaturePyramid(in_channels=64),
    'MapNorms': lambda: necks.MapNorms(in_channels=8),
    'LastMapAttention': lambda: necks.LastMapAttention(in_channels=8, num_heads=2),
    'LN2d': lambda: necks.LN2d(8),
    'ConcatVectors': necks.ConcatVectors,
    'sequences, wide': sequence(arch=WIDE),
    'EoMT, wide': partial(eomt(arch=WIDE), num_queries=50),
    'light adapter, wide': lambda: MODELS.build(
        dict(
            type='mmlape.LightViTAdapter',
            vit=dict(arch=dict(WIDE, embed_dims=192), with_cls_token=False, final_norm=False),
        )
    ),
    'adapter, wide': lambda: MODELS.build(
        dict(
            type='mmlape.ViTAdapter',
            vit=dict(arch=dict(WIDE, embed_dims=192, depth=4), with_cls_token=False, final_norm=False),
            conv_inplanes=8,
            interaction_indexes=[[layer, layer] for layer in range(4)],
        )
    ),
}  # fmt: skip
# What a part needs to be built alone, for rows that name an option.
ALONE = {
    'LearnedPosition': dict(embed_dims=64, grid=(8, 8)),
    'LaPEWarmStart': dict(embed_dims=8, depth=3),
    'QuadraticBias': dict(embed_dims=512, num_heads=512, grid=(8, 8)),
    'RelativePositionBias': dict(embed_dims=8, num_heads=8, grid=(8, 8)),
    'DTN': dict(num_features=512, num_heads=512),
}


class Row(NamedTuple):
    """A line of the page for one part."""

    line: str
    part: str
    options: dict
    patterns: tuple
    law: str


class Entry(NamedTuple):
    """A tensor of a sample, and the module that has it."""

    name: str
    value: torch.Tensor
    module: nn.Module


@cache
def rows():
    """Those of all tables, by part."""
    found = []
    for line in PAGE.read_text(encoding='utf-8').splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if len(cells) == 4 and cells[0].startswith('`'):
            parts, patterns, laws = (re.findall('`([^`]+)`', cell) for cell in cells[:3])
            assert len(laws) == 1 and patterns and cells[3], line
            for part in parts:
                call = ast.parse(part, mode='eval').body
                given = call.keywords if isinstance(call, ast.Call) else []
                options = {word.arg: ast.literal_eval(word.value) for word in given}
                name = part.partition('(')[0].removeprefix('mmlape.')
                found.append(Row(line, name, options, tuple(patterns), laws[0]))
    return found


def entries(model):
    """Parameters, and the buffers of our own parts."""
    for path, module in model.named_modules():
        ours = type(module).__module__.startswith('mmlape.')
        saved = set(module.state_dict()) if ours else set()
        own = dict(module.named_parameters(recurse=False))
        own.update((n, b) for n, b in module.named_buffers(recurse=False) if n in saved)
        for name, value in own.items():
            if value.numel():
                yield Entry(f'{path}.{name}'.lstrip('.'), value.detach().double(), module)


def says(row, name):
    return any(fnmatchcase(name, pattern) for pattern in row.patterns)


def row_of(name, modules, by_class):
    """The row of a tensor: that of the outermost part that has one."""
    steps, parts = name.split('.'), []
    for depth in range(len(steps)):
        part = by_class.get(type(modules['.'.join(steps[:depth])]))
        parts += [part] if part else []
        inside = '.'.join(steps[depth:])
        matching = [r for r in rows() if r.part == part and not r.options and says(r, inside)]
        assert len(matching) < 2, f'{name} is in two rows: {matching}'
        if matching:
            return matching[0]
    raise AssertionError(f'{PAGE.name} says nothing of mmlape.{parts[-1]}: {name}')


@pytest.fixture(scope='module')
def drawn():
    """Tensors of all samples by the index of their row."""
    torch.manual_seed(0)
    by_class = {made: name for name, made in (registered() | NECKS).items()}
    found = defaultdict(list)
    for build in SAMPLES.values():
        model = build()
        modules = dict(model.named_modules())
        for entry in entries(model):
            found[rows().index(row_of(entry.name, modules, by_class))].append(entry)
    for index, row in enumerate(rows()):
        if row.options:
            config = component(row.part, **ALONE[row.part], **row.options)
            found[index] = [e for e in entries(MODELS.build(config)) if says(row, e.name)]
    return found


def constant(number):
    def check(found):
        for entry in found:
            wanted = number(entry.value)
            torch.testing.assert_close(entry.value, torch.full_like(entry.value, wanted))

    return check


def distributed(law, standard, least=400):
    """Whether ``standard(entry)`` of all tensors together is distributed as ``law`` of SciPy."""

    def check(found):
        values = torch.cat([standard(entry).flatten() for entry in found]).numpy()
        assert len(values) >= least, f'{len(values)} values are too few to tell'
        assert stats.kstest(values, law).pvalue > 1e-4
        mean, deviation = getattr(stats, law).stats()[0], getattr(stats, law).std()
        assert abs(values.mean() - mean) < 4 * deviation / len(values) ** 0.5
        assert values.std() == pytest.approx(deviation, rel=3 / len(values) ** 0.5)

    return check


def normal(number):
    return distributed('norm', lambda entry: entry.value / number)


def truncated(number):
    def check(found):
        assert all(entry.value.abs().max() <= 2 for entry in found)
        normal(number)(found)

    return check


def uniform(low, high, of=lambda value: value):
    return distributed('uniform', lambda entry: (of(entry.value) - low) / (high - low))


def fans(entry):
    """Values that reach one output, and outputs that one value reaches."""
    weight = entry.module.weight
    place = math.prod(weight.shape[2:])
    groups = getattr(entry.module, 'groups', 1)
    if isinstance(entry.module, nn.ConvTranspose2d):
        return weight.shape[0] * place // groups, weight.shape[1] * place
    return weight.shape[1] * place, weight.shape[0] * place // groups


def by_fan(index):
    return distributed('norm', lambda entry: entry.value / math.sqrt(2 / fans(entry)[index]))


def pytorchs(entry):
    """PyTorch takes transposed convolutions for plain ones here."""
    fan = fans(entry)[isinstance(entry.module, nn.ConvTranspose2d)]
    return (entry.value * math.sqrt(fan) + 1) / 2


def xavier(entry):
    fan_in, fan_out = fans(entry)
    fan_out = fan_in if entry.name.endswith('qkv.weight') else fan_out  # three matrices in one
    return (entry.value / math.sqrt(6 / (fan_in + fan_out)) + 1) / 2


def equation_7(found):
    others = []
    for entry in found:
        weight = entry.value.float()
        side = math.isqrt(len(weight))
        steps = [2 * step - (side - 1) for step in range(side)]
        places = [(float(n), float(m), -1.0) for n in steps for m in steps]
        torch.testing.assert_close(weight[: side * side], torch.tensor(places))
        others.append(weight[side * side :].flatten())
    others = torch.cat(others)
    assert len(others) > 50 and others.std().item() == pytest.approx(0.02, rel=0.2)


def orthogonal(found):
    for entry in found:
        count = len(entry.value)
        torch.testing.assert_close(
            entry.value @ entry.value.T, count * torch.eye(count).double(), atol=1e-5, rtol=0
        )


def directions(found):
    """Points lie 1, 2, ... cells away along one side, as many in every direction, on every level."""
    for entry in found:
        points = entry.value.view(-1, 2)
        steps = points.abs().amax(dim=1)
        torch.testing.assert_close(steps, steps.round())
        ways = (points / steps[:, None]).mul(1e4).round().unique(dim=0, return_counts=True)[1]
        assert len(ways) in (2, 6) and ways.unique().numel() == 1
        assert steps.round().unique().tolist() == list(range(1, int(steps.max().round()) + 1))


def turned(found):
    for entry in found:
        pairs = entry.value.shape[2] // 2
        along, across = entry.value.split(pairs, dim=2)
        lengths = 10 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        for part in (along, across):
            torch.testing.assert_close(
                part.norm(dim=0), lengths.expand(len(part[0]), -1), rtol=1e-6, atol=0
            )
        torch.testing.assert_close(
            (along * across).sum(0), torch.zeros_like(along[0]), rtol=0, atol=1e-6
        )
        assert len(entry.value[0, :, 0].unique()) == entry.value.shape[1], 'every head has its own'


def scales(found):
    for entry in found:
        assert entry.value.unique().numel() == 1 and entry.value[0] in (0.5, 1)


LAWS = {
    '0': constant(lambda value: 0.0),
    '1': constant(lambda value: 1.0),
    '0.5': constant(lambda value: 0.5),
    'sqrt(C)': constant(lambda value: math.sqrt(len(value))),
    'layer_scale': scales,
    'normal(1)': normal(1.0),
    'normal(0.02)': normal(0.02),
    'normal(0.1)': normal(0.1),
    'truncated normal(0.02)': truncated(0.02),
    'truncated normal(0.2)': truncated(0.2),
    'truncated normal(1 / sqrt(C))': distributed(
        'norm', lambda entry: entry.value * math.sqrt(entry.value.shape[-1])
    ),
    'normal(sqrt(2 / fan_in))': by_fan(0),
    'normal(sqrt(2 / fan_out))': by_fan(1),
    'uniform(-pi, pi)': uniform(-math.pi, math.pi),
    '0.02 + softplus: uniform(0.3, 2)': uniform(
        0.3, 2, lambda value: 0.02 + nn.functional.softplus(value)
    ),
    '0.02 + softplus: log-uniform(0.4, 4)': uniform(
        math.log(0.4), math.log(4), lambda value: (0.02 + nn.functional.softplus(value)).log()
    ),
    "PyTorch's": distributed('uniform', pytorchs),
    'Xavier uniform': distributed('uniform', xavier),
    'equation 7': equation_7,
    'orthogonal rows of length sqrt(C / 2)': orthogonal,
    'wavelengths of the temperature, along a random direction and across it': turned,
    'a direction for each head, 1, 2, ... cells away': directions,
}


@pytest.mark.parametrize(
    'line', {row.line: row for row in rows()}, ids=lambda line: line.split('`')[1]
)
def test_values_are_those_of_the_page(line, drawn):
    """That every tensor of every part has a row is found out on the way."""
    of_line = {index: row for index, row in enumerate(rows()) if row.line == line}
    assert all(drawn[index] for index in of_line), f'no sample has all of {of_line}'
    LAWS[next(iter(of_line.values())).law]([entry for index in of_line for entry in drawn[index]])


def test_every_registered_part_is_in_a_sample():
    assert set(registered() | NECKS) <= set(SAMPLES)


# Rescaled by depth in timm, as BEiT's released code does before pre-training.
RESCALED = {'blocks.*.attn.proj.weight', 'blocks.*.mlp.fc2.weight'}
PLAIN = dict(type='mmlape.VisionTransformer', out_type='pooled')
# timm's name, our network, and what starts otherwise.
CASES = [
    ('deit_tiny_patch16_224', dict(PLAIN, arch='deit-tiny', out_type='cls_token'), {'cls_token'}),
    ('deit3_small_patch16_224', PLAIN, {'cls_token'}),
    ('vit_small_patch14_dinov2', PLAIN, {'cls_token'}),
    ('vit_small_patch16_dinov3', PLAIN, RESCALED),
    ('eva02_tiny_patch14_224', PLAIN, RESCALED),
    ('vit_small_patch16_rope_mixed_224', PLAIN, RESCALED | {'blocks.*.attn.position.freqs'}),
    ('swin_tiny_patch4_window7_224', dict(type='mmlape.SwinTransformer'), set()),
    ('pvt_v2_b0', dict(type='mmlape.PyramidVisionTransformerV2', arch='b0'), set()),
    ('levit_128s', dict(type='mmlape.LeViT'), set()),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'config', 'otherwise'), CASES, ids=[case[0] for case in CASES])
def test_initial_values_are_timms(name, config, otherwise):
    """Mean and standard deviation of all parameters of one name, over the layers."""
    ours = MODELS.build({'arch': name, **config} if config is PLAIN else config)
    theirs = convert(timm.create_model(name).state_dict(), 'timm', ours, min_matched=0.9)
    values = {}
    for key, value in ours.state_dict().items():
        both = values.setdefault(re.sub(r'\.\d+\.', '.*.', key), ([], []))
        both[0].append(value.float().flatten())
        both[1].append(theirs[key].float().flatten())
    assert otherwise <= values.keys()
    compared = 0
    for key, both in values.items():
        mine, upstream = map(torch.cat, both)
        if key in otherwise or len(mine) < 2:
            continue
        compared += 1
        error = (0.01 + 5 / len(mine) ** 0.5) * upstream.std() + 1e-7
        assert abs(mine.mean() - upstream.mean()) <= 2 * error, key
        assert abs(mine.std() - upstream.std()) <= error, key
    assert compared > 10

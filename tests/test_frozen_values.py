"""What every registered class computes, starts from and has as defaults is what tests/data/frozen_values.json says.

The outputs were frozen when all of them had been compared with the published implementations, the initial values when
they had been compared with the papers and the released code. For a new class, or a change that is meant to change
values, ``python tests/test_frozen_values.py`` writes the file: lines that differ only by rounding stay as they are.
"""

import inspect
import json
import math
import re
import sys
import zlib
from collections import defaultdict
from itertools import chain
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent), str(TESTS / 'helpers')]  # run as a program, from any folder

import pytest  # noqa: E402
import torch  # noqa: E402
from backbone_variants import VARIANTS, component  # noqa: E402
from registered import BACKBONES, PACKAGES, classes, needed, registered  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

# These register classes that configs import by `custom_imports`.
import mmlape.research.pretraining.dino  # noqa: E402
import mmlape.research.pretraining.distillation  # noqa: E402, F401
from mmlape.backbones import UNSET  # noqa: E402
from mmlape.registry import MODELS  # noqa: E402

FILE = TESTS / 'data' / 'frozen_values.json'
SIZE = (40, 75)
# Of what is computed in float64, and of statistics in float32.
TOLERANCE = 2e-4
NETWORKS = {**BACKBONES, **VARIANTS}
# Options that change initial values, where no network of `BACKBONES` has them.
STARTS_OTHERWISE = [
    component('LearnedPosition', std=0.0),
    component('LearnedPosition', std=0.2),
    component('LaPEWarmStart'),
    component('QuadraticBias', position_init='local'),
    component('RelativePositionBias', std=0.02),
    component('RelativePositionBias', layer_norm=True),
    component('RelativePositionBias', prefix_scores=True),
    component('DTN', position_init='random'),
]


def named_values(name, like):
    """Values that depend on a name and a shape alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(like.shape, generator=generator).to(like.dtype)


def measured(build):
    """Per output its size and a projection of it; the same of all gradients together, and of the image's.

    In float64: where a bilinear sample lies on a cell's edge, the gradient in float32 depends on the processor.
    """
    model = build().eval().double()
    with torch.no_grad():
        for name, value in chain(model.named_parameters(), model.named_buffers()):
            if value.is_floating_point():
                drawn = 0.25 * named_values(name, value)
                value.copy_(
                    1 + drawn
                    if name.endswith(('norm.weight', 'running_var', 'running_square'))
                    else drawn
                )
    image = named_values('image', torch.empty(2, 3, *SIZE).double()).requires_grad_()
    outputs = tree_leaves(model(image))  # floating point noise is 1e-6 of their size
    weights = [named_values(f'output{i}', output) for i, output in enumerate(outputs)]
    sum(
        (output * weight).mean() for output, weight in zip(outputs, weights, strict=True)
    ).backward()
    gradients = [
        (named_values(name, p), p.grad)
        for name, p in model.named_parameters()
        if p.grad is not None
    ]
    if image.grad is not None:
        gradients.append((named_values('image gradient', image), image.grad))
    outputs = [output.detach() for output in outputs]
    rows = [
        [float(o.double().norm()), float((o * w).double().sum())]
        for o, w in zip(outputs, weights, strict=True)
    ]
    norm = sum(float(g.double().square().sum()) for _, g in gradients) ** 0.5
    rows.append([norm, sum(float((w * g).double().sum()) for w, g in gradients)])
    return rows


def trunc_normal(tensor, mean=0.0, std=1.0, a=-2.0, b=2.0):
    """Draw as torch did until 2.14: later versions redraw what is out of bounds."""
    with torch.no_grad():
        low, high = (math.erf((bound - mean) / std / 2**0.5) for bound in (a, b))
        return tensor.uniform_(low, high).erfinv_().mul_(std * 2**0.5).add_(mean).clamp_(a, b)


class SeedEachDraw(TorchDispatchMode):
    """What is drawn does not depend on earlier draws: a new parameter changes its own values alone."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        torch.manual_seed(0)
        return func(*args, **(kwargs or {}))


def _starts():
    """How to build each part to look at its initial values, and the class of the part."""
    found = {name: (NETWORKS[name], made) for name, made in registered().items()}
    alone = [component(name) for name in registered(('mmlape.necks',))] + STARTS_OTHERWISE
    for config in alone:
        made = MODELS.get(config['type'])
        options = {key: value for key, value in config.items() if key != 'type'}
        named = ', '.join(f'{key}={value!r}' for key, value in options.items())
        whole = {**config, **needed(made, **options)}
        found[f'{made.__name__}({named})'] = (lambda whole=whole: MODELS.build(whole)), made
    return found


STARTS = _starts()


def initial_values(name):
    """Mean and standard deviation of each entry of a part's state; of all layers together."""
    build, made = STARTS[name]
    with SeedEachDraw(), mock.patch('torch.nn.init.trunc_normal_', trunc_normal):
        model = build()
    part = next(each for each in model.modules() if type(each) is made)
    entries = defaultdict(list)
    for key, value in part.state_dict().items():
        if value.numel():
            entries[re.sub(r'\d+', '*', key)].append(value.double().flatten())
    rows = {}
    for key, values in entries.items():
        values = torch.cat(values)
        row = float(values.mean()), float(values.std(correction=0))
        rows[key] = [float(f'{number:.6g}') for number in row]
    return rows


def defaults(made):
    """What a class's signature says that is not nothing (None, 0, False), as JSON has it."""
    values = {key: p.default for key, p in inspect.signature(made).parameters.items()}
    told = {
        key: value
        for key, value in values.items()
        if value is not inspect.Parameter.empty
        and value is not None
        and value is not UNSET
        and value not in (0, False)
    }
    return json.loads(json.dumps(told))


# Those with a constructor of our own: upstream's defaults are upstream's.
CLASSES = {
    name: made
    for name, made in sorted(classes().items())
    if '__init__' in vars(made) or made.__module__.startswith(PACKAGES)
}
SECTIONS = {
    'outputs': (NETWORKS, lambda name: measured(NETWORKS[name])),
    'initial values': (STARTS, initial_values),
    'defaults': (CLASSES, lambda name: defaults(CLASSES[name])),
}


def same_outputs(found, frozen):
    return len(found) == len(frozen) and all(
        math.isclose(size, own_size, rel_tol=TOLERANCE)
        and abs(projection - own_projection) <= TOLERANCE * own_size
        for (size, projection), (own_size, own_projection) in zip(found, frozen, strict=True)
    )


def same_initial_values(found, frozen):
    return found.keys() == frozen.keys() and all(
        math.isclose(number, own, rel_tol=TOLERANCE, abs_tol=TOLERANCE * spread + 1e-9)
        for key, row in found.items()
        for spread in [frozen[key][1]]
        for number, own in zip(row, frozen[key], strict=True)
    )


SAME = {'outputs': same_outputs, 'initial values': same_initial_values, 'defaults': dict.__eq__}
CASES = [(section, name) for section, (names, _) in SECTIONS.items() for name in names]


@pytest.fixture(scope='module')
def frozen():
    return json.loads(FILE.read_text())


@pytest.mark.parametrize(('section', 'name'), CASES)
def test_values_are_the_frozen_ones(section, name, frozen):
    found, expected = SECTIONS[section][1](name), frozen[section].get(name)
    assert expected is not None, f'run `python tests/{Path(__file__).name}`, which adds {name}'
    assert SAME[section](found, expected), (found, expected)


def test_the_file_holds_nothing_else(frozen):
    assert {key: sorted(rows) for key, rows in frozen.items()} == {
        key: sorted(names) for key, (names, _) in SECTIONS.items()
    }


def renewed(section, old):
    """Rows of a section; of the old ones those that are equal but for rounding."""
    names, measure = SECTIONS[section]
    rows = {name: measure(name) for name in sorted(names)}
    return {
        name: old[name] if name in old and SAME[section](row, old[name]) else row
        for name, row in rows.items()
    }


def test_rows_that_differ_by_rounding_are_left():
    names, measure = SECTIONS['defaults'][0], SECTIONS['initial values'][1]
    assert renewed('defaults', dict(DTN={'eps': 1.0}))['DTN']['eps'] == 1e-5 and 'LN' in names
    row = measure('LearnedPosition(std=0.2)')
    near, far = (
        {'pos_embed': [row['pos_embed'][0], row['pos_embed'][1] * by]} for by in (1.0001, 1.001)
    )
    assert same_initial_values(row, near) and not same_initial_values(row, far)


def write():
    """Write the file, a line for each name."""
    old, sections = json.loads(FILE.read_text()), []
    for section in SECTIONS:
        rows = renewed(section, old.get(section, {}))
        lines = [f' {json.dumps(name)}: {json.dumps(row)}' for name, row in rows.items()]
        sections.append(f'{json.dumps(section)}: {{\n' + ',\n'.join(lines) + '\n}')
    FILE.write_text('{\n' + ',\n'.join(sections) + '\n}\n')


if __name__ == '__main__':
    write()

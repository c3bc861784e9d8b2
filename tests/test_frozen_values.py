"""Outputs and gradients of every registered part and every variant, on images that are not square and fit no patch, are
those that were frozen when all of them had been compared with the published implementations.

``python tests/test_frozen_values.py`` writes the file anew; do so only for a change that is meant to change values.
"""

import json
import sys
import zlib
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

FILE = Path(__file__).parent / 'data' / 'frozen_values.json'
SIZE = (40, 75)


def builders():
    from backbone_variants import VARIANTS
    from registered import BACKBONES

    return {**BACKBONES, **VARIANTS}


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
    rows = [
        [float(o.double().norm()), float((o * w).double().sum())]
        for o, w in zip(outputs, weights, strict=True)
    ]
    norm = sum(float(g.double().square().sum()) for _, g in gradients) ** 0.5
    rows.append([norm, sum(float((w * g).double().sum()) for w, g in gradients)])
    return rows


@pytest.mark.parametrize('name', builders())
def test_values_are_the_frozen_ones(name):
    frozen = json.loads(FILE.read_text())
    assert set(frozen) == set(builders())
    found, expected = measured(builders()[name]), frozen[name]
    assert len(found) == len(expected)
    for (size, projection), (own_size, own_projection) in zip(found, expected, strict=True):
        assert size == pytest.approx(own_size, rel=2e-4)
        assert projection == pytest.approx(own_projection, abs=2e-4 * own_size)


if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).parent))
    rows = {name: measured(build) for name, build in sorted(builders().items())}
    lines = (f' {json.dumps(name)}: {json.dumps(row)}' for name, row in rows.items())
    FILE.write_text('{\n' + ',\n'.join(lines) + '\n}\n')

"""What must hold for every backbone in every variant."""

import copy
import itertools
import pickle

import pytest
import torch
from backbone_variants import JOININGS, VARIANTS
from torch import nn
from torch.utils._pytree import tree_leaves

# Joinings alone, and every component in a smaller network, are traced in tests/test_registry.py; so is all of these.
TRACED = (
    'adapter-last-output', 'adapter-one-interaction', 'ceit-raw', 'compact-vit-lite', 'levit', 'pvt-two-outputs',
    'pvtv2', 'sequence-bigbird', 'sequence-lsh', 'swin', 'swin-lape-by-stage', 't2t-transformer', 'vit-raw',
    'vit-two-outputs', 'vit-windows', 'vit-windows-gabor-2,3,4', 'vit-without-prefix',
)  # fmt: skip
EXPORTED = {
    name: build
    for name, build in VARIANTS.items()
    if name not in TRACED
    if name.endswith('-lape') or name.partition('-')[2] not in JOININGS
}
each_variant = pytest.mark.parametrize('build', VARIANTS.values(), ids=VARIANTS.keys())


def random_parameters(model):
    """Initial values hide errors: LaPE's norms are all alike, injectors are zero."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def loss(outputs):
    return sum(output.square().mean() for output in outputs)


@each_variant
def test_trains(build):
    """No NaN, and every parameter gets a gradient."""
    model = random_parameters(build())
    outputs = model(torch.randn(2, 3, 72, 40))
    loss(outputs).backward()
    assert all(output.isfinite().all() for output in outputs)
    without = [
        n
        for n, p in model.named_parameters()
        if p.numel()
        and (p.grad is None or not p.grad.abs().sum() > 0)
        # What is added to all keys alike cancels in the softmax; whether rounding leaves something is chance. In qkv it
        # is a part of what has a gradient.
        and (p.grad is None or not n.endswith('attn.position.pe_norm.bias'))
    ]
    assert without == []


@each_variant
def test_recomputed_equals_plain(build):
    model = random_parameters(build()).eval()
    image = torch.randn(1, 3, 40, 72)
    results = []
    for with_cp in (False, True):
        for module in model.modules():
            if hasattr(module, 'with_cp'):
                module.with_cp = with_cp
        model.zero_grad()
        outputs = model(image)
        loss(outputs).backward()
        results.append((outputs, [p.grad.clone() for p in model.parameters()]))
    (plain, plain_grads), (again, again_grads) = results
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert all(
        torch.allclose(a, b, atol=1e-6) for a, b in zip(plain_grads, again_grads, strict=True)
    )


@each_variant
def test_state_dict_round_trip(build):
    source, target = random_parameters(build()).eval(), build().eval()
    target.load_state_dict(source.state_dict(), strict=True)
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(source(image), target(image), strict=True))


@each_variant
def test_copies_and_pickles(build):
    """What EMA hooks and ``torch.save(model)`` do."""
    model, image = random_parameters(build()).eval(), torch.randn(1, 3, 40, 64)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            assert all(torch.equal(a, b) for a, b in zip(model(image), again(image), strict=True))


@each_variant
@pytest.mark.parametrize(('dtype', 'accepted'), [(torch.float16, 0.004), (torch.bfloat16, 0.025)])
def test_autocast(build, dtype, accepted):
    model, image = random_parameters(build()).eval(), torch.rand(1, 3, 64, 48)
    expected = model(image)
    with torch.autocast('cpu', dtype=dtype):
        outputs = model(image)
        loss(outputs).backward()
    for got, exact in zip(outputs, expected, strict=True):
        scale = exact.abs().max()
        torch.testing.assert_close(got.float() / scale, exact / scale, atol=accepted, rtol=0)
    assert all(p.grad.isfinite().all() for p in model.parameters())


@each_variant
def test_deterministic_per_image(build):
    """An image's result does not depend on what else is in the batch."""
    model, images = random_parameters(build()).eval(), torch.randn(3, 3, 50, 70)
    with torch.no_grad():
        together = model(images)
        alone = [
            torch.cat(parts)
            for parts in zip(*(model(image[None]) for image in images), strict=True)
        ]
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in itertools.zip_longest(together, alone))


@pytest.mark.parametrize(
    'build',
    [
        pytest.param(build, id=name, marks=() if name == 'vit-lape' else pytest.mark.slow)
        for name, build in EXPORTED.items()
    ],
)
def test_exports_for_any_batch(build):
    """``torch.export``: one graph for every number of images, and the model is what it was."""
    model, image = random_parameters(build()).eval(), torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        before = model(image)
        batch = {'image': {0: torch.export.Dim('batch')}}
        graph = torch.export.export(model, (image,), dynamic_shapes=batch).module()
        results = [(graph(x), model(x)) for x in (image, torch.randn(3, 3, 64, 48))]
    for exported, plain in [*results, (model(image), before)]:
        for a, b in zip(tree_leaves(exported), tree_leaves(plain), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

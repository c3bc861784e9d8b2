"""Properties of every registered component, in a network that contains it, and of every variant of every backbone."""

import copy
import pickle

import pytest
import torch
from backbone_variants import JOININGS, VARIANTS, randomise
from config_utils import marked
from registered import BACKBONES, registered
from torch.utils._pytree import tree_leaves

from mmlape.position import AttentionPosition

IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
STEMS_AND_POOLINGS = (
    'AttentionSubsampling', 'ConvStem', 'ImageToTokens', 'LayerClassAttention', 'AttentionPooling', 'PatchEmbed',
    'SequencePooling', 'TokenEmbed',
)  # fmt: skip
# A block is compiled where the component is a part of it.
IN_A_BLOCK = [
    name
    for name, made in registered().items()
    if (
        issubclass(made, AttentionPosition)
        or made.__module__.startswith(('mmlape.norm', 'mmlape.layers'))
    )
    and name not in STEMS_AND_POOLINGS
]
# Tracing all of them takes a minute.
EXPORTED_FAST = (
    'LaPE', 'RotaryPosition', 'DTN', 'SwitchableNorm', 'Attention', 'SequencePooling', 'PyramidVisionTransformerV2',
    'vit-lape',
)  # fmt: skip
# Joinings alone, and every component in a smaller network, are traced as components; so is all of these.
TRACED = (
    'adapter-last-output', 'adapter-one-interaction', 'ceit-raw', 'compact-vit-lite', 'levit', 'pvt-two-outputs',
    'pvtv2', 'sequence-bigbird', 'sequence-lsh', 'swin', 'swin-lape-by-stage', 't2t-transformer', 'vit-raw',
    'vit-two-outputs', 'vit-windows', 'vit-windows-gabor-2,3,4', 'vit-without-prefix',
)  # fmt: skip
EXPORTED = [
    *BACKBONES,
    *(
        name
        for name in VARIANTS
        if name not in TRACED
        if name.endswith('-lape') or name.partition('-')[2] not in JOININGS
    ),
]
NETWORKS = {**VARIANTS, **BACKBONES}


every_network = pytest.mark.parametrize('name', marked(NETWORKS, EXPORTED))
every_component = pytest.mark.parametrize('name', BACKBONES)
every_variant = pytest.mark.parametrize('name', VARIANTS)


def randomised(name, std=0.3, **options):
    return randomise(NETWORKS[name](**options), std).train()


def step(model, images=IMAGES):
    """Outputs, gradients and buffers of a step; dropout is drawn alike in all of them."""
    torch.manual_seed(1)
    model.zero_grad()
    outputs = tree_leaves(model(images))
    sum(output.float().square().mean() for output in outputs).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return outputs, gradients, dict(model.named_buffers())


@every_component
def test_its_network_contains_it(name):
    assert any(type(module) is registered()[name] for module in BACKBONES[name]().modules())


@every_component
def test_is_built_without_memory(name):
    with torch.device('meta'):
        model = BACKBONES[name]()
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@every_network
def test_copies_loaded_and_recomputed_networks_train_on(name):
    """After a step, so that its statistics count: as the model does, variants in evaluation alone."""
    model = randomised(name)
    step(model)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    loaded, recomputed = NETWORKS[name](), NETWORKS[name](with_cp=True)
    for other in (loaded, recomputed):
        other.load_state_dict(model.state_dict(), strict=True)
    for training in (True, False) if name in BACKBONES else (False,):
        expected = step(model.train(training))
        assert all(tensor.isfinite().all() for tensor in tree_leaves(expected))
        for other in (copied, loaded):
            torch.testing.assert_close(step(other.train(training)), expected, rtol=0, atol=0)
        found = step(recomputed.train(training))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('backend', ['eager', pytest.param('aot_eager', marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', IN_A_BLOCK)
def test_compiles_a_block(name, backend):
    """In one graph, with its gradients; those are in a graph of their own in the slow tests."""
    model = randomised(name).eval()
    block, calls = model.stages()[-1].blocks[-1], []
    handle = block.register_forward_pre_hook(lambda _block, arguments: calls.append(arguments))
    with torch.no_grad():
        model(IMAGES)
    handle.remove()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    (tokens, *rest), results = calls[0], []
    for call in (block, compiled):
        tokens = tokens.clone().requires_grad_()
        out = call(tokens, *rest)
        grads = torch.autograd.grad(out.square().sum(), [tokens, *block.parameters()])
        results.append((out, grads))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', marked(EXPORTED, EXPORTED_FAST))
def test_exports_for_any_batch(name):
    """``torch.export``: one graph for every number of images, and the model is what it was."""
    model = randomised(name, 0.1 if name in VARIANTS else 0.3).eval()
    batch = {'image': {0: torch.export.Dim('batch')}}
    with torch.no_grad():
        before = tree_leaves(model(IMAGES))
        graph = torch.export.export(model, (IMAGES,), dynamic_shapes=batch).module()
        for images in (IMAGES, torch.randn(3, 3, 32, 48)):
            exported, plain = tree_leaves(graph(images)), tree_leaves(model(images))
            torch.testing.assert_close(exported, plain, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tree_leaves(model(IMAGES)), before)


@every_variant
def test_every_parameter_learns(name):
    model = randomised(name, 0.1)
    outputs, gradients, _ = step(model, torch.randn(2, 3, 72, 40))
    assert all(output.isfinite().all() for output in outputs)
    without = {n for n, grad in gradients.items() if grad is None or not grad.any()}
    # What is added to all keys alike cancels in the softmax; whether rounding leaves something is chance.
    cancelled = {n for n in without if n.endswith('attn.position.pe_norm.bias')}
    empty = {n for n in without if not model.get_parameter(n).numel()}
    assert without == cancelled | empty and all(gradients[n] is not None for n in cancelled)


def in_half_precision(name, dtype, accepted):
    model, image = randomised(name, 0.1).eval(), torch.rand(2, 3, 32, 48)
    expected = tree_leaves(model(image))
    with torch.autocast('cpu', dtype=dtype):
        outputs, gradients, _ = step(model, image)
        trained = step(model.train(), image) if name in BACKBONES else ()
    for got, exact in zip(outputs, expected, strict=True):
        scale = exact.abs().max() if exact.numel() else 1
        torch.testing.assert_close(got.float() / scale, exact / scale, atol=accepted, rtol=0)
    if dtype == torch.bfloat16:  # float16 is trained with a loss scale
        assert all(tensor.isfinite().all() for tensor in tree_leaves([gradients, trained]))


@every_network
def test_autocast(name):
    in_half_precision(name, torch.bfloat16, 0.025)


@every_component
def test_autocast_to_float16(name):
    in_half_precision(name, torch.float16, 0.004)


@every_variant
def test_an_images_result_does_not_depend_on_the_rest_of_the_batch(name):
    model, images = randomised(name, 0.1).eval(), torch.randn(2, 3, 50, 38)
    with torch.no_grad():
        together = tree_leaves(model(images))
        alone = zip(*(tree_leaves(model(image[None])) for image in images), strict=True)
        torch.testing.assert_close(together, [torch.cat(p) for p in alone], atol=1e-4, rtol=1e-5)

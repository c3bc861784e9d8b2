"""Properties of every registered component, in a network that contains it."""

import copy
import pickle

import pytest
import torch
from backbone_variants import randomise
from config_utils import marked
from registered import BACKBONES, registered
from torch.utils._pytree import tree_leaves

from mmlape.layers.block import Block
from mmlape.position import AttentionPosition
from mmlape.registry import ChildRegistry
from mmlape.shipped import read_config

IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
OUTSIDE_OF_BLOCKS = (
    'AttentionSubsampling', 'ConvStem', 'ConvPoolStem', 'ImageToTokens', 'LayerClassAttention', 'AttentionPooling',
    'PatchEmbed', 'PatchMerging', 'PerformerTokens', 'SequencePooling', 'TokenEmbed', 'TokensToToken',
    'TransformerTokens',
)  # fmt: skip
IN_A_BLOCK = [
    name
    for name, made in registered().items()
    if (
        issubclass(made, AttentionPosition)
        or made.__module__.startswith(('mmlape.norm', 'mmlape.layers'))
    )
    and name not in OUTSIDE_OF_BLOCKS
]
# Tracing all of them takes minutes.
EXPORTED_FAST = ('LaPE', 'DTN')
COMPILED_FAST = ('GaborAttention', 'DTN', 'Attention')

every_component = pytest.mark.parametrize('name', BACKBONES)


def randomised(name, std=0.3, **options):
    return randomise(BACKBONES[name](**options), std).train()


def step(model, images=IMAGES):
    """Outputs, gradients and buffers of a step; dropout is drawn alike in all of them."""
    torch.manual_seed(1)
    model.zero_grad()
    outputs = tree_leaves(model(images))
    sum(output.float().square().mean() for output in outputs).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return outputs, gradients, dict(model.named_buffers())


@every_component
def test_its_network_contains_it_and_is_built_without_memory(name):
    with torch.device('meta'):
        model = BACKBONES[name]()
    assert any(type(module) is registered()[name] for module in model.modules())
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@every_component
def test_copies_loaded_and_recomputed_networks_train_on(name):
    """After a step, so that its statistics count: as the model does."""
    model = randomised(name)
    step(model)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    loaded, recomputed = BACKBONES[name](), BACKBONES[name](with_cp=True)
    for other in (loaded, recomputed):
        other.load_state_dict(model.state_dict(), strict=True)
    for training in (True, False):
        expected = step(model.train(training))
        assert all(tensor.isfinite().all() for tensor in tree_leaves(expected))
        for other in (copied, loaded)[not training :]:
            torch.testing.assert_close(step(other.train(training)), expected, rtol=0, atol=0)
        found = step(recomputed.train(training))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', marked(IN_A_BLOCK, COMPILED_FAST))
def test_compiles_a_block(name):
    """In one graph, with its gradients, which are in a graph of their own. A norm, an attention or a
    feed-forward network alone; with its block what is called by parts of that."""
    model, made = randomised(name).eval(), registered()[name]
    part, calls = model.stages()[-1].blocks[-1], []
    if not issubclass(made, (AttentionPosition, Block)):
        part = next(module for module in model.modules() if type(module) is made)
    handle = part.register_forward_pre_hook(lambda _part, arguments: calls.append(arguments))
    with torch.no_grad():
        model(IMAGES)
    handle.remove()
    torch._dynamo.reset()
    compiled = torch.compile(part, fullgraph=True, backend='aot_eager')
    (tokens, *rest), results = calls[0], []
    for call in (part, compiled):
        tokens = tokens.clone().requires_grad_()
        out = call(tokens, *rest)
        grads = torch.autograd.grad(out.square().sum(), [tokens, *part.parameters()])
        results.append((out, grads))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', marked(BACKBONES, EXPORTED_FAST))
def test_exports_for_any_batch(name):
    """``torch.export``: one graph for every number of images, and the model is what it was."""
    model = randomised(name).eval()
    batch = {'image': {0: torch.export.Dim('batch')}}
    with torch.no_grad():
        before = tree_leaves(model(IMAGES))
        graph = torch.export.export(model, (IMAGES,), dynamic_shapes=batch).module()
        for images in (IMAGES, torch.randn(3, 3, 32, 48)):
            exported, plain = tree_leaves(graph(images)), tree_leaves(model(images))
            torch.testing.assert_close(exported, plain, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(tree_leaves(model(IMAGES)), before)


@every_component
def test_autocast(name):
    model, image = randomised(name, 0.1).eval(), torch.rand(2, 3, 32, 48)
    expected = tree_leaves(model(image))
    for dtype, accepted in ((torch.float16, 0.004), (torch.bfloat16, 0.025)):
        with torch.autocast('cpu', dtype=dtype):
            outputs, gradients, _ = step(model, image)
        for got, exact in zip(outputs, expected, strict=True):
            scale = exact.abs().max() if exact.numel() else 1
            torch.testing.assert_close(got.float() / scale, exact / scale, atol=accepted, rtol=0)
    with torch.autocast('cpu', dtype=torch.bfloat16):  # float16 is trained with a loss scale
        trained = step(model.train(), image)
    assert all(tensor.isfinite().all() for tensor in tree_leaves([gradients, trained]))


def test_a_registry_without_locations_does_not_look_for_modules(monkeypatch):
    """Upstream's would, once a config has been read, and warn that mmlape is not installed."""
    read_config('segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512')
    said = []
    monkeypatch.setattr('mmengine.logging.print_log', lambda text, **_: said.append(text))
    made = ChildRegistry('task util', scope='mmlape', by_name={})
    assert not made.has_own('DarkBackground') and not made.module_dict and not said

"""Deformable attention, its sampling plan, and the exchange between ViT tokens and pyramid."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from mmcv.ops import MultiScaleDeformableAttention

from mmlape.cpu import optimize
from mmlape.layers import (
    DeformableAttention,
    Extractor,
    Injector,
    deformable,
    sampling_plan,
)

CPU = torch.device('cpu')
SHAPES = ((4, 6), (2, 3), (1, 2))
NUM_TOKENS = 24 + 6 + 2


def randomised(module):
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize('ratio', [1.0, 0.5])
def test_equals_mmcv_without_its_residual(ratio):
    module = randomised(DeformableAttention(8, 2, 3, 2, value_proj_ratio=ratio))
    query, value = torch.randn(2, 6, 8), torch.randn(2, NUM_TOKENS, 8)
    plan = sampling_plan(((2, 3),), SHAPES, CPU)
    upstream = MultiScaleDeformableAttention(
        8, 2, 3, 2, dropout=0.0, batch_first=True, value_proj_ratio=ratio
    )
    upstream.load_state_dict(module.state_dict())
    points = plan.reference_points.view(1, 6, 1, 2).expand(2, 6, 3, 2)
    expected = upstream(
        query,
        value=value,
        identity=torch.zeros_like(query),
        reference_points=points,
        spatial_shapes=plan.shapes_tensor,
        level_start_index=plan.level_starts,
    )
    assert torch.allclose(module(query, value, plan), expected, atol=1e-5)


@pytest.mark.parametrize('form', ['operator', 'pytorch'])
def test_samples_in_float32_under_autocast(form):
    module = randomised(DeformableAttention(8, 2, 3, 2))
    if form == 'operator':
        optimize(module, keep_memory=False)
    seen = []
    module.sampling.register_forward_hook(lambda _, given, out: seen.append((given, out)))
    plan = sampling_plan(((2, 3),), SHAPES, CPU)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        module(torch.randn(1, 6, 8), torch.randn(1, NUM_TOKENS, 8), plan)
    (((*given, _), sampled),) = seen
    assert {tensor.dtype for tensor in given} == {sampled.dtype} == {torch.bfloat16}
    exact = deformable.DeformableSampling()(*(tensor.float() for tensor in given), plan)
    # Of bfloat16 there is one rounding, of the result.
    torch.testing.assert_close(sampled, exact.bfloat16(), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize('cls', [Injector, Extractor])
def test_exchange_compiles_as_one_graph(cls):
    deform = dict(num_heads=2, num_points=2)
    module = randomised(cls(8, deform))
    tokens, pyramid = torch.randn(2, 6, 8), torch.randn(2, NUM_TOKENS, 8)
    if cls is Injector:
        arguments = (tokens, pyramid, sampling_plan(((2, 3),), SHAPES, CPU))
    else:
        arguments = (pyramid, tokens, sampling_plan(SHAPES, ((2, 3),), CPU), SHAPES)
    compiled = torch.compile(module, fullgraph=True, backend='eager')
    assert torch.allclose(compiled(*arguments), module(*arguments), atol=1e-5)


def test_mmcvs_kernels(monkeypatch):
    """With MMCV's PyTorch form in the place of its CUDA code: arguments, gradients, and what a compiler must know of
    the operator."""

    def forward(value, shapes, _starts, locations, weights, im2col_step):
        assert value.shape[0] == im2col_step
        return deformable.multi_scale_deformable_attn_pytorch(
            value, shapes.tolist(), locations, weights
        )

    def backward(*arguments, im2col_step):
        value, shapes, starts, locations, weights, grad, *found = arguments

        def gradients():
            leaves = [each.detach().requires_grad_() for each in (value, locations, weights)]
            out = forward(leaves[0], shapes, starts, *leaves[1:], im2col_step)
            return torch.autograd.grad(out, leaves, grad)

        with ThreadPoolExecutor(1) as another:  # in this one, an operator is below autograd
            for to, of in zip(found, another.submit(gradients).result(), strict=True):
                to += of

    stand_in = SimpleNamespace(ms_deform_attn_forward=forward, ms_deform_attn_backward=backward)
    monkeypatch.setattr(deformable, 'ext_module', stand_in)
    maps = [(5, 7), (2, 3)]
    value, locations = torch.randn(2, 41, 2, 4), torch.rand(2, 6, 2, 2, 3, 2)
    leaves = [value, locations, torch.rand(2, 6, 2, 2, 3)]
    for each in leaves:
        each.requires_grad_()
    shapes, starts = torch.tensor(maps), torch.tensor([0, 35])
    arguments = leaves[0], shapes, starts, *leaves[1:]
    torch.library.opcheck(deformable._in_graphs, arguments)
    wanted = deformable.multi_scale_deformable_attn_pytorch(leaves[0], maps, *leaves[1:])
    grad = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, leaves, grad)
    for sample in (deformable._in_graphs, deformable._Sampled.apply):
        found = sample(*arguments)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found, leaves, grad), gradients)

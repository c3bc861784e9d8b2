"""T2T-ViT against the published code and MMPretrain's: the same weights, the same outputs and gradients."""

from functools import partial

import pytest
import torch
from backbone_variants import T2T_ARCH, build_t2t, randomise
from mmpretrain.models.backbones import T2T_ViT
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from mmlape.checkpoints import convert
from mmlape.registry import MODELS

TRANSFORMER = dict(type='mmlape.TransformerTokens')


def openmmlab(**options):
    theirs = T2T_ViT(
        img_size=64,
        embed_dims=T2T_ARCH['embed_dims'],
        num_layers=T2T_ARCH['depth'],
        out_type='featmap',
        out_indices=[0, 2],
        t2t_cfg=dict(token_dims=8),
        layer_cfgs=dict(num_heads=2, feedforward_channels=2 * T2T_ARCH['embed_dims']),
        **options,
    )
    randomise(theirs)  # its eval() returns nothing
    for module in theirs.modules():
        # Here MMPretrain 1.3 multiplies scores by what it should divide them by.
        if isinstance(module, MultiheadAttention):
            scale = (module.input_dims // module.num_heads) ** -0.5
            attend = partial(nn.functional.scaled_dot_product_attention, scale=scale)
            module.scaled_dot_product_attention = attend
    return theirs


@pytest.mark.parametrize('size', [(64, 64), (112, 96), (64, 123), (143, 100)])
def test_maps_and_gradients_are_those_of_mmpretrain(size):
    """MMPretrain's takes sides of 4 n and 4 n - 1 pixels without leaving some out."""
    theirs = openmmlab()
    ours = build_t2t(tokens=TRANSFORMER, out_indices=[0, 2]).eval()
    for source in ('t2t', 'mmpretrain'):
        ours.load_state_dict(convert(theirs.state_dict(), source, ours), strict=True)
    images = [torch.randn(2, 3, *size).requires_grad_() for _ in range(2)]
    images[1].data.copy_(images[0].data)
    outputs = [model(image) for model, image in zip((ours, theirs), images, strict=True)]
    for mine, other in zip(*outputs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
    for maps in outputs:
        sum(output.square().mean() for output in maps).backward()
    gradients = [image.grad for image in images]
    assert (gradients[0] - gradients[1]).norm() < 1e-3 * gradients[1].norm()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, gradient in convert({**theirs.state_dict(), **expected}, 't2t', ours).items():
        mine = ours.get_parameter(name).grad
        assert (mine - gradient).norm() <= 1e-3 * gradient.norm(), name


def test_sinusoids_count_the_class_token_and_stay_where_they_were():
    model = build_t2t()
    rows = model.position.embedding((4, 4))[0]
    assert rows.shape == (17, 16)
    torch.testing.assert_close(rows[3, :2], rows.new_tensor([0.14112, -0.98999]))
    larger = model.position.embedding((8, 8))[0]
    torch.testing.assert_close(larger[0], rows[0])
    counted = build_t2t(position=dict(type='mmlape.SinusoidalPosition')).position.embedding((8, 8))
    torch.testing.assert_close(counted[0, :17], rows)
    assert (counted[0, 9] - larger[9]).abs().max() > 0.1


def test_features_are_drawn_with_the_seed():
    def drawn(seed):
        torch.manual_seed(seed)
        return build_t2t(token_dims=8).tokens_to_token.attention1.w

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))
    torch.testing.assert_close(drawn(3) @ drawn(3).T, 4 * torch.eye(4))
    state = build_t2t().state_dict()
    assert 'tokens_to_token.attention2.w' in state and 'pos_embed' not in state


@pytest.mark.parametrize(('dtype', 'accepted'), [(torch.float16, 0.004), (torch.bfloat16, 0.025)])
def test_features_are_float32(dtype, accepted):
    layer = MODELS.build(dict(type='mmlape.PerformerTokens', in_channels=20, embed_dims=16)).eval()
    tokens = torch.randn(2, 30, 20)
    seen = []
    layer.features = lambda x: seen.append(type(layer).features(layer, x)) or seen[-1]
    with torch.autocast('cpu', dtype=dtype):
        found = layer(tokens)
    assert {features.dtype for features in seen} == {torch.float32}
    torch.testing.assert_close(found.float(), layer(tokens), atol=accepted, rtol=0)
    half = layer.to(torch.bfloat16)(tokens.bfloat16())
    assert half.dtype == torch.bfloat16 and seen[-1].dtype == torch.float32

"""Necks and norms of maps: shapes at any size, known values, gradients."""

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from timm.models.vision_transformer import Block
from torch import nn

from mmlape.checkpoints import convert
from mmlape.necks import ConcatVectors, LastMapAttention, LN2d, MapNorms
from mmlape.registry import MODELS


def maps(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pyramid(**options):
    torch.manual_seed(0)
    return MODELS.build(
        dict(dict(type='mmlape.SimpleFeaturePyramid', in_channels=16, out_channels=8), **options)
    )


@pytest.mark.parametrize('grid', [(4, 6), (5, 3), (1, 1)])
@pytest.mark.parametrize('batch', [1, 2])
def test_shapes(grid, batch):
    height, width = grid
    outputs = pyramid(num_outs=6)([maps(batch, 3, 9, 9), maps(batch, 16, height, width)])
    sizes = [(4 * height, 4 * width), (2 * height, 2 * width), grid]
    for _ in range(3):
        sizes.append(tuple(-(-side // 2) for side in sizes[-1]))
    assert [tuple(output.shape) for output in outputs] == [(batch, 8, *size) for size in sizes]


def test_values_are_vitdets():
    """Level by level, by the functions of PyTorch."""
    neck, x = pyramid(), maps(2, 16, 4, 4)
    for parameter in neck.parameters():
        nn.init.normal_(parameter, std=0.3)

    def norm(value, layer):
        value = F.layer_norm(
            value.movedim(1, -1), layer.weight.shape, layer.weight, layer.bias, 1e-6
        )
        return value.movedim(-1, 1)

    def project(value, level):
        first, norm1, second, norm2 = level[-4:]
        value = norm(F.conv2d(value, first.weight), norm1)
        return norm(F.conv2d(value, second.weight, padding=1), norm2)

    def finer(value, layer):
        return F.conv_transpose2d(value, layer.weight, layer.bias, stride=2)

    four, two, one, half = neck.levels
    assert [len(level) for level in neck.levels] == [8, 5, 4, 5]
    expected = [
        project(finer(F.gelu(norm(finer(x, four[0]), four[1])), four[3]), four),
        project(finer(x, two[0]), two),
        project(x, one),
        project(F.max_pool2d(x, 2), half),
    ]
    for output, value in zip(neck([x]), expected, strict=True):
        torch.testing.assert_close(output, value)
    assert [level[-4].in_channels for level in neck.levels] == [4, 8, 16, 16]


@pytest.mark.parametrize('norm_cfg', [None, dict(type='BN')])
def test_maps_are_contiguous(norm_cfg):
    """MMCV's RoIAlign takes that for granted, and a ViT's map is a view of tokens."""
    view = maps(2, 4, 6, 16).permute(0, 3, 1, 2)
    assert not view.is_contiguous()
    assert all(output.is_contiguous() for output in pyramid(norm_cfg=norm_cfg)([view]))
    assert LN2d(16)(view).is_contiguous()


def test_every_parameter_has_a_gradient():
    neck = pyramid(scales=[2, 0.5], norm_cfg=dict(type='BN'))
    sum(output.sum() for output in neck([maps(2, 16, 4, 4).requires_grad_()])).backward()
    assert all(parameter.grad is not None for parameter in neck.parameters())
    assert len(neck.levels) == 2 and isinstance(neck.levels[0][2], nn.BatchNorm2d)


@pytest.mark.parametrize(('dtype', 'accepted'), [(torch.float16, 0.006), (torch.bfloat16, 0.04)])
def test_autocast(dtype, accepted):
    neck, x = pyramid(), maps(1, 16, 4, 4)
    with torch.autocast('cpu', dtype):
        outputs = neck([x])
    for output, exact in zip(outputs, neck([x]), strict=True):
        accepted_here = accepted * exact.abs().max().item()
        torch.testing.assert_close(output.float(), exact, atol=accepted_here, rtol=0)


def test_layer_norm_of_maps_in_upstreams_convolutions():
    layer = ConvModule(4, 6, 3, padding=1, norm_cfg=dict(type='mmlape.LN2d'), act_cfg=None)
    assert isinstance(layer.norm, LN2d) and layer.norm.eps == 1e-5, "MMCV's default"
    output = layer(maps(2, 4, 5, 3))
    torch.testing.assert_close(output.mean(1), torch.zeros(2, 5, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(output.std(1, correction=0), torch.ones(2, 5, 3), atol=1e-2, rtol=0)


def test_each_map_has_a_norm_of_its_own():
    neck = MapNorms(in_channels=[4, 6], norm_cfg=dict(type='BN'))
    inputs = maps(2, 4, 5, 3), 3 * maps(2, 6, 2, 2, seed=1) + 1
    for output, given in zip(neck(inputs), inputs, strict=True):
        torch.testing.assert_close(output, F.batch_norm(given, None, None, training=True))
    assert all(norm.num_batches_tracked == 1 for norm in neck.norms)
    assert next(iter(MapNorms(in_channels=4).state_dict())) == 'norms.0.weight'
    assert isinstance(MapNorms(in_channels=4).norms[0], nn.SyncBatchNorm)
    with pytest.raises(ValueError, match='shorter'):
        neck(inputs[:1])


def test_channels_are_dropped_before_the_norm():
    """DINOv3's order: statistics are those of what is left."""
    neck = MapNorms(in_channels=64, norm_cfg=dict(type='BN'), drop_rate=0.5)
    given = maps(2, 64, 5, 3).abs() + 1
    torch.manual_seed(0)
    output = neck([given])[0]
    torch.manual_seed(0)
    left = F.dropout2d(given, 0.5)
    assert 40 < (left == 0).all(dim=(2, 3)).sum() < 88
    torch.testing.assert_close(output, F.batch_norm(left, None, None, training=True))
    torch.testing.assert_close(neck.eval()([given])[0], neck.norms[0](given))
    with pytest.raises(ValueError, match='drop_rate must be'):
        MapNorms(in_channels=4, drop_rate=1.0)


def test_class_tokens_of_the_last_layers_are_those_of_dinos_linear_evaluation():
    """As timm's ``get_intermediate_layers``, which is DINO's: every layer's output through the last norm."""
    theirs = timm.create_model('deit_tiny_patch16_224', img_size=(48, 80)).eval()
    nn.init.normal_(theirs.norm.weight)
    ours = MODELS.build(
        dict(
            type='mmlape.VisionTransformer', arch='deit-tiny', img_size=(48, 80), out_type='cls_token',
            out_indices=(8, 9, 10, 11),
        )
    ).eval()  # fmt: skip
    ours.load_state_dict(convert(theirs.state_dict(), 'timm', ours))
    image = maps(2, 3, 48, 80)
    tokens = theirs.get_intermediate_layers(image, n=4, return_prefix_tokens=True, norm=True)
    expected = torch.cat([prefix[:, 0] for _, prefix in tokens], dim=1)
    (vector,) = ConcatVectors()(ours(image))
    torch.testing.assert_close(vector, expected, atol=1e-4, rtol=1e-4)


def test_attention_on_the_last_map_is_a_block_of_timm():
    """With a LayerNorm after it; other maps stay."""
    neck = LastMapAttention(in_channels=24, num_heads=3, mlp_ratio=2)
    norm = partial(nn.LayerNorm, eps=1e-5)
    block = Block(24, 3, mlp_ratio=2, qkv_bias=True, norm_layer=norm)
    state = neck.state_dict()
    final = [state.pop(f'final_norm.{name}') for name in ('weight', 'bias')]
    final[0].uniform_(0.5, 1.5)
    block.load_state_dict(state, strict=True)
    fine, coarse = torch.randn(2, 24, 9, 7), torch.randn(2, 24, 5, 3)
    finer, coarser = neck((fine, coarse))
    assert finer is fine
    expected = F.layer_norm(block(coarse.flatten(2).transpose(1, 2)), (24,), *final)
    torch.testing.assert_close(coarser.flatten(2).transpose(1, 2), expected)
    assert LastMapAttention(24, 3, drop_path_rate=0.3).drop_path.drop_prob == 0.3
    with pytest.raises(ValueError, match='num_heads'):
        LastMapAttention(in_channels=24, num_heads=5)

"""Names and shapes of published checkpoints, written down from the published code and configs.

ViT-Adapter: the names of ``data/golden/vit_adapter_*.npz`` for the backbone; MMDetection 2.22 and MMSegmentation 0.20
for the rest, as its configs build it. Nothing here asks our models.
"""

from __future__ import annotations

import torch

Shapes = dict[str, tuple[int, ...]]


def layer(name: str, *shape: int, bias: bool = True) -> Shapes:
    """A linear layer, convolution or norm, with the weight's shape."""
    return {f'{name}.weight': shape, **({f'{name}.bias': shape[:1]} if bias else {})}


def batch_norm(name: str, channels: int) -> Shapes:
    """SyncBN's parameters and running statistics."""
    return {
        **layer(name, channels),
        f'{name}.running_mean': (channels,),
        f'{name}.running_var': (channels,),
        f'{name}.num_batches_tracked': (),
    }


def conv_bn(name: str, *shape: int) -> Shapes:
    """MMCV's ``ConvModule`` with a batch norm."""
    return {**layer(f'{name}.conv', *shape, bias=False), **batch_norm(f'{name}.bn', shape[0])}


def vit_adapter(
    dims=192, depth=12, mlp_ratio=4, inplanes=64, heads=6, points=4, ratio=1, rows=197
) -> Shapes:
    """The backbone; four interactions, feed-forward networks of a quarter."""
    names: Shapes = {'pos_embed': (1, rows, dims), **layer('patch_embed.proj', dims, 3, 16, 16)}
    for number in range(depth):
        block = f'blocks.{number}'
        names |= {f'{block}.gamma1': (dims,), f'{block}.gamma2': (dims,)}
        names |= layer(f'{block}.attn.qkv', 3 * dims, dims) | _of_block(block, dims, mlp_ratio)
    return names | _beside_the_vit(dims, inplanes, heads, points, ratio)


def beit_adapter(
    sides,
    dims=1024,
    depth=24,
    vit_heads=16,
    mlp_ratio=4,
    inplanes=64,
    heads=16,
    points=4,
    prefix=True,
) -> Shapes:
    """The backbone around a BEiT. Each layer has a table for a grid, or a window, of a pair of ``sides``; ``prefix``: a
    class token, in segmentors."""
    names: Shapes = {'cls_token': (1, 1, dims)} if prefix else {}
    names |= layer('patch_embed.proj', dims, 3, 16, 16)
    for number, (height, width) in enumerate(sides):
        block, cells = f'blocks.{number}', height * width + prefix
        offsets = (2 * height - 1) * (2 * width - 1)
        names |= {f'{block}.gamma_1': (dims,), f'{block}.gamma_2': (dims,)}
        names |= {f'{block}.attn.q_bias': (dims,), f'{block}.attn.v_bias': (dims,)}
        names |= {
            f'{block}.attn.relative_position_bias_table': (offsets + 3 * prefix, vit_heads),
            f'{block}.attn.relative_position_index': (cells, cells),
        }
        names |= layer(f'{block}.attn.qkv', 3 * dims, dims, bias=False)
        names |= _of_block(block, dims, mlp_ratio)
    assert len(sides) == depth
    return names | _beside_the_vit(dims, inplanes, heads, points, 0.5)


def _of_block(block: str, dims: int, mlp_ratio: int) -> Shapes:
    return {
        **layer(f'{block}.norm1', dims),
        **layer(f'{block}.norm2', dims),
        **layer(f'{block}.attn.proj', dims, dims),
        **layer(f'{block}.mlp.fc1', mlp_ratio * dims, dims),
        **layer(f'{block}.mlp.fc2', dims, mlp_ratio * dims),
    }


def _beside_the_vit(dims: int, inplanes: int, heads: int, points: int, ratio: float) -> Shapes:
    names: Shapes = {'level_embed': (3, dims), **_spatial_prior(dims, inplanes)}
    for number in range(4):
        part = f'interactions.{number}'
        names |= {f'{part}.injector.gamma': (dims,)} | _attention(
            f'{part}.injector', dims, heads, 3 * points, ratio
        )
        extractors = [f'{part}.extractor']
        if number == 3:
            extractors += [f'{part}.extra_extractors.{extra}' for extra in (0, 1)]
        for extractor in extractors:
            names |= _attention(extractor, dims, heads, points, ratio) | layer(
                f'{extractor}.ffn_norm', dims
            )
            names |= layer(f'{extractor}.ffn.fc1', dims // 4, dims)
            names |= layer(f'{extractor}.ffn.dwconv.dwconv', dims // 4, 1, 3, 3)
            names |= layer(f'{extractor}.ffn.fc2', dims, dims // 4)
    names |= layer('up', dims, dims, 2, 2)
    for number in range(1, 5):
        names |= batch_norm(f'norm{number}', dims)
    return names


def _spatial_prior(dims: int, inplanes: int) -> Shapes:
    names: Shapes = {}
    wider = [inplanes, 2 * inplanes, 4 * inplanes, 4 * inplanes]
    for index, channels in ((0, 3), (3, inplanes), (6, inplanes)):
        names |= layer(f'spm.stem.{index}', inplanes, channels, 3, 3, bias=False)
        names |= batch_norm(f'spm.stem.{index + 1}', inplanes)
    for number in (2, 3, 4):
        narrow, wide = wider[number - 2 : number]
        names |= layer(f'spm.conv{number}.0', wide, narrow, 3, 3, bias=False)
        names |= batch_norm(f'spm.conv{number}.1', wide)
    for number, channels in enumerate(wider, start=1):
        names |= layer(f'spm.fc{number}', dims, channels, 1, 1)
    return names


def _attention(name: str, dims: int, heads: int, points: int, ratio: float) -> Shapes:
    """Deformable attention with its norms; ``points`` of all levels, values of ``ratio`` times the channels."""
    inner = int(dims * ratio)
    return {
        **layer(f'{name}.query_norm', dims),
        **layer(f'{name}.feat_norm', dims),
        **layer(f'{name}.attn.sampling_offsets', 2 * heads * points, dims),
        **layer(f'{name}.attn.attention_weights', heads * points, dims),
        **layer(f'{name}.attn.value_proj', inner, dims),
        **layer(f'{name}.attn.output_proj', dims, inner),
    }


def fpn(channels: list[int], extra: list[int] = (), out: int = 256) -> Shapes:
    """Necks; ``extra`` are the input channels of further convolutions of stride 2."""
    names: Shapes = {}
    for level, width in enumerate(channels):
        names |= layer(f'neck.lateral_convs.{level}.conv', out, width, 1, 1)
    for level, width in enumerate([out] * len(channels) + list(extra)):
        names |= layer(f'neck.fpn_convs.{level}.conv', out, width, 3, 3)
    return names


def rpn(width: int = 256, anchors: int = 3) -> Shapes:
    return {
        **layer('rpn_head.rpn_conv', width, width, 3, 3),
        **layer('rpn_head.rpn_cls', anchors, width, 1, 1),
        **layer('rpn_head.rpn_reg', 4 * anchors, width, 1, 1),
    }


def mask_head(name: str, classes: int, width: int = 256) -> Shapes:
    names: Shapes = {}
    for number in range(4):
        names |= layer(f'{name}.convs.{number}.conv', width, width, 3, 3)
    names |= {f'{name}.upsample.weight': (width, width, 2, 2), f'{name}.upsample.bias': (width,)}
    return names | layer(f'{name}.conv_logits', classes, width, 1, 1)


def mask_rcnn(backbone: Shapes, channels: list[int], classes=80, width=256, hidden=1024) -> Shapes:
    """Mask R-CNN with two shared layers."""
    head = 'roi_head.bbox_head'
    return {
        **under('backbone', backbone),
        **fpn(channels, out=width),
        **rpn(width),
        **layer(f'{head}.shared_fcs.0', hidden, 49 * width),
        **layer(f'{head}.shared_fcs.1', hidden, hidden),
        **layer(f'{head}.fc_cls', classes + 1, hidden),
        **layer(f'{head}.fc_reg', 4 * classes, hidden),
        **mask_head('roi_head.mask_head', classes, width),
    }


def mask_rcnn_with_norms(backbone: Shapes, channels: list[int], classes: int = 80) -> Shapes:
    """Mask R-CNN with SyncBN in neck and second stage, two convolutions of proposals, four of boxes."""
    names = {**under('backbone', backbone), **rpn()}
    del names['rpn_head.rpn_conv.weight'], names['rpn_head.rpn_conv.bias']
    for number in range(2):
        names |= layer(f'rpn_head.rpn_conv.{number}.conv', 256, 256, 3, 3)
    for level, width in enumerate(channels):
        names |= conv_bn(f'neck.lateral_convs.{level}', 256, width, 1, 1)
        names |= conv_bn(f'neck.fpn_convs.{level}', 256, 256, 3, 3)
    head = 'roi_head.bbox_head'
    for number in range(4):
        names |= conv_bn(f'{head}.shared_convs.{number}', 256, 256, 3, 3)
        names |= conv_bn(f'roi_head.mask_head.convs.{number}', 256, 256, 3, 3)
    names |= layer(f'{head}.shared_fcs.0', 1024, 49 * 256)
    names |= layer(f'{head}.fc_cls', classes + 1, 1024)
    names |= layer(f'{head}.fc_reg', 4 * classes, 1024)
    mask = 'roi_head.mask_head'
    names |= {f'{mask}.upsample.weight': (256, 256, 2, 2), f'{mask}.upsample.bias': (256,)}
    return names | layer(f'{mask}.conv_logits', classes, 256, 1, 1)


def cascade_mask_rcnn(backbone: Shapes, channels: list[int], classes: int = 80) -> Shapes:
    """Cascade Mask R-CNN with ViT-Adapter's box heads: four convolutions with SyncBN, one shared layer."""
    names = {**under('backbone', backbone), **fpn(channels), **rpn()}
    for stage in range(3):
        head = f'roi_head.bbox_head.{stage}'
        for number in range(4):
            names |= conv_bn(f'{head}.shared_convs.{number}', 256, 256, 3, 3)
        names |= layer(f'{head}.shared_fcs.0', 1024, 49 * 256)
        names |= layer(f'{head}.fc_cls', classes + 1, 1024)
        names |= layer(f'{head}.fc_reg', 4 * classes, 1024)
        names |= mask_head(f'roi_head.mask_head.{stage}', classes)
    return names


def retinanet(backbone: Shapes, channels: list[int], extra: list[int], classes=80) -> Shapes:
    """RetinaNet: four convolutions each, nine anchors."""
    names = {**under('backbone', backbone), **fpn(channels, extra)}
    for number in range(4):
        names |= layer(f'bbox_head.cls_convs.{number}.conv', 256, 256, 3, 3)
        names |= layer(f'bbox_head.reg_convs.{number}.conv', 256, 256, 3, 3)
    names |= layer('bbox_head.retina_cls', 9 * classes, 256, 3, 3)
    return names | layer('bbox_head.retina_reg', 9 * 4, 256, 3, 3)


def htc(backbone: Shapes, dims: int, classes: int = 80) -> Shapes:
    """HTC++: a block of attention before the FPN, three stages without SyncBN, a head for COCO-Stuff's 183 labels."""
    names = {**under('backbone', backbone), **rpn()}
    names |= layer('neck.0.attn.qkv', 3 * dims, dims) | layer('neck.0.attn.proj', dims, dims)
    names |= layer('neck.0.ffn.fc1', 4 * dims, dims) | layer('neck.0.ffn.fc2', dims, 4 * dims)
    for norm in ('norm1', 'norm2', 'final_norm'):
        names |= layer(f'neck.0.{norm}', dims)
    names |= {key.replace('neck.', 'neck.1.'): shape for key, shape in fpn([dims] * 4).items()}
    for stage in range(3):
        head = f'roi_head.bbox_head.{stage}'
        for number in range(4):
            names |= layer(f'{head}.shared_convs.{number}.conv', 256, 256, 3, 3)
        names |= layer(f'{head}.shared_fcs.0', 1024, 49 * 256)
        names |= layer(f'{head}.fc_cls', classes + 1, 1024) | layer(f'{head}.fc_reg', 4, 1024)
        names |= mask_head(f'roi_head.mask_head.{stage}', classes)
        if stage:
            names |= layer(f'roi_head.mask_head.{stage}.conv_res.conv', 256, 256, 1, 1)
    part = 'roi_head.semantic_head'
    for level in range(5):
        names |= layer(f'{part}.lateral_convs.{level}.conv', 256, 256, 1, 1)
    for number in range(4):
        names |= layer(f'{part}.convs.{number}.conv', 256, 256, 3, 3)
    names |= layer(f'{part}.conv_embedding.conv', 256, 256, 1, 1)
    return names | layer(f'{part}.conv_logits', 183, 256, 1, 1)


def dense_head(backbone: Shapes, channels: list[int], kind: str, classes: int = 80) -> Shapes:
    """ATSS and GFL: strides from 8, four convolutions with GN for classes and for boxes, a scale for each level."""
    names = {**under('backbone', backbone), **fpn(channels[1:], [256, 256])}
    for number in range(4):
        for part in ('cls', 'reg'):
            names |= layer(f'bbox_head.{part}_convs.{number}.conv', 256, 256, 3, 3, bias=False)
            names |= layer(f'bbox_head.{part}_convs.{number}.gn', 256)
    names |= layer(f'bbox_head.{kind}_cls', classes, 256, 3, 3)
    names |= layer(f'bbox_head.{kind}_reg', dict(atss=4, gfl=4 * 17)[kind], 256, 3, 3)
    names |= {f'bbox_head.scales.{level}.scale': () for level in range(5)}
    if kind == 'gfl':
        return names | {'bbox_head.integral.project': (17,)}
    return names | layer('bbox_head.atss_centerness', 1, 256, 3, 3)


def sparse_rcnn(backbone: Shapes, channels: list[int], proposals=300, classes=80) -> Shapes:
    """Sparse R-CNN: six stages of dynamic heads."""
    names = {**under('backbone', backbone), **fpn(channels)}
    names['rpn_head.init_proposal_bboxes.weight'] = (proposals, 4)
    names['rpn_head.init_proposal_features.weight'] = (proposals, 256)
    for stage in range(6):
        head = f'roi_head.bbox_head.{stage}'
        names[f'{head}.attention.attn.in_proj_weight'] = (768, 256)
        names[f'{head}.attention.attn.in_proj_bias'] = (768,)
        names |= layer(f'{head}.attention.attn.out_proj', 256, 256)
        dynamic = f'{head}.instance_interactive_conv'
        names |= layer(f'{dynamic}.dynamic_layer', 2 * 256 * 64, 256)
        names |= layer(f'{dynamic}.fc_layer', 256, 49 * 256)
        for norm, width in (('norm_in', 64), ('norm_out', 256), ('fc_norm', 256)):
            names |= layer(f'{dynamic}.{norm}', width)
        for norm in ('attention_norm', 'instance_interactive_conv_norm', 'ffn_norm'):
            names |= layer(f'{head}.{norm}', 256)
        names |= layer(f'{head}.ffn.layers.0.0', 2048, 256)
        names |= layer(f'{head}.ffn.layers.1', 256, 2048)
        for part, count in (('cls', 1), ('reg', 3)):
            for number in range(count):
                names |= layer(f'{head}.{part}_fcs.{3 * number}', 256, 256, bias=False)
                names |= layer(f'{head}.{part}_fcs.{3 * number + 1}', 256)
        names |= layer(f'{head}.fc_cls', classes, 256) | layer(f'{head}.fc_reg', 4, 256)
    return names


def upernet(backbone: Shapes, dims: int, classes: int = 150, width: int = 512) -> Shapes:
    """UPerNet with an auxiliary FCN head of 256 channels on the third map."""
    names = under('backbone', backbone) | layer('decode_head.conv_seg', classes, width, 1, 1)
    for number in range(4):
        names |= conv_bn(f'decode_head.psp_modules.{number}.1', width, dims, 1, 1)
    names |= conv_bn('decode_head.bottleneck', width, dims + 4 * width, 3, 3)
    for number in range(3):
        names |= conv_bn(f'decode_head.lateral_convs.{number}', width, dims, 1, 1)
        names |= conv_bn(f'decode_head.fpn_convs.{number}', width, width, 3, 3)
    names |= conv_bn('decode_head.fpn_bottleneck', width, 4 * width, 3, 3)
    names |= layer('auxiliary_head.conv_seg', classes, 256, 1, 1)
    return names | conv_bn('auxiliary_head.convs.0', 256, dims, 3, 3)


def mask2former(
    backbone: Shapes,
    dims: int,
    classes: int,
    width=256,
    hidden=1024,
    queries=100,
    head='decode_head',
) -> Shapes:
    """Mask2Former with transformers of MMCV 1: six layers of ``hidden`` channels over three maps, nine of the decoder,
    whose first attention reads from the maps."""
    pixels, heads = f'{head}.pixel_decoder', 32 if width == 1024 else 8
    names = under('backbone', backbone)
    for name, rows in (('query_embed', queries), ('query_feat', queries), ('level_embed', 3)):
        names[f'{head}.{name}.weight'] = (rows, width)
    names |= layer(f'{head}.cls_embed', classes + 1, width)
    for number in (0, 2, 4):
        names |= layer(f'{head}.mask_embed.{number}', width, width)
    names[f'{pixels}.level_encoding.weight'] = (3, width)
    for number in range(3):
        names |= layer(f'{pixels}.input_convs.{number}.conv', width, dims, 1, 1)
        names |= layer(f'{pixels}.input_convs.{number}.gn', width)
    for name, channels, size in (('lateral', dims, 1), ('output', width, 3)):
        names |= layer(f'{pixels}.{name}_convs.0.conv', width, channels, size, size, bias=False)
        names |= layer(f'{pixels}.{name}_convs.0.gn', width)
    names |= layer(f'{pixels}.mask_feature', width, width, 1, 1)
    for number in range(6):
        part = f'{pixels}.encoder.layers.{number}'
        names |= layer(f'{part}.attentions.0.sampling_offsets', 2 * heads * 12, width)
        names |= layer(f'{part}.attentions.0.attention_weights', heads * 12, width)
        for name in ('value_proj', 'output_proj'):
            names |= layer(f'{part}.attentions.0.{name}', width, width)
        names |= _ffn(part, width, hidden, norms=2)
    for number in range(9):
        part = f'{head}.transformer_decoder.layers.{number}'
        for attention in (f'{part}.attentions.0.attn', f'{part}.attentions.1.attn'):
            names[f'{attention}.in_proj_weight'] = (3 * width, width)
            names[f'{attention}.in_proj_bias'] = (3 * width,)
            names |= layer(f'{attention}.out_proj', width, width)
        names |= _ffn(part, width, max(hidden, 2048), norms=3)
    return names | layer(f'{head}.transformer_decoder.post_norm', width)


def _ffn(part: str, width: int, hidden: int, norms: int) -> Shapes:
    names = layer(f'{part}.ffns.0.layers.0.0', hidden, width)
    names |= layer(f'{part}.ffns.0.layers.1', width, hidden)
    for number in range(norms):
        names |= layer(f'{part}.norms.{number}', width)
    return names


def under(prefix: str, names: Shapes) -> Shapes:
    return {f'{prefix}.{name}': shape for name, shape in names.items()}


def random_state(names: Shapes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Small random weights, as float32; variances positive, counters integers."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in names.items():
        if name.endswith('num_batches_tracked'):
            state[name] = torch.tensor(1234)
        else:
            state[name] = 0.05 * torch.randn(shape, generator=generator)
            if name.endswith('running_var'):
                state[name] = state[name].abs() + 0.5
    return state


def checkpoint(names: Shapes, classes: tuple[str, ...] = ('person', 'bicycle')) -> dict:
    """As MMCV 1's runner wrote it, published without the optimiser."""
    meta = dict(
        mmdet_version='2.22.0', CLASSES=classes, env_info='sys.platform: linux', seed=0,
        exp_name='mask_rcnn.py', epoch=36, iter=263844, mmcv_version='1.4.2',
        time='Mon May 16 10:00:00 2022', config="model = dict(type='MaskRCNN')", hook_msgs={},
    )  # fmt: skip
    return dict(meta=meta, state_dict=random_state(names))

"""Networks against those of MMDetection, MMPretrain and timm: the same weights, maps, vectors and gradients."""

import re
from functools import partial

import pytest
import torch
from backbone_variants import T2T_ARCH, build_levit, build_pvt, build_swin, build_t2t
from mmdet.models import backbones as of_mmdet
from mmdet.models.backbones.pvt import pvt_convert
from mmpretrain.models.backbones import T2T_ViT
from mmpretrain.models.utils import MultiheadAttention
from timm.models import levit, pvt_v2, swin_transformer
from torch import nn

from mmlape.checkpoints import convert, convert_with_report

SWIN = dict(depths=[2, 2, 4, 2], num_heads=[1, 2, 3, 6])
LEVIT = dict(embed_dims=[16, 24, 40], depths=[2, 3, 1], num_heads=[2, 5, 3], key_dims=8)
PVT = dict(
    embed_dims=[16, 32, 80, 128], depths=[1, 2, 2, 1], num_heads=[1, 2, 5, 8], mlp_ratios=[4, 4, 2, 2],
    sr_ratios=[8, 4, 2, 1],
)  # fmt: skip


def swin(**options):
    return build_swin(arch=dict(SWIN, embed_dims=12), **options)


def swin_of_timm():
    return swin_transformer.SwinTransformer(embed_dim=12, **SWIN)


def levit_of_timm():
    sizes = dict(embed_dim=(16, 24, 40), depth=(2, 3, 1), num_heads=(2, 5, 3), key_dim=8)
    return levit.LevitDistilled(img_size=(128, 96), num_classes=7, **sizes)


def pvt_v2_of_timm(linear):
    options = {key: tuple(value) for key, value in PVT.items()}
    return pvt_v2.PyramidVisionTransformerV2(linear=linear, num_classes=7, **options)


def t2t_of_mmpretrain():
    dims = T2T_ARCH['embed_dims']
    layers = dict(num_heads=2, feedforward_channels=2 * dims)
    sizes = dict(img_size=64, embed_dims=dims, num_layers=3, t2t_cfg=dict(token_dims=8))
    theirs = T2T_ViT(out_type='featmap', out_indices=[0, 2], layer_cfgs=layers, **sizes)
    for module in theirs.modules():
        # Here MMPretrain 1.3 multiplies scores by what it should divide them by.
        if isinstance(module, MultiheadAttention):
            scale = (module.input_dims // module.num_heads) ** -0.5
            attend = partial(nn.functional.scaled_dot_product_attention, scale=scale)
            module.scaled_dot_product_attention = attend
    return theirs


def randomised(model):
    """With running statistics and in float64: gradients that batch norms cancel are noise in float32."""
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) * 0.2
    for name, buffer in model.named_buffers():
        if 'running' in name:
            buffer.copy_(torch.rand(buffer.shape, generator=draw) + 0.5)
    model.eval()  # which returns nothing in OpenMMLab's
    return model.double()


def load(ours, theirs, source):
    ours.load_state_dict(convert(theirs.state_dict(), source, ours), strict=True)
    return ours.eval().double()


def intermediates(model):
    return lambda image: model.forward_intermediates(image, intermediates_only=True)


def close(*values):
    torch.testing.assert_close(*values, atol=1e-4, rtol=1e-4)


# Their network, ours, the format of its weights, how theirs makes maps, and sizes of images. MMPretrain's takes sides
# of 4 n and 4 n - 1 pixels without leaving some out; timm's LeViT the size that it was built for.
PAIRS = {
    'swin of mmdet': (
        partial(of_mmdet.SwinTransformer, embed_dims=12, **SWIN), partial(swin, shift_alone=True), 'swin', None,
        [(112, 112), (61, 130), (29, 33)],
    ),
    't2t of mmpretrain': (
        t2t_of_mmpretrain, partial(build_t2t, tokens=dict(type='mmlape.TransformerTokens'), out_indices=[0, 2]),
        'mmpretrain', None, [(64, 64), (48, 59)],
    ),
    'levit of timm': (
        levit_of_timm, partial(build_levit, arch=LEVIT, img_size=(128, 96)), 'levit', intermediates, [(128, 96)],
    ),
    'pvt v2 of timm': (
        partial(pvt_v2_of_timm, False), partial(build_pvt, 'V2', arch=PVT), 'timm', intermediates,
        [(64, 96)],
    ),
    'linear pvt v2 of timm': (
        partial(pvt_v2_of_timm, True), partial(build_pvt, 'V2', arch=PVT, linear=True), 'timm', intermediates,
        [(64, 96)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ('name', 'size'), [(name, size) for name, pair in PAIRS.items() for size in pair[-1]], ids=str
)
def test_maps_and_gradients(name, size):
    build_theirs, build_ours, source, maps_of, _ = PAIRS[name]
    theirs = randomised(build_theirs())
    ours = load(build_ours(), theirs, source)
    image = torch.randn(2, 3, *size).double()
    for maps in pairs(ours(image), (maps_of(theirs) if maps_of else theirs)(image)):
        close(*maps)
    equal_gradients(ours, theirs, source)


def pairs(mine, others):
    """Maps of both, after a backward pass of each."""
    for outputs in (mine, others):
        sum(output.square().mean() for output in outputs).backward()
    return zip(mine, others, strict=True)


def equal_gradients(ours, theirs, source):
    grads = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    expected = convert({**theirs.state_dict(), **grads}, source, ours)
    for name, parameter in ours.named_parameters():
        gap = (parameter.grad - expected[name]).norm()
        assert gap < 1e-3 * expected[name].norm() + 1e-9, name


@pytest.mark.parametrize('version', ['', 'V2'])
@pytest.mark.parametrize('size', [(64, 64), (32, 160)])
def test_pvt_equals_mmdets(version, size):
    """At multiples of 32, which need no padding. MMDetection's own converter reads our names as the published ones."""
    # eps of 1e-6, as published, would hide behind the tolerance.
    ours = build_pvt(version, arch=PVT, norm_cfg=dict(type='mmlape.LN', eps=1e-5))
    for stage in range(4 if version else 0):
        getattr(ours, f'norm{stage + 1}').eps = 1e-5
    theirs = getattr(of_mmdet, f'PyramidVisionTransformer{version}')(
        pretrain_img_size=64,
        embed_dims=16,
        num_layers=PVT['depths'],
        mlp_ratios=PVT['mlp_ratios'],
        drop_path_rate=0.0,
        norm_cfg=dict(type='LN', eps=1e-5),
    )
    missing, unexpected = theirs.load_state_dict(
        pvt_convert(randomised(ours).state_dict()), strict=False
    )
    assert not missing and not unexpected
    image = torch.randn(2, 3, *size).double()
    with torch.no_grad():
        for maps in zip(ours(image), theirs.eval().double()(image), strict=True):
            close(*maps)


def test_vector_of_swin_is_timms():
    theirs = randomised(swin_of_timm())
    ours = load(swin(out_type='avg', out_indices=3), theirs, 'swin')
    image = torch.randn(1, 3, 224, 224).double()
    close(ours(image)[0], theirs.forward_head(theirs.forward_features(image), pre_logits=True))


@pytest.mark.parametrize('training', [False, True], ids=['eval', 'train'])
def test_vector_of_levit_is_timms(training):
    """In training statistics too; timm's heads give its scores of our vector."""
    theirs = randomised(levit_of_timm())
    ours = build_levit(arch=LEVIT, img_size=(128, 96), out_type='avg', out_indices=2)
    ours = load(ours, theirs, 'levit')
    image = torch.randn(4, 3, 128, 96).double()
    for model in (ours, theirs):
        model.train(training)
    vectors = ours(image)[0], theirs.forward_head(theirs.forward_features(image), pre_logits=True)
    close(*vectors)
    cotangent = torch.randn(vectors[0].shape).double()
    for vector in vectors:
        (vector * cotangent).sum().backward()
    equal_gradients(ours, theirs, 'levit')
    expected = convert(theirs.state_dict(), 'levit', ours)
    for name, buffer in ours.named_buffers():
        close(buffer, expected[name])
    if not training:
        close((theirs.head(vectors[0]) + theirs.head_dist(vectors[0])) / 2, theirs(image))


def test_layouts_of_swins_weights():
    """In the published files merging belongs to the end of a stage, and buffers of windows are stored."""
    state = randomised(swin_of_timm()).state_dict()
    expected = convert(state, 'swin', swin())
    published = {
        re.sub(
            r'layers\.(\d)\.down', lambda found: f'layers.{int(found[1]) - 1}.down', name
        ): tensor
        for name, tensor in state.items()
    }
    published['layers.0.blocks.1.attn_mask'] = torch.zeros(64, 49, 49)
    published['layers.0.blocks.1.attn.relative_position_index'] = torch.zeros(49, 49)
    for weights, source in ((published, 'swin'), (state, 'timm')):
        found = convert(weights, source, swin())
        assert found.keys() == expected.keys()
        named = [name for name in found if not name.startswith('norm')]
        assert all(torch.equal(found[name], expected[name]) for name in named)


def published(state):
    """timm's names of a LeViT as the published code's, branch by branch."""
    parts = {
        'attn.qkv.': 'm.qkv.', 'attn.proj.ln.': 'm.proj.1.', 'attn.attention_biases': 'm.attention_biases',
        'mlp.ln1.': 'm.0.', 'mlp.ln2.': 'm.2.', 'attn_downsample.q.ln.': 'q.1.', 'attn_downsample.kv.': 'kv.',
        'attn_downsample.proj.ln.': 'proj.1.', 'attn_downsample.attention_biases': 'attention_biases',
    }  # fmt: skip
    branches, renamed = [], {}
    for name, tensor in state.items():  # in the order of the network
        found = re.match(r'(stages\.\d\.(?:blocks\.\d|downsample)\.(?:attn|mlp))', name)
        if found:
            branches += [found[1]] if found[1] not in branches else []
            rest = name.split('.', 4 if '.blocks.' in name else 3)[-1]
            theirs = next(part for part in parts if rest.startswith(part))
            number = branches.index(found[1])
            name = f'blocks.{number}.{parts[theirs]}{rest.removeprefix(theirs)}'
        stem = re.match(r'stem\.conv(\d)\.(.*)', name)
        if stem:
            name = f'patch_embed.{2 * int(stem[1]) - 2}.{stem[2]}'
        renamed[name.replace('head.linear', 'head.l').replace('.linear.', '.c.')] = tensor
    return renamed


def test_layouts_of_levits_weights():
    """The published names, and linear layers as 1 x 1 convolutions."""
    theirs = levit_of_timm().state_dict()
    ours = build_levit(arch=LEVIT, img_size=(128, 96))
    expected, state = convert(theirs, 'levit', ours), published(theirs)
    assert {'blocks.4.kv.c.weight', 'blocks.5.m.2.c.weight', 'patch_embed.6.c.weight'} <= set(state)
    state['blocks.0.m.attention_bias_idxs'] = torch.zeros(48, 48, dtype=torch.long)
    convolutions = {
        name: tensor[..., None, None]
        if tensor.ndim == 2 and name.endswith('linear.weight')
        else tensor
        for name, tensor in theirs.items()
        if not name.startswith('head')
    }
    for other, source in ((state, 'levit'), (convolutions, 'levit'), (convolutions, 'timm')):
        found, report = convert_with_report(other, source, ours)
        assert report.matched_fraction == 1 and found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
    first = build_levit(arch=LEVIT, img_size=(128, 96), out_indices=0)
    assert all('patch_embed2' not in name for name in convert(state, 'levit', first))

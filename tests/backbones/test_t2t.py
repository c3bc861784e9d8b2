"""T2T-ViT against the published code and MMPretrain's: the same weights, the same outputs and gradients."""

from functools import partial

import pytest
import torch
from backbone_variants import T2T_ARCH, build_t2t, randomise
from mmpretrain.models.backbones import T2T_ViT
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from mmlape.analysis import count_flops
from mmlape.checkpoints import convert, convert_with_report
from mmlape.registry import MODELS

TRANSFORMER = dict(type='mmlape.TransformerTokens')
PERFORMER = dict(type='mmlape.PerformerTokens')


def build_golden(meta):
    tokens = TRANSFORMER if meta['tokens_type'] == 'transformer' else PERFORMER
    keys = dict(embed_dims='embed_dim', depth='depth', num_heads='num_heads', mlp_ratio='mlp_ratio')
    joining = dict(type='mmlape.LaPE' if meta['joining'] == 'lape' else 'mmlape.DefaultJoining')
    return build_t2t(
        arch={key: meta[theirs] for key, theirs in keys.items()},
        tokens=tokens,
        token_dims=meta['token_dim'],
        joining=joining,
        out_type='raw',
    ).eval()


@pytest.mark.parametrize('joining', ['default', 'lape'])
@pytest.mark.parametrize('tokens', ['performer', 'transformer'])
def test_parity_with_the_published_code(golden, tokens, joining):
    meta, state, arrays = golden(f't2t_{tokens}_{joining}')
    model = build_golden(meta)
    converted, report = convert_with_report(state, 't2t', model)
    assert report.matched_fraction == 1
    assert set(report.unused) == {'pos_embed', 'head.weight', 'head.bias'}
    model.load_state_dict(converted, strict=True)
    image = arrays['input'].requires_grad_()
    (found,) = model(image)
    torch.testing.assert_close(found, arrays['tokens'], atol=1e-4, rtol=0)
    logits = nn.functional.linear(found[:, 0], state['head.weight'], state['head.bias'])
    torch.testing.assert_close(logits, arrays['logits'], atol=1e-4, rtol=0)
    (logits * arrays['cotangent']).sum().backward()
    for key in (key for key in arrays if key.startswith('grad/')):
        name = key.removeprefix('grad/')
        grad = image.grad
        if name != 'input':
            grad = model.position.joining.norms[int(name.split('.')[1])].weight.grad
        assert (grad - arrays[key]).abs().max() < 1e-3 * arrays[key].abs().max(), key


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


def test_average_of_weights_in_a_published_file(golden):
    """The released files hold ``state_dict_ema``."""
    meta, state, _ = golden('t2t_performer_default')
    model = build_golden(meta)
    wrapped = convert(
        {'state_dict_ema': {f'module.{k}': v for k, v in state.items()}}, 't2t', model
    )
    assert all(
        torch.equal(wrapped[name], value) for name, value in convert(state, 't2t', model).items()
    )


def test_other_tokens_are_refused(golden):
    _, state, _ = golden('t2t_performer_default')
    meta, *_ = golden('t2t_transformer_default')
    with pytest.raises(ValueError, match='no place for'):
        convert(state, 't2t', build_golden(meta))


@pytest.mark.parametrize('size', [(1, 1), (16, 16), (33, 70), (64, 65), (15, 90)])
@pytest.mark.parametrize('tokens', [TRANSFORMER, PERFORMER], ids=['transformer', 'performer'])
def test_every_pixel_is_seen(size, tokens):
    model = randomise(build_t2t(tokens=tokens))
    image = torch.randn(1, 3, *size, requires_grad=True)
    (maps,) = model(image)
    assert maps.shape == (1, 16, -(-size[0] // 16), -(-size[1] // 16))
    maps.square().sum().backward()
    assert (image.grad.abs().sum(1) > 0).all()


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


@pytest.mark.parametrize(
    ('arch', 'total', 'flops'),
    # T2T-ViT's pages: 4.3 M and 1.1 G; 21.5 M and 4.8 G; 21.5 M and 6.1 G, heads and fixed tables of 224 x 224
    # included.
    [
        ('t2t-vit-7', 4_310_222, 1.147),
        pytest.param('t2t-vit-14', 21_545_550, 4.783, marks=pytest.mark.slow),
        pytest.param('t2t-vit-t-14', 21_541_070, 6.088, marks=pytest.mark.slow),
    ],
)
def test_parameters_and_multiply_adds(arch, total, flops):
    counts = {}
    for joining in ('DefaultJoining', 'LaPE'):
        with torch.device('meta'):
            config = dict(type='mmlape.T2TViT', arch=arch, joining=dict(type=f'mmlape.{joining}'))
            model = MODELS.build(dict(config, out_type='cls_token')).eval()
        counts[joining] = sum(p.numel() for p in model.parameters())
    assert counts['LaPE'] - counts['DefaultJoining'] == 2 * model.depth * model.embed_dims
    features = sum(b.numel() for name, b in model.named_buffers() if name.endswith('.w'))
    head, table = 1000 * (model.embed_dims + 1), 197 * model.embed_dims
    assert counts['DefaultJoining'] + features + head + table == total
    with count_flops() as counter:
        MODELS.build(dict(config, out_type='cls_token')).eval()(torch.empty(1, 3, 224, 224))
    assert counter.get_total_flops() // 2 == pytest.approx(flops * 1e9, rel=1e-3)


def test_dtn_leaves_two_layers_and_the_class_token_joins_there():
    with torch.device('meta'):
        model = MODELS.build(
            dict(type='mmlape.T2TViT', arch='t2t-vit-t-14', norm_cfg=dict(type='mmlape.DTN'))
        )
    kinds = [type(block.norm1).__name__ for block in model.blocks]
    assert kinds == ['DTN'] * 12 + ['LN'] * 2 and model.prefix_after == 12
    assert model.blocks[0].norm1.num_heads == 6 and type(model.norm).__name__ == 'LN'


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
    layer = MODELS.build(dict(PERFORMER, in_channels=20, embed_dims=16)).eval()
    tokens = torch.randn(2, 30, 20)
    seen = []
    layer.features = lambda x: seen.append(type(layer).features(layer, x)) or seen[-1]
    with torch.autocast('cpu', dtype=dtype):
        found = layer(tokens)
    assert {features.dtype for features in seen} == {torch.float32}
    torch.testing.assert_close(found.float(), layer(tokens), atol=accepted, rtol=0)
    half = layer.to(torch.bfloat16)(tokens.bfloat16())
    assert half.dtype == torch.bfloat16 and seen[-1].dtype == torch.float32

"""DTN in the plain ViT, and prefix tokens that join after the first layers."""

import re
from functools import partial

import pytest
import torch
from backbone_variants import (
    ARCH,
    DTN,
    JOININGS,
    build_compact,
    build_vit,
    count_parameters,
    randomise,
)
from config_utils import REPO
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mmlape import norm as norms
from mmlape.registry import MODELS

# DTN, ICLR 2022, Table 1: GFLOPs with LayerNorm and with DTN, parameters in millions
TABLE = {
    'vit-tiny-star': (1.26, 1.40, 5.7),
    'deit-small': (4.60, 4.88, 22.1),
    'vit-small-star': (5.77, 6.08, 27.8),
    'deit-base': (17.58, 18.13, 86.5),
    'vit-base-star': (17.58, 18.13, 86.5),
}
POSITIONS = {
    'learned': dict(type='mmlape.LearnedPosition'),
    'sinusoids': dict(type='mmlape.SinusoidalPosition', axes=1),
    'gabor': dict(type='mmlape.GaborPosition'),
}


def build_on_meta(**options):
    with torch.device('meta'):
        return MODELS.build(dict(type='mmlape.VisionTransformer', **options))


def gigaflops(model):
    """Multiply-adds of one image of 224 x 224; attention in its written-out form is counted too."""
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.eval()(torch.empty(1, 3, 224, 224, device='meta'))
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize('arch', TABLE)
def test_parameters_of_table_1(arch):
    """With a linear head of 1000 classes; DTN adds five values per head and norm."""
    ln, dtn = (build_on_meta(arch=arch, norm_cfg=norm) for norm in (None, DTN))
    head = nn.Linear(dtn.embed_dims, 1000, device='meta')
    added = count_parameters(dtn) - count_parameters(ln)
    assert added == 2 * 10 * 5 * dtn.arch['num_heads']
    # ViT-B has 86.57 M; the table cuts where others round
    assert count_parameters(dtn, head) / 1e6 == pytest.approx(TABLE[arch][2], abs=0.1)
    assert count_parameters(ln, head) / 1e6 == pytest.approx(TABLE[arch][2], abs=0.1)


def test_the_released_network():
    """That of docs/dtn.md: no bias, eps 1e-5, no row of the class token, random maps."""
    page = (REPO / 'docs' / 'dtn.md').read_text()
    (code,) = (
        part for part in re.findall(r'```python\n(.*?)```', page, re.S) if 'qkv_bias' in part
    )
    config = {}
    exec(code, config)
    with torch.device('meta'):
        model = MODELS.build(config['backbone'])
    assert model.position.embedding.pos_embed.shape == (1, 196, 432) and model.prefix_after == 10
    assert not any('qkv.bias' in name for name, _ in model.named_parameters())
    found = [norm for block in model.blocks for norm in (block.norm1, block.norm2)] + [model.norm]
    assert all(isinstance(norm, norms.DTN) for norm in found[:20])
    assert {norm.positions.init for norm in found[:20]} == {'random'}
    assert all(isinstance(norm, norms.LN) for norm in found[20:])
    assert {norm.eps for norm in found} == {1e-5}


def test_the_norm_of_the_output_in_a_list():
    """One entry more than layers; where one norm for all does not reach the output, too."""
    last = dict(type='mmlape.ScaleNorm')
    for build, depth in ((build_vit, 4), (partial(build_compact, arch=ARCH), 4)):
        model = build(norm_cfg=[None] * depth + [last])
        assert isinstance(model.norm, norms.ScaleNorm)
        assert isinstance(model.blocks[-1].norm1, norms.LN)
        with pytest.raises(ValueError, match='norm_cfg must have one entry for each of 4 layers'):
            build(norm_cfg=[None] * (depth + 2))


@pytest.mark.parametrize('arch', TABLE)
def test_flops_of_table_1(arch):
    """LayerNorm within 2 %, DTN no more than published."""
    plain, ours = (gigaflops(build_on_meta(arch=arch, norm_cfg=norm)) for norm in (None, DTN))
    published_plain, published, _ = TABLE[arch]
    assert plain == pytest.approx(published_plain, rel=0.02)
    assert plain < ours <= published


def test_as_published_by_default():
    """Appendix A.1: the first 10 of 12 layers have DTN, the class token joins after them."""
    model = build_on_meta(arch='vit-tiny-star', norm_cfg=DTN)
    kinds = [(type(block.norm1), type(block.norm2)) for block in model.blocks]
    assert kinds == [(norms.DTN,) * 2] * 10 + [(norms.LN,) * 2] * 2
    assert model.blocks[0].norm1.num_heads == 4 and model.blocks[0].norm1.pool == 1
    assert model.prefix_after == 10 and type(model.norm) is norms.LN


@pytest.mark.parametrize(
    ('options', 'layers', 'prefix_after'),
    [
        (dict(norm_cfg=DTN), [0, 1], 2),
        (dict(norm_cfg=dict(DTN, layers=1)), [0], 1),
        (dict(norm_cfg=dict(DTN, layers=[0, 2])), [0, 2], 3),
        (dict(norm_cfg=dict(DTN, layers=3), prefix_after=1), [0, 1, 2], 1),
        (dict(norm_cfg=dict(DTN, layers=None)), [0, 1, 2, 3, 'norm'], 0),
        (dict(norm_cfg=dict(DTN, num_heads=6, pool=2), with_cls_token=False), [0, 1], 0),
        (dict(prefix_after=3), [], 3),
        (dict(), [], 0),
    ],
)
def test_where_dtn_goes_and_the_class_token_joins(options, layers, prefix_after):
    model = build_vit(**options)
    found = [layer for layer, b in enumerate(model.blocks) if isinstance(b.norm1, norms.DTN)]
    found += ['norm'] * isinstance(model.norm, norms.DTN)
    assert found == layers and model.prefix_after == prefix_after
    (maps,) = model(torch.randn(1, 3, 40, 70))
    assert maps.shape == (1, 24, 3, 5)


def by_hand(model, image):
    """Tokens of the last layer: the class token takes its rows of the plan, the layers before it do without them."""
    tokens, layout = model.patch_embed(image)
    grid = layout.grid
    plan = model.position(grid)
    stem = torch.zeros(1, 1, model.embed_dims) if plan.stem is None else plan.stem
    tokens = tokens + stem[:, -tokens.shape[1] :]
    for layer, block in enumerate(model.blocks):
        if layer == model.prefix_after:
            tokens = torch.cat([model.cls_token + stem[:, :1], tokens], dim=1)
        count = tokens.shape[1]
        stream, attention = plan.stream[layer], plan.attention[layer]
        tokens = tokens if stream is None else tokens + stream[:, -count:]
        tokens = block(tokens, grid, None if attention is None else attention[:, -count:])
    return model.norm(tokens, grid)


@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('joining', JOININGS)
def test_position_of_a_class_token_that_joins_later(joining, position):
    options = dict(joining=JOININGS[joining], position=POSITIONS[position], out_type='raw')
    model = randomise(build_vit(norm_cfg=DTN, **options))
    assert model.prefix_after == 2
    image = torch.randn(1, 3, 40, 70)
    (tokens,) = model(image)
    assert tokens.shape == (1, 1 + 15, 24)
    torch.testing.assert_close(tokens, by_hand(model, image))


def test_prefix_tokens_that_no_built_layer_sees_are_not_built():
    """They would get no gradient, which DistributedDataParallel refuses."""
    model = build_vit(norm_cfg=DTN, out_indices=1, out_type='featmap_and_prefix')
    assert model.num_prefix_tokens == 0 and 'cls_token' not in model.state_dict()
    ((_, prefix),) = model(torch.randn(1, 3, 64, 64))
    assert prefix.shape == (1, 0, 24)


@pytest.mark.parametrize(('frozen_stages', 'trained'), [(-1, True), (1, True), (2, False)])
def test_class_token_is_frozen_where_it_joins(frozen_stages, trained):
    model = build_vit(norm_cfg=DTN, frozen_stages=frozen_stages)
    assert model.cls_token.requires_grad == trained
    model(torch.randn(1, 3, 64, 64))[0].sum().backward()
    assert (model.cls_token.grad is not None) == trained


def test_layer_norms_weights_go_into_dtn():
    source, target = randomise(build_vit()), build_vit(norm_cfg=DTN)
    missing, unexpected = target.load_state_dict(source.state_dict(), strict=False)
    assert unexpected == []
    assert {name.split('.', 3)[3] for name in missing} == {
        'positions.weight', 'ratio_mean.omega', 'ratio_var.omega',
    }  # fmt: skip


@pytest.mark.parametrize('joining', ['default', 'lape'])
def test_dropout_reaches_tokens_that_join_later(joining):
    """With a stem's position or without one, as those that are there from the start."""
    model, shapes = build_vit(prefix_after=2, joining=JOININGS[joining]), []
    model.drop_after_position.register_forward_hook(lambda *call: shapes.append(call[2].shape))
    model(torch.randn(2, 3, 64, 64))
    assert shapes == [(2, 16, 24), (2, 1, 24)]

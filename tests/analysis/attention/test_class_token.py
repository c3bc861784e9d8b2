"""Where the class token looks: the plain definition, windows, every network with prefix tokens, mistakes."""

import backbone_variants as variants
import numpy as np
import pytest
import torch
from torch import nn

from mmlape.analysis import class_attention, draw_class_attention, find_stages
from mmlape.analysis.stages import Stage
from mmlape.layers import Attention
from mmlape.norm import LN

IMAGE = torch.randn(1, 3, 33, 50, generator=torch.Generator().manual_seed(0))


class OneLayer(nn.Module):
    """A backbone of a single attention layer on given tokens, three of them without a place."""

    def __init__(self, attention, grid=(4, 5)):
        super().__init__()
        layer = nn.Module()
        layer.norm1 = layer.norm2 = LN(12)
        layer.attn = attention
        self.blocks = nn.ModuleList([layer])
        self.grid = grid
        self.prefix = tuple(nn.Parameter(torch.zeros(1, 1, 12)) for _ in range(3))

    def stages(self):
        return [Stage('blocks', 'position', 12, nn.Identity(), self.blocks, prefix=self.prefix)]

    def tokens(self):
        generator = torch.Generator().manual_seed(3)
        return torch.randn(1, 3 + self.grid[0] * self.grid[1], 12, generator=generator)

    def forward(self, image):
        return self.blocks[0].attn(self.tokens(), self.grid)


@pytest.mark.parametrize('window', [None, 2])
@pytest.mark.parametrize('token', [0, 2])
def test_our_attention_against_the_definition(token, window):
    """Prefix tokens attend to all, with windows too."""
    model = OneLayer(Attention(12, 3, window_size=window)).eval()
    found = class_attention(model, IMAGE, token=token)
    attention = model.blocks[0].attn
    query, key, _ = attention.split_heads(attention.qkv(model.tokens()), 3)
    expected = (query[:, :, token : token + 1] @ key.mT / 2).softmax(-1)[0, :, 0].detach()
    assert np.allclose(found.prefix[0], expected[:, :3], atol=1e-6)
    assert np.allclose(found.maps[0], expected[:, 3:].view(3, 4, 5), atol=1e-6)
    assert np.allclose(found.image, IMAGE[0].mean(0))
    assert (found.stage, found.layers.tolist()) == ('blocks', [0])


def test_what_a_class_token_reads_is_what_its_weights_say():
    """The layer's output for it is the sum of values by these weights."""
    model = OneLayer(Attention(12, 3)).eval()
    found = class_attention(model, IMAGE)
    attention = model.blocks[0].attn
    weights = np.concatenate([found.prefix[0], found.maps[0].reshape(3, -1)], axis=1)
    value = attention.split_heads(attention.qkv(model.tokens()), 3)[2][0]
    read = torch.einsum('hn,hnd->hd', torch.from_numpy(weights), value).flatten()
    expected = attention(model.tokens(), model.grid)[0, 0]
    assert torch.allclose(attention.proj(read), expected, atol=1e-5)


@pytest.mark.parametrize('name', variants.VARIANTS)
def test_every_variant_is_shown_or_refused(name):
    model = variants.randomise(variants.VARIANTS[name]()).eval()
    stages = [stage for stage in find_stages(model) if stage.prefix]
    kinds = {type(stage.blocks[-1].attn).__name__ for stage in stages}
    if not stages or kinds & {'BigBirdAttention', 'LSHAttention'}:
        with pytest.raises(ValueError, match=r'has no class token|defined for \['):
            class_attention(model, IMAGE)
        return
    stage = stages[-1]
    layers = list(range(stage.prefix_after, len(stage.blocks)))
    with torch.no_grad():
        before = model(IMAGE)[-1]
    found = class_attention(model, IMAGE, layers=layers)
    with torch.no_grad():
        after = model(IMAGE)[-1]
    assert torch.equal(*(out if torch.is_tensor(out) else out[0] for out in (before, after)))
    heads = stage.blocks[-1].attn.num_heads
    assert found.maps.shape[:2] == (len(layers), heads) == found.prefix.shape[:2]
    assert np.allclose(found.maps.sum((2, 3)) + found.prefix.sum(2), 1, atol=1e-5)
    (last,) = class_attention(model, IMAGE).maps
    assert np.array_equal(last, found.maps[-1])


def test_a_row_for_each_layer_of_each_image():
    model = variants.build_vit().eval()
    found = [class_attention(model, image, layers=[1, 3]) for image in (IMAGE, IMAGE[..., :20])]
    heads = model.blocks[0].attn.num_heads
    *panels, scale = draw_class_attention(found).axes
    titles = [place.get_title() for place in panels]
    row = [f'head {head}' for head in range(heads)] + ['mean of heads']
    assert titles == ['layer 1', *row, 'layer 3', *row] * 2
    # of the mean over heads, over equal attention: the sum over patches is their share of all tokens
    shown = panels[heads + 1].images[0].get_array()
    assert shown.sum() == pytest.approx(found[0].maps[0].mean(0).sum() * (shown.size + 1), rel=1e-5)
    assert scale.get_ylabel() == 'weight / equal weight'


def test_mistakes():
    model = variants.build_vit().eval()
    with pytest.raises(ValueError, match='layers must be 0 to 3, got 4'):
        class_attention(model, IMAGE, layers=[4])
    with pytest.raises(ValueError, match='token must be'):
        class_attention(model, IMAGE, token=1)
    with pytest.raises(ValueError, match=r"part must be one of .*, got 'block1'"):
        class_attention(model, IMAGE, part='block1')
    late = variants.build_vit(prefix=dict(cls_token=True, after=2)).eval()
    with pytest.raises(ValueError, match=r"layers must be 2 to 3, where .* joined 'blocks', got 1"):
        class_attention(late, IMAGE, layers=[1, 3])
    without = variants.build_vit(prefix=dict(cls_token=False), out_type='avg').eval()
    with pytest.raises(ValueError, match='VisionTransformer has no class token'):
        class_attention(without, IMAGE)
    with pytest.raises(ValueError, match='at least one'):
        draw_class_attention([])

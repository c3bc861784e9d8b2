"""The variation coefficient of Figure 3 (b), against values computed by hand and against what norms subtract."""

import backbone_variants as variants
import numpy as np
import pytest
import torch

from mmlape.analysis import draw_variation, find_stages, token_variation, variation_coefficients
from mmlape.analysis.dtn.variation import mean_of
from mmlape.layout import Layout
from mmlape.norm import DTN, LN, ScaleNorm, TokenGN, TokenIN

IMAGES = [
    torch.randn(1, 3, 64, 48, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
]
LAYOUT = Layout((3, 4), 1)


def test_by_hand():
    """LN's mean of (1, 3) is 2, so (1 - 2) / 1 and (3 - 2) / 3; IN's means of the channels are 2 and 3."""
    tokens = torch.tensor([[[1.0, 3.0], [3.0, 3.0]]])
    layout = Layout((1, 2))
    found = variation_coefficients(tokens, mean_of(LN(2), tokens, layout))
    assert found[0].tolist() == pytest.approx([np.hypot(-1, 1 / 3), 0])
    found = variation_coefficients(tokens, mean_of(TokenIN(2), tokens, layout))
    assert found[0].tolist() == pytest.approx([1, 1 / 3])
    zero = torch.tensor([[[0.0, 4.0]]])
    assert variation_coefficients(zero, torch.tensor(1.0))[0].tolist() == [0.75]


def dtn(pool=1, stabilize=True):
    torch.manual_seed(pool)
    norm = variants.randomise(DTN(8, 4, pool=pool, stabilize=stabilize)).double()
    with torch.no_grad():
        norm.weight.fill_(1)
        norm.bias.zero_()
    return norm


@pytest.mark.parametrize('norm', [LN(8), TokenIN(8), TokenGN(8, 4)], ids=lambda n: type(n).__name__)
def test_norms_have_the_sign_of_what_is_left(norm):
    """Of a token less the mean."""
    tokens, norm = torch.randn(1, 13, 8).double(), norm.double()
    mean = mean_of(norm, tokens, LAYOUT).expand(-1, 12, -1)
    standardised = norm(tokens, LAYOUT)[:, 1:]
    sign = (tokens[:, 1:] - mean).sign()
    assert torch.equal(standardised.sign(), sign)


@pytest.mark.parametrize('stabilize', [True, False])
@pytest.mark.parametrize('pool', [1, 2, 3])
def test_the_mean_of_dtn_is_the_one_that_it_subtracts(pool, stabilize):
    """What is left of the tokens is the result times one positive number for each head of each token and channel."""
    norm, tokens = dtn(pool, stabilize), torch.randn(1, 13, 8).double()
    with torch.no_grad():
        left = tokens[:, 1:] - mean_of(norm, tokens, LAYOUT)
        assert torch.equal(norm(tokens, LAYOUT)[:, 1:].sign(), left.sign())
        # With the same shares of own statistics alone it is the mean of LN, of stabilised heads.
        norm.ratio_mean.omega.fill_(50)
        own = tokens[:, 1:].unflatten(2, (4, 2))
        rms = (
            (own.square().mean(-1, keepdim=True) + norm.eps).sqrt() if stabilize else torch.ones(())
        )
        expected = ((own / rms).mean((2, 3), keepdim=True) * rms).expand_as(own).flatten(2)
        torch.testing.assert_close(mean_of(norm, tokens, LAYOUT), expected)


def test_the_mean_of_a_uniform_dtn_without_own_statistics_is_that_of_in():
    norm = DTN(8, 4, positions='uniform', ratio_mean=0, stabilize=False).double()
    tokens = torch.randn(2, 12, 8).double()
    found = mean_of(norm, tokens, Layout((3, 4)))
    torch.testing.assert_close(found, tokens.mean(1, keepdim=True).expand_as(found))


def test_of_a_backbone():
    model = variants.randomise(variants.build_vit(norm_cfg=dict(type='mmlape.DTN'))).eval()
    (found,) = token_variation(model, IMAGES, find_stages(model))
    assert found.names == ('DTN', 'LN', 'IN') and found.layers.tolist() == [0, 1, 2, 3]
    assert found.coefficients.shape == (3, 4, 2 * 4 * 3)
    kinds = [type(block.norm1).__name__ for block in model.blocks]
    nothing = np.isnan(found.coefficients[0]).all(axis=1).tolist()
    assert nothing == [kind != 'DTN' for kind in kinds] and not all(nothing) and any(nothing)
    assert not np.isnan(found.coefficients[1:]).any()
    seen = []
    model.blocks[0].norm1.register_forward_hook(lambda module, args, output: seen.append(args))
    with torch.no_grad():
        model(IMAGES[1])
    tokens, layout = seen[0][:2]
    expected = variation_coefficients(
        layout.split(tokens)[1], mean_of(model.blocks[0].norm1, tokens, layout)
    )
    assert np.allclose(found.coefficients[0, 0, 12:], expected[0].detach())
    assert np.allclose(found.quartiles[1, 2, 1], np.median(found.coefficients[1, 2]))
    figure = draw_variation([found])
    assert [line.get_label() for line in figure.axes[0].lines] == ['DTN', 'LN', 'IN']
    assert figure.axes[0].get_yscale() == 'log'


def test_of_a_pyramid_and_some_layers():
    model = variants.build_pvt().eval()
    found = token_variation(model, IMAGES[:1], find_stages(model), [0], 'norm2', ['DTN'])
    assert [stage.names for stage in found] == [('LN', 'DTN, initial')] * 4
    assert [stage.coefficients.shape[2] for stage in found] == [16 * 12, 8 * 6, 4 * 3, 2 * 2]
    assert set(found[0].arrays()) > {'coefficients', 'quartiles', 'names'}
    assert len(draw_variation(found).axes) == 4


def test_mistakes():
    model = variants.build_vit(norm_cfg=dict(type='mmlape.ScaleNorm')).eval()
    with pytest.raises(ValueError, match='a ScaleNorm subtracts no mean'):
        token_variation(model, IMAGES, find_stages(model))
    with pytest.raises(ValueError, match='a ScaleNorm subtracts no mean'):
        mean_of(ScaleNorm(4), torch.zeros(1, 4, 4), Layout((2, 2)))
    model = variants.build_vit().eval()
    with pytest.raises(ValueError, match='at least one image'):
        token_variation(model, [], find_stages(model))
    with pytest.raises(ValueError, match=r"compared norm must be one of .*, got 'BN'"):
        token_variation(model, IMAGES, find_stages(model), compared=['BN'])

"""T2T-ViT's sinusoids and random features."""

import pytest
import torch
from backbone_variants import build_t2t

from mmlape.registry import MODELS


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

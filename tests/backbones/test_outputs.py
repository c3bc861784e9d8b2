"""What backbones return to classifiers."""

import pytest
import torch
from backbone_variants import build_compact, build_pvt, build_swin, build_vit, randomise

SIZE = (50, 70)  # 4 x 5 patches of 16, 2 x 3 cells of 32; no multiple of either
IMAGE = torch.linspace(-1, 1, 2 * 3 * SIZE[0] * SIZE[1]).view(2, 3, *SIZE)


def pairs(**options):
    """The same ViT with all tokens and with ``options``."""
    common = dict(with_dist_token=True)
    model = randomise(build_vit(**common, **options))
    whole = build_vit(**common, **{**options, 'out_type': 'raw'}).eval()
    whole.load_state_dict(model.state_dict())
    with torch.no_grad():
        return model(IMAGE)[-1], whole(IMAGE)[-1]


@pytest.mark.parametrize('norm', [None, dict(type='mmlape.DTN')], ids=['ln', 'dtn'])
def test_a_vit_gives_class_token_both_tokens_or_the_mean(norm):
    vector, tokens = pairs(out_type='cls_token', norm_cfg=norm)
    assert torch.equal(vector, tokens[:, 0])
    (cls_token, dist_token), tokens = pairs(out_type='cls_and_dist', norm_cfg=norm)
    assert torch.equal(cls_token, tokens[:, 0]) and torch.equal(dist_token, tokens[:, 1])
    vector, tokens = pairs(out_type='avg', norm_cfg=norm)
    torch.testing.assert_close(vector, tokens[:, 2:].mean(1))
    assert tokens.shape == (2, 2 + 4 * 5, 24)


def test_the_norm_of_the_last_output_replaces_that_of_its_map():
    """Two norms of one output would leave one without a gradient; False leaves out both."""
    found = {
        final: {name for name, _ in build_swin(final_norm=final).named_children() if 'norm' in name}
        for final in (None, True, False)
    }
    maps = {'norm1', 'norm2', 'norm3', 'norm4'}
    assert found == {None: maps, True: maps - {'norm4'} | {'norm'}, False: set()}


def test_pooled_is_what_the_architecture_was_published_with():
    image = torch.randn(1, 3, 32, 32)
    for model in (
        build_vit(out_type='pooled'),
        build_pvt('V2', out_type='pooled', out_indices=3),
        build_swin(out_type='pooled', out_indices=3),
        build_compact(out_type='pooled'),
    ):
        assert model(image)[0].shape == (1, model.norm.weight.numel() if model.norm else 32)
    assert build_vit(out_type='pooled').out_type == 'cls_token'
    with pytest.raises(ValueError, match='with_cls_token=True'):
        build_pvt(out_type='pooled', out_indices=3)

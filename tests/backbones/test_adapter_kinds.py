"""ViT-Adapter around every kind of plain ViT, in both flavours: what its tokens see, and what its maps hold."""

import pytest
import torch
from foundation_kinds import KINDS, load, patch_of, source

from mmlape.registry import MODELS

FLAVOURS = ('last', 'per_stage')
# Patches of 14 and of 16 pixels, with and without tokens beside the grid; the rest with the slow tests.
FAST = {('registers', 'last'), ('rotary', 'per_stage'), ('no-prefix', 'last')}
every_pair = pytest.mark.parametrize(
    ('kind', 'flavour'),
    [
        pytest.param(kind, flavour, marks=() if (kind, flavour) in FAST else pytest.mark.slow)
        for kind in KINDS
        for flavour in FLAVOURS
    ],
)
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def adapter(kind, flavour):
    return MODELS.build(
        dict(
            type='mmlape.ViTAdapter',
            vit=dict(type='mmlape.VisionTransformer', arch=source(kind)[1]),
            conv_inplanes=4,
            deform_num_heads=2,
            interaction_indexes=[[layer, layer] for layer in range(4)],
            vit_feature=flavour,
        )
    )


@every_pair
def test_around_it(kind, flavour):
    model, patch = adapter(kind, flavour), patch_of(kind)
    report = load(kind, model)
    assert all(not name.startswith('vit.') for name in report.fresh)
    prefix = model.vit.num_prefix_tokens
    seen = dict(blocks=set(), injectors=set())
    for block, interaction in zip(model.vit.blocks, model.interactions, strict=True):
        block.register_forward_pre_hook(lambda _, inputs: seen['blocks'].add(inputs[0].shape[1]))
        interaction.injector.register_forward_pre_hook(
            lambda _, inputs: seen['injectors'].add(inputs[0].shape[1])
        )
    for height, width in ((50, 90), (1, 33)):
        for tokens in seen.values():
            tokens.clear()
        maps = model(torch.randn(2, 3, height, width))
        for stride, each in zip((4, 8, 16, 32), maps, strict=True):
            assert each.shape == (2, 48, -(-height // stride), -(-width // stride))
        (cells,) = seen['injectors']
        padded = [-(-(-(-side // 32) * 32) // patch) for side in (height, width)]
        assert cells == padded[0] * padded[1] and seen['blocks'] == {prefix + cells}
    model.zero_grad()
    sum(each.square().mean() for each in model(torch.randn(1, 3, 50, 90))).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    for name in model.vit.prefix_names:  # they are read by the cells
        assert getattr(model.vit, name).grad.abs().max() > 0

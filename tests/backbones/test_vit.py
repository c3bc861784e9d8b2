"""The plain ViT: parity, parameter counts, options, sizes, errors."""

import pytest
import torch
from backbone_variants import build_vit
from torch import nn


def test_layers_after_the_last_output_are_not_built():
    """They would get no gradient, which DistributedDataParallel refuses."""
    model = build_vit(out_indices=1, joining=dict(type='mmlape.LaPE'), drop_path_rate=0.3)
    assert len(model.blocks) == len(model.position.joining.norms) == 2 and model.norm is None
    assert model.blocks[1].drop_path.drop_prob == pytest.approx(0.1)


@pytest.mark.parametrize(
    ('frozen_stages', 'trained'),
    [
        (-1, {'patch_embed', 'cls_token', 'position', 'blocks', 'norm'}),
        (0, {'position', 'blocks', 'norm'}),
        (2, {'position', 'blocks', 'norm'}),
        (4, set()),
    ],
)
def test_frozen_stages(frozen_stages, trained):
    model = build_vit(
        frozen_stages=frozen_stages, joining=dict(type='mmlape.LaPE'), drop_path_rate=0.5
    ).train()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert {name.split('.')[0] for name in names} == trained
    for layer, block in enumerate(model.blocks):
        assert block.training == (layer >= frozen_stages)
        assert block.attn.qkv.weight.requires_grad == (layer >= frozen_stages)
        assert model.position.joining.norms[layer].weight.requires_grad == (layer >= frozen_stages)
    assert model.train(False).training is False


def test_recomputation_saves_memory():
    def saved_bytes(**options):
        sizes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel() * t.element_size()) or t, lambda t: t
        )
        model = build_vit(**options)
        with hooks:
            model(torch.randn(1, 3, 128, 128))
        return sum(sizes)

    assert saved_bytes(with_cp=True) < 0.5 * saved_bytes()


def test_names_hold_inside_a_parent_and_through_mmengine():
    from mmengine.runner.checkpoint import load_state_dict

    parents = [nn.Sequential(build_vit(), nn.Linear(2, 2)) for _ in range(2)]
    state = parents[0].state_dict()
    assert '0.pos_embed' in state and '0.position.embedding.pos_embed' not in state
    load_state_dict(parents[1], state, strict=True)
    assert torch.equal(
        parents[0][0].position.embedding.pos_embed, parents[1][0].position.embedding.pos_embed
    )


def test_float64_gradcheck():
    arch = dict(embed_dims=4, depth=2, num_heads=2, mlp_ratio=1)
    model = build_vit(arch=arch, patch_size=2, img_size=4, joining=dict(type='mmlape.LaPE'))
    image = torch.randn(1, 3, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model.double(), (image,))

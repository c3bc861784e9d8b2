"""Blocks with several branches of each kind: what they compute, and that branches differ."""

import torch
from backbone_variants import build_vit

TWO = dict(type='mmlape.SeveralBranchesBlock')


def test_is_the_sum_of_branches():
    """With branches that are alike, a plain block whose branches count twice."""
    plain, several = build_vit(layer_scale=True), build_vit(block=TWO, layer_scale=True)
    state = plain.state_dict()
    for name in several.state_dict():
        state[name] = state[name.replace('.others.0.', '.')].clone()
    several.load_state_dict(state)
    for block in plain.blocks:
        block.ls1.gamma.data *= 2
        block.ls2.gamma.data *= 2
    image = torch.randn(2, 3, 40, 72)
    with torch.no_grad():
        torch.testing.assert_close(several.eval()(image)[0], plain.eval()(image)[0])


def test_branches_start_apart_and_all_learn():
    model = build_vit(
        block=dict(TWO, num_branches=3), joining=dict(type='mmlape.LaPE'), with_cp=True
    )
    block = model.blocks[0]
    weights = [each.attn.qkv.weight for each in (block, *block.others)]
    assert len(weights) == 3
    assert not any(torch.equal(weights[0], other) for other in weights[1:])
    assert not torch.equal(weights[1], weights[2])
    model(torch.randn(2, 3, 64, 64))[0].square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

"""Into which units FSDP cuts our networks. Training with it: tests/test_distributed.py."""

from backbone_variants import build_adapter, build_pvt
from mmengine.registry import FUNCTIONS
from torch import nn

from mmlape.layers import Block


def test_blocks_are_units_and_nothing_else_is():
    wrap = FUNCTIONS.get('mmlape.wrap_blocks')
    for model in (build_adapter(), build_pvt()):
        units = {m for m in model.modules() if wrap(m, recurse=False, nonwrapped_numel=10**9)}
        assert units == {m for m in model.modules() if isinstance(m, Block)}
        assert len(units) in (4, 5)
    assert wrap(nn.Linear(2, 2), recurse=True, nonwrapped_numel=1)


def test_a_sharded_network_keeps_the_names_that_fsdp_knows():
    vit = build_adapter().vit
    assert 'pos_embed' in vit.state_dict()
    vit._is_fsdp_managed_module = True  # what FSDP sets
    state = vit.state_dict()
    assert 'position.embedding.pos_embed' in state and 'pos_embed' not in state
    fresh = build_adapter().vit
    fresh.load_state_dict(state)
    assert fresh.position.embedding.pos_embed.equal(vit.position.embedding.pos_embed)

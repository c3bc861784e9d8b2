"""Into which units FSDP cuts our networks. Training with it: tests/test_distributed.py."""

import pytest
from backbone_variants import build_adapter, build_pvt
from mmengine.registry import STRATEGIES
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from mmlape.layers import Block
from mmlape.training import check_config, wrap_blocks


@pytest.mark.parametrize('build', [build_adapter, build_pvt])
def test_blocks_are_units_and_nothing_else_is(build, process_group):
    model = nn.Sequential(build())
    names = list(model.state_dict())
    assert wrap_blocks(model, mesh=init_device_mesh('cpu', (1,))) is model
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    assert units == [model, *(module for module in model.modules() if isinstance(module, Block))]
    assert len(units) in (5, 6)
    assert list(model.state_dict()) == names


def test_options_of_other_strategies_are_refused():
    old = dict(model_wrapper=dict(type='MMFullyShardedDataParallel'), state_dict_cfg='full')
    with pytest.raises(ValueError, match='has no model_wrapper and no state_dict_cfg: write'):
        STRATEGIES.build(dict(type='mmlape.FSDPStrategy', **old))
    for name in ('FSDPStrategy', 'mmengine.FSDPStrategy'):
        with pytest.raises(
            ValueError, match=r"FSDPStrategy' flattens parameters.* write strategy="
        ):
            check_config(dict(strategy=dict(type=name)))
    check_config(dict(strategy=dict(type='mmlape.FSDPStrategy')))

"""PyTorch's FSDP with our networks: into which units they are cut, and a strategy that can resume."""

from __future__ import annotations

from weakref import WeakSet

from mmengine import _strategy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from mmlape.backbones import Backbone
from mmlape.registry import FUNCTIONS, STRATEGIES

__all__ = ['FSDPStrategy', 'wrap_blocks']

# Blocks of the networks that were asked about: FSDP asks about a module before its children.
_BLOCKS: WeakSet[nn.Module] = WeakSet()


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """An ``auto_wrap_policy`` for FSDP: each transformer block is a unit, all the rest one more.

    Policies by size do not fit: they may choose a ViT inside a ViT-Adapter, whose own ``forward`` is never called. In a
    config for MMEngine's ``FlexibleRunner``::

        strategy = dict(
            type='mmlape.FSDPStrategy',
            model_wrapper=dict(
                type='MMFullyShardedDataParallel', auto_wrap_policy='mmlape.wrap_blocks'))

    Args:
        module: What is asked about.
        recurse: Whether its children are, which they are always.
        nonwrapped_numel: Values in it that are not in a unit yet; it does not matter.
    """
    if isinstance(module, Backbone):
        _BLOCKS.update(block for stage in module.stages() for block in stage.blocks)
    return recurse or module in _BLOCKS


@STRATEGIES.register_module()
class FSDPStrategy(_strategy.FSDPStrategy):
    """MMEngine's strategy, which cannot restore the state of an optimizer with a current PyTorch.

    It passes the model and the state dict in an order that PyTorch has changed, so that resuming ends with ``unhashable
    type: 'dict'``. Arguments as there.
    """

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Give every process its shards of an optimizer state."""
        shards = FullyShardedDataParallel.optim_state_dict_to_load(
            model=self.model, optim=self.optim_wrapper.optimizer, optim_state_dict=state_dict
        )
        self.optim_wrapper.load_state_dict(shards)

"""Training on a CPU by upstream's tools, and by FSDP: into which units networks are cut, a strategy that can resume."""

from __future__ import annotations

from weakref import WeakSet

from mmengine import _strategy
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from mmlape.backbones import Backbone
from mmlape.cpu import optimize
from mmlape.layers import replace_deformable_attention
from mmlape.registry import FUNCTIONS, HOOKS, STRATEGIES

# Blocks of the networks seen so far: FSDP asks about a module before its children.
_BLOCKS: WeakSet[nn.Module] = WeakSet()


@HOOKS.register_module()
class CpuHook(Hook):
    """Calls :func:`mmlape.cpu.optimize` on the runner's model before a run; without effect on a GPU.

    In a config: ``default_hooks = dict(cpu=dict(type='mmlape.CpuHook'))``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def before_run(self, runner: Runner) -> None:
        """Weights are loaded afterwards; parameters stay the same objects."""
        optimize(runner.model)


@HOOKS.register_module()
class DeformableAttentionHook(Hook):
    """Puts our deformable attention into upstream's heads before a run: for GPUs, in bfloat16 most of all.

    Calls :func:`mmlape.layers.replace_deformable_attention` on the runner's model, as ``mmlape.CpuHook`` does on a CPU.
    In a config: ``custom_hooks = [dict(type='mmlape.DeformableAttentionHook')]``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def before_run(self, runner: Runner) -> None:
        """Weights are loaded afterwards; parameters stay the same objects."""
        replace_deformable_attention(runner.model)


@FUNCTIONS.register_module()
def wrap_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """An ``auto_wrap_policy`` for FSDP: each transformer block is a unit, the rest is one more.

    Policies by size do not fit: they may choose a ViT inside a ViT-Adapter, whose own ``forward`` is never called. In a
    config for MMEngine's ``FlexibleRunner``::

        strategy = dict(
            type='mmlape.FSDPStrategy',
            model_wrapper=dict(
                type='MMFullyShardedDataParallel', auto_wrap_policy='mmlape.wrap_blocks'))
    """
    if isinstance(module, Backbone):
        _BLOCKS.update(block for stage in module.stages() for block in stage.blocks)
    return recurse or module in _BLOCKS


@STRATEGIES.register_module()
class FSDPStrategy(_strategy.FSDPStrategy):
    """MMEngine's strategy with the current order of PyTorch's arguments, without which resuming fails."""

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Give every process its shards of an optimizer state."""
        shards = FullyShardedDataParallel.optim_state_dict_to_load(
            model=self.model, optim=self.optim_wrapper.optimizer, optim_state_dict=state_dict
        )
        self.optim_wrapper.load_state_dict(shards)

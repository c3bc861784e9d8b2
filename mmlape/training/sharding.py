"""Training of models that do not fit on one GPU: parameters, gradients and optimizer states are shared out (FSDP2)."""

from __future__ import annotations

from typing import Any

from mmengine import _strategy
from mmengine.device import get_device
from mmengine.dist import broadcast, is_main_process
from torch import nn
from torch.distributed.tensor import DTensor

from mmlape.backbones import Backbone
from mmlape.checkpoints.matching import part_of, takes_parts
from mmlape.checks import check_bool
from mmlape.registry import STRATEGIES


def wrap_blocks(model: nn.Module, **options: Any) -> nn.Module:
    """Share out a model's parameters with PyTorch's ``fully_shard``: each transformer block is a unit, the rest is one.

    Names and shapes stay, and each parameter keeps its own options in the optimizer.

    Args:
        model: On the device of this process, with the same values in all processes; changed in place.
        options: Of ``torch.distributed.fsdp.fully_shard``, such as ``mesh`` and ``mp_policy``.

    Returns:
        The model.
    """
    from torch.distributed.fsdp import fully_shard

    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    stages = [stage for backbone in backbones for stage in backbone.stages()]
    for block in dict.fromkeys(block for stage in stages for block in stage.blocks):
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


@STRATEGIES.register_module()
class FSDPStrategy(_strategy.DDPStrategy):
    """MMEngine's strategy for ``FlexibleRunner`` with :func:`wrap_blocks`: FSDP2, with checkpoints like those of DDP.

    Checkpoints hold whole tensors, in the format of all other runs: they resume with any number of processes, and
    without FSDP. In a config::

        runner_type = 'FlexibleRunner'
        strategy = dict(type='mmlape.FSDPStrategy')

    Args:
        reshard_after_forward: Whether a block frees its parameters between forward and backward, which gathers them
            again. False takes more memory and less communication. Default True.
        options: Of MMEngine's ``DDPStrategy``, but for ``model_wrapper``.

    Raises:
        ValueError: If an option of MMEngine's ``FSDPStrategy`` is given that has no meaning here.
    """

    def __init__(self, *, reshard_after_forward: bool = True, **options: Any) -> None:
        self.reshard_after_forward = check_bool('reshard_after_forward', reshard_after_forward)
        of_others = (
            'model_wrapper',
            'state_dict_cfg',
            'activation_checkpointing',
            'skip_init_weights',
        )
        if given := [name for name in of_others if name in options]:
            raise ValueError(
                f"mmlape.FSDPStrategy has no {' and no '.join(given)}: write strategy=dict(type='mmlape.FSDPStrategy') "
                'alone; it shards by blocks, and saves whole tensors'
            )
        super().__init__(**options)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        model = self.convert_model(model.to(get_device()))
        for tensor in model.state_dict().values():  # as DDP does
            broadcast(tensor, 0)
        return wrap_blocks(model, reshard_after_forward=self.reshard_after_forward)

    def save_checkpoint(
        self, filename: str, *, save_optimizer: bool = True, **options: Any
    ) -> None:
        """Write in the main process; all gather, in the same order."""
        if is_main_process():
            super().save_checkpoint(filename, save_optimizer=save_optimizer, **options)
        else:
            self.model_state_dict()
            if save_optimizer:
                self.optim_state_dict()

    def model_state_dict(self) -> dict:
        """Whole tensors of the model; to be called by all processes."""
        return whole(super().model_state_dict())

    def optim_state_dict(self) -> dict:
        """Whole tensors of the optimizer; to be called by all processes."""
        return whole(super().optim_state_dict())

    def load_model_state_dict(self, state_dict: dict, **options: Any) -> None:
        """Take each process's part of whole tensors."""
        with takes_parts(self.model):
            super().load_model_state_dict(state_dict, **options)

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Take each process's part of whole tensors."""
        groups = self.optim_wrapper.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group['params']]
        states = {
            index: {key: part_of(value, parameters[index]) for key, value in state.items()}
            for index, state in state_dict['state'].items()
        }
        super().load_optim_state_dict({**state_dict, 'state': states})


def whole(value: Any) -> Any:
    """Tensors that are shared out, gathered on the CPU by all processes together, also in dicts; the rest as is."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value

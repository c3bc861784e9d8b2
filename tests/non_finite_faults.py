"""A hook that makes one iteration of a training go wrong; configs import it by name."""

import math

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS


@HOOKS.register_module(force=True)
class MakeNonFinite(Hook):
    """In iteration ``at`` (from 1) of process ``rank``: a pixel is NaN, or a module overflows."""

    def __init__(self, at: int, module: str = '', rank: int = 0) -> None:
        self.at, self.module, self.rank = at, module, rank

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 != self.at or get_rank() != self.rank:
            return
        if self.module:
            model = runner.model.module if is_model_wrapper(runner.model) else runner.model
            with torch.no_grad():
                model.get_submodule(self.module).weight.mul_(1e38)
        else:
            image = data_batch['inputs'][0].float()
            image[1, 5, 7] = math.nan
            data_batch['inputs'][0] = image

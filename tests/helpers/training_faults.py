"""Hooks that make one iteration of a training go wrong; configs import them by name."""

import math
import os
import threading
from pathlib import Path

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


@HOOKS.register_module(force=True)
class Hang(Hook):
    """Process ``rank`` waits for ever in iteration ``at`` (from 1), and writes its id into ``file``."""

    def __init__(self, at: int, rank: int, file: str) -> None:
        self.at, self.rank, self.file = at, rank, file

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 == self.at and get_rank() == self.rank:
            Path(self.file).write_text(str(os.getpid()))
            threading.Event().wait()

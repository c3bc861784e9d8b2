"""Hooks that record a training or make one iteration go wrong; configs import them by name."""

import math
import os
import threading
import time
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmlape import preemption
from mmlape.training.stop_hooks import unwrapped


@HOOKS.register_module(force=True)
class MakeNonFinite(Hook):
    """In iteration ``at`` (from 1) of process ``rank``: a pixel is NaN, or the weights of a module are infinite."""

    def __init__(self, at: int, module: str = '', rank: int = 0) -> None:
        self.at, self.module, self.rank = at, module, rank

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 != self.at or get_rank() != self.rank:
            return
        if self.module:
            model = unwrapped(runner.model)
            with torch.no_grad():
                model.get_submodule(self.module).weight.fill_(math.inf)
        else:
            image = data_batch['inputs'][0].float()
            image[1, 5, 7] = math.nan
            data_batch['inputs'][0] = image


@HOOKS.register_module(force=True)
class Hang(Hook):
    """Process ``rank`` writes its id into ``file`` in iteration ``at`` (from 1), and waits for ever, once."""

    def __init__(self, at: int, rank: int, file: str) -> None:
        self.at, self.rank, self.file = at, rank, file

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        known = os.path.exists(self.file)
        if runner.iter + 1 == self.at and get_rank() == self.rank and not known:
            Path(self.file).write_text(str(os.getpid()))
            threading.Event().wait()


def seed_of(rank: int, iteration: int) -> int:
    """Every process and step has random numbers of its own, the same in each run."""
    return 1000 * (rank + 1) + iteration


@HOOKS.register_module(force=True)
class RecordGradients(Hook):
    """Writes ``<folder>/<rank>_<iteration>.pth``: weights before the step, the batch, and the averaged gradients."""

    priority = 'LOWEST'

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def before_train(self, runner) -> None:
        step = runner.optim_wrapper.optimizer.step
        model = unwrapped(runner.model)

        def recording(*args, **kwargs):
            self.record['gradients'] = {
                name: parameter.grad.clone()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
            return step(*args, **kwargs)

        runner.optim_wrapper.optimizer.step = recording

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        model = unwrapped(runner.model)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        rates = [group['lr'] for group in runner.optim_wrapper.param_groups]
        self.record = dict(
            state=state, batch=data_batch, wrapper=type(runner.model).__name__, rates=rates
        )
        torch.manual_seed(seed_of(get_rank(), runner.iter))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        torch.save(self.record, self.folder / f'{get_rank()}_{runner.iter}.pth')


@HOOKS.register_module(force=True)
class WaitForSignal(Hook):
    """In iteration ``at`` (from 1) of a first start, wait for SLURM's signal; two iterations later, for the end."""

    def __init__(self, at: int) -> None:
        self.at = at

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if os.environ.get('SLURM_RESTART_COUNT', '0') != '0':
            return
        if runner.iter + 1 == self.at:
            Path(runner.work_dir, f'waits_{get_rank()}').write_text(str(os.getpid()))
            while preemption._State.asked is None:
                time.sleep(0.05)
        elif runner.iter + 1 == self.at + 2:
            threading.Event().wait()

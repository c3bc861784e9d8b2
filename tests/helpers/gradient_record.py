"""A hook for distributed runs: saves inputs and gradients of each step, so that they can be recomputed elsewhere."""

from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS


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
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model

        def recording(*args, **kwargs):
            self.record['gradients'] = {
                name: parameter.grad.clone()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
            return step(*args, **kwargs)

        runner.optim_wrapper.optimizer.step = recording

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        state = {name: value.clone() for name, value in model.state_dict().items()}
        rates = [group['lr'] for group in runner.optim_wrapper.param_groups]
        self.record = dict(
            state=state, batch=data_batch, wrapper=type(runner.model).__name__, rates=rates
        )
        torch.manual_seed(seed_of(get_rank(), runner.iter))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        torch.save(self.record, self.folder / f'{get_rank()}_{runner.iter}.pth')

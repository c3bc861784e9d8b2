"""Stop a training at a batch that is not finite, before it is learned from, and keep what is needed to see why."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.registry import HOOKS

from .capture import Evidence, last_checkpoint, write_capture
from .plain_data import plain, tensors_in
from .random_state import random_state

__all__ = ['NonFiniteError', 'StopAtNonFiniteHook']

# What is looked at, in the order in which a fault is named.
KINDS = ('input', 'loss', 'gradients')


class NonFiniteError(FloatingPointError):
    """An input, a loss or a gradient of a training step is NaN or infinite."""


class _SkippedError(Exception):
    """This batch is left out."""


@HOOKS.register_module()
class StopAtNonFiniteHook(Hook):
    """Stop before a step whose input, loss or gradients hold NaN or infinity, and write down what led to it.

    Nothing of such a batch is learned, in no process: the optimizer does not step, and running statistics (all buffers
    of the model) are put back to what they were before it. So no checkpoint ever holds what came of it. All processes
    stop at the same iteration, and the message names those in which it happened. A gradient that overflows under a loss
    scale (float16) is normal and stops nothing.

    ``WORK_DIR/nan_<iteration>.pth`` then holds the batch as the model got it, the weights and buffers before the step,
    the state of all random numbers, the config and the losses; ``mmlape replay FILE`` runs the step again and names
    the module in which the first value was not finite. With several processes, the first one in which it happened
    writes the file; where it is the gradients alone, which are averaged, each writes its own
    (``nan_<iteration>_rank<r>.pth``).

    In any config::

        default_hooks = dict(finite=dict(type='mmlape.StopAtNonFiniteHook'))

    Inputs are looked at before the forward pass, on the device where the data workers put them; integers (images of 8
    bits) cost nothing. Loss and gradients need one answer of the GPU per iteration, just before the optimizer steps.

    Args:
        gradients: Whether the gradients are looked at as well, where there is no loss scale. Default True.
        max_skipped: How many such batches in a row are left out, with a warning, before the run stops. Default 0.
        max_files: How many files each process writes at most. Default 1.

    Raises:
        NonFiniteError: From the runner's ``train``.
        TypeError, ValueError: If an option is out of range.
    """

    # Others draw random numbers or change the batch before it is kept.
    priority = 'LOWEST'

    def __init__(self, gradients: bool = True, max_skipped: int = 0, max_files: int = 1) -> None:
        self.gradients = gradients
        self.max_skipped = check_positive_int('max_skipped', max_skipped, minimum=0)
        self.max_files = check_positive_int('max_files', max_files, minimum=0)

    def before_train(self, runner: Runner) -> None:
        """Put the checks between the backward pass and the step of every optimizer."""
        self._skipped = self._files = 0
        self._model = _unwrapped(runner.model)
        self._buffers = _Buffers(self._model)
        self._handle = self._model.register_forward_hook(self._note_losses)
        for wrapper in _wrappers(runner.optim_wrapper):
            self._guard(runner, wrapper)

    def after_train(self, runner: Runner) -> None:
        """Take the checks away."""
        self._handle.remove()
        for wrapper in _wrappers(runner.optim_wrapper):
            del wrapper.backward, wrapper.update_params

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        """Keep what the step starts from, and look at the input."""
        self._buffers.keep()
        self._evidence = Evidence(data_batch, random_state())
        self._input_is_finite = all(
            _is_finite(tensor) for _, tensor in tensors_in(data_batch, samples=False)
        )
        if not self._input_is_finite:
            # The other processes wait for this one in its forward pass, which must not fail on the way.
            self._evidence.batch = plain(data_batch)
            if isinstance(data_batch, (dict, list)):
                _replace(data_batch)

    def _note_losses(self, model: nn.Module, args: tuple, output: Any) -> None:
        if isinstance(output, dict):
            self._evidence.note_losses(output)

    def _guard(self, runner: Runner, wrapper: OptimWrapper) -> None:
        backward, update_params = wrapper.backward, wrapper.update_params

        def checked_backward(loss: Tensor, **options: Any) -> None:
            finite = loss.detach().isfinite().all()
            backward(loss, **options)
            self._judge(runner, wrapper, loss.detach(), finite)

        def unless_skipped(*args: Any, **options: Any) -> None:
            try:
                update_params(*args, **options)
            except _SkippedError:
                wrapper.zero_grad()

        wrapper.backward, wrapper.update_params = checked_backward, unless_skipped

    def _judge(self, runner: Runner, wrapper: OptimWrapper, loss: Tensor, finite: Tensor) -> None:
        """Compare notes with the other processes; they come here together."""
        gradients = _gradients_are_finite(wrapper, 2) if self._looks_at_gradients(wrapper) else True
        facts = [
            torch.as_tensor(x, device=loss.device)
            for x in (self._input_is_finite, finite, gradients)
        ]
        own = torch.stack(facts).int()
        everywhere = own.clone()
        all_reduce(everywhere, 'min')
        if bool(everywhere.all()):
            self._skipped = 0
            return
        kind = KINDS[everywhere.tolist().index(0)]
        if kind == 'gradients' and self._only_overflowed(wrapper):
            self._skipped = 0
            return
        self._fault(runner, kind, bool(own[KINDS.index(kind)]), loss)

    def _looks_at_gradients(self, wrapper: OptimWrapper) -> bool:
        scaler = getattr(wrapper, 'loss_scaler', None)
        return self.gradients and not (scaler is not None and scaler.is_enabled())

    def _only_overflowed(self, wrapper: OptimWrapper) -> bool:
        """Whether all gradients are finite, and just so large that their squares are not."""
        exact = torch.as_tensor(_gradients_are_finite(wrapper, math.inf)).int()
        all_reduce(exact, 'min')
        return bool(exact)

    def _fault(self, runner: Runner, kind: str, is_fine_here: bool, loss: Tensor) -> None:
        self._buffers.restore()
        iteration, rank = runner.iter + 1, get_rank()
        notes = all_gather_object((is_fine_here, self._evidence.losses(loss)))
        ranks = [other for other, (fine, _) in enumerate(notes) if not fine]
        # State dicts of sharded models are made by all processes together.
        state = self._model.state_dict()
        writers = ranks if kind == 'gradients' else ranks[:1]
        written = None
        if rank in writers and self._files < self.max_files:
            self._files += 1
            suffix = f'_rank{rank}' if len(writers) > 1 else ''
            written = write_capture(
                runner,
                f'nan_{iteration}{suffix}.pth',
                kind,
                self._model,
                state,
                self._evidence,
                loss,
            )
        files = [text for text in all_gather_object(written) if text]
        says = _describe(kind, iteration, ranks, notes[ranks[0]][1])
        if self._skipped < self.max_skipped:
            self._skipped += 1
            runner.logger.warning(f'{says}. This batch is left out. {" ".join(files)}')
            raise _SkippedError
        message = (
            f'{says}. The run stops here; nothing of this batch was learned'
            f'{last_checkpoint(runner)}. {" ".join(files)}'
        )  # fmt: skip
        _write_into_log(runner.logger, message)
        raise NonFiniteError(message.strip())


class _Buffers:
    """Copies of a model's buffers, in memory that is allocated once."""

    def __init__(self, model: nn.Module) -> None:
        self.places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.copies = [buffer.detach().clone() for buffer in self._live()]

    def _live(self) -> list[Tensor]:
        return [module._buffers[name] for module, name in self.places]  # type: ignore[misc]

    @torch.no_grad()
    def keep(self) -> None:
        if self.copies:
            torch._foreach_copy_(self.copies, self._live())

    @torch.no_grad()
    def restore(self) -> None:
        if self.copies:
            torch._foreach_copy_(self._live(), self.copies)


def _unwrapped(model: nn.Module) -> nn.Module:
    return cast(nn.Module, model.module) if is_model_wrapper(model) else model


def _wrappers(optim_wrapper: OptimWrapper | OptimWrapperDict) -> Iterator[OptimWrapper]:
    yield from (
        optim_wrapper.values() if isinstance(optim_wrapper, OptimWrapperDict) else [optim_wrapper]
    )


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    # A sum costs one pass and no memory; only if it overflows are the values themselves looked at.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _replace(batch: dict | list) -> None:
    """Put finite tensors in the place of others, in the containers: tensors may belong to the data set."""
    for key, value in batch.items() if isinstance(batch, dict) else enumerate(batch):
        if isinstance(value, Tensor) and not _is_finite(value):
            batch[key] = value.nan_to_num(0, 0, 0)
        elif isinstance(value, (dict, list)):
            _replace(value)


def _gradients_are_finite(wrapper: OptimWrapper, order: float) -> Tensor | bool:
    """By a norm of each: 2 is fast, and overflows beyond 1e19; infinity is exact, and ten times as slow on a CPU."""
    found = [
        p.grad if p.grad.layout is torch.strided else p.grad.coalesce().values()
        for group in wrapper.param_groups
        for p in group['params']
        if p.grad is not None
    ]
    found = [grad for grad in found if grad.numel()]
    return torch.stack(torch._foreach_norm(found, order)).isfinite().all() if found else True


def _describe(kind: str, iteration: int, ranks: list[int], losses: dict[str, float]) -> str:
    where = ''
    if get_world_size() > 1:
        which = ', '.join(map(str, ranks)) if kind != 'gradients' else 'any'
        where = f' in process {which} of {get_world_size()}'
    if kind == 'input':
        return f'iteration {iteration}: the input{where} holds NaN or infinity'
    if kind == 'gradients':
        return f'iteration {iteration}: the loss is finite, but its gradients{where} are not'
    bad = ', '.join(
        f'{name} = {value}' for name, value in losses.items() if not math.isfinite(value)
    )
    return f'iteration {iteration}: the loss{where} is not finite ({bad})'


def _write_into_log(logger: logging.Logger, text: str) -> None:
    """Into the log's file alone: on the screen it is the program's last line."""
    record = logger.makeRecord(logger.name, logging.ERROR, '', 0, text, (), None)
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)

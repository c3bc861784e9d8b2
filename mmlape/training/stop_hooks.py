"""Stop a training at NaN or infinity, before the optimizer steps."""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mmlape.checkpoints.report import listed
from mmlape.checks import check_bool, check_positive_int
from mmlape.registry import HOOKS


class NonFiniteError(FloatingPointError):
    """An input, a loss or a gradient of a training step is NaN or infinite."""


@HOOKS.register_module()
class StopAtNonFiniteHook(Hook):
    """Stop all processes at an input, loss or gradient that is NaN or infinite, before the optimizer steps.

    Weights and buffers are then those before the batch. One more forward pass finds the first module whose output is
    not finite. Gradients that overflow under a loss scale (float16) are normal and ignored. All of these checks are
    some ten kernels and one synchronisation a step.

    Args:
        gradients: Check gradients as well, unless there is a loss scale. Default True.
        max_skipped: How many such batches in a row are skipped, with a warning, before the run stops. Gradients that
            were accumulated before such a batch are lost with it. Default 0.
    """

    priority = 'LOWEST'  # after hooks that change the batch

    def __init__(self, gradients: bool = True, max_skipped: int = 0):
        self.gradients = check_bool('gradients', gradients)
        self.max_skipped = check_positive_int('max_skipped', max_skipped, minimum=0)
        self._skipped, self._skips, self._of_this_batch = 0, False, False

    def before_train(self, runner: Runner) -> None:
        """Check between the backward pass and the step of every optimizer."""
        self._model = unwrapped(runner.model)
        several = getattr(runner.optim_wrapper, 'values', None)  # a dict of them
        for each in several() if several else [runner.optim_wrapper]:
            each.backward = partial(self._backward, runner, each, each.backward)
            each.should_update = lambda update=each.should_update: not self._skips and update()

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Save the batch and the buffers before the step."""
        self._batch, self._skips = data_batch, False
        self._skipped = self._skipped if self._of_this_batch else 0  # of the one before
        self._of_this_batch = False
        self._save_buffers()

    @torch.no_grad()
    def _save_buffers(self) -> None:
        """Save one copy for each device and dtype: batch norms have three small buffers each."""
        flat = defaultdict(list)
        for buffer in map(_plain, self._model.buffers()):
            flat[buffer.device, buffer.dtype].append(buffer.flatten())
        self._buffers = {kind: torch.cat(parts) for kind, parts in flat.items()}

    @torch.no_grad()
    def _restore_buffers(self) -> None:
        saved = dict(self._buffers)
        for buffer in map(_plain, self._model.buffers()):
            kind = buffer.device, buffer.dtype
            values, saved[kind] = saved[kind].tensor_split([buffer.numel()])
            buffer.copy_(values.view_as(buffer))

    def _backward(self, runner: Runner, wrapper: Any, backward: Any, loss: Tensor, **options: Any):
        backward(loss, **options)
        scaler, groups = getattr(wrapper, 'loss_scaler', None), wrapper.param_groups
        looks = self.gradients and not (scaler is not None and scaler.is_enabled())
        grads = [p.grad for group in groups for p in group['params'] if looks]
        values = self._batch, loss, grads
        everywhere = (_plain(loss) * 0).float()
        for flag in _flags((self._batch, grads)):
            everywhere = everywhere + flag.to(loss.device, torch.float32)
        all_reduce(everywhere, 'sum')
        self._skips = everywhere.item() != 0  # the only time that a step waits for the hook
        if self._skips:
            self._skipped += not self._of_this_batch  # several optimizers have a backward pass each
            self._of_this_batch = True
            mine = next((kind for kind, value in enumerate(values) if not all_finite(value)), 3)
            kind = min(all_gather_object(mine))
            text = self._describe(wrapper, kind, loss)  # in all processes: SyncBN communicates
            texts = all_gather_object(text if mine == kind else None)
            rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
            says = f'iteration {runner.iter + 1}, process {rank} of {len(texts)}: {text}'
            several = getattr(wrapper, '_accumulative_counts', 1) > 1
            others = ', nor of those whose gradients were accumulated before it' * several
            runner.logger.warning(f'{says}. Nothing of this batch is learned{others}')
            if self._skipped > self.max_skipped:
                last = runner.message_hub.get_info('last_ckpt', None)
                raise NonFiniteError(f'{says}; the run stops. The last checkpoint is {last}')
            wrapper.zero_grad()

    def _describe(self, wrapper: Any, kind: int, loss: Tensor) -> str:
        first: list[str] = []
        self._restore_buffers()
        with suppress(Exception), torch.no_grad(), wrapper.optim_context(self._model):
            model = deepcopy(self._model)
            for name, module in model.named_modules():
                says = f'{name or "the model"} ({type(module).__name__})'
                module.register_forward_hook(
                    lambda *call, says=says: first.extend([] if all_finite(call[-1]) else [says])
                )
            data = model.data_preprocessor(self._batch, True)
            args, kwargs = ((), data) if isinstance(data, dict) else (data, {})
            model(*args, **kwargs, mode='loss')
        grads = (n for n, p in self._model.named_parameters() if not all_finite(p.grad))
        first += [f'the gradient of {name}' for name in grads]
        what = ('an input', 'the loss', 'a gradient')[kind]
        paths = image_paths(self._batch)
        images = f'; images of the batch: {listed(paths, 5)}' if paths else ''
        return f'{what} is not finite (loss = {loss.item()}); first in {first[0] if first else "?"}{images}'


def check_finite(runner: Runner, last: str | None) -> None:
    """Raise NonFiniteError in all processes if a state that is to be saved is not finite in one."""
    averages = [hook.ema_model for hook in runner.hooks if hasattr(hook, 'ema_model')]
    states = {'the model': unwrapped(runner.model).state_dict(keep_vars=True)}
    for number, average in enumerate(averages):
        states[f'the average (EMA) of the model{number or ""}'] = average.state_dict()
    states['the optimizer'] = runner.optim_wrapper.state_dict()
    found = (
        f'{key} of {what}'
        for what, state in states.items()
        for key, value in state.items()
        if not all_finite(value)
    )
    # All at once first: a GPU is waited for at each answer.
    mine = None if all_finite(states) else next(found)
    text = next((text for text in all_gather_object(mine) if text), None)
    if text:
        raise NonFiniteError(
            f'iteration {runner.iter}: {text} is NaN or infinite. Nothing is saved, and the run stops; the last '
            f'checkpoint is {last}'
        )


def image_paths(batch: Any) -> list[str]:
    """Paths of the images of a batch, from the data samples in nested dicts, lists and tuples."""
    if isinstance(batch, (dict, list, tuple)):
        inner = batch.values() if isinstance(batch, dict) else batch
        return list(dict.fromkeys(path for each in inner for path in image_paths(each)))
    path = batch.metainfo.get('img_path') if isinstance(batch, BaseDataElement) else None
    return [path] if isinstance(path, str) else []


def unwrapped(model: nn.Module) -> Any:
    """The model that DDP or another wrapper of MMEngine holds."""
    return model.module if is_model_wrapper(model) else model


def all_finite(value: Any) -> bool:
    """Whether all floating point tensors in nested dicts, lists and tuples are free of NaN and infinity."""
    return all(flag.item() == 0 for flag in _flags(value))


def _flags(value: Any) -> list[Tensor]:
    """Return a number for each device and dtype of floating point tensors in nested dicts, lists and tuples, on that
    device: 0, or NaN if one of them is NaN or infinite."""
    of_kind = defaultdict(list)
    for tensor in _tensors(value):
        of_kind[tensor.device, tensor.dtype].append(tensor)
    flags = []
    for (device, _), tensors in of_kind.items():
        if device.type == 'cpu':  # ten times as fast as isfinite or the norm
            edges = [edge for tensor in tensors for edge in tensor.aminmax()]
        else:  # few kernels for all tensors; the largest magnitude cannot overflow
            edges = list(torch._foreach_norm(tensors, math.inf))
        flags.append((torch.stack(edges) * 0).sum())
    return flags


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        value = _plain(value)
        if value.is_floating_point() and value.numel() and not value.is_meta:
            yield value.float() if value.element_size() == 1 else value  # no aminmax of 8 bits
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _plain(value: Tensor) -> Tensor:
    """The part of it that this process holds, and of a sparse one, what it stores."""
    value = value.detach()
    value = value.to_local() if isinstance(value, DTensor) else value
    return value.coalesce().values() if value.is_sparse else value

"""Measuring a case of ``benchmarks/cases.py``: agreement first, then times in turns, then bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .cases import OURS, Case
from .side_by_side import compared, in_turns, milliseconds, saved_bytes

TOLERANCE = 1e-4  # relative to the largest value
TURN_MS = 30  # a turn repeats shorter calls
# Name in the record: whether it is a step of training.
TIMES = {'forward': False, 'train_step': True}


def measure(
    case: Case,
    repeats: int,
    clock: Callable[[], float],
    dtype: torch.dtype = torch.float32,
) -> dict:
    """Times in turns, bytes saved for backward, and the largest relative difference of the outputs, in float32."""
    found: dict = dict(size=case.size, difference=differences(case))
    case.dtype = dtype
    for name, training in TIMES.items():
        found[name] = time_of(case, training, repeats, clock)
    found['saved_bytes'] = {
        key: saved_bytes(partial(case.call, model)) for key, model in case.models.items()
    }
    return found


def time_of(
    case: Case,
    training: bool,
    repeats: int,
    clock: Callable[[], float],
    longest: float = float('inf'),
) -> dict[str, dict[str, float]]:
    """Statistics of times in turns; empty if one call takes more than ``longest`` seconds."""
    to_device(case)
    for model in case.models.values():
        model.train(training)  # upstream's return nothing
    work = train_step if training else infer
    calls = {key: partial(work, case, model) for key, model in case.models.items()}
    once = {key: milliseconds(each, clock) for key, each in calls.items()}
    if max(once.values()) > 1e3 * longest:
        return {}
    number = max(1, round(TURN_MS / max(min(once.values()), 1e-3)))
    turns = {key: partial(mean_time, each, number, clock) for key, each in calls.items()}
    return compared(in_turns(turns, repeats, warm_up=int(number > 1)))


def differences(case: Case) -> dict[str, float]:
    """Check the outputs that must agree with ours; raises RuntimeError, because other times would be meaningless."""
    to_device(case)
    for model in case.models.values():
        model.train(False)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = case.call(case.models[OURS])
        found = {}
        for name in case.alike:
            pairs = list(zip(case.call(case.models[name]), expected, strict=True))
            found[name] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
            if not found[name] <= TOLERANCE:
                raise RuntimeError(
                    f'{name} and ours differ by {found[name]:.1e}: nothing to compare'
                )
    return found


@torch.no_grad()
def infer(case: Case, model: nn.Module) -> None:
    case.call(model)


def train_step(case: Case, model: nn.Module) -> None:
    """Forward and backward; the optimizer's step depends only on the number of parameters."""
    model.zero_grad()
    first = case.inputs[0]
    first.grad = None
    first.requires_grad_(case.input_grad)
    sum(output.square().mean() for output in case.call(model)).backward()
    first.requires_grad_(False)


def mean_time(call: Callable[[], object], number: int, clock: Callable[[], float]) -> float:
    """Milliseconds of one of ``number`` calls."""
    return milliseconds(lambda: [call() for _ in range(number)], clock) / number


def to_device(case: Case) -> None:
    """Move to the GPU, if there is one."""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    for model in case.models.values():
        model.to(device)
    case.inputs = tuple(
        each.to(device) if isinstance(each, Tensor) else each for each in case.inputs
    )

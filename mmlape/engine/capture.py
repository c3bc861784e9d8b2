"""The file that holds a training step: written where it failed, read where it is run again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner
from torch import Tensor, nn

from mmlape.version import __version__
from mmlape.whole_files import write_whole

from .plain_data import literal_config, plain

__all__ = ['Evidence', 'last_checkpoint', 'read_capture', 'write_capture']

FORMAT = 'mmlape training step 1'
_RUNTIME = ('epoch', 'iter', 'max_epochs', 'max_iters')


class Evidence:
    """What a step started from and what came out, kept until it is known whether all is well.

    Args:
        batch: As it came from the data loader.
        random: Of :func:`~mmlape.engine.random_state.random_state`.
    """

    def __init__(self, batch: Any, random: dict[str, Any]) -> None:
        self.batch = batch
        self.random = random
        self.autocast: str | None = None
        self._output: dict[str, Any] = {}

    def note_losses(self, output: dict[str, Any]) -> None:
        """Keep the parts of the loss, and in which type they were computed; called inside the forward pass."""
        self._output = output
        kind = next((t.device.type for _, t in _losses(output)), 'cpu')
        on = torch.is_autocast_enabled(kind)
        self.autocast = str(torch.get_autocast_dtype(kind)).removeprefix('torch.') if on else None

    def losses(self, total: Tensor) -> dict[str, float]:
        """The loss and its parts as numbers."""
        return {'loss': float(total), **mean_losses(self._output)}


def mean_losses(output: dict[str, Any]) -> dict[str, float]:
    """The parts of a loss, as MMEngine logs them: the mean of each tensor, summed over a list."""
    found: dict[str, float] = {}
    for name, tensor in _losses(output):
        found[name] = found.get(name, 0.0) + float(tensor.detach().float().mean())
    return found


def _losses(output: dict[str, Any]) -> list[tuple[str, Tensor]]:
    pairs = ((k, v if isinstance(v, (list, tuple)) else [v]) for k, v in output.items())
    return [(name, t) for name, values in pairs for t in values if isinstance(t, Tensor)]


def write_capture(
    runner: Runner,
    name: str,
    kind: str,
    model: nn.Module,
    state: dict[str, Tensor],
    evidence: Evidence,
    loss: Tensor,
) -> str:
    """Write the file into the work dir, whole or not at all; what the user is told of it.

    A disk that is full must not hide why the run stops, so no error is raised.
    """
    path = Path(runner.work_dir, name)
    content = dict(
        format=FORMAT,
        mmlape=__version__,
        torch=str(torch.__version__),
        device=str(loss.device),
        kind=kind,
        iteration=runner.iter + 1,
        rank=get_rank(),
        processes=get_world_size(),
        # Stopped at the input: what was computed is not this batch's.
        losses={} if kind == 'input' else evidence.losses(loss),
        batch=plain(evidence.batch),
        state=plain(dict(state)),
        buffers=plain(dict(model.named_buffers())),
        evaluating=[name for name, part in model.named_modules() if not part.training],
        random=evidence.random,
        threads=torch.get_num_threads(),
        autocast=evidence.autocast,
        runtime={key: plain(runner.message_hub.get_info(key)) for key in _RUNTIME},
        config=literal_config(runner.cfg),
    )
    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        write_whole(path, buffer.getvalue())
    except OSError as error:
        return f'What the model got could not be written to {path}: {error}.'
    return f'What led to it is in {path}; `mmlape replay {path}` says where it begins.'


def read_capture(path: str | Path) -> dict[str, Any]:
    """What :func:`write_capture` wrote. Nothing in the file is executed.

    Raises:
        ValueError: If there is no such file, or it is another kind of file.
    """
    if not Path(path).is_file():
        raise ValueError(f'there is no file {str(path)!r}')
    try:
        content = torch.load(path, map_location='cpu', weights_only=True)
    except Exception as error:  # zip, pickle, EOF, ...: whatever is wrong, it is not ours
        reason = str(error).splitlines()[0]
        raise ValueError(f'{str(path)!r} is no file of a training step: {reason}') from error
    if not isinstance(content, dict) or content.get('format') != FORMAT:
        raise ValueError(
            f'{str(path)!r} is no file of a training step, as mmlape.StopAtNonFiniteHook writes them'
        )
    return content


def last_checkpoint(runner: Runner) -> str:
    """``'; the last checkpoint is ...'``, if there is one."""
    pointer = Path(runner.work_dir, 'last_checkpoint')
    name = pointer.read_text(encoding='utf-8').strip() if pointer.is_file() else ''
    return f'; the last checkpoint is {name}' if name else ''

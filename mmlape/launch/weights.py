"""What training and testing demand of the checkpoints that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.config import Config

from mmlape.checkpoints.errors import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.reading import weights_only_everywhere

from .processes import stop_with_message

_HOOK = 'mmlape.CheckWeightsHook'


def check_weights(cfg: Config, allow_partial: bool = False) -> None:
    """Add ``mmlape.CheckWeightsHook`` to a config that has none; ``allow_partial`` loosens it in any."""
    if cfg.get('default_hooks') is None:
        cfg.default_hooks = {}
    hooks = [*cfg.default_hooks.values(), *(cfg.get('custom_hooks') or [])]
    found = [hook for hook in hooks if isinstance(hook, dict) and hook.get('type') == _HOOK]
    if not found:
        cfg.default_hooks['check_weights'] = dict(type=_HOOK)
        found = [cfg.default_hooks['check_weights']]
    if allow_partial:
        for hook in found:
            hook['allow_partial'] = True


@contextmanager
def weights_only() -> Iterator[None]:
    """A run that executes nothing out of a checkpoint, and ends with one line where one cannot be taken."""
    safe_loading()
    with stop_with_message(CheckpointError), weights_only_everywhere():
        yield

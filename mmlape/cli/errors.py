"""Errors of a command: one line on the screen instead of a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.dist import get_rank

from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.reading import weights_only_everywhere


@contextmanager
def stop_with_message(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with one line, not a traceback, at errors of these ``kinds`` (default: ``ValueError``,
    ``TypeError``, ``OSError``)."""
    handled = kinds or (ValueError, TypeError, OSError)
    try:
        yield
    except handled as error:
        sys.exit(f'error: {error}' if get_rank() == 0 else 1)


@contextmanager
def weights_only() -> Iterator[None]:
    """A run that executes no code of a checkpoint, and ends with one line if one cannot be loaded."""
    safe_loading()
    with stop_with_message(CheckpointError), weights_only_everywhere():
        yield

"""Runs of checkpoints of others: no code in them is executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.reading import weights_only_everywhere

from .program import stop_with_message


@contextmanager
def weights_only() -> Iterator[None]:
    """A run that executes no code of a checkpoint, and ends with one line if one cannot be loaded."""
    safe_loading()
    with stop_with_message(CheckpointError), weights_only_everywhere():
        yield

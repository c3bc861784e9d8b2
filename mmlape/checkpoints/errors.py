"""What is wrong with a checkpoint, as errors that a command says in one line."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, holds more than data, is damaged, or does not fit."""


class MissingCheckpointError(FileNotFoundError, CheckpointError):
    """A checkpoint that is not there."""


class DownloadError(ConnectionError, CheckpointError):
    """A checkpoint that cannot be downloaded."""

"""Whole files (:mod:`mmlape.whole_files`) for what writes by MMEngine's file backends. Importing this registers it."""

from __future__ import annotations

from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from .whole_files import digest_of, write_whole

__all__ = ['BACKEND', 'WholeFileBackend']

BACKEND = 'mmlape_whole_files'


class WholeFileBackend(LocalBackend):
    """MMEngine's backend of local files (``backend_args=dict(backend='mmlape_whole_files')``) that writes whole files.

    ``put`` leaves ``NAME.sha256`` beside the file, as ``sha256sum`` writes and checks it; ``remove`` takes it away.
    """

    def put(self, obj, filepath) -> None:
        """Write bytes as in :func:`write_whole`, with a digest."""
        write_whole(Path(filepath), bytes(obj), digest=True)

    def remove(self, filepath) -> None:
        """Remove a file and its digest."""
        super().remove(filepath)
        digest_of(Path(filepath)).unlink(missing_ok=True)


register_backend(BACKEND, WholeFileBackend, force=True)

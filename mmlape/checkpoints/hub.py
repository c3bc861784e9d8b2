"""Models on the Hugging Face hub, named ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from .report import DownloadError

HUB = 'hf://'
# Nothing that could run when it is read.
_WANTED = ('config.py', '*.safetensors', '*.sha256', '*.json', '*.md')


def hub_folder(name: str) -> Path:
    """The folder of a model on the hub, downloaded into Hugging Face's cache (``HF_HOME``) unless it is there.

    ``HF_HUB_OFFLINE=1`` asks no server, ``HF_TOKEN`` opens gated ones.

    Raises:
        DownloadError: A ``ConnectionError``, if it cannot be had.
    """
    repository, _, revision = name.removeprefix(HUB).partition('@')
    try:
        found = snapshot_download(
            repository, revision=revision or None, allow_patterns=list(_WANTED)
        )
    # Errors of the hub derive from these, as do errors of the name.
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DownloadError(f'{name} cannot be had from the Hugging Face hub: {reason}') from None
    return Path(found)

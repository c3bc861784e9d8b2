"""What travels with the package: configs and tools, in a clone or inside an installed wheel."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped_folder(name: str) -> Path:
    """``configs`` or ``tools``: in the clone of an editable install, else inside the package.

    Raises:
        ValueError: If there is neither.
    """
    for place in (PACKAGE / '.mim', PACKAGE.parent):
        if (place / name).is_dir():
            return place / name
    raise ValueError(f'this installation of mmlape has no {name}; install it again with pip')


def shipped_configs() -> dict[str, Path]:
    """Every config that can be run, by its path in ``configs`` without ``.py``: ``'lape/mask-rcnn_...'``."""
    folder = shipped_folder('configs')
    paths = sorted(folder.rglob('*.py'))
    names = {path.relative_to(folder).with_suffix('').as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if not name.startswith('_base_/')}


def find_config(text: str) -> Path:
    """A config by its file, or a shipped one by its name.

    Args:
        text: Path of a file; or ``mask-rcnn_...``, ``lape/mask-rcnn_...`` or ``configs/lape/mask-rcnn_...``, with or
            without ``.py``.

    Raises:
        ValueError: If there is no such file and no, or more than one, shipped config of this name; the message names
            the nearest.
    """
    if Path(text).is_file():
        return Path(text)
    configs = shipped_configs()
    name = text.removesuffix('.py').removeprefix('./').removeprefix('configs/')
    found = [key for key in configs if name in (key, key.rpartition('/')[2])]
    if len(found) == 1:
        return configs[found[0]]
    if found:
        raise ValueError(f'{text!r} is the name of several configs: {", ".join(found)}')
    nearest = sorted(configs, key=lambda key: -_likeness(name, key))[:5]
    lines = ''.join(f'\n  {key}' for key in nearest)
    raise ValueError(f'{text!r} is neither a file nor a shipped config; the nearest are{lines}')


def _likeness(name: str, key: str) -> float:
    """Shared letters, and the words of ``name`` that the config has."""
    stem, asked = key.rpartition('/')[2], name.rpartition('/')[2]
    words = asked.replace('_', '-').split('-')
    there = sum(word in stem.replace('_', '-').split('-') for word in words) / len(words)
    return SequenceMatcher(None, asked, stem).ratio() + there

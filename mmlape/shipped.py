"""The configs, tools and pages that come with the package: where they are, and configs by name. No slow imports."""

from __future__ import annotations

import re
from collections.abc import Container
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmengine.config import Config

PACKAGE = Path(str(resources.files('mmlape')))


def shipped_folder(name: str) -> Path:
    """The folder ``configs``, ``tools`` or ``docs``, in MIM's place: a clone has links there."""
    for place in (PACKAGE / '.mim', PACKAGE.parent):
        if (place / name).is_dir():
            return (place / name).resolve()
    raise ValueError(f'this installation of mmlape has no {name}: reinstall it with pip')


def output_folder() -> Path:
    """Where ``work_dirs`` and ``data`` go by default: the clone, or the current folder where a wheel is installed."""
    folder = shipped_folder('tools').parent
    return Path.cwd() if folder.name == '.mim' else folder


def shipped_configs() -> dict[str, Path]:
    """All configs but bases, by the path in ``configs`` without ``.py``: ``'lape/mask-rcnn_...'``."""
    folder = shipped_folder('configs')
    paths = sorted(folder.rglob('*.py'))
    names = {path.relative_to(folder).with_suffix('').as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if not name.startswith('_base_/')}


def shipped_pages() -> dict[str, Path]:
    """The pages by name: ``fit`` of ``docs``, and ``configs/eomt``, the README of a folder of configs."""
    pages = {path.stem: path for path in sorted(shipped_folder('docs').glob('*.md'))}
    readmes = sorted(shipped_folder('configs').glob('*/README.md'))
    return pages | {f'configs/{path.parent.name}': path for path in readmes}


def find_config(text: str) -> Path:
    """A config by its file, or a shipped one by its name: ``mask-rcnn_...``, ``lape/mask-rcnn_...`` or
    ``configs/lape/mask-rcnn_...``, with or without ``.py``.

    Raises:
        ValueError: If there is none, or more than one; the message names the nearest.
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
    stems = {key.rpartition('/')[2]: key for key in configs}
    close = get_close_matches(name.rpartition('/')[2], stems, 3)
    hint = f'; the nearest are {", ".join(stems[stem] for stem in close)}' if close else ''
    raise ValueError(f'{text!r} is neither a file nor a shipped config{hint}')


def read_config(text: str | Path) -> Config:
    """A config by :func:`find_config`. Its bases may be ``mmdet::...``, ``mmseg::...``, ``mmpretrain::...`` or
    ``mmlape::...``. A ``_base_`` that is a path to a config of ours on another machine, or from before a move, as
    `mmlape fit` writes them, is replaced by where that config is here.

    Raises:
        ValueError: If there is no such config, or no such base or scope, or it is no Python, or fails.
    """
    from mmengine.config import Config
    from mmengine.config.utils import MODULE2PACKAGE

    # MMEngine looks for a distribution of this name, else for a module beside `.mim`. The names of onedl's and the
    # folder of an editable install are not found by distribution.
    MODULE2PACKAGE.update(mmseg='mmseg', mmlape=__name__)
    path = find_config(str(text))
    try:
        source = path.read_text(encoding='utf-8') if path.suffix == '.py' else ''
    except UnicodeDecodeError as error:
        raise ValueError(f'{path} is not UTF-8: {error}') from None
    found = re.search(r"""^_base_ = ['"](.+/configs/(.+\.py))['"]$""", source, re.MULTILINE)
    if found is None or (path.parent / found[1]).is_file():
        try:
            cfg = Config.fromfile(path)
        except SyntaxError as error:
            raise ValueError(f'{path} is no Python: {error}') from None
        except Exception as error:  # a config is a program, or has an unknown scope
            raise ValueError(f'{_place_in_config(path, error)}: {_one_line(error)}') from error
        _drop_scopes([*cfg.values()], ('mmlape', cfg.get('default_scope')))
        return cfg
    here = shipped_folder('configs') / found[2]
    if not here.is_file():
        raise ValueError(f'the _base_ of {path} is not there: {found[1]!r}')
    moved = Config.fromstring(source.replace(found[1], here.as_posix()), '.py')
    return Config(moved.to_dict(), cfg_text=source, filename=str(path))


def _place_in_config(path: Path, error: Exception) -> str:
    """The file, which may be a base of ``path``, and the line in which a config failed."""
    file, trace = str(path.resolve()), error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == '_file2dict':  # MMEngine's, for each base
            file = str(frame.f_locals.get('filename', file))
        elif frame.f_code.co_name == '<module>' and frame.f_code.co_filename == file:
            return f'{file}, line {trace.tb_lineno}'
        trace = trace.tb_next
    return file


def _one_line(error: Exception) -> str:
    said = ' '.join(str(error).split())
    return (
        said if isinstance(error, (AssertionError, OSError)) else f'{type(error).__name__}: {said}'
    )


def _drop_scopes(part: Any, needless: Container) -> None:
    """Remove ``_scope_`` where it says what holds without it: MMEngine writes it into what a ``scope::`` base has.

    Ours would be wrong: our configs name other toolboxes' parts without a prefix.
    """
    if isinstance(part, dict) and part.get('_scope_') in needless:
        part.pop('_scope_', None)
    if isinstance(part, (dict, list, tuple)):
        for each in part.values() if isinstance(part, dict) else part:
            _drop_scopes(each, needless)

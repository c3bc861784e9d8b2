"""``--cfg-options``: parts of a config that a command line overrides, where a typing mistake is an error."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.runner import FlexibleRunner, Runner

from .checks import nearest

# What programs read beside the arguments of the runner.
_READ = (
    'auto_scale_lr', 'compile', 'custom_imports', 'find_unused_parameters', 'model_wrapper_cfg', 'runner_type',
    'tta_model', 'tta_pipeline', 'work_dir',
)  # fmt: skip
# How like another name a new one may be: with_dist_token (0.83 like with_cls_token) is new, max_epoch (0.95) is not.
_LIKENESS = 0.85


def merge_overrides(cfg: Config, overrides: Mapping[str, Any] | None) -> Config:
    """Merge ``{'a.b.0.c': value}`` into a config, in place.

    A name that is not there yet may be given to a part that is there (``model.backbone.with_cp=True``,
    ``optim_wrapper.clip_grad.max_norm=1``); the component it goes to says whether it knows it. What nobody would
    notice is refused: at the top a name that neither the config nor the runner has, below it one that is nearly the
    name of a neighbour.

    Raises:
        ValueError: If a name is refused, with the nearest one; or a list has no such entry.
    """
    for path in overrides or {}:
        _check_path(cfg, path)
    cfg.merge_from_dict(dict(overrides or {}))
    return cfg


def _check_path(cfg: Config, path: str) -> None:
    part: Any = cfg
    keys = path.split('.')
    for depth, key in enumerate(keys):
        if isinstance(part, (list, tuple)):
            if not (key.isdigit() and int(key) < len(part)):
                raise ValueError(
                    f'--cfg-options {path}: {".".join(keys[:depth])} is a list of {len(part)} entries, 0 to '
                    f'{len(part) - 1}; it has no {key!r}'
                )
            part = part[int(key)]
            continue
        if not isinstance(part, Mapping) and depth:
            return  # a value that becomes a part: MMEngine says whether it may
        if key not in part:
            _check_new(path, keys[: depth + 1], set(part))
            return
        part = part[key]


def _check_new(path: str, keys: list[str], there: Iterable[Any]) -> None:
    """Whether the last of ``keys``, which is not ``there``, may be."""
    *above, key = keys
    known = there if above else {*there, *_READ, *_arguments(Runner, FlexibleRunner)}
    if key == '_delete_' or key in known:
        return
    close = nearest(key, known, _LIKENESS if above else 0.6)
    if close is not None:
        right = '.'.join([*above, close])
        raise ValueError(f'--cfg-options {path}: there is no {key!r}; did you mean {right!r}?')
    if not above:
        raise ValueError(
            f'--cfg-options {path}: neither the config nor the runner has {key!r}; a name of your own goes into a '
            'config file'
        )


def _arguments(*classes: type) -> set[str]:
    return {name for cls in classes for name in inspect.signature(cls).parameters}

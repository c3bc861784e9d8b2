"""``mmlape fit --weights`` with the checkpoint of a whole model, also of one with other classes."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import DefaultScope

from mmlape.apps.inference.folders import CONFIG
from mmlape.apps.inference.reading import read_text
from mmlape.checkpoints.conversion import BACKBONE, tensors_of
from mmlape.checkpoints.matching import match
from mmlape.checkpoints.reading import DELTA, read_with_texts
from mmlape.checkpoints.report import listed
from mmlape.checkpoints.strangers import plain_config
from mmlape.checks import type_name
from mmlape.registry import MODELS
from mmlape.training.last_checkpoint import best_checkpoint, last_complete_checkpoint

from .files import Content

_LEAST = 0.95  # of the values of the backbone, as for published weights
_MANY = 8  # modules or classes in a message


def own_checkpoint(text: str) -> Path | None:
    """The file of a whole model that ``--weights`` names; None if it names anything else.

    Args:
        text: A file, a work dir or ``--out`` of an earlier training, or a folder of ``mmlape share``; also with the
            source ``mmlape:`` before it.
    """
    path = Path(text.removeprefix('mmlape:')).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    if not path.exists():
        return None
    return path if _is_whole(_read(path)[0]) else None


def _in_folder(folder: Path) -> Path:
    """The best checkpoint of a training, else its last one; else the folder itself."""
    for place in (folder, folder / 'training'):
        found = best_checkpoint(place) or last_complete_checkpoint(str(place))[0]
        if found:
            return Path(found)
    return folder


def _read(path: Path) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Weights of a checkpoint by their names, and its ``meta``."""
    content = read_with_texts(path)[0]
    meta = content.get('meta')
    return tensors_of(content), meta if isinstance(meta, Mapping) else {}


def _is_whole(state: Mapping[str, Any]) -> bool:
    of_backbone = [name.startswith(f'{BACKBONE}.') for name in state]
    return any(of_backbone) and not all(of_backbone)


def start_from(path: Path, cfg: Config, classes: Sequence[str]) -> tuple[Content, str]:
    """The file that a training starts from, and a line that says what of the model is in it.

    What depends on the classes (found by their number) is left out where these are others.

    Args:
        path: Checkpoint of a whole model.
        cfg: The config of the training.
        classes: Names of its classes.

    Raises:
        ValueError: If it is the checkpoint of another backbone, or its updates of LoRA have no place.
    """
    state, meta = _read(path)
    if DELTA in meta:
        raise ValueError(
            f'--weights: {path} holds differences to other weights: name a checkpoint of the training'
        )
    before = (meta.get('dataset_meta') or {}).get('classes')
    same = before is None or list(before) == list(classes)
    model = _build(cfg.model, cfg)
    if not same:
        # The names whose shapes change with the number of classes.
        other = _build(_one_class_more(cfg.model), cfg).state_dict()
        fixed = {
            name for name, value in model.state_dict().items() if value.shape == other[name].shape
        }
        state = {name: value for name, value in state.items() if name in fixed}
    report = match(model, state, path.name)
    report.whole = True
    lost = [name for name in report.left_out if '.lora_' in name]
    if lost:
        raise ValueError(
            f'--weights: {path} has low-rank updates, which need --lora with the rank of that training'
        )
    share = report.parts().get(BACKBONE, 0.0)
    if report.problems or share < _LEAST:
        why = (
            report.problems[0]
            if report.problems
            else f'only {share:.1%} of its backbone are in the file'
        )
        raise ValueError(
            f'--weights: {path} does not fit this {type(model).__name__}: {why}; give the --model of that training'
        )
    told = f'starts from the whole model of {path}'
    if not same:
        told += f', which has other classes ({listed(map(str, before or ()), _MANY)})'
    if report.fresh:
        places = dict.fromkeys(name.rpartition('.')[0] for name in report.fresh)
        told += f'; these parts start anew: {listed(places, _MANY)}'
    if steps := _missing_steps(path, meta, cfg):
        told += f"; its images went through {listed(steps, _MANY)} too, which the pipelines of fit.py lack"
    if same and path.suffix == '.pth':
        return path, told
    return lambda: _saved(state), told


def _missing_steps(path: Path, meta: Mapping[str, Any], cfg: Config) -> list[str]:
    """Types of the steps by which that model's test pipeline changes images and that of ``cfg`` does not."""
    own = path / CONFIG  # of a shared folder
    text, _ = plain_config(read_text(own) if own.is_file() else meta.get('cfg'))
    if text is None:
        return []
    before = Config.fromstring(text, '.py')
    here, there = (
        {type_name(step): None for step in config.test_dataloader.dataset.pipeline}
        for config in (cfg, before)
    )
    return [
        name for name in there
        if name not in here and 'Resize' not in name and not name.startswith(('Load', 'Pack'))
    ]  # fmt: skip


def _saved(state: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(dict(state_dict=dict(state)), file)
    return file.getvalue()


def _build(model: Any, cfg: Config) -> Any:
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(copy.deepcopy(model))


def _one_class_more(config: Any) -> Any:
    """The config of a model for one class more."""
    if isinstance(config, Mapping):
        more = {
            key: value + 1 if key == 'num_classes' and value else _one_class_more(value)
            for key, value in config.items()
        }
        return ConfigDict(more)
    return (
        [_one_class_more(each) for each in config] if isinstance(config, (list, tuple)) else config
    )

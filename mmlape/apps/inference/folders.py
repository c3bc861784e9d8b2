"""A model as a folder to share: ``config.py``, ``model.safetensors``, ``metrics.json`` and ``README.md``, its card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config
from mmengine.registry import DefaultScope
from safetensors import SafetensorError, safe_open

from mmlape.atomic import atomic_write
from mmlape.checkpoints.contents import BuildLimit
from mmlape.checkpoints.deltas import as_differences, is_file, values_of_base, whole_state
from mmlape.checkpoints.files import write_checkpoint
from mmlape.checkpoints.hub import hub_folder
from mmlape.checkpoints.loaders import load_from_local
from mmlape.checkpoints.reading import DELTA, names_in
from mmlape.checkpoints.report import CheckpointError
from mmlape.checkpoints.strangers import OtherScopeError, config_of_stranger
from mmlape.compatibility import made_with
from mmlape.config_text import config_text
from mmlape.registry import MODELS

from .about import about
from .names import is_on_hub, on_hub
from .reading import read_text

if TYPE_CHECKING:
    from .model import Model

CONFIG, WEIGHTS, METRICS, CARD = 'config.py', 'model.safetensors', 'metrics.json', 'README.md'
DELTA_BASE = 'delta_base'  # in the meta of weights that were added to those of another place


def shared_folder(path: str | Path) -> Path | None:
    """The folder that ``path`` names: itself, or one of the Hugging Face hub, ``OWNER/NAME`` or ``hf://OWNER/NAME``;
    None if it is something else."""
    if is_on_hub(str(path)):
        return hub_folder(str(path))
    return Path(path) if Path(path, CONFIG).is_file() and Path(path, WEIGHTS).is_file() else None


def folder_config(folder: Path, trust: bool = False) -> Config:
    """The config in a folder; see :func:`config_in_text`."""
    text = read_text(folder / CONFIG)
    return config_in_text(text, repr(str(folder / CONFIG)), trust)


def config_in_text(text: str, what: str, trust: bool) -> Config:
    """A config that comes with weights: as data or, with ``trust``, as the Python that it is.

    Raises:
        ValueError: If it is refused; the message begins with ``what``.
    """
    if trust:
        return Config.fromstring(text, '.py')
    try:
        return config_of_stranger(text)
    except OtherScopeError as error:
        raise ValueError(f'{what}: {error}') from None
    except ValueError as error:
        raise ValueError(
            f'{what} is refused: {error}. Only data and classes that mmlape itself writes are read; if you trust its '
            'author, --trust (mmlape.load(..., trust=True)) runs it, or give a config of your own (--config)'
        ) from None


def folder_weights(folder: Path, cfg: Config, trust: bool = False) -> dict[str, Any]:
    """The checkpoint in a folder, ``meta`` and ``state_dict``. Differences are added to their base.

    Raises:
        CheckpointError: If the file is not a checkpoint, or :func:`~mmlape.checkpoints.deltas.whole_state` refuses it.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework='pt') as file:
            texts = dict(file.metadata() or {})
    except SafetensorError as error:
        raise CheckpointError(f'{str(path)!r} cannot be read as a checkpoint: {error}') from None
    about = texts.pop(DELTA, None)
    if about is None:
        return load_from_local(str(path), 'cpu')
    meta: dict[str, Any] = texts
    if 'dataset_meta' in texts:
        meta = {**texts, 'dataset_meta': names_in(path, texts['dataset_meta'])}
    with DefaultScope.overwrite_default_scope(cfg.default_scope), BuildLimit(path):
        model = MODELS.build(cfg.model)
    state = whole_state(path, model, trust)
    return dict(meta={**meta, DELTA_BASE: json.loads(about)['base']}, state_dict=state)


def check_may_be_written(model: Model) -> None:
    """Refuse (ValueError) to write whole weights that were given as differences."""
    if model.delta_base:
        raise ValueError(
            f'the weights are differences to {model.delta_base}, which may not be passed on: write a folder of '
            'differences (`mmlape share --delta SOURCE:PLACE`, save_folder(..., delta=...))'
        )


def write_folder(
    model: Model,
    folder: Path,
    metrics: Mapping[str, float],
    facts: Mapping[str, str],
    license: str | None,
    delta: str | None,
) -> None:
    """See :meth:`mmlape.apps.inference.Model.save_folder`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f'{str(folder)!r} exists already')
    if delta is None:
        check_may_be_written(model)
    state, texts = model.merged_state(), model.texts()
    if delta is not None:
        base, digest = values_of_base(model.model, delta)
        state = as_differences(state, base)
        source, _, place = delta.partition(':')
        named = f'{source}:{Path(place).name}' if is_file(delta) else delta
        texts[DELTA] = json.dumps(dict(base=named, digest=digest))
        facts = {**facts, 'weights': _about_base(named, is_file(delta))}
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder / WEIGHTS, state, texts)
    for name, text in (
        (CONFIG, config_text(model.kept_config())),
        (METRICS, json.dumps(dict(metrics), indent=2) + '\n'),
        (CARD, _card(model, folder.name, metrics, facts, license)),
    ):
        atomic_write(folder / name, text.encode())


def _about_base(base: str, is_a_file: bool) -> str:
    here = ', to be copied into this folder' if is_a_file else ', which `mmlape.load` fetches'
    return f'differences to `{base}`{here}: its licence holds for the sum'


def _in_a_cell(text: str) -> str:
    return ' '.join(text.splitlines()).replace('|', r'\|')


def card_facts(folder: Path) -> dict[str, str]:
    """``data``, ``training``, ``limits`` and ``license`` that the card of a folder states, also where its owner has
    completed them. Empty without a card."""
    if not (folder / CARD).is_file():
        return {}
    card = read_text(folder / CARD)
    rows = re.findall(r'^\| (data|training|limits) \| (.+) \|$', card, re.MULTILINE)
    # The hub reads the licence in the front matter, so this one is kept up to date.
    rows += re.findall(r'^(license): (.+)$', card, re.MULTILINE)[:1]
    return {name: text.replace(r'\|', '|') for name, text in rows if text != 'not stated'}


def _card(
    model: Model,
    name: str,
    metrics: Mapping[str, float],
    facts: Mapping[str, str],
    license: str | None,
) -> str:
    """The model card, with the front matter of the Hugging Face hub."""
    masks = not model.finds_boxes or getattr(model.model, 'with_mask', False)
    front = dict(
        library_name='mmlape',
        pipeline_tag='image-segmentation' if masks else 'object-detection',
        **({'license': license} if license else {}),
    )
    rows = {
        **about(model),
        **facts,
        'license': license or 'not stated',
        'saved with': ', '.join(f'{name} {number}' for name, number in made_with()),
    }
    lines = [
        '---',
        *(f'{key}: {value}' for key, value in front.items()),
        '---',
        f'# {name}',
        '',
        '```shell',
        f'mmlape predict {on_hub(name)} IMAGES',
        '```',
        '',
        '```python',
        'import mmlape',
        '',
        f"model = mmlape.load('{on_hub(name)}')  # or the path of this folder",
        "for found in model.predict('image.jpg'):",
        "    found.save('predicted.jpg')",
        '```',
        '',
        '| | |',
        '|---|---|',
        *(f'| {key} | {_in_a_cell(value)} |' for key, value in rows.items()),
        '',
        '## Metrics',
        '',
    ]
    if metrics:
        lines += [
            '| metric | value |',
            '|---|---|',
            *(f'| {k} | {v} |' for k, v in metrics.items()),
        ]
    else:
        lines += ['Not measured.']
    return '\n'.join(lines) + '\n'

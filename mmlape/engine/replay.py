"""Run a training step again from the file that ``mmlape.StopAtNonFiniteHook`` wrote, and say where it went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings

from .capture import mean_losses
from .first_non_finite import FirstNonFinite, first_of, gradients_of
from .plain_data import restored, tensors_in
from .random_state import set_random_state

# Prefixes of types that stand for a registry. MMEngine imports what has any other.
_SCOPES = (
    'mmengine',
    'mmlape',
    'mmcv',
    'mmdet',
    'mmseg',
    'mmpretrain',
    'mmpose',
    'mmdet3d',
    'mmrotate',
    'mmocr',
)

__all__ = ['Replay', 'build_captured_model', 'replay']


@dataclass
class Replay:
    """What came of running a step again.

    Args:
        losses: The loss and its parts now, by name.
        before: The same as the run had them; empty where it stopped at the input.
        input: The first tensor of the batch that is not finite, or None; so the others.
        state: The same of parameters and buffers.
        forward: In which module the first such value appeared.
        backward: Where the first such gradient appeared, if the loss is finite.
        gradients: Parameters whose gradients are not finite, if the loss is.
        error: What the forward pass raised, or None.
    """

    losses: dict[str, float]
    before: dict[str, float]
    input: str | None
    state: str | None
    forward: str | None = None
    backward: str | None = None
    gradients: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def is_same(self) -> bool:
        """Whether the loss and its parts are those of the run, bit for bit."""
        return self.losses.keys() == self.before.keys() and all(
            value == self.before[name] or (math.isnan(value) and math.isnan(self.before[name]))
            for name, value in self.losses.items()
        )

    @property
    def origin(self) -> str:
        """Where the first value that is not finite was, in words."""
        if self.input:
            return f'in the input, before any module: {self.input}'
        if self.state:
            return f'in the weights or buffers, before the step: {self.state}'
        if self.forward:
            return self.forward
        if self.backward or self.gradients:
            place = self.backward or 'in the gradients of parameters alone'
            return f'in the backward pass (the loss is finite), {place}'
        if any(not math.isfinite(value) for value in self.losses.values()):
            return 'in the loss itself, outside of all modules'
        return 'nowhere: all values of this step are finite'


def build_captured_model(
    capture: dict[str, Any], config: Config | None = None, trust: bool = False
) -> BaseModel:
    """Build the model of a captured step, without any weights of its own.

    Args:
        capture: Of :func:`~mmlape.engine.capture.read_capture`.
        config: In place of the one in the file.
        trust: Whether the file's config may name classes that no registry knows (``a.b.Class``), which MMEngine
            imports and calls, whatever they do. Default False.

    Raises:
        ValueError: If there is no model in the config, or it names such a class.
    """
    cfg = config if config is not None else Config(capture['config'])
    if not cfg.get('model'):
        raise ValueError(
            'the file holds no config of a model (it was passed as an object): give --config'
        )
    if config is None and not trust:
        _refuse_foreign_names(cfg)
    imports = cfg.get('custom_imports')
    if imports:
        import_modules_from_strings(**imports)
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    model = cfg.model
    if cfg.get('data_preprocessor'):
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return revert_sync_batchnorm(MODELS.build(model))


def replay(capture: dict[str, Any], model: BaseModel, device: str | torch.device = 'cpu') -> Replay:
    """Run the step again.

    Args:
        capture: Of :func:`~mmlape.engine.capture.read_capture`.
        model: Of :func:`build_captured_model`; changed.
        device: Where. On a CPU, a step of one process comes out the same bit for bit.

    Raises:
        ValueError: If the weights do not fit the model.
    """
    _restore(capture, model.to(device))
    batch = restored(capture['batch'])
    state = [*model.named_parameters(), *model.named_buffers()]
    found = Replay({}, capture['losses'], first_of(tensors_in(batch)), first_of(state))
    # Last: building the model has drawn numbers.
    set_random_state(capture['random'])
    dtype = capture['autocast']
    kind = torch.device(device).type
    context = torch.autocast(kind, getattr(torch, dtype)) if dtype else nullcontext()
    with FirstNonFinite(model) as watch:
        try:
            with context:
                data = model.data_preprocessor(batch, True)
                output = _loss(model, data)
        except Exception as error:  # whatever a model does with values that are not finite
            found.error, found.forward = f'{type(error).__name__}: {error}', watch.forward
            return found
        loss, _ = model.parse_losses(output)
        found.losses = {'loss': float(loss), **mean_losses(output)}
        found.forward = watch.forward
        watch.backward_begins()
        if math.isfinite(found.losses['loss']):
            loss.backward()
            found.backward, found.gradients = watch.backward, gradients_of(model)
    return found


def _loss(model: BaseModel, data: Any) -> dict[str, Any]:
    return model(**data, mode='loss') if isinstance(data, dict) else model(*data, mode='loss')


def _restore(capture: dict[str, Any], model: BaseModel) -> None:
    try:
        model.load_state_dict(capture['state'])
    except RuntimeError as error:
        raise ValueError(f'the weights in the file do not fit the config: {error}') from error
    for name, buffer in model.named_buffers():  # also those that are in no state dict
        buffer.copy_(capture['buffers'][name])
    evaluating = set(capture['evaluating'])
    for name, part in model.named_modules():
        part.training = name not in evaluating
    torch.set_num_threads(capture['threads'])  # sums depend on it, in the last bit
    hub = MessageHub.get_current_instance()
    for key, value in capture['runtime'].items():
        if value is not None:
            hub.update_info(key, value)


def _refuse_foreign_names(cfg: Config) -> None:
    """Refuse what MMEngine would look for outside of registries and the packages that these are in."""
    parts = [cfg.model.to_dict(), cfg.get('data_preprocessor')]
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    names = [
        name for name in _types(parts) if '.' in name and name.rpartition('.')[0] not in _SCOPES
    ]
    modules = [imports] if isinstance(imports, str) else [*imports]
    modules += [cfg.get('default_scope') or 'mmengine']
    names += [name for name in modules if name.partition('.')[0] not in _SCOPES]
    if names:
        raise ValueError(
            f'the config in the file names {names[0]!r}, which MMEngine would import, and call: give --trust if the '
            'file is from you, or --config with a config of yours'
        )


def _types(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get('type'), str):
            yield value['type']
        for entry in value.values():
            yield from _types(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _types(entry)

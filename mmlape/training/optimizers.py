"""Groups of parameters for the optimizer, with learning rates that fall with the depth of a layer, and a schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from mmcv.cnn import is_norm
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from torch import nn

from mmlape.backbones.base import EXEMPT_NAMES, exempt_modules
from mmlape.checks import check_option, check_positive_int
from mmlape.norm import TokenNorm
from mmlape.registry import OPTIM_WRAPPER_CONSTRUCTORS, PARAM_SCHEDULERS

__all__ = ['LayerDecayOptimizerConstructor', 'MergedGroupsOptimizerConstructor', 'RsqrtLR']

# Multipliers of the rules and their values where a config says nothing.
_DEFAULTS = {
    'position_decay_mult': 0.0,
    'norm_decay_mult': 0.0,
    'bias_decay_mult': 0.0,
    'flat_decay_mult': 0.0,
    'dwconv_decay_mult': 1.0,
    'dtn_decay_mult': 0.0,
    'dtn_lr_mult': 1.0,
    'bias_lr_mult': 1.0,
}
_KEYS = ('decay_rate', 'custom_keys', *_DEFAULTS)


class _Rule(NamedTuple):
    """What applies to a parameter apart from its depth."""

    kind: str
    lr_mult: float
    decay_mult: float


@dataclass
class _Group:
    """One row of the table, one group of the optimizer."""

    depth: int
    kind: str
    lr_scale: float
    lr: float
    weight_decay: float | None
    names: list[str] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """As the optimizer takes it."""
        decay = {} if self.weight_decay is None else {'weight_decay': self.weight_decay}
        name = f'layer {self.depth}, {self.kind}'
        return dict(params=self.parameters, lr=self.lr, group_name=name, **decay)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimizerConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning rates for any backbone that says how deep its parameters sit (all of ours do).

    A parameter of depth d of ``D`` has the learning rate ``lr * decay_rate ** (D - 1 - d)``. Stem, position and class
    token have depth 0, layer i has i + 1 (LaPE's norm of that layer too), and everything else, such as the output norm,
    what ViT-Adapter puts beside the ViT, necks and heads, has the depth D - 1 and the full learning rate. This is how
    BEiT and the published ViT-Adapter UPerNets count (there ``num_layers=12, layer_decay_rate=0.95``); pyramids count
    their blocks through all stages, and the embedding of a stage goes with the block before it.

    Position tables, joining methods, class and distillation tokens, level embeddings, norms, biases and all other
    one-dimensional parameters have no weight decay. (The published ViT-Adapter means to leave out position tables too,
    but compares names without their prefix, so that they decay.) DTN's ratios and position maps are a group of their
    own per layer. In a config::

        optim_wrapper = dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=6e-5, weight_decay=0.01),
            constructor='mmlape.LayerDecayOptimizerConstructor',
            paramwise_cfg=dict(decay_rate=0.95))

    The table of groups is logged. Parameters without gradient are left out; a shared one counts once, where it is met
    first.

    Args:
        optim_wrapper_cfg: The config of the optimizer wrapper; its optimizer needs an ``lr``.
        paramwise_cfg: With the keys

            * ``decay_rate`` (required): Above 0, at most 1.
            * ``custom_keys``: ``{part of a name: dict(lr_mult=1, decay_mult=1)}`` as in MMEngine: the longest key that
              is in a parameter's name counts, instead of all rules below; ``lr_mult`` comes on top of the layer's.
            * ``norm_decay_mult`` (default 0), ``bias_decay_mult`` (0), ``dwconv_decay_mult`` (1), ``flat_decay_mult``
              (0), ``bias_lr_mult`` (1): as in MMEngine.
            * ``position_decay_mult``: Of positions, tokens and level embeddings. Default 0.
            * ``dtn_lr_mult``, ``dtn_decay_mult``: Of DTN's learned ratios and position maps. Default 1 and 0.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a key is unknown or matches no parameter, a value is out of range, no backbone says its layers'
            depth, or the model is already wrapped for FSDP (which hides the shapes of parameters).
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        if self.base_lr is None:
            raise ValueError('layer-wise learning rates need an lr in the config of the optimizer')
        self.decay_rate = self.paramwise_cfg['decay_rate']
        self._mults = {key: self.paramwise_cfg.get(key, value) for key, value in _DEFAULTS.items()}
        self._custom = {key: dict(value) for key, value in self._custom_keys().items()}

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        for key in self.paramwise_cfg:
            check_option('a key of paramwise_cfg', key, _KEYS)
        _check_number('decay_rate', self.paramwise_cfg.get('decay_rate'))
        if not 0 < self.paramwise_cfg['decay_rate'] <= 1:
            raise ValueError(
                f'decay_rate must be above 0 and at most 1, got {self.paramwise_cfg["decay_rate"]}'
            )
        mults = {key: value for key, value in self.paramwise_cfg.items() if key in _DEFAULTS}
        for key, options in self._custom_keys().items():
            if not isinstance(options, dict):
                raise TypeError(f'custom_keys[{key!r}] must be a dict, got {options!r}')
            for option in options:
                check_option(f'a key of custom_keys[{key!r}]', option, ('lr_mult', 'decay_mult'))
            mults |= {f'custom_keys[{key!r}] {name}': value for name, value in options.items()}
        for name, value in mults.items():
            _check_number(name, value)
            if not 0 <= value < math.inf:
                raise ValueError(f'{name} must be at least 0, got {value}')

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """Build the optimizer wrapper for a model, DDP-wrapped or not."""
        if any(type(module).__name__ == 'FullyShardedDataParallel' for module in model.modules()):
            raise ValueError(
                'mmlape.LayerDecayOptimizerConstructor does not work with FSDP: its parameters '
                'are flattened, so that norms and biases cannot be told from weights. Use DDP, or '
                'another constructor'
            )
        return super().__call__(model)

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs: Any
    ) -> None:
        """Append the groups of all trained parameters of ``module`` (the whole model) to ``params``.

        Raises:
            ValueError: If no part of it has a ``get_layer_depth``, or a custom key is in no parameter's name.
        """
        backbones = _backbones(module)
        if not backbones:
            raise ValueError(
                'layer-wise learning rates need a backbone with get_layer_depth(param_name, '
                f'prefix), as all of mmlape have; {type(module).__name__} has none'
            )
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        for key in self._custom:
            if not any(key in name for name in names):
                close = get_close_matches(key, {part for n in names for part in n.split('.')}, 3)
                hint = f'; did you mean {", ".join(close)}?' if close else ''
                raise ValueError(f'custom_keys names {key!r}, which is in no name{hint}')
        groups: dict[tuple, _Group] = {}
        for name, parameter, rule in self._rules(module):
            depth, count = _depth(name, backbones)
            group = self._group(depth, count, rule)
            group = groups.setdefault((depth, count, *rule), group)
            group.names.append(name)
            group.parameters.append(parameter)
        ordered = sorted(groups.values(), key=lambda group: (group.depth, group.kind))
        params.extend(group.settings() for group in ordered)
        frozen = sum(not parameter.requires_grad for parameter in module.parameters())
        print_log(self._report(ordered, backbones, frozen), logger='current')

    def _rules(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter, _Rule]]:
        """Every trained parameter once, with its name and its rule."""
        seen: set[nn.Parameter] = set()
        places = {
            path: 'dtn' if isinstance(owner, TokenNorm) else 'position'
            for path, owner in exempt_modules(model)
        }
        for path, module in model.named_modules(remove_duplicate=False):
            places.setdefault(path, places.get(path.rpartition('.')[0], ''))
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter in seen or not parameter.requires_grad:
                    continue
                seen.add(parameter)
                name = f'{path}.{attribute}'.lstrip('.')
                yield name, parameter, self._rule(name, attribute, parameter, module, places[path])

    def _rule(
        self, name: str, attribute: str, parameter: nn.Parameter, module: nn.Module, place: str
    ) -> _Rule:
        matching = sorted((key for key in self._custom if key in name), key=lambda k: (-len(k), k))
        if matching:
            options = self._custom[matching[0]]
            kind = f'custom: {matching[0]}'
            return _Rule(kind, options.get('lr_mult', 1.0), options.get('decay_mult', 1.0))
        mults = self._mults
        norm = is_norm(module) or isinstance(module, TokenNorm)
        lr_mult = mults['bias_lr_mult'] if attribute == 'bias' and not (norm or place) else 1.0
        if place == 'dtn':
            return _Rule('DTN', mults['dtn_lr_mult'], mults['dtn_decay_mult'])
        if place == 'position' or attribute in EXEMPT_NAMES:
            decay_mult = mults['position_decay_mult']
        elif norm:
            decay_mult = mults['norm_decay_mult']
        elif attribute == 'bias':
            decay_mult = mults['bias_decay_mult']
        elif isinstance(module, nn.Conv2d) and module.in_channels == module.groups:
            decay_mult = mults['dwconv_decay_mult']
        else:
            decay_mult = mults['flat_decay_mult'] if parameter.ndim <= 1 else 1.0
        return _Rule('decay' if decay_mult else 'no decay', lr_mult, decay_mult)

    def _group(self, depth: int, count: int, rule: _Rule) -> _Group:
        scale = self.decay_rate ** (count - 1 - depth)
        decay = None if self.base_wd is None else self.base_wd * rule.decay_mult
        return _Group(depth, rule.kind, scale, self.base_lr * scale * rule.lr_mult, decay)

    def _report(self, groups: list[_Group], backbones: dict[str, nn.Module], frozen: int) -> str:
        """The table of groups."""
        heads = ('layer', 'kind', 'scale', 'lr', 'weight decay', 'tensors', 'values', 'names')
        rows = [
            (
                str(group.depth),
                group.kind,
                f'{group.lr_scale:.4f}',
                f'{group.lr:.3g}',
                '-' if group.weight_decay is None else f'{group.weight_decay:.3g}',
                str(len(group.parameters)),
                f'{sum(parameter.numel() for parameter in group.parameters):,}',
                _shortened(group.names),
            )
            for group in groups
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows)]
        lines = [
            '  '.join(
                cell.ljust(width) if head in ('kind', 'names') else cell.rjust(width)
                for head, cell, width in zip(heads, row, widths)
            ).rstrip()
            for row in (heads, *rows)
        ]
        what = ', '.join(
            f'{path or "the model"} ({type(b).__name__})' for path, b in backbones.items()
        )
        title = (
            f'Layer-wise learning rates: decay rate {self.decay_rate} over the layers of {what}; '
            f'lr {self.base_lr:.3g}; {frozen} tensors are not trained'
        )
        return '\n'.join([title, *lines])

    def _custom_keys(self) -> dict[str, dict]:
        return self.paramwise_cfg.get('custom_keys') or {}


def _backbones(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost modules that number their layers, by path."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f'{outer}.' if outer else '') for outer in found)
        if not inside and _numbers_layers(module):
            found[path] = module
    return found


def _numbers_layers(module: nn.Module) -> bool:
    """Classifiers of MMPretrain have a method of this name, too, without a prefix: they ask their backbone."""
    return hasattr(module, 'get_layer_depth') and not hasattr(module, 'backbone')


def _depth(name: str, backbones: dict[str, Any]) -> tuple[int, int]:
    """Depth of a parameter and number of depths; necks and heads are as deep as it goes."""
    deepest = 0
    for path, backbone in backbones.items():
        prefix = f'{path}.' if path else ''
        depth, count = backbone.get_layer_depth(name, prefix)
        if name.startswith(prefix):
            return depth, count
        deepest = max(deepest, count)
    return deepest - 1, deepest


def _shortened(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f'{names[0]} and {len(names) - 1} more'


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f'{name} must be a number, got {value!r}')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedGroupsOptimizerConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's default with one group of parameters for all that have the same settings, not one for each tensor.

    With a ``paramwise_cfg``, MMEngine makes a group for every tensor, hundreds, and optimizers go through groups one by
    one: what they do to many tensors at once (``foreach``, PyTorch's default on GPUs, and ``fused``) is done to one at
    a time, and learning rates are scheduled hundreds of times per step. Here each tensor gets the same update in fewer
    calls. In a config::

        optim_wrapper = dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05, fused=True),
            constructor='mmlape.MergedGroupsOptimizerConstructor',
            paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0))

    A state of an optimizer goes with its groups: a training that began with MMEngine's constructor is resumed with
    MMEngine's; PyTorch refuses it here (``different number of parameter groups``).

    Args:
        optim_wrapper_cfg: The config of the optimizer wrapper.
        paramwise_cfg: As in MMEngine. Default none, which is one group there, too.
    """

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = '', **options: Any
    ) -> None:
        """Append the groups of ``module`` to ``params``; those of the whole model (no ``prefix``) are merged."""
        super().add_params(params, module, prefix, **options)
        tensors = {id(parameter) for group in params for parameter in group['params']}
        # PyTorch refuses a tensor that is in two groups, and only warns where it is twice in one.
        if not prefix and len(tensors) == len(params):
            params[:] = _merged(params)


def _merged(groups: list[dict]) -> list[dict]:
    """Groups in the order in which their settings come first; so are the tensors in them."""
    merged: dict[str, dict] = {}
    for group in groups:
        settings = {name: value for name, value in group.items() if name != 'params'}
        same = merged.setdefault(repr(sorted(settings.items())), {'params': [], **settings})
        same['params'] += group['params']
    return list(merged.values())


@PARAM_SCHEDULERS.register_module()
class RsqrtLR(LRSchedulerMixin, _ParamScheduler):
    """``lr min(1, t / warmup) sqrt(warmup / max(t, warmup))`` at step t = 0, 1, ..., with the optimizer's ``lr``, the
    greatest one (Transformer, NeurIPS 2017, eq. 3; Long-Range Arena, ICLR 2021).

    Args:
        optimizer: The optimizer, or its wrapper.
        warmup: Steps until ``lr`` is reached. Default 1000.
        options: MMEngine's ``begin``, from where steps count, ``end``, ``last_step``, ``by_epoch`` and ``verbose``.

    Raises:
        TypeError: If ``warmup`` is no integer.
        ValueError: If it is not positive.
    """

    def __init__(self, optimizer: object, warmup: int = 1000, **options: Any) -> None:
        self.warmup = check_positive_int('warmup', warmup)
        super().__init__(optimizer, **options)

    def _get_value(self) -> list[float]:
        step, warmup = self.last_step, self.warmup
        factor = min(1, step / warmup) * (warmup / max(step, warmup)) ** 0.5
        return [value * factor for value in self.base_values]

"""Groups of parameters for the optimizer, with learning rates that fall with the depth of a layer, and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mmcv.cnn import is_norm
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import OPTIMIZERS
from torch import nn

from mmlape.backbones.base import EXEMPT_NAMES, Backbone, exempt_modules
from mmlape.checks import (
    check_bool,
    check_number,
    check_option,
    check_options,
    check_positive_int,
    did_you_mean,
)
from mmlape.norm import DTN, TokenNorm
from mmlape.registry import OPTIM_WRAPPER_CONSTRUCTORS, PARAM_SCHEDULERS

from .check_names import check_custom_keys

# Multipliers and their defaults.
_MULTS = {
    'position_decay_mult': 0.0,
    'norm_decay_mult': 0.0,
    'bias_decay_mult': 0.0,
    'flat_decay_mult': 0.0,
    'dwconv_decay_mult': 1.0,
    'dtn_decay_mult': 0.0,
    'dtn_lr_mult': 1.0,
    'bias_lr_mult': 1.0,
}
_KEYS = ('decay_rate', 'full_rate_layers', 'custom_keys', *_MULTS)
# Kinds of parameters without weight decay, by the class that exempts them.
_EXEMPT_KINDS = {DTN: 'dtn', TokenNorm: 'norm', nn.Module: 'position'}
_ROW = '{:>5}  {:<16}  {:>6}  {:>8}  {:>12}  {:>7}  {:>11}  {}'


class _Rule(NamedTuple):
    """Rule for a parameter apart from its depth."""

    kind: str
    lr_mult: float
    decay_mult: float
    use_muon: bool = False


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimizerConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning rates for any backbone with ``get_layer_depth`` (all of ours).

    A parameter of depth d of ``D`` has the learning rate ``lr * decay_rate ** (D - 1 - d)``. Stem, position and class
    token have depth 0, layer i has i + 1 (LaPE's norm of that layer too); everything else, such as the output norm,
    what ViT-Adapter adds beside the ViT, necks and heads, has the depth D - 1 and the full learning rate. This is how
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

    The table of groups is logged. Parameters without gradient are left out; a shared one counts once, under its first
    name.

    Args:
        optim_wrapper_cfg: The config of the optimizer wrapper; its optimizer needs an ``lr``.
        paramwise_cfg: With the keys

            * ``decay_rate`` (required): Above 0, at most 1.
            * ``full_rate_layers``: Last layers that have the full learning rate. Default 0. Our rows of EoMT train
              the blocks that queries run through so (its ``num_blocks``).
            * ``custom_keys``: ``{part of a name: dict(lr_mult=1, decay_mult=1)}`` as in MMEngine: the longest key that
              is in a parameter's name counts, instead of all rules below; ``lr_mult`` comes on top of the layer's.
              ``use_muon=True`` beside them, for weights of linear layers: with ``timm.optim.Muon``, Muon updates these
              parameters, and AdamW all others. Without any ``use_muon``, that optimizer decides by shapes.
            * ``norm_decay_mult`` (default 0), ``bias_decay_mult`` (0), ``dwconv_decay_mult`` (1), ``flat_decay_mult``
              (0), ``bias_lr_mult`` (1): as in MMEngine.
            * ``position_decay_mult``: Of positions, tokens and level embeddings. Default 0.
            * ``dtn_lr_mult``, ``dtn_decay_mult``: Of DTN's learned ratios and position maps. Default 1 and 0.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a key is unknown or matches no parameter, a value is out of range, or no backbone has
            ``get_layer_depth``; if ``use_muon`` comes with an optimizer of PyTorch, or names a position or no weight of
            a linear layer.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        if self.base_lr is None:
            raise ValueError('layer-wise learning rates need an lr in the config of the optimizer')
        self.decay_rate = self.paramwise_cfg['decay_rate']
        self.full_rate_layers = self.paramwise_cfg.get('full_rate_layers', 0)
        self._mults = {**_MULTS, **self.paramwise_cfg}
        self._custom = dict(self.paramwise_cfg.get('custom_keys') or {})
        self._with_muon = any('use_muon' in options for options in self._custom.values())
        if self._with_muon:
            self._check_optimizer()

    def _check_optimizer(self) -> None:
        """Raise ValueError unless the optimizer may read ``use_muon``."""
        named = self.optimizer_cfg['type']
        with OPTIMIZERS.switch_scope_and_registry(None) as registry:
            cls = registry.get(named) if isinstance(named, str) else named
        if cls is None or cls.__module__.startswith('torch.optim'):
            what = 'which is unknown here' if cls is None else 'one of PyTorch'
            raise ValueError(
                f"use_muon needs an optimizer that reads it, e.g. type='timm.optim.Muon', got {named!r}, {what}"
            )

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        for key in self.paramwise_cfg:
            check_option('a key of paramwise_cfg', key, _KEYS)
        rate = check_number('decay_rate', self.paramwise_cfg.get('decay_rate'), above=0)
        if rate > 1:
            raise ValueError(f'decay_rate must be above 0 and at most 1, got {rate}')
        full = self.paramwise_cfg.get('full_rate_layers', 0)
        check_positive_int('full_rate_layers', full, minimum=0)
        mults = {key: value for key, value in self.paramwise_cfg.items() if key in _MULTS}
        for key, options in (self.paramwise_cfg.get('custom_keys') or {}).items():
            if not isinstance(options, dict):
                raise TypeError(f'custom_keys[{key!r}] must be a dict, got {options!r}')
            for option in options:
                check_option(
                    f'a key of custom_keys[{key!r}]', option, ('lr_mult', 'decay_mult', 'use_muon')
                )
            check_bool(f'custom_keys[{key!r}] use_muon', options.get('use_muon', False))
            mults |= {
                f'custom_keys[{key!r}] {name}': value
                for name, value in options.items()
                if name != 'use_muon'
            }
        for name, value in mults.items():
            check_number(name, value, minimum=0)

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
                hint = did_you_mean(key, {part for name in names for part in name.split('.')})
                raise ValueError(f'custom_keys names {key!r}, which is in no name{hint}')
        groups: dict[tuple[int, int, _Rule], dict[str, nn.Parameter]] = {}
        exempt = {
            path: next(kind for cls, kind in _EXEMPT_KINDS.items() if isinstance(owner, cls))
            for path, owner in exempt_modules(module)
        }
        depths = _depths(module, backbones)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                rule = self._rule(name, parameter, module, exempt)
                groups.setdefault((*depths[name], rule), {})[name] = parameter
        titles = ('layer', 'kind', 'scale', 'lr', 'weight decay', 'tensors', 'values', 'names')
        rows = [_ROW.format(*titles)]
        ordered = sorted(groups.items(), key=lambda group: (group[0][0], group[0][2].kind))
        for (depth, count, rule), named in ordered:
            above, tensors = count - 1 - depth, list(named.values())
            scale = 1.0 if above <= self.full_rate_layers else self.decay_rate**above
            lr, decay = self.base_lr * scale * rule.lr_mult, (self.base_wd or 0) * rule.decay_mult
            group = dict(params=tensors, lr=lr, group_name=f'layer {depth}, {rule.kind}')
            group['in_layer'] = above > 0
            if self._with_muon:
                group['use_muon'] = rule.use_muon
            params.append(group if self.base_wd is None else dict(group, weight_decay=decay))
            numbers = f'{scale:.4f}', f'{lr:.3g}', f'{decay:.3g}', len(tensors)
            values = f'{sum(tensor.numel() for tensor in tensors):,}'
            first, *more = named
            shown = f'{first} and {len(more)} more' if more else first
            rows.append(_ROW.format(depth, rule.kind, *numbers, values, shown))
        what = ', '.join(f'{p or "the model"} ({type(b).__name__})' for p, b in backbones.items())
        frozen = sum(not parameter.requires_grad for parameter in module.parameters())
        title = (
            f'Layer-wise learning rates: decay rate {self.decay_rate} over the layers of {what}; '
            f'lr {self.base_lr:.3g}; {frozen} tensors are not trained'
        )
        print_log('\n'.join([title, *rows]), logger='current')

    def _rule(
        self, name: str, parameter: nn.Parameter, model: nn.Module, exempt: dict[str, str]
    ) -> _Rule:
        path, _, attribute = name.rpartition('.')
        module, parts = model.get_submodule(path), name.split('.')
        above = ('.'.join(parts[:count]) for count in range(len(parts), -1, -1))
        exempt_kind = next((exempt[each] for each in above if each in exempt), '')
        matching = sorted((key for key in self._custom if key in name), key=lambda k: (-len(k), k))
        if matching:
            key, options = matching[0], self._custom[matching[0]]
            matrix = isinstance(module, nn.Linear) and attribute == 'weight' and not exempt_kind
            if options.get('use_muon') and not matrix:
                raise ValueError(
                    f'custom_keys[{key!r}] use_muon must name weights of linear layers outside of positions and norms, '
                    f'got {name!r}; give that one a longer key with use_muon=False'
                )
            kind = 'Muon' if options.get('use_muon') else f'custom: {key}'
            return _Rule(kind, **{'lr_mult': 1.0, 'decay_mult': 1.0, **options})
        mults = self._mults
        norm = is_norm(module) or isinstance(module, TokenNorm)
        lr_mult = (
            mults['bias_lr_mult'] if attribute == 'bias' and not (norm or exempt_kind) else 1.0
        )
        if exempt_kind == 'dtn':
            return _Rule('DTN', mults['dtn_lr_mult'], mults['dtn_decay_mult'])
        if exempt_kind == 'norm':
            return _Rule('no decay', lr_mult, 0.0)
        if exempt_kind == 'position' or attribute in EXEMPT_NAMES:
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


def _backbones(model: nn.Module) -> dict[str, Any]:
    """The outermost modules that number their layers, by path; not MMPretrain's classifiers, which ask a backbone."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        nested = any(path.startswith(f'{outer}.' if outer else '') for outer in found)
        if not nested and hasattr(module, 'get_layer_depth') and not hasattr(module, 'backbone'):
            found[path] = module
    return found


def _depths(model: nn.Module, backbones: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Depth of each parameter and number of depths, by its name; necks and heads have the last depth."""
    parameters = dict(model.named_parameters())
    found: dict[str, tuple[int, int]] = {}
    for path, backbone in backbones.items():
        prefix = f'{path}.' if path else ''
        names = [name for name in parameters if name.startswith(prefix)]
        if getattr(type(backbone), 'get_layer_depth', None) is Backbone.get_layer_depth:
            # All at once: each of its answers goes through all layers.
            depths, count = backbone.parameter_depths()
            found |= {name: (depths[parameters[name]], count) for name in names}
        else:
            found |= {name: backbone.get_layer_depth(name, prefix) for name in names}
    most = max(count for _, count in found.values())
    return {name: found.get(name, (most - 1, most)) for name in parameters}


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedGroupsOptimizerConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's default with one group for all parameters of the same settings, instead of one for each tensor.

    With a ``paramwise_cfg``, MMEngine makes hundreds of groups, and optimizers go through them one by one: ``foreach``
    (PyTorch's default on GPUs) and ``fused`` then update one tensor at a time, and schedules set hundreds of learning
    rates per step. The update of each tensor is the same. In a config::

        optim_wrapper = dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05, fused=True),
            constructor='mmlape.MergedGroupsOptimizerConstructor',
            paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0))

    Resume a training with the constructor that it began with: PyTorch refuses an optimizer state of other groups
    (``different number of parameter groups``).

    Args:
        optim_wrapper_cfg: The config of the optimizer wrapper.
        paramwise_cfg: As in MMEngine. Default none: one group.
    """

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = '', **options: Any
    ) -> None:
        """Append the groups of ``module`` to ``params``; those of the whole model (no ``prefix``) are merged.

        Raises:
            ValueError: If a custom key is a misspelt part of a parameter's name.
        """
        if not prefix:
            check_custom_keys(self.paramwise_cfg, module)
        super().add_params(params, module, prefix, **options)
        tensors = {id(parameter) for group in params for parameter in group['params']}
        # PyTorch refuses a tensor that is in two groups, and only warns where it is twice in one.
        if not prefix and len(tensors) == len(params):
            merged: dict[str, dict] = {}
            for group in params:
                settings = {name: value for name, value in group.items() if name != 'params'}
                same = merged.setdefault(repr(sorted(settings.items())), {'params': [], **settings})
                same['params'] += group['params']
            params[:] = merged.values()


class _Schedule(LRSchedulerMixin, _ParamScheduler):
    """A schedule of learning rates by iterations."""

    @classmethod
    def build_iter_from_epoch(
        cls,
        optimizer: Any,
        epoch_length: int,
        begin: int = 0,
        end: int | None = None,
        by_epoch: bool = True,
        **options: Any,
    ) -> _Schedule:
        """MMEngine's way to build a schedule of iterations whose ``begin`` and ``end`` are numbers of epochs."""
        if end is not None:
            options['end'] = end * epoch_length
        return cls(optimizer, begin=begin * epoch_length, by_epoch=False, **options)


@PARAM_SCHEDULERS.register_module()
class RsqrtLR(_Schedule):
    """``lr min(1, t / warmup) sqrt(warmup / max(t, warmup))`` at step t = 0, 1, ..., with the optimizer's ``lr``, the
    greatest one (Transformer, NeurIPS 2017, eq. 3; Long-Range Arena, ICLR 2021).

    Args:
        optimizer: The optimizer, or its wrapper.
        warmup: Steps until ``lr`` is reached. Default 1000.
        options: MMEngine's ``begin``, from where steps count, ``end``, ``last_step``, ``by_epoch`` and ``verbose``.
            With ``convert_to_iter_based=True``, ``begin`` and ``end`` count epochs, and ``warmup`` iterations.

    Raises:
        TypeError: If ``warmup`` is not an integer.
        ValueError: If it is not positive.
    """

    def __init__(self, optimizer: object, warmup: int = 1000, **options: Any) -> None:
        self.warmup = check_positive_int('warmup', warmup)
        super().__init__(optimizer, **options)

    def _get_value(self) -> list[float]:
        step, warmup = self.last_step, self.warmup
        factor = min(1, step / warmup) * (warmup / max(step, warmup)) ** 0.5
        return [value * factor for value in self.base_values]


@PARAM_SCHEDULERS.register_module()
class TwoStagePolyLR(_Schedule):
    """EoMT's schedule (CVPR 2025, released code): new parameters warm up while layers are frozen, then the layers do.

    With warm-ups of a and b steps and T steps in all, the learning rate of new parameters rises linearly over the first
    a steps, that of layers is 0 for a steps and rises over the next b. Each then falls by ``(1 - t / T') ** power``,
    where t counts from the end of its own warm-up and T' is what remains there of T. For groups of
    ``mmlape.LayerDecayOptimizerConstructor``, for which the output norm is new::

        param_scheduler = [dict(type='mmlape.TwoStagePolyLR', warmup=(500, 1000), end=40000, by_epoch=False)]

    With ``convert_to_iter_based=True``, ``begin`` and ``end`` count epochs, and ``warmup`` iterations as before.

    Args:
        optimizer: The optimizer, or its wrapper.
        end: Step T after which nothing changes.
        warmup: Steps a and b. Default (500, 1000), those of EoMT's DINOv2 configs.
        power: Default 0.9.
        options: MMEngine's ``begin``, from where steps count, ``last_step``, ``by_epoch`` and ``verbose``.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If ``warmup`` is not two numbers from 0 whose sum is below T, ``power`` is not positive, or groups
            are of another constructor.
    """

    def __init__(
        self,
        optimizer: Any,
        end: int,
        warmup: Sequence[int] = (500, 1000),
        power: float = 0.9,
        **options: Any,
    ) -> None:
        check_options(TwoStagePolyLR, dict(warmup=warmup))
        self.power = check_number('power', power, above=0)
        self.warmup = [check_positive_int('warmup', steps, minimum=0) for steps in warmup]
        self.steps = check_positive_int('end', end) - options.get('begin', 0)
        if len(self.warmup) != 2 or sum(self.warmup) >= self.steps:
            raise ValueError(
                f'warmup must be two numbers of steps, together below {self.steps}, got {warmup}'
            )
        # MMEngine appends a group without parameters, whose learning rate it logs as base_lr.
        self.in_layer = [group.get('in_layer') for group in optimizer.param_groups]
        if all(layer is None for layer in self.in_layer):
            raise ValueError(
                "TwoStagePolyLR needs the groups of constructor='mmlape.LayerDecayOptimizerConstructor'"
            )
        super().__init__(optimizer, end=end, **options)

    def _get_value(self) -> list[float]:
        first, second = self.warmup
        factors = self._factor(0, first), self._factor(first, second)
        return [
            value * factors[bool(layer)] for value, layer in zip(self.base_values, self.in_layer)
        ]

    def _factor(self, begin: int, warmup: int) -> float:
        """Factor of a linear warm-up over ``warmup`` steps from ``begin``, followed by decay."""
        step = self.last_step - begin
        if step < warmup:
            return max(step, 0) / warmup
        return max(1 - (step - warmup) / (self.steps - begin - warmup), 0) ** self.power

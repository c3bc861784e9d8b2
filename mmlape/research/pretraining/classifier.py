"""A backbone with its heads, with the methods that timm's tools expect of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mmlape.backbones import StagedTransformer
from mmlape.backbones.base import build_pooling, exempt_parameters
from mmlape.backbones.position_only import (
    freeze_all_but_position,
    hold_statistics,
    statistics_of,
)
from mmlape.backbones.stage import OUTPUTS
from mmlape.checks import (
    check_bool,
    check_option,
    check_positive_int,
    check_rate,
    check_type,
    options_of,
)
from mmlape.layers import init_linear
from mmlape.layout import Layout
from mmlape.norm import build_token_norm
from mmlape.position import JOININGS, POSITIONS
from mmlape.registry import MODELS

# The out_type of the backbone whose output goes into the head, by timm's name.
_OUT_TYPES = {'': 'raw', 'avg': 'avg', 'token': 'cls_token'}
Pool = str | dict
Choice = str | dict | list | tuple | None


class Classifier(nn.Module):
    """``backbone`` and ``head``, in MMPretrain's layout of names: checkpoints go into detectors as they are.

    Args:
        network: Type of the backbone, a family of :class:`~mmlape.backbones.StagedTransformer`.
        position: Config of a position embedding, or a short name: ``'learned'``, ``'sinusoidal_1d'``,
            ``'sinusoidal_2d'``, ``'gabor'``, ``'none'``; a list with one for each stage where there are several.
            Default None: the backbone's own.
        joining: Config of a joining method, or a short name: ``'default'``, ``'shared'``, ``'unshared'``, ``'lape'``,
            ``'lape_sharing'``: the rows of LaPE (ICCV 2023), Table 7; or a list. Default None: the backbone's own.
        distilled: A second head, ``head_dist``, on the distillation token (DeiT, ICML 2021, section 4), or on what the
            first one reads in networks that have none (LeViT). Trained with :meth:`set_distilled_training`, the model
            returns both scores; else their mean. Default False.
        num_classes: Default 1000; 0 for no head.
        global_pool: ``'token'``: the class token; ``'avg'``: the mean of the patch tokens; ``''``: all tokens; or the
            config of a pooling, ``dict(type='mmlape.SequencePooling')``, which is then the backbone's ``pool``. Default
            None: that of the architecture or the family (``pooling``).
        in_chans: Image channels. Default 3.
        drop_rate: Dropout before the head. Default 0.
        proj_drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        last_step: Last layer or stage that is built, for feature extraction without head and output norm. Default None:
            all.
        position_only: Train position alone, see :class:`~mmlape.training.PositionOnlyHook`: everything else is frozen,
            new heads too, and keeps its statistics. Default False.
        device: Where parameters live. Default None, the CPU.
        dtype: Of the parameters. Default None, float32.
        options: Of the backbone (``arch``, ``img_size``, ``norm_cfg``, ``attention_position``, ``init_cfg``, ...).

    Raises:
        ValueError: If an option is out of range.
        TypeError: If an option is unknown or has the wrong type.
    """

    head: nn.Module
    head_dist: nn.Module

    def __init__(
        self,
        network: str,
        position: Choice = None,
        joining: Choice = None,
        distilled: bool = False,
        num_classes: int = 1000,
        global_pool: Pool | None = None,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        last_step: int | None = None,
        position_only: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options,
    ) -> None:
        super().__init__()
        check_positive_int('in_chans', in_chans)
        check_type('last_step', last_step, int | None)
        family: type[StagedTransformer] = MODELS.get(network)
        options.update(named_options(position=position, joining=joining))
        self.distilled, self.distilled_training = check_bool('distilled', distilled), False
        self._by_tokens = 'with_dist_token' in options_of(family)
        if self.distilled and self._by_tokens:
            options['with_dist_token'] = True
        sizes, parts = family.resolve_arch(options.get('arch'))
        pool = _named(parts.get('pooling', family.pooling)) if global_pool is None else global_pool
        if family.counts == 'stages' and 'with_cls_token' in options_of(family):
            # The token is the classifier's alone: no part of maps, and not there before the last stage.
            last = len(family.stage_sizes(sizes)) - 1
            options['with_cls_token'] = pool in ('', 'token') and last_step in (None, last)
        options.update(type=network, in_channels=in_chans, drop_rate=proj_drop_rate)
        if last_step is None:
            options.update(out_indices=-1)
            options.setdefault('final_norm', family.final_norm is not False)
        else:
            options.update(out_indices=last_step, final_norm=False)
            pool, num_classes = '', 0
        options['out_type'] = pool if isinstance(pool, dict) else 'raw'
        self.backbone: StagedTransformer = MODELS.build(options)
        if self.backbone.init_cfg:
            self.backbone.init_weights()
        stage = self.backbone.stages()[-1]
        self.in_chans = in_chans
        self.embed_dim = self.num_features = self.head_hidden_size = stage.embed_dims
        self.num_prefix_tokens = stage.num_prefix
        self.global_pool = self._check_pool(pool)
        self.feature_info = self.describe_features()
        self.head_drop = nn.Dropout(check_rate('drop_rate', drop_rate))
        self.position_only = check_bool('position_only', position_only)
        self._make_heads(num_classes)
        self.to(device=device, dtype=dtype)

    def describe_features(self) -> list[dict]:
        """timm's ``feature_info``: channels, stride and module of each layer or stage."""
        info, stride = [], 1
        for stage in self.backbone.stages():
            stride *= max(stage.embed.stride)
            steps = [stage.name]
            if self.backbone.counts == 'layers':
                steps = [f'{stage.name}.{layer}' for layer in range(len(stage.blocks))]
            info += [
                dict(num_chs=stage.embed_dims, reduction=stride, module=f'backbone.{step}')
                for step in steps
            ]
        return info

    def forward_features(self, x: Tensor) -> Tensor:
        """Normed tokens ``(B, P + H * W, C)`` of the last layer for images ``(B, in_chans, height, width)``."""
        return self.forward_intermediates(x, indices=[])[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Scores ``(B, num_classes)`` of tokens, or what goes into the head if ``pre_logits``."""
        if not (self.distilled and self.global_pool):
            x = self.head_drop(self._pooled(x))
            return x if pre_logits else self.head(x)
        first, second = (x[:, 0], x[:, 1]) if self._by_tokens else (self._pooled(x),) * 2
        first, second = self.head_drop(first), self.head_drop(second)
        if not pre_logits:
            first, second = self.head(first), self.head_dist(second)
            if self.distilled_training and self.training:
                return first, second
        return (first + second) / 2

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Scores ``(B, num_classes)`` for images ``(B, in_chans, height, width)`` of any size."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list | tuple[Tensor, list]:
        """Features of layers or stages on the way.

        Args:
            x: Images ``(B, in_chans, height, width)``.
            indices: The last n if an integer, all if None (default), else those named.
            return_prefix_tokens: Pairs of features and prefix tokens ``(B, P, C)``. Default False.
            norm: Apply the output norm where it fits (everywhere in a ViT, in the last stage of PVT). Default False.
            stop_early: Leave out what comes after the last one asked for. Default False.
            output_fmt: ``'NCHW'`` (default) for maps, ``'NLC'`` for patch tokens.
            intermediates_only: Return the features alone, not the normed last tokens before them. Default False.
        """
        check_option('output_fmt', output_fmt, ('NCHW', 'NLC'))
        taken = take_indices(len(self.feature_info), indices)
        taps = []
        for step, (tokens, layout) in enumerate(self.backbone.walk(x)):
            if step in taken:
                tap = self._normed(step, tokens, layout) if norm else tokens
                taps.append(_tapped(tap, layout, output_fmt, return_prefix_tokens))
            if stop_early and step == max(taken, default=None):
                break
        return taps if intermediates_only else (self._normed(step, tokens, layout), taps)

    def train(self, mode: bool = True) -> Classifier:
        """Switch between training and evaluation; with ``position_only`` statistics stay as they are."""
        super().train(mode)
        if self.position_only:
            hold_statistics(statistics_of(self))
        return self

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        """The head, or both."""
        return (self.head, self.head_dist) if self.distilled else self.head

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """New heads, none for 0, and another ``global_pool`` unless that is None."""
        if global_pool is not None:
            self.global_pool = self._check_pool(global_pool)
            self.backbone.pool = self._placed(build_pooling(global_pool, self.num_features))
        self._make_heads(num_classes)

    def set_distilled_training(self, enable: bool = True) -> None:
        """Whether a distilled model in training returns the scores of both heads.

        Raises:
            ValueError: If the model has no distillation token.
        """
        if not self.distilled:
            raise ValueError('this model has no distillation token')
        self.distilled_training = enable

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass to save memory."""
        self.backbone.with_cp = enable

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: positions, what joins them, tokens, and what a norm exempts (DTN's
        ratios and maps, DyT's and Derf's ``alpha`` and ``shift``)."""
        return exempt_parameters(self)

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Depth of a parameter by its name, for layer-wise learning rates; in stages if ``coarse``, in a pyramid."""
        depths, count = self.backbone.parameter_depths()
        if coarse and self.backbone.counts == 'stages':
            stages = self.backbone.stages()
            count = len(stages)
            depths = {
                parameter: number
                for number, stage in enumerate(stages)
                for module in (*stage.before(), stage.blocks, stage.norm)
                if module is not None
                for parameter in module.parameters()
            }
        named, last = self.backbone.named_parameters(), count - 1
        numbers = {f'backbone.{name}': depths.get(p, last) for name, p in named}
        return lambda name: numbers.get(name, last)

    def _normed(self, step: int, tokens: Tensor, layout: Layout) -> Tensor:
        """Tokens after the output norm where it fits: in all layers on one grid, or in the last stage."""
        norm = self.backbone.norm
        if norm is None or (
            self.backbone.counts == 'stages' and step < self.backbone.num_units - 1
        ):
            return tokens
        return norm(tokens, layout)

    def _pooled(self, tokens: Tensor) -> Tensor:
        """Pool tokens ``(B, P + H * W, C)``, whatever their grid, for the head."""
        prefix = self.num_prefix_tokens
        layout = Layout((1, tokens.shape[1] - prefix), prefix)
        if self.backbone.pool is not None:
            return self.backbone.pool(tokens, layout)
        return OUTPUTS[_OUT_TYPES[str(self.global_pool)]](tokens, layout)

    def _check_pool(self, global_pool: Pool) -> Pool:
        if self.distilled and self._by_tokens:
            return check_option('global_pool with distilled=True', global_pool, ('', 'token'))
        if isinstance(global_pool, dict):
            return global_pool
        accepted = ('', 'avg', 'token') if self.num_prefix_tokens else ('', 'avg')
        return check_option('global_pool', global_pool, accepted)

    def _make_heads(self, num_classes: int) -> None:
        self.num_classes = check_positive_int('num_classes', num_classes, minimum=0)
        for name in ('head', 'head_dist') if self.distilled else ('head',):
            head: nn.Module = nn.Identity()
            if num_classes:
                made = NormedHead if self.backbone.normed_head else nn.Linear
                head = made(self.num_features, num_classes)
                head.apply(init_linear)
            setattr(self, name, self._placed(head))
        if self.position_only:
            freeze_all_but_position(self)
            self.train(self.training)

    def _placed(self, module: nn.Module | None) -> nn.Module | None:
        """A new part where the model is."""
        like = next(self.backbone.parameters())
        return module and module.to(like.device, like.dtype).train(self.training)


class NormedHead(nn.Module):
    """A batch norm and a linear layer, under timm's names (LeViT, ICCV 2021, section 4.2).

    Args:
        in_features: Channels ``C``.
        num_classes: Scores.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.bn = build_token_norm(dict(type='mmlape.TokenBN'), in_features)
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., C)`` to ``(..., num_classes)``; statistics are those of all rows."""
        rows = x.reshape(1, -1, x.shape[-1])
        return self.linear(self.bn(rows)).view(*x.shape[:-1], -1)


class ViTClassifier(Classifier):
    """A Vision Transformer of any position, joining and norm as a classifier; options of :class:`Classifier`."""

    def __init__(self, arch: str | dict, **options) -> None:
        check_type('arch', arch, str | dict)
        super().__init__('mmlape.VisionTransformer', arch=arch, **options)


class PyramidClassifier(Classifier):
    """PVT (``version=1``) or PVTv2 (2) of any position, joining and norm as a classifier; options of
    :class:`Classifier`. PVT has a class token for ``global_pool='token'`` (default) and ``''``, PVTv2 has none."""

    def __init__(self, version: int, arch: str | dict, **options) -> None:
        check_type('arch', arch, str | dict)
        check_positive_int('version', version, maximum=2)
        network = 'mmlape.PyramidVisionTransformer' + ('' if version == 1 else 'V2')
        super().__init__(network, arch=arch, **options)


def _named(pooling: Pool) -> Pool:
    """A family's pooling under timm's name, if it has one."""
    return next((name for name, out_type in _OUT_TYPES.items() if out_type == pooling), pooling)


def _tapped(tokens: Tensor, layout: Layout, output_fmt: str, with_prefix: bool):
    """Features as asked for, with prefix tokens if asked for."""
    prefix, cells = layout.split(tokens)
    features = layout.to_maps(tokens).contiguous() if output_fmt == 'NCHW' else cells
    return (features, prefix) if with_prefix else features


def named_options(position: Choice, joining: Choice) -> dict[str, dict | list]:
    """Configs of position and joining from short names, configs or lists of either; None is left out.

    Raises:
        ValueError: If a name is unknown.
    """
    given = dict(
        position=_resolve('position', position, POSITIONS),
        joining=_resolve('joining', joining, JOININGS),
    )
    return {name: value for name, value in given.items() if value is not None}


def _resolve(name: str, value: Choice, table: dict[str, dict]) -> dict | list | None:
    if isinstance(value, (list, tuple)):
        return [_resolve(name, entry, table) for entry in value]
    return dict(table[check_option(name, value, table)]) if isinstance(value, str) else value


def take_indices(count: int, indices: int | Sequence[int] | None) -> tuple[int, ...]:
    """Ascending indices among ``count`` layers: the last n for an integer, all for None, else those named.

    Raises:
        ValueError: If one does not exist.
        TypeError: If one is not an integer.
    """
    if indices is None or isinstance(indices, int):
        taken = check_positive_int('indices', count if indices is None else indices, maximum=count)
        return tuple(range(count - taken, count))
    for index in indices:
        check_positive_int('indices', index, minimum=-count, maximum=count - 1)
    return tuple(sorted({index % count for index in indices}))

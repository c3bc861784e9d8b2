"""A backbone with linear heads, with the methods that timm's tools expect of a model."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mmlape.backbones import PyramidVisionTransformer, VisionTransformer
from mmlape.backbones.base import Backbone
from mmlape.backbones.outputs import split
from mmlape.backbones.pyramid import STRIDES
from mmlape.checks import check_bool, check_option, check_positive_int, check_rate
from mmlape.norm.dtn import LearnedRatio
from mmlape.norm.position_map import PositionMap
from mmlape.position import AttentionPosition, Joining, PositionEmbedding
from mmlape.registry import MODELS

from .options import named_options, take_indices

Grid = tuple[int, int]
# Their parameters say where something is, or how much of it counts: shrinking them means nothing.
_WITHOUT_DECAY = (PositionEmbedding, Joining, AttentionPosition, LearnedRatio, PositionMap)
_TOKENS = ('backbone.cls_token', 'backbone.dist_token')


class Classifier(nn.Module):
    """``backbone`` and ``head``, in MMPretrain's layout of names: checkpoints go into detectors as they are.

    Args:
        backbone: One of our backbones.
        num_features: Channels ``C`` of its last layer.
        num_prefix_tokens: Prefix tokens ``P`` of its last layer.
        in_chans: Image channels.
        num_classes: 0 for no head.
        global_pool: ``'token'``: the class token; ``'avg'``: the mean of the patch tokens; ``''``: all tokens.
        drop_rate: Dropout before the head.
        distilled: A second head, ``head_dist``, on the distillation token (DeiT, ICML 2021, section 4). Trained with
            :meth:`set_distilled_training`, the model returns both scores; else their mean.
        device: Where parameters live. Default None, the CPU.
        dtype: Of the parameters. Default None, float32.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_features: int,
        num_prefix_tokens: int,
        in_chans: int,
        num_classes: int,
        global_pool: str,
        drop_rate: float,
        distilled: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        if backbone.init_cfg:
            backbone.init_weights()
        self.in_chans = in_chans
        self.embed_dim = self.num_features = self.head_hidden_size = num_features
        self.num_prefix_tokens = num_prefix_tokens
        self.distilled, self.distilled_training = distilled, False
        self.global_pool = self._check_pool(global_pool)
        self.feature_info = self.describe_features()
        self.head_drop = nn.Dropout(check_rate('drop_rate', drop_rate))
        self._make_heads(num_classes)
        self.to(device=device, dtype=dtype)

    @abstractmethod
    def steps(self, image: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Tokens ``(B, P + H * W, C)`` and grid ``(H, W)`` after each layer or stage."""

    @abstractmethod
    def normed(self, step: int, tokens: Tensor, grid: Grid) -> Tensor:
        """Tokens of a step after the output norm, where that norm fits."""

    @abstractmethod
    def describe_features(self) -> list[dict]:
        """timm's ``feature_info``: channels, stride and module of each step."""

    def forward_features(self, x: Tensor) -> Tensor:
        """Normed tokens ``(B, P + H * W, C)`` of the last layer for images ``(B, in_chans, height, width)``."""
        return self.forward_intermediates(x, indices=[])[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Scores ``(B, num_classes)`` of tokens, or what goes into the head if ``pre_logits``."""
        if self.distilled and self.global_pool:
            return self._forward_both(x[:, 0], x[:, 1], pre_logits)
        if self.global_pool == 'token':
            x = x[:, 0]
        elif self.global_pool == 'avg':
            x = x[:, self.num_prefix_tokens :].mean(1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

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
        for step, (tokens, grid) in enumerate(self.steps(x)):
            if step in taken:
                tap = self.normed(step, tokens, grid) if norm else tokens
                taps.append(_tapped(tap, grid, output_fmt, return_prefix_tokens))
            if stop_early and step == max(taken, default=None):
                break
        return taps if intermediates_only else (self.normed(step, tokens, grid), taps)

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        """The head, or both."""
        return (self.head, self.head_dist) if self.distilled else self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """New heads, none for 0, and another ``global_pool`` unless that is None."""
        if global_pool is not None:
            self.global_pool = self._check_pool(global_pool)
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
        """Names of parameters without weight decay: positions, what joins them, tokens, DTN's ratios and maps."""
        names = {name for name in _TOKENS if hasattr(self, 'backbone') and _has(self, name)}
        for path, module in self.named_modules():
            if isinstance(module, _WITHOUT_DECAY):
                names |= {f'{path}.{name}' for name, _ in module.named_parameters()}
        return names

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Depth of a parameter by its name, for layer-wise learning rates; in stages if ``coarse``, in a pyramid."""
        depths, count = self.backbone.parameter_depths()
        by_name = {f'backbone.{name}': depths[p] for name, p in self.backbone.named_parameters()}

        def depth(name: str) -> int:
            stage = self.stage_of(name) if coarse else None
            return by_name.get(name, count - 1) if stage is None else stage

        return depth

    def stage_of(self, name: str) -> int | None:
        """Stage of a parameter where there are stages."""
        return None

    def _forward_both(self, cls_token: Tensor, dist_token: Tensor, pre_logits: bool):
        cls_token, dist_token = self.head_drop(cls_token), self.head_drop(dist_token)
        if not pre_logits:
            cls_token, dist_token = self.head(cls_token), self.head_dist(dist_token)
            if self.distilled_training and self.training:
                return cls_token, dist_token
        return (cls_token + dist_token) / 2

    def _check_pool(self, global_pool: str) -> str:
        accepted = ['', 'avg']
        if self.num_prefix_tokens:
            accepted = ['', 'token'] if self.distilled else ['', 'avg', 'token']
        return check_option('global_pool', global_pool, accepted)

    def _make_heads(self, num_classes: int) -> None:
        self.num_classes = check_positive_int('num_classes', num_classes, minimum=0)
        for name in ('head', 'head_dist') if self.distilled else ('head',):
            head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
            if num_classes:
                nn.init.trunc_normal_(head.weight, std=0.02)
                nn.init.zeros_(head.bias)
            like = next(self.backbone.parameters())
            setattr(self, name, head.to(like.device, like.dtype).train(self.training))


class ViTClassifier(Classifier):
    """A Vision Transformer of any position, joining and norm as a classifier.

    Args:
        arch: See :class:`mmlape.backbones.VisionTransformer`, as for all that is not named here (``img_size``, which is
            but the size that position tables are made for, ``patch_size``, ``attn_drop_rate``, ``drop_path_rate``,
            ``norm_cfg``, ``attention_position``, ``init_cfg``, ...).
        position: Config of a position embedding, or a short name: ``'learned'`` (default), ``'sinusoidal_1d'``,
            ``'sinusoidal_2d'``, ``'gabor'``, ``'none'``.
        joining: Config of a joining method, or a short name: ``'default'`` (default), ``'shared'``, ``'unshared'``,
            ``'lape'``, ``'lape_sharing'``: the rows of LaPE (ICCV 2023), Table 7.
        distilled: With a distillation token and its head. Default False.
        num_classes: Default 1000; 0 for no head.
        global_pool: See :class:`Classifier`. Default ``'token'``.
        in_chans: Image channels. Default 3.
        drop_rate: Dropout before the head. Default 0.
        proj_drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        last_step: Last layer that is built, for feature extraction without head and output norm. Default None: all.
        device: Where parameters live. Default None, the CPU.
        dtype: Of the parameters. Default None, float32.
        options: Of the backbone.

    Raises:
        ValueError: If an option is out of range.
        TypeError: If an option is unknown or has the wrong type.
    """

    def __init__(
        self,
        arch: str | dict,
        position: str | dict = 'learned',
        joining: str | dict = 'default',
        distilled: bool = False,
        num_classes: int = 1000,
        global_pool: str = 'token',
        in_chans: int = 3,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        last_step: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options,
    ) -> None:
        whole = last_step is None
        backbone: VisionTransformer = MODELS.build(
            dict(
                options,
                type='mmlape.VisionTransformer',
                arch=arch,
                in_channels=in_chans,
                **named_options(position=position, joining=joining),
                with_dist_token=check_bool('distilled', distilled),
                out_type='raw',
                out_indices=-1 if whole else last_step,
                final_norm=whole,
                drop_rate=proj_drop_rate,
            )
        )
        super().__init__(
            backbone,
            backbone.embed_dims,
            backbone.num_prefix_tokens,
            in_chans,
            num_classes if whole else 0,
            global_pool if whole else '',
            drop_rate,
            distilled,
            device,
            dtype,
        )

    def steps(self, image: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Tokens and grid after each layer; prefix tokens are among them from where they join."""
        tokens, grid, plan = self.backbone.embed(image)
        for layer in range(len(self.backbone.blocks)):
            tokens = self.backbone.run_block(layer, tokens, grid, plan)
            yield tokens, grid

    def normed(self, step: int, tokens: Tensor, grid: Grid) -> Tensor:
        """Tokens of any layer after the output norm."""
        return tokens if self.backbone.norm is None else self.backbone.norm(tokens, grid)

    def describe_features(self) -> list[dict]:
        """One entry per layer, all with the stride of the patches."""
        channels, stride = self.backbone.embed_dims, max(self.backbone.patch_size)
        return [
            dict(num_chs=channels, reduction=stride, module=f'backbone.blocks.{layer}')
            for layer in range(len(self.backbone.blocks))
        ]


class PyramidClassifier(Classifier):
    """PVT or PVTv2 of any position, joining and norm as a classifier.

    Args:
        version: 1 or 2.
        arch: See :class:`mmlape.backbones.PyramidVisionTransformer` and its second version, as for all that is not
            named here.
        position: As in :class:`ViTClassifier`, or a list of four. Default None: the backbone's own.
        joining: As in :class:`ViTClassifier`, or a list of four. Default None: the backbone's own.
        num_classes: Default 1000; 0 for no head.
        global_pool: See :class:`Classifier`; without ``'token'`` or ``''`` PVT has no class token. Default None:
            ``'token'`` for PVT, ``'avg'`` for PVTv2, which has no class token.
        in_chans: Image channels. Default 3.
        drop_rate: Dropout before the head. Default 0.
        proj_drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        last_step: Last stage that is built, for feature extraction without head. Default None: all.
        device: Where parameters live. Default None, the CPU.
        dtype: Of the parameters. Default None, float32.
        options: Of the backbone.

    Raises:
        ValueError: If an option is out of range.
        TypeError: If an option is unknown or has the wrong type.
    """

    def __init__(
        self,
        version: int,
        arch: str | dict,
        position: str | dict | list | None = None,
        joining: str | dict | list | None = None,
        num_classes: int = 1000,
        global_pool: str | None = None,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        last_step: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options,
    ) -> None:
        first = version == 1
        pool = ('token' if first else 'avg') if global_pool is None else global_pool
        whole = last_step is None
        with_token = first and pool != 'avg' and last_step in (None, len(STRIDES) - 1)
        if first:
            options['with_cls_token'] = with_token
        backbone: PyramidVisionTransformer = MODELS.build(
            dict(
                options,
                type='mmlape.PyramidVisionTransformer' + ('' if first else 'V2'),
                arch=arch,
                in_channels=in_chans,
                **named_options(position=position, joining=joining),
                out_type=('cls_token' if with_token else 'avg') if whole else 'featmap',
                out_indices=len(STRIDES) - 1 if whole else last_step,
                drop_rate=proj_drop_rate,
            )
        )
        super().__init__(
            backbone,
            backbone.embed_dims[backbone.num_stages - 1],
            int(with_token),
            in_chans,
            num_classes if whole else 0,
            pool if whole else '',
            drop_rate,
            device=device,
            dtype=dtype,
        )

    def steps(self, image: Tensor) -> Iterator[tuple[Tensor, Grid]]:
        """Tokens and grid after each stage."""
        return self.backbone.run_stages(image)

    def normed(self, step: int, tokens: Tensor, grid: Grid) -> Tensor:
        """Tokens of the last stage after the output norm; those of other stages pass."""
        return self.backbone.finish(tokens, grid) if step == len(STRIDES) - 1 else tokens

    def describe_features(self) -> list[dict]:
        """One entry per stage, of strides 4, 8, 16 and 32."""
        return [
            dict(num_chs=self.backbone.embed_dims[stage], reduction=4 * 2**stage, module=f'backbone.block{stage + 1}')
            for stage in range(self.backbone.num_stages)
        ]  # fmt: skip

    def stage_of(self, name: str) -> int | None:
        """Stage of a parameter by the number in its name; the last for what has none."""
        found = re.match(r'backbone\.[a-z_]+([1-4])\.', name)
        return int(found[1]) - 1 if found else len(STRIDES) - 1


def _has(model: nn.Module, name: str) -> bool:
    return isinstance(getattr(model.backbone, name.rpartition('.')[2], None), nn.Parameter)


def _tapped(tokens: Tensor, grid: Grid, output_fmt: str, with_prefix: bool):
    """Features as asked for, with prefix tokens if asked for."""
    maps, prefix = split(tokens, grid)
    features = maps if output_fmt == 'NCHW' else tokens[:, prefix.shape[1] :]
    return (features, prefix) if with_prefix else features

"""Read architectures from timm's Vision Transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import timm
import torch
from timm.layers import AttentionPoolLatent
from torch import nn

from mmlape.position.embeddings import RESIZES


class PlainNaFlex:
    """timm's ``NaFlexVit`` with the attributes of its other Vision Transformers; equal to them for images of one size.

    Attributes:
        resize: How its position table is resized, in the names of :class:`~mmlape.position.LearnedPosition`.
        square: Whether to the square of the longer side, which is then cropped.
        factorized: Whether position is a table of rows and one of columns.
    """

    no_embed_class = True

    def __init__(self, model: Any) -> None:
        self._model, embeds = model, model.embeds
        self.cls_token, self.reg_token = embeds.cls_token, embeds.reg_token
        self.pos_embed, self.square = embeds.pos_embed, embeds.pos_embed_ar_preserving
        self.factorized = embeds.pos_embed_type == 'factorized'
        grid = embeds.pos_embed_grid_size or (16, 16)
        size = tuple(cells * side for cells, side in zip(grid, embeds.patch_size))
        self.patch_embed = SimpleNamespace(
            img_size=size,
            patch_size=embeds.patch_size,
            proj=embeds.proj,
            norm=embeds.norm,
            norm_input=embeds.norm_input,
            in_channels=embeds.in_chans,
        )
        flags = (
            ('antialias', embeds.pos_embed_antialias),
            ('corners', embeds.pos_embed_align_corners),
            ('square', self.square),
        )
        self.resize = '_'.join([embeds.pos_embed_interp_mode, *(flag for flag, on in flags if on)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


CLASSES = (
    'VisionTransformer', 'VisionTransformerDistilled', 'Eva', 'Beit', 'VisionTransformerRelPos', 'NaFlexVit'
)  # fmt: skip
_BLOCKS = {
    'Block': 'mmlape.Block',
    'EvaBlock': 'mmlape.Block',
    'RelPosBlock': 'mmlape.Block',
    'ResPostBlock': 'mmlape.PostNormBlock',
    'EvaBlockPostNorm': 'mmlape.PostNormBlock',
    'ResPostRelPosBlock': 'mmlape.PostNormBlock',
    'ParallelScalingBlock': 'mmlape.ParallelBlock',
    'DiffParallelScalingBlock': 'mmlape.ParallelBlock',
    'ParallelThingsBlock': 'mmlape.SeveralBranchesBlock',
}
_NORMS = {
    'LayerNorm': 'mmlape.LN',
    'LayerNormFp32': 'mmlape.LN',
    'RmsNorm': 'mmlape.TokenRMS',
    'RMSNorm': 'mmlape.TokenRMS',
}
_ACTIVATIONS = {'GELUTanh': 'gelu_tanh', 'QuickGELU': 'quick_gelu', 'SiLU': 'silu', 'ReLU': 'relu'}


class UnlikeOursError(ValueError):
    """A timm model has a part that our Vision Transformer lacks; the message names it."""


def timm_arch(name: str) -> dict[str, Any]:
    """The ``arch`` of a timm model, e.g. ``'vit_small_patch16_dinov3.lvd1689m'``, for ``mmlape.VisionTransformer``.

    Raises:
        ValueError: If it is not a plain Vision Transformer, or has a part that ours lacks.
    """
    try:
        with torch.device('meta'):
            model = timm.create_model(name, pretrained=False)
    except RuntimeError as error:  # the tag is unknown
        raise ValueError(f'arch={name!r}: timm {timm.__version__}: {error}') from error
    try:
        return describe(model)
    except UnlikeOursError as error:
        raise ValueError(f'mmlape.VisionTransformer has no {name!r} of timm: {error}') from error


def describe(model: nn.Module) -> dict[str, Any]:
    """The ``arch`` of a timm model for ``mmlape.VisionTransformer``.

    Raises:
        UnlikeOursError: If it has a part that ours lacks.
    """
    if type(model).__name__ not in CLASSES:
        raise UnlikeOursError(
            f'it is a {type(model).__name__} of timm, no plain Vision Transformer ({", ".join(CLASSES)})'
        )
    parts: Any = model  # timm's models have no common type
    if hasattr(parts, 'embeds'):
        parts = PlainNaFlex(model)
    block, dims = parts.blocks[0], parts.embed_dim
    kinds = {type(each).__name__ for each in parts.blocks}
    if not kinds <= {type(block).__name__} & set(_BLOCKS):
        raise UnlikeOursError(f'its layers are of the kind {", ".join(sorted(kinds))}')
    layer: dict[str, Any] = dict(type=_BLOCKS[type(block).__name__])
    if hasattr(block, 'attns'):
        layer['num_branches'] = len(block.attns)
        first, second = block.attns[0], block.ffns[0]
        block = SimpleNamespace(norm1=first.norm, attn=first.attn, ls1=first.ls, mlp=second.mlp)
    # A block with both branches side by side is its own attention.
    attn = getattr(block, 'attn', block)
    hidden, mlp = _mlp(block)
    has_class_token, registers = parts.cls_token is not None, getattr(parts, 'reg_token', None)
    return dict(
        embed_dims=dims,
        depth=len(parts.blocks),
        num_heads=attn.num_heads,
        mlp_ratio=_ratio(hidden, dims),
        img_size=tuple(parts.patch_embed.img_size),
        stem=_stem(parts.patch_embed),
        prefix=dict(
            cls_token=has_class_token,
            dist_token=getattr(parts, 'dist_token', None) is not None,
            registers=0 if registers is None else registers.shape[1],
        ),
        position=_position(parts),
        attention_position=_inside(parts, attn) or False,
        attention=_attention(attn, dims),
        mlp=mlp,
        block=dict(layer, layer_scale=_layer_scale(block)),
        norm_cfg=_norm(getattr(block, 'norm1', None) or block.in_norm),
        pre_norm=_norm(getattr(parts, 'norm_pre', None)) or False,
        final_norm=_norm(parts.norm) is not None,
        pooling=_pooling(parts, has_class_token),
    )


def _pooling(model: Any, has_class_token: bool) -> str | dict[str, Any]:
    """The pooling of its classifier, as an ``out_type``."""
    pool = getattr(model, 'attn_pool', None)
    if not isinstance(pool, AttentionPoolLatent):
        return 'cls_token' if has_class_token and model.global_pool == 'token' else 'avg'
    mlp, norm = cast(Any, pool.mlp), cast(Any, pool.norm)
    return dict(
        type='mmlape.AttentionPooling',
        num_heads=pool.num_heads,
        mlp_ratio=_ratio(mlp.fc1.out_features, model.embed_dim),
        act=_activation(mlp.act),
        eps=norm.eps,
        # Eva has no choice.
        with_prefix=getattr(model, 'pool_include_prefix', True),
    )


def _ratio(hidden: int, dims: int) -> float:
    """The ratio for which ``int(dims * ratio) == hidden``."""
    ratio = hidden / dims
    return ratio if int(dims * ratio) == hidden else math.nextafter(ratio, math.inf)


def _norm(module: nn.Module | None) -> dict[str, Any] | None:
    """The config of a token norm, or None where there is none."""
    if module is None or isinstance(module, nn.Identity):
        return None
    kind = type(module).__name__
    if kind not in _NORMS:
        raise UnlikeOursError(f'it has a {kind}')
    return dict(type=_NORMS[kind], eps=module.eps)


def _activation(module: nn.Module) -> str:
    kind = type(module).__name__
    if kind == 'GELU':
        return 'gelu_tanh' if getattr(module, 'approximate', 'none') == 'tanh' else 'gelu'
    if kind not in _ACTIVATIONS:
        raise UnlikeOursError(f'it has the activation {kind}')
    return _ACTIVATIONS[kind]


def _stem(embed: Any) -> dict[str, Any]:
    proj = getattr(embed, 'proj', None)
    if not isinstance(proj, (nn.Conv2d, nn.Linear)) or hasattr(embed, 'backbone'):
        raise UnlikeOursError(f'its patches are made by a {type(embed).__name__}')
    if getattr(embed, 'norm_input', None) is not None:
        raise UnlikeOursError('its pixels have a norm before they are projected')
    channels = proj.in_channels if isinstance(proj, nn.Conv2d) else embed.in_channels
    options = dict(patch_size=tuple(embed.patch_size), in_channels=channels)
    return dict(type='mmlape.PatchEmbed', **options, norm_cfg=_norm(embed.norm))


def _position(model: Any) -> dict[str, Any] | bool:
    if getattr(model, 'factorized', False):
        return dict(type='mmlape.FactorizedPosition', square=model.square)
    if getattr(model, 'pos_embed', None) is None:
        return False
    rows = not getattr(model, 'no_embed_class', False)
    resize = getattr(model, 'resize', 'bicubic_antialias')
    if resize not in RESIZES:
        raise UnlikeOursError(f'its position table is resized by {resize!r}')
    return dict(type='mmlape.LearnedPosition', resize=resize, prefix_rows=rows)


def _attention(attn: Any, dims: int) -> dict[str, Any]:
    differential = hasattr(attn, 'lambda_init')
    head_dims = getattr(attn, 'head_dim', dims // attn.num_heads) * (2 if differential else 1)
    if attn.num_heads * head_dims != dims:
        raise UnlikeOursError(f'its {attn.num_heads} heads have {head_dims} channels each')
    if getattr(attn, 'gate', None) is not None:
        raise UnlikeOursError('its attention has a gate')
    projections = ('qkv', 'q_proj', 'in_proj')
    linear = next(p for p in (getattr(attn, n, None) for n in projections) if p is not None)
    bias = linear.bias is not None or getattr(attn, 'q_bias', None) is not None
    qk_norm = _norm(getattr(attn, 'q_norm', None))
    options = dict(qkv_bias=bias, inner_norm=_norm(getattr(attn, 'norm', None)))
    if not differential:
        return dict(type='mmlape.Attention', qk_norm=qk_norm, **options)
    if qk_norm is not None or attn.dual_lambda:
        raise UnlikeOursError('its difference of two maps has norms of queries, or scalars')
    return dict(type='mmlape.DifferentialAttention', **options)


def _mlp(block: Any) -> tuple[int, dict[str, Any]]:
    """Hidden channels, and the config of the feed-forward network."""
    mlp = getattr(block, 'mlp', None)
    if mlp is None:
        act = _activation(block.mlp_act)
        return block.in_split[0], dict(type='mmlape.Mlp', act=act)
    options = dict(act=_activation(mlp.act), norm_cfg=_norm(getattr(mlp, 'norm', None)))
    kind = type(mlp).__name__
    if kind == 'Mlp':
        return mlp.fc1.out_features, dict(type='mmlape.Mlp', **options)
    if kind not in ('SwiGLU', 'GluMlp') or getattr(mlp, 'gate_last', False):
        raise UnlikeOursError(f'its feed-forward networks are of the kind {kind}')
    return mlp.fc2.in_features, dict(type='mmlape.SwiGLU', **options)


def _layer_scale(block: Any) -> float | bool:
    """Return the initial value of a block's layer scale, or False."""
    scale = getattr(block, 'ls1', None) or getattr(block, 'ls', None)
    if scale is None and getattr(block, 'gamma_1', None) is None:
        return False
    if isinstance(scale, nn.Identity):
        return False
    value = getattr(block if scale is None else scale, 'init_values', None)
    return 1e-5 if value is None else float(value)


def _inside(model: Any, attn: Any) -> dict[str, Any] | None:
    """Config of the position inside the attention, or None."""
    rope = getattr(model, 'rope', None)
    if rope is not None:
        kind = type(rope).__name__
        if kind not in _ROTARY:
            raise UnlikeOursError(f'its rotary position is a {kind}')
        columns_first = rope.grid_indexing == 'xy'
        options = dict(temperature=rope.temperature, columns_first=columns_first)
        return dict(_ROTARY[kind](rope), **options, **_random(rope, kind))
    tables = [
        kind
        for kind, holder in (('', attn), ('Shared', getattr(model, 'rel_pos_bias', None)))
        if getattr(holder, 'relative_position_bias_table', None) is not None
    ]
    if len(tables) == 2:
        raise UnlikeOursError('it has a relative table for all layers, and one for each')
    if tables:
        kind = f'mmlape.{tables[0]}RelativePositionBias'
        return dict(type=kind, prefix_scores=True, resize='geometric')
    shared = getattr(model, 'shared_rel_pos', None)
    relative = shared or getattr(attn, 'rel_pos', None)
    if relative is None:
        return None
    if getattr(relative, 'mode', None) != 'cr':
        raise UnlikeOursError(f'its relative position is a {type(relative).__name__}')
    kind = 'RelativePositionMlp' if shared is None else 'SharedRelativePositionMlp'
    return dict(type=f'mmlape.{kind}', hidden_dims=relative.mlp.fc1.out_features)


def _axial(rope: Any) -> dict[str, Any]:
    if rope.in_pixels:
        raise UnlikeOursError('its rotary position is in pixels')
    options: dict[str, Any] = dict(offset=rope.grid_offset, pairs=_pairs(rope))
    if rope.ref_feat_shape is not None:
        options.update(rescale=True, reference=tuple(rope.ref_feat_shape))
    return dict(type='mmlape.RotaryPosition', **options)


def _centred(rope: Any) -> dict[str, Any]:
    if rope.normalize_coords != 'separate' or rope.grid_offset or rope.min_period is not None:
        raise UnlikeOursError('its rotary position has other coordinates')
    return dict(type='mmlape.RotaryPosition', coordinates='centred', pairs=_pairs(rope))


def _random(rope: Any, kind: str) -> dict[str, dict[str, float]]:
    """Options of random coordinates in training."""
    found = {name: getattr(rope, f'{name}_coords', None) for name in ('shift', 'jitter', 'rescale')}
    used = {name: value for name, value in found.items() if value is not None}
    if used and kind == 'RotaryEmbeddingMixed':
        raise UnlikeOursError(f'its learned turns have random coordinates, {used}')
    return dict(random=used) if used else {}


def _pairs(rope: Any) -> str:
    return 'halves' if getattr(rope, 'rotate_half', False) else 'neighbours'


_ROTARY: dict[str, Callable[[Any], dict[str, Any]]] = {
    'RotaryEmbeddingCat': _axial,
    'RotaryEmbeddingDinoV3': _centred,
    'RotaryEmbeddingMixed': lambda rope: dict(type='mmlape.MixedRotaryPosition'),
}

"""Pyramid Vision Transformers: PVT (ICCV 2021) and PVTv2 (CVMJ 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from mmlape.checks import check_option
from mmlape.layers import ConvMlp, Mlp
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .pyramid import Pyramid

_COMMON = dict(
    embed_dims=[64, 128, 320, 512],
    num_heads=[1, 2, 5, 8],
    mlp_ratios=[8, 8, 4, 4],
    sr_ratios=[8, 4, 2, 1],
)
PVT_ARCHS = {
    'tiny': dict(_COMMON, depths=[2, 2, 2, 2]),
    'small': dict(_COMMON, depths=[3, 4, 6, 3]),
    'medium': dict(_COMMON, depths=[3, 4, 18, 3]),
    'large': dict(_COMMON, depths=[3, 8, 27, 3]),
}
PVTV2_ARCHS = {
    'b0': dict(_COMMON, depths=[2, 2, 2, 2], embed_dims=[32, 64, 160, 256]),
    'b1': dict(_COMMON, depths=[2, 2, 2, 2]),
    'b2': dict(_COMMON, depths=[3, 4, 6, 3]),
    'b3': dict(_COMMON, depths=[3, 4, 18, 3]),
    'b4': dict(_COMMON, depths=[3, 8, 27, 3]),
    'b5': dict(_COMMON, depths=[3, 6, 40, 3], mlp_ratios=[4, 4, 4, 4]),
}


@MODELS.register_module()
class PyramidVisionTransformer(Pyramid):
    """Pyramid Vision Transformer (PVT, ICCV 2021) with any position embedding, joining method and token norm.

    Works on images of any size: each stage pads its input inside to whole patches. Names in the state dict are the
    published ones (``patch_embed1.proj.weight``, ``pos_embed1``, ``block1.0.attn.q.weight``), so published weights load
    as they are, or through ``mmlape.Pretrained`` with ``source='pvt'``.

    Args:
        arch: ``'tiny'`` (default), ``'small'``, ``'medium'``, ``'large'``, or a dict with ``embed_dims``, ``depths``,
            ``num_heads``, ``mlp_ratios`` and ``sr_ratios``, lists of four.
        num_heads: Attention heads of the four stages in place of the architecture's [1, 2, 5, 8]; [4, 4, 5, 8] in the
            published DTN-PVT. Default None.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grids of stored
            position tables. Default 224.
        in_channels: Image channels. Default 3.
        position: Config of the position embedding of every stage, or a list of four with None for no position. Default
            ``dict(type='mmlape.LearnedPosition', resize='bilinear')``, as published.
        joining: Config of the joining method of every stage, or a list of four. Each stage has an embedding and a
            joining of its own. Default ``mmlape.DefaultJoining``.
        with_cls_token: Put a class token before the tokens of stage 4. It takes part in that stage and is not part of
            the maps, as in the published classifiers; published detectors have none. Default False.
        qkv_bias: Bias on queries, keys and values. Default True.
        drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        attn_drop_rate: Dropout of attention weights. Default 0.
        drop_path_rate: Stochastic depth of the last block; it grows linearly from 0. Default 0.
        norm_cfg: Token norm of the blocks: one, or a list of four. One ``mmlape.DTN`` goes where the published DTN-PVT
            has it: into stages 1 to 3, with 4, 4 and 5 heads and pooling sizes 4, 2 and 1 unless it says otherwise;
            stage 4 has LayerNorm. One in a list has the heads of the stage's attention and no pooling unless it says
            otherwise. Default ``dict(type='mmlape.LN', eps=1e-6)``. The norms of patch embeddings and of spatial
            reduction are LayerNorm (eps 1e-5), as published.
        out_type: ``'featmap'`` (default): maps. For classifiers, with ``out_indices=3``: ``'cls_token'``: the class
            token ``(B, C)``; ``'avg'``: the mean ``(B, C)`` of the patch tokens; both after a LayerNorm (eps 1e-6)
            named ``norm``, as in the published classifiers.
        out_indices: Stages 0 to 3 whose maps are returned; stages after the last one named are not built. Default
            (0, 1, 2, 3).
        frozen_stages: -1 (default): nothing is frozen; 0: the first patch embedding and its position table; n: the
            first n stages.
        with_cp: Recompute each block in the backward pass to save memory. Default False.
        init_cfg: Initialisation, e.g. ``dict(type='mmlape.Pretrained', source='pvt', checkpoint=...)``.

    Returns (``forward``):
        A tuple with one map ``(B, C, ceil(height / s), ceil(width / s))`` per stage of ``out_indices``, s = 4, 8, 16,
        32, or with one vector ``(B, C)``.

    Raises:
        ValueError: If an option is unknown or out of range.
        TypeError: If an option has the wrong type.
    """

    def __init__(
        self,
        arch: str | dict = 'tiny',
        num_heads: Sequence[int] | None = None,
        img_size: int | tuple[int, int] = 224,
        in_channels: int = 3,
        position: dict | Sequence[dict | None] | None = None,
        joining: dict | Sequence[dict] | None = None,
        with_cls_token: bool = False,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | Sequence[dict] | None = None,
        out_type: str = 'featmap',
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            arch=_find_arch(arch, PVT_ARCHS),
            num_heads=num_heads,
            img_size=img_size,
            in_channels=in_channels,
            position=dict(type='mmlape.LearnedPosition', resize='bilinear')
            if position is None
            else position,
            joining=dict(type='mmlape.DefaultJoining') if joining is None else joining,
            with_cls_token=with_cls_token,
            linear=False,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_cfg=norm_cfg,
            out_type=out_type,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )

    def make_mlp(self, embed_dims: int, hidden_dims: int) -> Mlp:
        """The plain feed-forward network."""
        return Mlp(embed_dims, hidden_dims, self.drop_rate)

    def make_final_norm(self, embed_dims: int) -> nn.Module:
        """The LayerNorm in front of a classifier."""
        return build_token_norm(dict(type='mmlape.LN', eps=1e-6), embed_dims)


@MODELS.register_module()
class PyramidVisionTransformerV2(Pyramid):
    """PVTv2 (CVMJ 2022): overlapping patches, a depthwise convolution in each MLP, optionally linear attention.

    It has no position embedding, because zero-padded convolutions tell tokens where they are; one can be added. Works
    on images of any size. Names in the state dict are the published ones (``patch_embed1.proj.weight``,
    ``block1.0.mlp.dwconv.dwconv.weight``, ``norm1.weight``); ``source='pvt'`` reads them, ``source='timm'`` timm's.

    Args:
        arch: ``'b0'`` to ``'b5'``, or a dict as for :class:`PyramidVisionTransformer`. Default ``'b2'``.
        linear: Linear attention: keys and values from 7 x 7 average-pooled cells ("PVTv2-B2-Li"). Default False.
        num_heads: Attention heads of the four stages in place of the architecture's [1, 2, 5, 8]. Default None.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grids of position
            tables where there are any. Default 224.
        in_channels: Image channels. Default 3.
        position: Config of the position embedding of every stage, or a list of four with None for no position. Default
            None, no position.
        joining: Config of the joining method of every stage, or a list of four; only with a ``position``. Default
            ``mmlape.DefaultJoining``.
        qkv_bias: Bias on queries, keys and values. Default True.
        drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        attn_drop_rate: Dropout of attention weights. Default 0.
        drop_path_rate: Stochastic depth of the last block; it grows linearly from 0. Default 0.
        norm_cfg: Token norm of the blocks, see :class:`PyramidVisionTransformer`. The norms at the end of stages are
            LayerNorm (eps 1e-6), those of patch embeddings and of spatial reduction too (eps 1e-5).
        out_type: ``'featmap'`` (default): maps; ``'avg'``, for classifiers, with ``out_indices=3``: the mean ``(B, C)``
            of the tokens of the last stage.
        out_indices: Stages 0 to 3 whose maps are returned; stages after the last one named are not built. Default
            (0, 1, 2, 3).
        frozen_stages: -1 (default): nothing is frozen; 0: the first patch embedding; n: the first n stages.
        with_cp: Recompute each block in the backward pass to save memory. Default False.
        init_cfg: Initialisation, e.g. ``dict(type='mmlape.Pretrained', source='pvt', checkpoint=...)``.

    Returns (``forward``):
        A tuple with one map ``(B, C, ceil(height / s), ceil(width / s))`` per stage of ``out_indices``, s = 4, 8, 16,
        32, or with one vector ``(B, C)``.

    Raises:
        ValueError: If an option is unknown or out of range.
        TypeError: If an option has the wrong type.
    """

    kernel_sizes = (7, 3, 3, 3)

    def __init__(
        self,
        arch: str | dict = 'b2',
        linear: bool = False,
        num_heads: Sequence[int] | None = None,
        img_size: int | tuple[int, int] = 224,
        in_channels: int = 3,
        position: dict | Sequence[dict | None] | None = None,
        joining: dict | Sequence[dict] | None = None,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | Sequence[dict] | None = None,
        out_type: str = 'featmap',
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        if joining is not None and position is None:
            raise ValueError(
                f'joining={joining} has nothing to join: PVTv2 has no position of its own, give a position too'
            )
        super().__init__(
            arch=_find_arch(arch, PVTV2_ARCHS),
            num_heads=num_heads,
            img_size=img_size,
            in_channels=in_channels,
            position=position,
            joining=dict(type='mmlape.DefaultJoining') if joining is None else joining,
            with_cls_token=False,
            linear=linear,
            qkv_bias=qkv_bias,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            norm_cfg=norm_cfg,
            out_type=out_type,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )

    def make_mlp(self, embed_dims: int, hidden_dims: int) -> ConvMlp:
        """The feed-forward network with a convolution; linear attention brings a ReLU with it."""
        return ConvMlp(embed_dims, hidden_dims, self.drop_rate, extra_relu=self.linear)

    def make_output_norm(self, embed_dims: int) -> nn.Module:
        """The LayerNorm at the end of each stage."""
        return build_token_norm(dict(type='mmlape.LN', eps=1e-6), embed_dims)

    def init_parameters(self) -> None:
        """The published initial values, convolutions by their fan-out."""
        super().init_parameters()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
                nn.init.zeros_(module.bias)


def _find_arch(arch: str | dict, archs: dict[str, dict]) -> dict:
    return archs[check_option('arch', arch, archs)] if isinstance(arch, str) else arch

"""The plain Vision Transformer for dense prediction (ViT, DeiT): one stage."""

from __future__ import annotations

from mmlape.checks import check_positive_int
from mmlape.registry import MODELS

from ..network import StagedTransformer

_SIZES = dict(embed_dims=..., depth=..., num_heads=..., mlp_ratio=4)
ARCHS = {
    'deit-tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4),
    'deit-small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4),
    'deit-base': dict(embed_dims=768, depth=12, num_heads=12, mlp_ratio=4),
    # Square numbers of heads: ViT-T*, ViT-S* and ViT-B* of DTN (ICLR 2022, Table 1). Its ViT-S and ViT-B are DeiT's.
    'vit-tiny-star': dict(embed_dims=192, depth=12, num_heads=4, mlp_ratio=4),
    'vit-small-star': dict(embed_dims=432, depth=12, num_heads=9, mlp_ratio=4),
    'vit-base-star': dict(embed_dims=768, depth=12, num_heads=16, mlp_ratio=4),
}


@MODELS.register_module()
class VisionTransformer(StagedTransformer):
    """Vision Transformer (ICLR 2021) and DeiT (ICML 2021) with any position embedding and any way of joining it.

    Works on images of any size: the image is padded inside to whole patches, and the position follows the grid.
    Parameter names in the state dict are timm's, so timm and DeiT weights load as they are.

    Args:
        arch: ``'deit-tiny'`` (default), ``'deit-small'``, ``'deit-base'``, one of DTN's ``'vit-tiny-star'``,
            ``'vit-small-star'``, ``'vit-base-star'`` with 4, 9 and 16 heads (192, 432 and 768 channels), or a dict with
            ``embed_dims``, ``depth``, ``num_heads`` and ``mlp_ratio`` (4 if left out), and any of the parts below.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grid of stored
            position tables. Default 224.
        position: Config of a position embedding. Default ``mmlape.LearnedPosition``.
        joining: Config of a joining method. Default ``mmlape.DefaultJoining``.
        attention_position: Config of what position does inside the attention layers, e.g.
            ``dict(type='mmlape.RelativePositionBias', layer_norm=True)``, ``dict(type='mmlape.GaborAttention')`` or
            ``dict(type='mmlape.RotaryPosition')``; its key ``layers`` (None for all, a number of first layers, or a list)
            says where. Default None, nothing.
        norm_cfg: Token norm of all layers and of the output, or a list with one for each layer. Default
            ``dict(type='mmlape.LN', eps=1e-6)``. Its key ``layers`` (a number of first layers, negative for all but so
            many last ones, or a list) says where; LayerNorm is elsewhere. One ``mmlape.DTN`` goes, unless it says
            otherwise, into all layers but the last two (``layers=-2``), as published for ViT (appendix A.1), with
            the heads of the attention; an ``arch`` may say otherwise in its ``norm_places``.
        stem: Config of the patch embedding. Default ``dict(type='mmlape.PatchEmbed', patch_size=16, in_channels=3)``.
        prefix: ``dict(cls_token=True, dist_token=False, registers=0, after=None)``: tokens before those of patches, and
            the number of first layers that see patch tokens alone; they join after them, with their rows of the
            position. None: all layers up to the last one whose norm sees places (DTN), which is none where no layer
            follows. Tokens that no built layer sees are not built.
        attention: Config of the attention layers, or a list with one for each. Default ``mmlape.Attention``.
        mlp: Config of the feed-forward networks, likewise; ``ratio`` of hidden channels to C. Default ``mmlape.Mlp``.
        block: Config of the blocks, likewise. Default ``mmlape.Block``.
        options: ``out_type``: ``'featmap'`` (default): maps ``(B, C, H, W)`` with ``H = ceil(height / patch)``;
            ``'raw'``: all tokens ``(B, P + H * W, C)``, prefix first; ``'featmap_and_prefix'``: pairs of map and prefix
            tokens ``(B, P, C)``. P is 0 for layers that prefix tokens have not joined yet. For classifiers:
            ``'cls_token'``: the class token ``(B, C)``; ``'cls_and_dist'``: class and distillation token, both ``(B,
            C)``; ``'avg'``: the mean ``(B, C)`` of the patch tokens; or the config of a pooling,
            ``dict(type='mmlape.SequencePooling')``.

            ``out_indices``: Layers whose output is returned, -1 (default) for the last. Layers after the last one named
            are not built. ``final_norm``: normalise the output of the last layer, default True.

            ``drop_rate``: dropout of position-added tokens, projections and MLPs; ``attn_drop_rate``: of attention
            weights; ``drop_path_rate``: stochastic depth of the last layer, which grows linearly from 0; all 0.

            ``frozen_stages``: -1 (default): nothing is frozen; 0: patch embedding, position, and prefix tokens if they
            join there; n: the first n layers too, and prefix tokens that join before or right after them; the depth:
            everything. ``with_cp``: recompute each block in the backward pass to save memory. ``init_cfg``, e.g.
            ``dict(type='mmlape.Pretrained', source='timm', model='deit_tiny_patch16_224')``.

            Options of parts by short names: ``patch_size``, ``in_channels``; ``with_cls_token``, ``with_dist_token``,
            ``num_registers``, ``prefix_after``; ``window_size`` (attention windows in tokens: None for global
            attention, one value, or a list with one per layer), ``qkv_bias``; ``layer_scale`` (True for a learned
            scale per channel on both branches of each block, initially 1; a number for another initial value).

    Returns (``forward``):
        A tuple with one entry per ``out_indices``.

    Raises:
        ValueError: If an option is out of range.
        TypeError: If an option is unknown, or has the wrong type.
    """

    archs, default_arch, sizes = ARCHS, 'deit-tiny', _SIZES
    parts = dict(
        StagedTransformer.parts,
        block=dict(type='mmlape.Block', layer_scale=False),
        prefix=dict(cls_token=True),
    )
    short = dict(
        patch_size='stem.patch_size',
        in_channels='stem.in_channels',
        with_cls_token='prefix.cls_token',
        with_dist_token='prefix.dist_token',
        num_registers='prefix.registers',
        prefix_after='prefix.after',
        window_size='attention.window_size',
        qkv_bias='attention.qkv_bias',
        layer_scale='block.layer_scale',
    )
    # The class token sees the last two layers, which have LayerNorm (DTN, ICLR 2022, appendix A.1).
    norm_places = {'mmlape.DTN': dict(layers=-2)}
    norm_covers_output = True
    counts, final_norm = 'layers', True
    names = dict(
        embed='patch_embed', position='position', inside='inside', blocks='blocks', norm='', table='pos_embed',
    )  # fmt: skip

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        """One stage."""
        for key in ('embed_dims', 'depth', 'num_heads'):
            check_positive_int(f'arch[{key!r}]', arch[key])
        sizes = {key: arch[key] for key in ('embed_dims', 'depth', 'num_heads')}
        return [dict(sizes, mlp=dict(ratio=arch['mlp_ratio']))]

    @property
    def depth(self) -> int:
        """Layers of the architecture."""
        return self.num_units

    @property
    def patch_size(self) -> tuple[int, int]:
        """Patch height and width in pixels."""
        return self.patch_embed.patch_size

"""The plain Vision Transformer for dense prediction (ViT, DeiT)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmlape.checks import (
    check_bool,
    check_grid,
    check_keys,
    check_layers,
    check_option,
    check_outputs,
    check_positive_int,
    check_rate,
)
from mmlape.layers import Attention, Block, Mlp, PatchEmbed
from mmlape.norm import build_token_norm
from mmlape.position import JoinedPosition, PositionPlan, fold_plans
from mmlape.registry import MODELS

from .base import Backbone, Part
from .layer_options import (
    layer_norms,
    layer_scale_value,
    linear_rates,
    per_layer,
    resolve_prefix_after,
)
from .names import alias_state_dict
from .outputs import OUTPUTS, check_out_type

ARCHS = {
    'deit-tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4),
    'deit-small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4),
    'deit-base': dict(embed_dims=768, depth=12, num_heads=12, mlp_ratio=4),
    # Square numbers of heads: ViT-T*, ViT-S* and ViT-B* of DTN (ICLR 2022, Table 1). Its ViT-S and ViT-B are DeiT's.
    'vit-tiny-star': dict(embed_dims=192, depth=12, num_heads=4, mlp_ratio=4),
    'vit-small-star': dict(embed_dims=432, depth=12, num_heads=9, mlp_ratio=4),
    'vit-base-star': dict(embed_dims=768, depth=12, num_heads=16, mlp_ratio=4),
}
_ARCH_KEYS = ('embed_dims', 'depth', 'num_heads', 'mlp_ratio')


@MODELS.register_module()
class VisionTransformer(Backbone):
    """Vision Transformer (ICLR 2021) and DeiT (ICML 2021) with any position embedding and any way of joining it.

    Works on images of any size: the image is padded inside to whole patches, and the position follows the grid.
    Parameter names in the state dict are timm's, so timm and DeiT weights load as they are.

    Args:
        arch: ``'deit-tiny'``, ``'deit-small'``, ``'deit-base'``, one of DTN's ``'vit-tiny-star'``,
            ``'vit-small-star'``, ``'vit-base-star'`` with 4, 9 and 16 heads (192, 432 and 768 channels), or a dict with
            ``embed_dims``, ``depth``, ``num_heads`` and ``mlp_ratio`` (4 if left out). Default ``'deit-tiny'``.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grid of stored
            position tables. Default 224.
        patch_size: In pixels, one integer or (height, width). Default 16.
        in_channels: Image channels. Default 3.
        position: Config of a position embedding. Default ``mmlape.LearnedPosition``.
        joining: Config of a joining method. Default ``mmlape.DefaultJoining``.
        attention_position: Config of what position does inside the attention layers, e.g.
            ``dict(type='mmlape.RelativePositionBias', layer_norm=True)`` or ``dict(type='mmlape.GaborAttention')``; its
            key ``layers`` (None for all, a number of first layers, or a list) says where. Default None, nothing.
        out_type: ``'featmap'`` (default): maps ``(B, C, H, W)`` with ``H = ceil(height / patch)``; ``'raw'``: all
            tokens ``(B, P + H * W, C)``, prefix first; ``'featmap_and_prefix'``: pairs of map and prefix tokens
            ``(B, P, C)``. P is 0 for layers that prefix tokens have not joined yet. For classifiers: ``'cls_token'``:
            the class token ``(B, C)``; ``'cls_and_dist'``: class and distillation token, both ``(B, C)``; ``'avg'``:
            the mean ``(B, C)`` of the patch tokens.
        out_indices: Layers whose output is returned, -1 (default) for the last. Layers after the last one named are
            not built.
        with_cls_token: Put a class token before the patch tokens. Default True.
        with_dist_token: Put a distillation token after the class token. Default False.
        prefix_after: Number of first layers that see patch tokens alone; class and distillation token join after them,
            with their rows of the position. Default None: all layers up to the last one with DTN (ICLR 2022, appendix
            A.1), which is none without DTN, or where no layer follows. Tokens that no built layer sees are not built.
        final_norm: Normalise the output of the last layer. Default True.
        layer_scale: True for a learned per-channel scale on both branches of each block, initially 1 (ViT-Adapter); a
            number for another initial value. Default False.
        window_size: Attention windows in tokens: None (default) for global attention, one value for all layers, or a
            list with one entry per layer.
        qkv_bias: Bias on queries, keys and values. Default True.
        drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        attn_drop_rate: Dropout of attention weights. Default 0.
        drop_path_rate: Stochastic depth of the last layer; it grows linearly from 0. Default 0.
        norm_cfg: Token norm of all layers and of the output. Default ``dict(type='mmlape.LN', eps=1e-6)``. Its key
            ``layers`` (None for all, a number of first layers, or a list) says where; elsewhere is the default. One
            ``mmlape.DTN`` goes, unless it says otherwise, into all layers but the last two, as published for ViT, with
            the heads of the attention.
        frozen_stages: -1 (default): nothing is frozen; 0: patch embedding, position, and prefix tokens if they join
            there; n: the first n layers too, and prefix tokens that join before or right after them; the depth:
            everything.
        with_cp: Recompute each block in the backward pass to save memory. Default False.
        init_cfg: Initialisation, e.g. ``dict(type='mmlape.Pretrained', source='timm',
            model='deit_tiny_patch16_224')``.

    Returns (``forward``):
        A tuple with one entry per ``out_indices``.

    Raises:
        ValueError: If an option is unknown or out of range.
        TypeError: If an option has the wrong type.
    """

    def __init__(
        self,
        arch: str | dict = 'deit-tiny',
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_channels: int = 3,
        position: dict | None = None,
        joining: dict | None = None,
        attention_position: dict | None = None,
        out_type: str = 'featmap',
        out_indices: int | Sequence[int] = -1,
        with_cls_token: bool = True,
        with_dist_token: bool = False,
        prefix_after: int | None = None,
        final_norm: bool = True,
        layer_scale: bool | float = False,
        window_size: int | Sequence | None = None,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.arch = _resolve_arch(arch)
        self.embed_dims, self.depth = self.arch['embed_dims'], self.arch['depth']
        self.out_indices = check_outputs(out_indices, self.depth, 'layers')
        self.with_cp = check_bool('with_cp', with_cp)
        self.frozen_stages = check_positive_int(
            'frozen_stages', frozen_stages, minimum=-1, maximum=self.depth
        )
        num_layers = self.out_indices[-1] + 1
        *norms, output_norm = layer_norms(norm_cfg, self.depth, self.arch['num_heads'])

        self.patch_embed = PatchEmbed(in_channels, self.embed_dims, patch_size)
        prefix_names = _wanted(cls_token=with_cls_token, dist_token=with_dist_token)
        self.prefix_after = resolve_prefix_after(prefix_after, norms, bool(prefix_names))
        self.prefix_names = prefix_names if self.prefix_after < num_layers else ()
        joined = self.prefix_names if self._prefix_tokens_at(self.out_indices[0]) else ()
        self.out_type = check_out_type(out_type, OUTPUTS, joined)
        self._add_prefix_tokens()
        img_size = check_grid('img_size', img_size)
        self.grid = tuple(-(-side // patch) for side, patch in zip(img_size, self.patch_size))
        self.position = JoinedPosition(
            self.embed_dims, num_layers, self.grid, self.num_prefix_tokens, position, joining
        )
        # timm keeps the table at the top; here it belongs to the embedding.
        alias_state_dict(self, {'pos_embed': 'position.embedding.pos_embed'})
        self.drop_after_position = nn.Dropout(check_rate('drop_rate', drop_rate))
        self.drop_path_rate = check_rate('drop_path_rate', drop_path_rate)
        rates = linear_rates(self.drop_path_rate, self.depth)
        windows = per_layer('window_size', window_size, self.depth)
        in_attention = self._attention_positions(attention_position, windows[:num_layers])
        self.blocks = nn.ModuleList(
            Block(
                self.embed_dims,
                Attention(
                    self.embed_dims,
                    self.arch['num_heads'],
                    qkv_bias,
                    windows[layer],
                    attn_drop_rate,
                    drop_rate,
                    in_attention[layer],
                ),
                Mlp(self.embed_dims, int(self.embed_dims * self.arch['mlp_ratio']), drop_rate),
                layer_scale=layer_scale_value(layer_scale),
                drop_path_rate=rates[layer],
                norm_cfg=norms[layer],
            )
            for layer in range(num_layers)
        )
        normed = check_bool('final_norm', final_norm) and self.depth - 1 in self.out_indices
        self.norm = build_token_norm(output_norm, self.embed_dims) if normed else None
        self.blocks.apply(_init_linear)
        self.freeze()

    @property
    def num_prefix_tokens(self) -> int:
        """Number ``P`` of class and distillation tokens."""
        return len(self.prefix_names)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Patch height and width in pixels."""
        return self.patch_embed.patch_size

    def forward(self, image: Tensor) -> tuple:
        """Return the outputs of ``out_indices`` for images ``(B, in_channels, height, width)``."""
        tokens, grid, plan = self.embed(image)
        outputs = []
        for layer in range(len(self.blocks)):
            tokens = self.run_block(layer, tokens, grid, plan)
            if layer in self.out_indices:
                outputs.append(OUTPUTS[self.out_type](self.finish(layer, tokens, grid), grid))
        return tuple(outputs)

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int], PositionPlan]:
        """Image to patch tokens ``(B, H * W, C)``, their grid ``(H, W)``, and where position is added."""
        tokens, grid = self.patch_embed(image)
        plan = self.position(grid)
        if plan.stem is not None:
            tokens = tokens + plan.stem[:, self.num_prefix_tokens :]
        return self.drop_after_position(tokens), grid, plan

    def run_block(
        self, layer: int, tokens: Tensor, grid: tuple[int, int], plan: PositionPlan
    ) -> Tensor:
        """Run one layer, with its part of the plan; prefix tokens join before layer ``prefix_after``."""
        if layer == self.prefix_after and self.prefix_names:
            tokens = torch.cat([self._placed_prefix(tokens.shape[0], plan), tokens], dim=1)
        absent = self.num_prefix_tokens - self._prefix_tokens_at(layer)
        stream, attention = (
            entry[:, absent:] if absent and entry is not None else entry
            for entry in (plan.stream[layer], plan.attention[layer])
        )
        if stream is not None:
            tokens = tokens + stream
        arguments = (tokens, grid, attention)
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(self.blocks[layer], *arguments, use_reentrant=False)
        return self.blocks[layer](*arguments)

    def finish(self, layer: int, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Normalise the output of the last layer; others pass."""
        if self.norm is None or layer != self.depth - 1:
            return tokens
        return self.norm(tokens, grid)

    def switch_to_deploy(self) -> None:
        """Fold the position for good: one plan per grid, gradients or not, in training or not.

        The parameters of position and joining stay where they are, without gradients; what they make for a grid is
        computed when the grid is first seen, also for later grids, and is the same to the bit.
        """
        self.eval().requires_grad_(False)
        fold_plans(self)

    def layer_parts(self) -> list[list[Part]]:
        """Stem and position, then each block with what serves it alone; prefix tokens where they join."""
        parts: list[list[Part]] = [[self.patch_embed, self.position]]
        for layer, block in enumerate(self.blocks):
            parts.append([block, *self.position.joining.layer_modules(layer)])
        if self.prefix_names:
            parts[self.prefix_after] += [getattr(self, name) for name in self.prefix_names]
        return parts

    def frozen_modules(self) -> list[nn.Module]:
        """The first ``frozen_stages`` layers with what serves them, and the stem."""
        if self.frozen_stages < 0:
            return []
        frozen = [self.patch_embed, self.position.embedding, self.drop_after_position]
        for layer, block in enumerate(self.blocks[: self.frozen_stages]):
            frozen += [block, *self.position.joining.layer_modules(layer)]
        return list(self.children()) if self.frozen_stages >= len(self.blocks) else frozen

    def freeze(self) -> None:
        """Switch gradients off up to ``frozen_stages``, prefix tokens included."""
        super().freeze()
        if self.frozen_stages >= self.prefix_after:
            for name in self.prefix_names:
                getattr(self, name).requires_grad_(False)

    def _prefix_tokens_at(self, layer: int) -> int:
        """Number of prefix tokens that ``layer`` sees."""
        return self.num_prefix_tokens if layer >= self.prefix_after else 0

    def _placed_prefix(self, batch: int, plan: PositionPlan) -> Tensor:
        """Prefix tokens ``(B, P, C)`` as they join, with what the stem has for them."""
        prefix = torch.cat([getattr(self, name) for name in self.prefix_names], dim=1)
        if plan.stem is not None:
            prefix = prefix + plan.stem[:, : self.num_prefix_tokens]
        return self.drop_after_position(prefix.expand(batch, -1, -1))

    def _add_prefix_tokens(self) -> None:
        for name in self.prefix_names:
            token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
            nn.init.trunc_normal_(token, std=0.02)
            setattr(self, name, token)

    def _attention_positions(self, config: dict | None, windows: list) -> list[nn.Module | None]:
        """One module or None for each layer."""
        if config is None:
            return [None] * len(windows)
        options = dict(config)
        layers = check_layers(
            'attention_position layers', options.pop('layers', None), len(windows)
        )
        options.update(
            embed_dims=self.embed_dims,
            num_heads=self.arch['num_heads'],
            grid=self.grid,
        )
        return [
            MODELS.build(
                dict(options, window_size=window, num_prefix_tokens=self._prefix_tokens_at(layer))
            )
            if layer in layers
            else None
            for layer, window in enumerate(windows)
        ]


def _resolve_arch(arch: str | dict) -> dict:
    if isinstance(arch, str):
        return ARCHS[check_option('arch', arch, ARCHS)]
    arch = check_keys(
        'arch', {'mlp_ratio': 4, **arch} if isinstance(arch, dict) else arch, _ARCH_KEYS
    )
    for key in ('embed_dims', 'depth', 'num_heads'):
        check_positive_int(f'arch[{key!r}]', arch[key])
    return dict(arch)


def _wanted(**tokens: bool) -> tuple[str, ...]:
    """Names of the prefix tokens that are asked for."""
    return tuple(name for name, wanted in tokens.items() if check_bool(f'with_{name}', wanted))


def _init_linear(module: nn.Module) -> None:
    """ViT's initial values; norms and embeddings have their own."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)

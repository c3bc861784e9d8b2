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
    check_positive_int,
    check_rate,
)
from mmlape.layers import Attention, Block, Mlp, PatchEmbed
from mmlape.norm import build_token_norm
from mmlape.position import JoinedPosition, PositionPlan
from mmlape.registry import MODELS

from .base import Backbone
from .names import alias_state_dict

ARCHS = {
    'deit-tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4),
    'deit-small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4),
    'deit-base': dict(embed_dims=768, depth=12, num_heads=12, mlp_ratio=4),
}
_ARCH_KEYS = ('embed_dims', 'depth', 'num_heads', 'mlp_ratio')


@MODELS.register_module()
class VisionTransformer(Backbone):
    """Vision Transformer (ICLR 2021) and DeiT (ICML 2021) with any position embedding and any way of joining it.

    Works on images of any size: the image is padded inside to whole patches, and the position follows the grid.
    Parameter names in the state dict are timm's, so timm and DeiT weights load as they are.

    Args:
        arch: ``'deit-tiny'``, ``'deit-small'``, ``'deit-base'``, or a dict with ``embed_dims``, ``depth``,
            ``num_heads`` and ``mlp_ratio`` (4 if left out). Default ``'deit-tiny'``.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grid of stored
            position tables. Default 224.
        patch_size: In pixels, one integer or (height, width). Default 16.
        in_channels: Image channels. Default 3.
        position: Config of a position embedding. Default ``mmlape.LearnedPosition``.
        joining: Config of a joining method. Default ``mmlape.DefaultJoining``.
        attention_position: Config of what position does inside the attention layers, e.g.
            ``dict(type='mmlape.RelativePositionBias', layer_norm=True)``; its key ``layers`` (None for all, a number of
            first layers, or a list) says where. Default None, nothing.
        out_type: ``'featmap'`` (default): maps ``(B, C, H, W)`` with ``H = ceil(height / patch)``; ``'raw'``: all
            tokens ``(B, P + H * W, C)``, prefix first; ``'featmap_and_prefix'``: pairs of map and prefix tokens
            ``(B, P, C)``.
        out_indices: Layers whose output is returned, -1 (default) for the last. Layers after the last one named are
            not built.
        with_cls_token: Put a class token before the patch tokens. Default True.
        with_dist_token: Put a distillation token after the class token. Default False.
        final_norm: Normalise the output of the last layer. Default True.
        layer_scale: True for a learned per-channel scale on both branches of each block, initially 1 (ViT-Adapter); a
            number for another initial value. Default False.
        window_size: Attention windows in tokens: None (default) for global attention, one value for all layers, or a
            list with one entry per layer.
        qkv_bias: Bias on queries, keys and values. Default True.
        drop_rate: Dropout of position-added tokens, projections and MLPs. Default 0.
        attn_drop_rate: Dropout of attention weights. Default 0.
        drop_path_rate: Stochastic depth of the last layer; it grows linearly from 0. Default 0.
        norm_cfg: Token norm of all layers and of the output. Default ``dict(type='mmlape.LN', eps=1e-6)``.
        frozen_stages: -1 (default): nothing is frozen; 0: patch embedding, prefix tokens and position; n: the first n
            layers too; the depth: everything.
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
        self.out_type = check_option('out_type', out_type, _OUTPUTS)
        self.out_indices = _resolve_indices(out_indices, self.depth)
        self.with_cp = check_bool('with_cp', with_cp)
        self.frozen_stages = check_positive_int(
            'frozen_stages', frozen_stages, minimum=-1, maximum=self.depth
        )
        norm_cfg = norm_cfg or dict(type='mmlape.LN', eps=1e-6)

        num_layers = self.out_indices[-1] + 1

        self.patch_embed = PatchEmbed(in_channels, self.embed_dims, patch_size)
        self.prefix_names = self._add_prefix_tokens(
            cls_token=with_cls_token, dist_token=with_dist_token
        )
        img_size = check_grid('img_size', img_size)
        self.grid = tuple(-(-side // patch) for side, patch in zip(img_size, self.patch_size))
        self.position = JoinedPosition(
            self.embed_dims, num_layers, self.grid, self.num_prefix_tokens, position, joining
        )
        # timm keeps the table at the top; here it belongs to the embedding.
        alias_state_dict(self, {'pos_embed': 'position.embedding.pos_embed'})
        self.drop_after_position = nn.Dropout(check_rate('drop_rate', drop_rate))
        self.drop_path_rate = check_rate('drop_path_rate', drop_path_rate)
        rates = _linear_rates(self.drop_path_rate, self.depth)
        windows = _per_layer('window_size', window_size, self.depth)
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
                layer_scale=_layer_scale_value(layer_scale),
                drop_path_rate=rates[layer],
                norm_cfg=norm_cfg,
            )
            for layer in range(num_layers)
        )
        normed = check_bool('final_norm', final_norm) and self.depth - 1 in self.out_indices
        self.norm = build_token_norm(norm_cfg, self.embed_dims) if normed else None
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
                outputs.append(_OUTPUTS[self.out_type](self.finish(layer, tokens, grid), grid))
        return tuple(outputs)

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int], PositionPlan]:
        """Image to tokens ``(B, P + H * W, C)``, their grid ``(H, W)``, and where position is added."""
        tokens, grid = self.patch_embed(image)
        prefix = [getattr(self, name).expand(len(tokens), -1, -1) for name in self.prefix_names]
        tokens = torch.cat([*prefix, tokens], dim=1)
        plan = self.position(grid)
        if plan.stem is not None:
            tokens = tokens + plan.stem
        return self.drop_after_position(tokens), grid, plan

    def run_block(
        self, layer: int, tokens: Tensor, grid: tuple[int, int], plan: PositionPlan
    ) -> Tensor:
        """Run one layer, with its part of the plan."""
        if plan.stream[layer] is not None:
            tokens = tokens + plan.stream[layer]
        arguments = (tokens, grid, plan.attention[layer])
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
        self.position.fold()

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
        if self.frozen_stages >= 0:
            for name in self.prefix_names:
                getattr(self, name).requires_grad_(False)

    def _add_prefix_tokens(self, **wanted: bool) -> tuple[str, ...]:
        names = tuple(
            name for name, with_it in wanted.items() if check_bool(f'with_{name}', with_it)
        )
        for name in names:
            token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
            nn.init.trunc_normal_(token, std=0.02)
            setattr(self, name, token)
        return names

    def _attention_positions(self, config: dict | None, windows: list) -> list[nn.Module | None]:
        """One module or None for each layer."""
        if config is None:
            return [None] * len(windows)
        options = dict(config)
        layers = check_layers(
            'attention_position layers', options.pop('layers', None), len(windows)
        )
        options.update(embed_dims=self.embed_dims, num_heads=self.arch['num_heads'])
        return [
            MODELS.build(dict(options, grid=self.grid if window is None else window))
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


def _resolve_indices(out_indices: int | Sequence[int], depth: int) -> tuple[int, ...]:
    """Sorted, non-negative layer indices."""
    listed = list(out_indices) if isinstance(out_indices, (list, tuple)) else [out_indices]
    for index in listed:
        check_positive_int('out_indices', index, minimum=-depth, maximum=depth - 1)
    resolved = sorted({index % depth for index in listed})
    if not listed or len(resolved) != len(listed):
        raise ValueError(f'out_indices must name different layers, got {out_indices}')
    return tuple(resolved)


def _per_layer(name: str, value, depth: int) -> list:
    """One entry per layer from one value for all, or a list of ``depth`` values."""
    if not isinstance(value, (list, tuple)):
        return [value] * depth
    if len(value) != depth:
        raise ValueError(f'{name} must have one entry for each of {depth} layers, got {value}')
    return list(value)


def _linear_rates(last: float, depth: int) -> list[float]:
    return [last * layer / max(depth - 1, 1) for layer in range(depth)]


def _layer_scale_value(layer_scale: bool | float) -> float | None:
    if isinstance(layer_scale, bool):
        return 1.0 if layer_scale else None
    if not isinstance(layer_scale, (int, float)):
        raise TypeError(f'layer_scale must be True, False or a number, got {layer_scale!r}')
    return float(layer_scale)


def _init_linear(module: nn.Module) -> None:
    """ViT's initial values; norms and embeddings have their own."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _split(tokens: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Feature map ``(B, C, H, W)`` and prefix tokens ``(B, P, C)``."""
    num_prefix = tokens.shape[1] - grid[0] * grid[1]
    cells = tokens[:, num_prefix:].transpose(1, 2).unflatten(2, grid)
    return cells.contiguous(), tokens[:, :num_prefix]


_OUTPUTS = {
    'featmap': lambda tokens, grid: _split(tokens, grid)[0],
    'featmap_and_prefix': _split,
    'raw': lambda tokens, grid: tokens,
}

"""What PVT and PVTv2 share: four stages of tokens on grids of strides 4, 8, 16 and 32."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmlape.checks import check_bool, check_grid, check_outputs, check_positive_int, check_rate
from mmlape.layers import Block, SpatialReductionAttention, StageEmbed
from mmlape.position import JoinedPosition, PositionPlan

from .base import Backbone, Part
from .names import alias_state_dict
from .outputs import OUTPUTS, check_out_type
from .stage_options import NUM_STAGES, check_arch, per_stage, stage_norms

STRIDES = (4, 2, 2, 2)


class Pyramid(Backbone):
    """Four stages, each an embedding of the map before and a stack of transformer blocks.

    Modules are named as in the published weights: ``patch_embed1``, ``block1``, ...; the position of a stage is
    ``position1`` with the table ``pos_embed1``. Subclasses say which patches, feed-forward network and output norm they
    have; their docstrings explain the arguments.
    """

    # Sides of the patches of each stage in pixels of its input.
    kernel_sizes: tuple[int, ...] = STRIDES

    def __init__(
        self,
        arch: dict,
        num_heads: Sequence[int] | None,
        img_size: int | tuple[int, int],
        in_channels: int,
        position: dict | Sequence[dict | None] | None,
        joining: dict | Sequence[dict],
        with_cls_token: bool,
        linear: bool,
        qkv_bias: bool,
        drop_rate: float,
        attn_drop_rate: float,
        drop_path_rate: float,
        norm_cfg: dict | Sequence[dict] | None,
        out_type: str,
        out_indices: int | Sequence[int],
        frozen_stages: int,
        with_cp: bool,
        init_cfg: dict | None,
    ) -> None:
        super().__init__(init_cfg)
        self.arch = check_arch(arch, num_heads)
        self.embed_dims: list[int] = self.arch['embed_dims']
        self.out_indices = check_outputs(out_indices, NUM_STAGES, 'stages')
        self.with_cp = check_bool('with_cp', with_cp)
        self.linear = check_bool('linear', linear)
        self.frozen_stages = check_positive_int(
            'frozen_stages', frozen_stages, minimum=-1, maximum=NUM_STAGES
        )
        self.num_stages = self.out_indices[-1] + 1
        self.num_prefix_tokens = [0, 0, 0, int(self._add_cls_token(with_cls_token))]
        self.out_type = self._check_out_type(out_type)
        self.drop_path_rate = check_rate('drop_path_rate', drop_path_rate)
        self.drop_rate = check_rate('drop_rate', drop_rate)
        self.drop_after_position = nn.Dropout(self.drop_rate)

        norms = stage_norms(norm_cfg, self.arch['num_heads'])
        positions, joinings = per_stage('position', position), per_stage('joining', joining)
        grid, channels = check_grid('img_size', img_size), in_channels
        for stage in range(self.num_stages):
            grid = tuple(-(-side // STRIDES[stage]) for side in grid)
            dims = self.embed_dims[stage]
            embed = StageEmbed(channels, dims, STRIDES[stage], self.kernel_sizes[stage])
            self.add_module(f'patch_embed{stage + 1}', embed)
            self._add_position(stage, grid, positions[stage], joinings[stage])
            blocks = self._make_blocks(stage, norms[stage], qkv_bias, attn_drop_rate)
            self.add_module(f'block{stage + 1}', blocks)
            norm = self.make_output_norm(dims)
            if norm is not None:
                self.add_module(f'norm{stage + 1}', norm)
            channels = dims
        self.norm = None if self.out_type == 'featmap' else self.make_final_norm(channels)
        self.init_parameters()
        self.freeze()

    @abstractmethod
    def make_mlp(self, embed_dims: int, hidden_dims: int) -> nn.Module:
        """A feed-forward network, called as ``mlp(tokens, grid)``."""

    def make_output_norm(self, embed_dims: int) -> nn.Module | None:
        """The norm at the end of a stage, called as ``norm(tokens, grid)``, or None."""
        return None

    def make_final_norm(self, embed_dims: int) -> nn.Module | None:
        """The norm of what goes to a classifier, called as ``norm(tokens, grid)``, or None."""
        return None

    def init_parameters(self) -> None:
        """Initial values of what a stage adds to its parts' own."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Outputs of ``out_indices`` for images ``(B, in_channels, height, width)``."""
        outputs = []
        for stage, (tokens, grid) in enumerate(self.run_stages(image)):
            if stage in self.out_indices:
                outputs.append(OUTPUTS[self.out_type](self.finish(tokens, grid), grid))
        return tuple(outputs)

    def finish(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Normalise the tokens of the last stage for a classifier; for maps they pass."""
        return tokens if self.norm is None else self.norm(tokens, grid)

    def run_stages(self, image: Tensor) -> Iterator[tuple[Tensor, tuple[int, int]]]:
        """Tokens ``(B, P + H * W, C)`` and grid ``(H, W)`` after each stage; the class token, if any, comes first."""
        maps = image
        for stage in range(self.num_stages):
            tokens, grid = self._run_stage(stage, maps)
            yield tokens, grid
            maps = self._to_maps(stage, tokens, grid)

    def switch_to_deploy(self) -> None:
        """Fold the position for good: one plan per grid and stage, gradients or not, in training or not.

        The parameters stay where they are, without gradients; outputs are the same to the bit.
        """
        self.eval().requires_grad_(False)
        for stage in range(self.num_stages):
            position = self._part('position', stage)
            if position is not None:
                position.fold()

    def layer_parts(self) -> list[list[Part]]:
        """Blocks are counted through all stages; embeddings, position and class token are before their first block."""
        parts: list[list[Part]] = [[]]
        for stage in range(self.num_stages):
            position, norm = self._part('position', stage), self._part('norm', stage)
            parts[-1].append(self._part('patch_embed', stage))
            if position is not None:
                parts[-1].append(position)
            if self.num_prefix_tokens[stage]:
                parts[-1].append(self.cls_token)
            for layer, block in enumerate(self._part('block', stage)):
                own = [] if position is None else position.joining.layer_modules(layer)
                parts.append([block, *own])
            if norm is not None and stage < self.num_stages - 1:
                parts[-1].append(norm)
        return parts

    def frozen_modules(self) -> list[nn.Module]:
        """The first ``frozen_stages`` stages; the first embedding and its position if that is 0."""
        if self.frozen_stages < 0:
            return []
        if self.frozen_stages == 0:
            # The joining serves the blocks, which are trained.
            position = self._part('position', 0)
            frozen = [self._part('patch_embed', 0), position and position.embedding]
        else:
            stages = range(min(self.frozen_stages, self.num_stages))
            frozen = [self._part(name, stage) for stage in stages for name in _PARTS]
        return [module for module in frozen if module is not None]

    def freeze(self) -> None:
        """Switch gradients off up to ``frozen_stages``, the class token with stage 4."""
        super().freeze()
        if self.frozen_stages == NUM_STAGES and any(self.num_prefix_tokens):
            self.cls_token.requires_grad_(False)

    def _run_stage(self, stage: int, maps: Tensor) -> tuple[Tensor, tuple[int, int]]:
        tokens, grid = self._part('patch_embed', stage)(maps)
        if self.num_prefix_tokens[stage]:
            tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        blocks, position = self._part('block', stage), self._part('position', stage)
        plan = _no_plan(len(blocks)) if position is None else position(grid)
        if plan.stem is not None:
            tokens = tokens + plan.stem
        tokens = self.drop_after_position(tokens)
        for block, stream, attention in zip(blocks, plan.stream, plan.attention):
            if stream is not None:
                tokens = tokens + stream
            if self.with_cp and torch.is_grad_enabled():
                tokens = checkpoint(block, tokens, grid, attention, use_reentrant=False)
            else:
                tokens = block(tokens, grid, attention)
        norm = self._part('norm', stage)
        return (tokens if norm is None else norm(tokens, grid)), grid

    def _to_maps(self, stage: int, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """``(B, P + H * W, C)`` to ``(B, C, H, W)``, prefix dropped."""
        cells = tokens[:, self.num_prefix_tokens[stage] :]
        return cells.transpose(1, 2).unflatten(2, grid)

    def _part(self, name: str, stage: int) -> nn.Module | None:
        return getattr(self, f'{name}{stage + 1}', None)

    def _add_cls_token(self, with_cls_token: bool) -> bool:
        if not check_bool('with_cls_token', with_cls_token):
            return False
        if self.num_stages < NUM_STAGES or self.arch['sr_ratios'][-1] != 1:
            raise ValueError(
                'with_cls_token=True needs stage 4 (out_indices) and no spatial reduction in it '
                f"(arch['sr_ratios'][-1] = 1), got out_indices={self.out_indices}, "
                f"sr_ratios={self.arch['sr_ratios']}"
            )
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed_dims[-1]))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        return True

    def _check_out_type(self, out_type: str) -> str:
        prefix_names = ('cls_token',) if self.num_prefix_tokens[-1] else ()
        check_out_type(out_type, ('featmap', 'cls_token', 'avg'), prefix_names)
        if out_type != 'featmap' and self.out_indices != (NUM_STAGES - 1,):
            raise ValueError(
                f'out_type={out_type!r} is for a classifier, which sees the last stage alone: '
                f'out_indices must be {NUM_STAGES - 1}, got {self.out_indices}'
            )
        return out_type

    def _add_position(
        self, stage: int, grid: tuple[int, int], position: dict | None, joining: dict
    ) -> None:
        if position is None:
            return
        name = f'position{stage + 1}'
        joined = JoinedPosition(
            self.embed_dims[stage],
            self.arch['depths'][stage],
            grid,
            self.num_prefix_tokens[stage],
            position,
            joining,
        )
        self.add_module(name, joined)
        alias_state_dict(self, {f'pos_embed{stage + 1}': f'{name}.embedding.pos_embed'})

    def _make_blocks(
        self, stage: int, norm_cfg: dict, qkv_bias: bool, attn_drop_rate: float
    ) -> nn.ModuleList:
        dims, depths = self.embed_dims[stage], self.arch['depths']
        before, last = sum(depths[:stage]), max(sum(depths) - 1, 1)
        return nn.ModuleList(
            Block(
                dims,
                SpatialReductionAttention(
                    dims,
                    self.arch['num_heads'][stage],
                    self.arch['sr_ratios'][stage],
                    self.linear,
                    qkv_bias,
                    attn_drop_rate,
                    self.drop_rate,
                ),
                self.make_mlp(dims, int(dims * self.arch['mlp_ratios'][stage])),
                drop_path_rate=self.drop_path_rate * layer / last,
                norm_cfg=norm_cfg,
            )
            for layer in range(before, before + depths[stage])
        )


_PARTS = ('patch_embed', 'position', 'block', 'norm')


def _no_plan(depth: int) -> PositionPlan:
    nothing = (None,) * depth
    return PositionPlan(None, nothing, nothing)

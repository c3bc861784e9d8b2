"""``lora=dict(rank=8)`` of a backbone: linear layers that learn low-rank updates, while everything else is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmcv.cnn import is_norm
from torch import nn

from mmlape.checks import (
    check_layers,
    check_number,
    check_option,
    check_options,
    check_positive_int,
    check_rate,
)
from mmlape.layers.lora import LoRALinear
from mmlape.norm import DTN, TokenNorm
from mmlape.position import AttentionPosition

from .position_only import statistics_of

if TYPE_CHECKING:
    from .base import Backbone

# Parts that can be trained beside LoRA.
KINDS = ('position', 'norm', 'dtn')


@dataclass(frozen=True)
class LoRAOptions:
    """Options of LoRA: the linear layers that learn low-rank updates, and other trained parts; checked when made.

    Attributes:
        rank: Rank of the updates. Default 8.
        alpha: Updates are multiplied by ``alpha / rank``. Default None: 2 ``rank``.
        dropout: Dropout of the input of an update. Default 0.
        dora: Learn the magnitude of each row separately, see :class:`~mmlape.layers.LoRALinear`. Default False.
        layers: Blocks, counted through all stages: None (default) for all, a number of first ones, or a list.
        targets: Names of linear layers in a block, e.g. ``['qkv', 'proj', 'fc1', 'fc2']``. Default None: all.
        train: Other parts to train: ``'position'`` (embeddings, their joining and what is inside the attention),
            ``'norm'`` (weights and biases of norms) and ``'dtn'`` (DTN's ratios and position maps). Default nothing.

    Raises:
        TypeError, ValueError: If a value has another type or is out of range.
    """

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    dora: bool = False
    layers: int | Sequence[int] | None = None
    targets: Sequence[str] | None = None
    train: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_positive_int('lora rank', self.rank)
        if self.alpha is not None:
            check_number('lora alpha', self.alpha, above=0)
        check_rate('lora dropout', self.dropout)
        for kind in self.train:
            check_option('an entry of lora train', kind, KINDS)

    @classmethod
    def of(cls, config: dict) -> LoRAOptions:
        """Make options from a config, whose names and types are checked."""
        check_options(cls, config)
        return cls(**config)

    def add_to(self, backbone: Backbone) -> None:
        """Replace linear layers in the blocks of a backbone."""
        blocks = [block for stage in backbone.stages() for block in stage.blocks]
        chosen = [blocks[layer] for layer in check_layers('lora layers', self.layers, len(blocks))]
        found = {path.rpartition('.')[2] for block in chosen for path, _ in linear_layers(block)}
        targets = found if self.targets is None else self.targets
        for target in targets:
            check_option('an entry of lora targets', target, found)
        if not targets:
            raise ValueError(
                f'lora needs linear layers, the blocks of {type(backbone).__name__} have none'
            )
        alpha = 2 * self.rank if self.alpha is None else self.alpha
        for block in chosen:
            for path, layer in linear_layers(block):
                owner, _, name = path.rpartition('.')
                if name in targets:
                    changed = LoRALinear(layer, self.rank, alpha, self.dropout, self.dora)
                    setattr(block.get_submodule(owner), name, changed)

    def trained(self, backbone: Backbone) -> set[nn.Parameter]:
        """Parameters of a backbone that are trained."""
        parts = [*backbone.modules()]
        norms = [part for part in parts if isinstance(part, TokenNorm) or is_norm(part)]
        positions = [part for stage in backbone.stages() for part in stage.positions()]
        position = {parameter for part in positions for parameter in part.parameters()}
        norm = {parameter for part in norms for parameter in part.parameters(recurse=False)}
        dtn = {each for part in norms if isinstance(part, DTN) for each in part.parameters()}
        kinds = dict(position=position, norm=norm - position, dtn=dtn - norm)
        changes = {
            parameter
            for layer in parts
            if isinstance(layer, LoRALinear)
            for name, parameter in layer.named_parameters()
            if name.startswith('lora_')
        }
        return changes.union(*(kinds[kind] for kind in self.train))

    def with_fixed_statistics(self, backbone: Backbone) -> list[nn.Module]:
        """Modules with running statistics whose parameters are not trained: their statistics stay too."""
        return [
            part
            for part in statistics_of(backbone)
            if not any(parameter.requires_grad for parameter in part.parameters())
        ]


def linear_layers(block: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Plain linear layers of a block by their paths, without those of positions."""
    positions = [part for part in block.modules() if isinstance(part, AttentionPosition)]
    others = {layer for part in positions for layer in part.modules()}
    return [
        (path, layer)
        for path, layer in block.named_modules()
        if type(layer) is nn.Linear and layer not in others
    ]

"""One adapter per foreign checkpoint format: which part of a model it describes, and how its names map to ours.

A new format is a new class and a line in :data:`FORMATS`.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from mmlape.backbones import VisionTransformer, ViTAdapter

State = dict[str, Tensor]


class Format:
    """Our own names, for our own checkpoints; the base of the others.

    Attributes:
        renames: Pairs of a regular expression over a foreign name and its replacement.
    """

    renames: tuple[tuple[str, str], ...] = ()

    def part(self, model: nn.Module, state: State) -> str:
        """Name of the submodule that ``state`` describes, '' for the whole model.

        Raises:
            ValueError: If the format cannot describe ``model``.
        """
        plain = not any(name.startswith('vit.') for name in state)
        return 'vit' if isinstance(model, ViTAdapter) and plain else ''

    def rename(self, state: State) -> State:
        """Names of the described part of the model to tensors."""
        return {self._rename_one(name): tensor for name, tensor in state.items()}

    def _rename_one(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


class Timm(Format):
    """timm's plain Vision Transformers, and DeiT's own files, which have the same names."""

    def part(self, model: nn.Module, state: State) -> str:
        """A ViT, or the ViT inside an adapter."""
        if isinstance(model, ViTAdapter):
            return 'vit'
        return _need(model, VisionTransformer)


class ReferenceLaPE(Timm):
    """The published LaPE code: timm's names, a ``pe_norm`` for the position in each block, a table per layer for
    unshared joining, and relative position biases."""

    renames = (
        (r'^blocks\.(\d+)\.pe_norm\.', r'position.joining.norms.\1.'),
        (r'\.attn\.(relative_position_bias_table$|pe_norm\.)', r'.attn.position.\1'),
    )

    def rename(self, state: State) -> State:
        """Names of the ViT; tables ``pos_embed0``, ``pos_embed1``, ... become one."""
        renamed = super().rename(state)
        tables = [name for name in renamed if re.fullmatch(r'pos_embed\d+', name)]
        if tables:
            order = sorted(tables, key=lambda name: int(name.removeprefix('pos_embed')))
            renamed['pos_embed'] = torch.cat([renamed.pop(name) for name in order])
        return renamed


class ReferenceViTAdapter(Format):
    """The published ViT-Adapter code, a backbone alone or a whole detector or segmentor (its backbone is read)."""

    renames = (
        (r'^(blocks\.\d+)\.gamma([12])$', r'\1.ls\2.gamma'),
        (r'^(blocks\.|patch_embed\.|pos_embed$)', r'vit.\1'),
    )

    def part(self, model: nn.Module, state: State) -> str:
        """The whole adapter."""
        return _need(model, ViTAdapter)


def _need(model: nn.Module, cls: type) -> str:
    if not isinstance(model, cls):
        raise ValueError(
            f'this source describes a {cls.__name__}, the model is a {type(model).__name__}'
        )
    return ''


FORMATS: dict[str, Format] = {
    'mmlape': Format(),
    'timm': Timm(),
    'deit': Timm(),
    'lape': ReferenceLaPE(),
    'vit_adapter': ReferenceViTAdapter(),
}

"""One adapter per foreign checkpoint format: which part of a model it describes, and how its names map to ours.

A new format is a new class and a line in :data:`FORMATS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmlape.backbones import VisionTransformer, ViTAdapter
from mmlape.backbones.pyramid import Pyramid
from mmlape.norm import DTN, LN, TokenNorm

State = dict[str, Tensor]

# Parameters of the published DTN module; the bias of its position projection cancels in the softmax and is not used.
DTN_RENAMES = (
    (r'\bmean_norm_weight$', 'ratio_mean.omega'),
    (r'\bvar_norm_weight$', 'ratio_var.omega'),
    (r'\bpos_proj\.weight$', 'positions.weight'),
)


class Format:
    """Our own names, for our own checkpoints; the base of the others.

    Attributes:
        renames: Pairs of a regular expression over a foreign name and its replacement, as ``re.sub`` takes them.
    """

    renames: tuple[tuple[str, str | Callable[[re.Match], str]], ...] = ()

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


class PublishedPVT(Format):
    """The published PVT, PVTv2 and DTN-PVT code, whose names are ours outside DTN; classifier heads are not used."""

    renames = DTN_RENAMES

    def part(self, model: nn.Module, state: State) -> str:
        """The whole pyramid."""
        return _need(model, Pyramid)


class PublishedDTN(Format):
    """The published DTN code: DTN and the normalisers it was compared with, alone or in a network of ours."""

    renames = (
        *DTN_RENAMES,
        (r'\bbn\.(running_mean|running_var|num_batches_tracked)$', r'\1'),
        (r'\bscale$', 'weight'),
        (r'\brunning_phi$', 'running_square'),
        (r'\bema_gz$', 'running_along'),
        (r'\biters$', 'num_calls'),
    )

    def part(self, model: nn.Module, state: State) -> str:
        """The whole model, which is or has a token norm."""
        if not any(isinstance(module, (DTN, LN, TokenNorm)) for module in model.modules()):
            raise ValueError(
                f'a {type(model).__name__} has no token norm that this source describes'
            )
        return ''

    def rename(self, state: State) -> State:
        """Our names; PowerNorm's buffers lose their dimensions of size 1."""
        renamed = super().rename(state)
        for name, tensor in renamed.items():
            if re.search(r'\b(running_square|running_along|num_calls)$', name):
                renamed[name] = tensor.squeeze()
        return renamed


class TimmPVT(PublishedPVT):
    """timm's PVTv2, whose stages are counted from 0 and hold their parts."""

    renames = (
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^stages\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.norm\.', lambda found: f'norm{int(found[1]) + 1}.'),
        (r'\.mlp\.dwconv\.', '.mlp.dwconv.dwconv.'),
    )


class Timm(Format):
    """timm's plain Vision Transformers, and DeiT's own files, which have the same names; timm's PVTv2."""

    def part(self, model: nn.Module, state: State) -> str:
        """A ViT, the ViT inside an adapter, or a pyramid."""
        if _has_stages(state):
            return TimmPVT().part(model, state)
        if isinstance(model, ViTAdapter):
            return 'vit'
        return _need(model, VisionTransformer)

    def rename(self, state: State) -> State:
        """Names of the ViT or of the pyramid."""
        return TimmPVT().rename(state) if _has_stages(state) else super().rename(state)


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


def _has_stages(state: State) -> bool:
    return any(name.startswith('stages.') for name in state)


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
    'pvt': PublishedPVT(),
    'dtn': PublishedDTN(),
    'vit_adapter': ReferenceViTAdapter(),
}

"""EoMT: files of the published code and of transformers, and those that hold differences to DINOv3."""

from __future__ import annotations

import re

from torch import nn

from mmlape.backbones import EoMT

from .base import Renames, State, renamed
from .timm_models import to_our_names
from .vit import PlainViT, Transformers, to_timm_names

_ENCODER = 'vit.'
_HEADS: Renames = (
    (r'^query\.', 'q.'),
    (r'^class_predictor\.', 'class_head.'),
    (r'^mask_head\.fc1\.', 'mask_head.0.'),
    (r'^mask_head\.fc2\.', 'mask_head.2.'),
    (r'^mask_head\.fc3\.', 'mask_head.4.'),
    (r'^upscale_block\.block\.(\d+)\.', r'upscale.\1.'),
    (r'^(upscale\.\d+)\.layernorm2d\.', r'\1.norm.'),
)
_HEAD = re.compile(r'^(?:(?:q|class_head|mask_head|upscale)\.|attn_mask_probs$)')
# The published code has timm's names around DINOv2, and those of transformers around and inside of DINOv3's blocks.
_ENCODERS: Renames = (
    (r'^encoder\.backbone\.', ''),
    (r'^patch_embed\.(cls_token|mask_token|register_tokens|patch_embeddings\.)', r'embeddings.\1'),
    (r'^blocks\.', 'layers.'),
    (r'^embeddings\.position_embeddings\.weight$', 'embeddings.position_embedding.weight'),
    # Its table has no row for the class token, unlike that of DINOv2's own files with registers.
    (r'^embeddings\.register_tokens$', 'reg_token'),
    (r'\.attention\.out_proj\.', '.attention.o_proj.'),
)
_LEFT = (
    (r'^encoder\.pixel_(mean|std)$', 'of the data preprocessor'),
    (r'^criterion\.', 'of the loss'),
)


class PublishedEoMT(PlainViT):
    """The published code's names (``network.q``, ``network.encoder.backbone``) and those of ``transformers``
    (``query``, ``layers``), heads and masks' probabilities too; the ViT as in the formats of plain ones."""

    network = EoMT
    may_leave = Transformers.may_leave

    def rename(self, state: State) -> State:
        """Names of the model; the ViT's through those of ``transformers`` and timm."""
        encoder, ours = {}, {}
        for theirs, tensor in state.items():
            name = renamed(theirs.removeprefix('network.'), _HEADS)
            beside = _HEAD.match(name) or any(re.match(pattern, name) for pattern, _ in _LEFT)
            if beside:
                ours[name] = tensor
            elif tensor.numel():  # transformers stores no registers as a tensor without values
                encoder[renamed(name, _ENCODERS)] = tensor
        encoder = to_our_names(to_timm_names(encoder))
        return {**ours, **{f'{_ENCODER}{name}': tensor for name, tensor in encoder.items()}}

    def problems(self, model: nn.Module, state: State) -> list[str]:
        """Return the problems of the ViT."""
        start = len(_ENCODER)
        encoder = {
            name[start:]: value for name, value in state.items() if name.startswith(_ENCODER)
        }
        return super().problems(model.get_submodule('vit'), encoder)

    def leave(self, name: str, model: nn.Module) -> tuple[str, str]:
        """Do as for the ViT; the loss and the pixels' mean and standard deviation may be left out too."""
        for pattern, why in _LEFT:
            if re.match(pattern, name):
                return why, ''
        if name.startswith(_ENCODER):
            return super().leave(name.removeprefix(_ENCODER), model.get_submodule('vit'))
        return super().leave(name, model)


class DeltaEoMT(PublishedEoMT):
    """Published files whose ViT is the difference to DINOv3, which the model's ``vit`` must hold already (its own
    ``init_cfg``); heads are values."""

    added = r'^vit\.'

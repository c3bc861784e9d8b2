"""The Vision Transformers of MMSegmentation and MMPretrain."""

from __future__ import annotations

from .base import Format, Reasons, State
from .t2t import PublishedT2T
from .vit import LEFT, OTHERS, PlainViT

_OTHERS: Reasons = (
    *OTHERS,
    (r'\.ffn\.w(12|3)\.', 'a gated feed-forward network (SwiGLU), which the model has not'),
    (r'\.gamma_[12]$', 'the layers of a BEiT, which the model has not'),
)


class OpenMMLabViT(PlainViT):
    """``VisionTransformer`` of both: their attention is MMCV's around PyTorch's in one, their own in the other."""

    renames = (
        (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
        (r'^layers\.', 'blocks.'),
        (r'^(blocks\.\d+)\.(?:ln|norm)([12])\.', r'\1.norm\2.'),
        (r'\.attn\.attn\.in_proj_', '.attn.qkv.'),
        (r'\.attn\.attn\.out_proj\.', '.attn.proj.'),
        (r'\.attn\.gamma1\.(weight|scale)$', '.ls1.gamma'),
        (r'\.ffn\.gamma2\.(weight|scale)$', '.ls2.gamma'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
        (r'^(?:ln|norm)1\.', 'norm.'),
    )
    may_leave = (*LEFT, (r'^ln2\.', 'of the classifier'))
    must_place = _OTHERS

    def resolve(self, state: State) -> Format:
        """The adapter of T2T-ViT for its layout."""
        return (
            PublishedT2T() if any(name.startswith('tokens_to_token.') for name in state) else self
        )

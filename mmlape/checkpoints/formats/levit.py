"""LeViT: timm's names, and those of the published code, which counts branches."""

from __future__ import annotations

import re
from bisect import bisect_right

from torch import Tensor, nn

from mmlape.backbones import LeViT

from .base import Format, Reasons, Renames, State, need

# Within a layer, or within what shrinks the grid, from timm's names to ours.
_PARTS: Renames = (
    (r'\.attn_downsample\.attention_biases$', '.attn.offset_bias.relative_position_bias_table'),
    (r'\.attn_downsample\.', '.attn.'),
    (r'\.attention_biases$', '.position.relative_position_bias_table'),
    (r'\.q\.ln\.', '.q.'),
    (r'\.proj\.ln\.', '.proj.'),
    (r'\.mlp\.ln([12])\.', r'.mlp.fc\1.'),
    (r'\.linear\.', '.'),
)
_LEFT: Reasons = (
    (r'attention_bias_idxs$', 'made anew from the grid'),
    (r'^head(_dist)?\.', 'of the classifier'),
    (r'\.attn\.position\.', 'the model has no bias of offsets'),
)


class TimmLeViT(Format):
    """timm's, as linear layers or as 1 x 1 convolutions."""

    renames: Renames = (
        (r'^stem\.conv(\d)\.linear\.', lambda found: f'patch_embed1.convs.{int(found[1]) - 1}.'),
        (r'^stem\.conv(\d)\.bn\.', lambda found: f'patch_embed1.norms.{int(found[1]) - 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        *_PARTS,
        # The norm at the end of a branch is its block's, that of what shrinks the grid the attention's.
        (r'^(block\d\.\d+)\.attn\.proj\.bn\.', r'\1.norm1.'),
        (r'^(block\d\.\d+)\.mlp\.fc2\.bn\.', r'\1.norm2.'),
        (r'^(patch_embed\d)\.mlp\.fc2\.bn\.', r'\1.norm.'),
        (r'\.bn\.', '.norm.'),
    )
    may_leave = _LEFT
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The layout of ``state``."""
        return PublishedLeViT() if any(name.startswith('blocks.') for name in state) else self

    def part(self, model: nn.Module, state: State) -> str:
        """The whole network."""
        return need(model, LeViT)

    def rename(self, state: State) -> State:
        """Names of the model; heads of a bias come last, 1 x 1 convolutions are linear."""
        return {name: _fit(name, tensor) for name, tensor in super().rename(state).items()}


class PublishedLeViT(TimmLeViT):
    """The published code: one list of attentions and feed-forward networks, through all stages."""

    def resolve(self, state: State) -> Format:
        """This one."""
        return self

    def rename(self, state: State) -> State:
        """Through timm's names."""
        found = (re.match(r'blocks\.(\d+)\.kv\.', name) for name in state)
        shrinking = sorted({int(each[1]) for each in found if each})
        return super().rename({_timms(name, shrinking): tensor for name, tensor in state.items()})


def _fit(name: str, tensor: Tensor) -> Tensor:
    if name.endswith('relative_position_bias_table'):
        return tensor.t()
    linear = tensor.ndim == 4 and not name.startswith('patch_embed1.')
    return tensor.flatten(1) if linear else tensor


def _timms(name: str, shrinking: list[int]) -> str:
    """timm's name; ``shrinking``: the numbers of the branches that shrink the grid, each before its own network."""
    for pattern, replacement in (
        (r'\.c\.', '.linear.'),
        (r'\bq\.1\.', 'q.ln.'),
        (r'\bproj\.1\.', 'proj.ln.'),
    ):
        name = re.sub(pattern, replacement, name)
    stem = re.match(r'patch_embed\.(\d)\.(.*)', name)
    if stem:
        return f'stem.conv{int(stem[1]) // 2 + 1}.{stem[2]}'
    branch = re.match(r'blocks\.(\d+)\.(m\.)?(.*)', name)
    if not branch:
        return name
    number, rest = int(branch[1]), branch[3]
    stage = bisect_right(shrinking, number)
    past = number - shrinking[stage - 1] if stage else number + 2
    if not past:
        return f'stages.{stage}.downsample.attn_downsample.{rest}'
    # A network's layers are 0 and 2, with the activation between.
    rest = re.sub(r'^([02])\.', lambda found: f'ln{int(found[1]) // 2 + 1}.', rest)
    kind = 'mlp' if past % 2 else 'attn'
    if past == 1:
        return f'stages.{stage}.downsample.mlp.{rest}'
    return f'stages.{stage}.blocks.{past // 2 - 1}.{kind}.{rest}'

"""Published networks beside plain ViTs, and plain ViTs of other code: one small class for each."""

from __future__ import annotations

import re
from bisect import bisect_right

from torch import Tensor, nn

from mmlape.backbones import (
    CeiT,
    CompactTransformer,
    LeViT,
    PyramidVisionTransformer,
    SwinTransformer,
    T2TViT,
    ViTAdapter,
)
from mmlape.norm import DTN, LN, TokenNorm

from .base import Format, Reasons, Renames, State
from .vit import LEFT, OTHERS, PlainViT

# Parameters of the published DTN module; the bias of its position projection cancels in the softmax and is not used.
DTN_RENAMES = (
    (r'\bmean_norm_weight$', 'ratio_mean.omega'),
    (r'\bvar_norm_weight$', 'ratio_var.omega'),
    (r'\bpos_proj\.weight$', 'positions.weight'),
)
DTN_LEFT = (r'\bpos_proj\.bias$', 'cancels in the softmax')


class PublishedDTN(Format):
    """DTN and other token norms of the published DTN code."""

    renames = (
        *DTN_RENAMES,
        (r'\bbn\.(running_mean|running_var|num_batches_tracked)$', r'\1'),
        (r'\bscale$', 'weight'),
        (r'\brunning_phi$', 'running_square'),
        (r'\bema_gz$', 'running_along'),
        (r'\biters$', 'num_calls'),
    )
    may_leave = (DTN_LEFT,)

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


class PublishedPVT(Format):
    """The published PVT, PVTv2 and DTN-PVT code, whose names are ours outside DTN."""

    network = PyramidVisionTransformer
    renames: Renames = DTN_RENAMES
    may_leave = (
        DTN_LEFT,
        (r'^(head|norm)\.|^cls_token$', 'of the classifier'),
        (r'^pos_embed', 'the position of the model is no learned table'),
    )
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The adapter of timm's layout."""
        return TimmPVT() if any(name.startswith('stages.') for name in state) else self


class TimmPVT(PublishedPVT):
    """timm's PVTv2, whose stages are counted from 0 and hold their parts."""

    renames = (
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^stages\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.norm\.', lambda found: f'norm{int(found[1]) + 1}.'),
        (r'\.mlp\.dwconv\.', '.mlp.dwconv.dwconv.'),
    )


_SWIN_LEFT: Reasons = (
    (r'relative_position_index$|attn_mask$', 'made anew from the window'),
    (r'^(head|norm)\.', 'of the classifier'),
    (r'^norm\d\.', 'the model returns no map of this stage'),
    (r'\.attn\.position\.', 'the model has no relative bias'),
    (r'^pos_embed1$', 'the model has no position table'),
)


class PublishedSwin(Format):
    """The published code: a stage ends with the merging of its patches. Its detectors have norms of maps."""

    network = SwinTransformer
    renames: Renames = (
        (r'^layers\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 2}.'),
        (r'^layers\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^norm(\d)\.', lambda found: f'norm{int(found[1]) + 1}.'),
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^absolute_pos_embed$', 'pos_embed1'),
        (r'\.attn\.relative_position_bias_table$', '.attn.position.relative_position_bias_table'),
    )
    may_leave = _SWIN_LEFT
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The layout of ``state``."""
        if any(name.startswith('stages.') for name in state):
            return OpenMMLabSwin()
        ends = any(name.startswith('layers.0.downsample.') for name in state)
        return self if ends else TimmSwin()


class TimmSwin(PublishedSwin):
    """timm's, whose stages begin with the merging of patches."""

    renames = (
        (r'^layers\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        *PublishedSwin.renames,
    )


class OpenMMLabSwin(PublishedSwin):
    """``SwinTransformer`` of MMDetection and MMSegmentation: channels of four neighbours lie side by side."""

    renames = (
        (r'^stages\.', 'layers.'),
        (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
        (r'\.attn\.w_msa\.', '.attn.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
        *PublishedSwin.renames,
    )

    def rename(self, state: State) -> State:
        """Names of the model; merging with our order of channels."""
        renamed = super().rename(state)
        return {
            name: _by_neighbour(tensor) if re.match(r'patch_embed[234]\.', name) else tensor
            for name, tensor in renamed.items()
        }


def _by_neighbour(tensor: Tensor) -> Tensor:
    """``(..., C x row x column)`` to ``(..., column x row x C)``."""
    return tensor.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)


# Within a layer, or within what shrinks the grid, from timm's names to ours.
_LEVIT_PARTS: Renames = (
    (r'\.attn_downsample\.attention_biases$', '.attn.offset_bias.relative_position_bias_table'),
    (r'\.attn_downsample\.', '.attn.'),
    (r'\.attention_biases$', '.position.relative_position_bias_table'),
    (r'\.q\.ln\.', '.q.'),
    (r'\.proj\.ln\.', '.proj.'),
    (r'\.mlp\.ln([12])\.', r'.mlp.fc\1.'),
    (r'\.linear\.', '.'),
)
_LEVIT_LEFT: Reasons = (
    (r'attention_bias_idxs$', 'made anew from the grid'),
    (r'^head(_dist)?\.', 'of the classifier'),
    (r'\.attn\.position\.', 'the model has no bias of offsets'),
)


class TimmLeViT(Format):
    """timm's, as linear layers or as 1 x 1 convolutions."""

    network = LeViT
    renames: Renames = (
        (r'^stem\.conv(\d)\.linear\.', lambda found: f'patch_embed1.convs.{int(found[1]) - 1}.'),
        (r'^stem\.conv(\d)\.bn\.', lambda found: f'patch_embed1.norms.{int(found[1]) - 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        *_LEVIT_PARTS,
        # The norm at the end of a branch is its block's, that of what shrinks the grid the attention's.
        (r'^(block\d\.\d+)\.attn\.proj\.bn\.', r'\1.norm1.'),
        (r'^(block\d\.\d+)\.mlp\.fc2\.bn\.', r'\1.norm2.'),
        (r'^(patch_embed\d)\.mlp\.fc2\.bn\.', r'\1.norm.'),
        (r'\.bn\.', '.norm.'),
    )
    may_leave = _LEVIT_LEFT
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The layout of ``state``."""
        return PublishedLeViT() if any(name.startswith('blocks.') for name in state) else self

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


class PublishedT2T(PlainViT):
    """T2T-ViTs with both kinds of tokens; norms of LaPE as ``pe_norm.N`` beside the blocks."""

    network = T2TViT
    renames = (
        (r'^pe_norm\.(\d+)\.', r'position.joining.norms.\1.'),
        (r'^encoder\.', 'blocks.'),
        (r'\.ln([12])\.', r'.norm\1.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
    )
    may_leave = (*LEFT, (r'^pos_embed$', 'computed, not learned'))


class PublishedCompact(PlainViT):
    """The published code, and networks of it with LaPE, whose norms are ``pe_norm.N``."""

    network = CompactTransformer
    renames: Renames = (
        (r'^classifier\.', ''),
        (r'^class_emb$', 'cls_token'),
        (r'^positional_emb$', 'pos_embed'),
        (r'^attention_pool\.', 'pool.score.'),
        (r'^pe_norm\.', 'position.joining.norms.'),
        (r'^(blocks\.\d+)\.norm1\.', r'\1.norm2.'),
        (r'^(blocks\.\d+)\.pre_norm\.', r'\1.norm1.'),
        (r'^(blocks\.\d+)\.self_attn\.', r'\1.attn.'),
        (r'^(blocks\.\d+)\.linear([12])\.', r'\1.mlp.fc\2.'),
        # Patches have a bias, the convolutions of CCT have none.
        (r'^tokenizer\.conv_layers\.(\d+)\.0\.', r'patch_embed.convs.\1.'),
    )
    may_leave = (
        (r'^fc\.', 'of the classifier'),
        (r'^pool\.', 'the model has no sequence pooling'),
        *LEFT,
    )

    def rename(self, state: State) -> State:
        """Names of the model; of patches where the first convolution has a bias."""
        renamed = super().rename(state)
        if 'patch_embed.convs.0.bias' not in renamed:
            return renamed
        return {k.replace('patch_embed.convs.0.', 'patch_embed.proj.'): renamed[k] for k in renamed}


_POINTWISE = re.compile(r'\.leff\.conv[13]\.weight$')


class PublishedCeiT(PlainViT):
    """The published code: 1 x 1 convolutions for linear layers, whose norms stand beside them."""

    network = CeiT
    renames = (
        (r'^i2t\.backbone\.conv\.', 'patch_embed.conv.'),
        (r'^i2t\.backbone\.bn\.', 'patch_embed.norm.'),
        (r'^i2t\.proj\.', 'patch_embed.patches.proj.'),
        (r'\.leff\.conv1\.', '.mlp.fc1.'),
        (r'\.leff\.bn1\.', '.mlp.fc1.norm.'),
        (r'\.leff\.conv2\.', '.mlp.conv.'),
        (r'\.leff\.bn2\.', '.mlp.norm.'),
        (r'\.leff\.conv3\.', '.mlp.fc2.'),
        (r'\.leff\.bn3\.', '.mlp.fc2.norm.'),
        (r'^lca\.feedforward\.', 'across_layers.block.mlp.'),
        (r'^lca\.', 'across_layers.block.'),
        (r'^pos_layer_embed$', 'across_layers.layer_position'),
        (r'^pe_norm\.(\d+)\.', r'position.joining.norms.\1.'),
    )
    may_leave = (*LEFT, (r'^across_layers\.', 'the output of the model shows no class token'))

    def rename(self, state: State) -> State:
        """Names of the model; a 1 x 1 convolution is a linear layer."""
        linear = {
            name: tensor.flatten(1) if _POINTWISE.search(name) else tensor
            for name, tensor in state.items()
        }
        return super().rename(linear)


class ReferenceViTAdapter(Format):
    """The published backbone, in which the ViT is not a part but the base class; necks and heads kept their names."""

    network = ViTAdapter
    renames = (
        (r'^(blocks\.\d+)\.gamma([12])$', r'\1.ls\2.gamma'),
        (r'^(blocks\.|patch_embed\.|pos_embed$|cls_token$)', r'vit.\1'),
    )
    may_leave = (
        (r'^vit\.cls_token$', 'the model has no such token'),
        (r'^(spm\.fc1|up|norm[1-4])\.', "not among the model's out_indices"),
    )
    leaves_others = False


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
    must_place = (
        *OTHERS,
        (r'\.ffn\.w(12|3)\.', 'a gated feed-forward network (SwiGLU), which the model has not'),
        (r'\.gamma_[12]$', 'the layers of a BEiT, which the model has not'),
    )

    def resolve(self, state: State) -> Format:
        """The adapter of T2T-ViT for its layout."""
        return (
            PublishedT2T() if any(name.startswith('tokens_to_token.') for name in state) else self
        )

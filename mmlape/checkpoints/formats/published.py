"""Published networks beside plain ViTs, and plain ViTs of other code: one table of names for each."""

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

from .base import Format, Reasons, Renames, State, has, numbered, renamed
from .timm_models import to_our_names
from .vit import LEFT, OTHERS, PlainViT

DTN_RENAMES: Renames = (
    (r'\bmean_norm_weight$', 'ratio_mean.omega'),
    (r'\bvar_norm_weight$', 'ratio_var.omega'),
    (r'\bpos_proj\.weight$', 'positions.weight'),
)
# The bias of the position projection is not used: the softmax cancels it.
DTN_LEFT = (r'\bpos_proj\.bias$', 'cancels in the softmax')
_CLASSIFIER = (r'^(head|norm)\.', 'of the classifier')


def _linear(weight: Tensor) -> Tensor:
    """The weight of a 1 x 1 convolution as that of a linear layer."""
    return weight.flatten(1) if weight.ndim == 4 else weight


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
    values = ((r'\b(running_square|running_along|num_calls)$', Tensor.squeeze),)
    may_leave = (DTN_LEFT,)
    prefix_rows = False  # its ViT has none for its class token


class PublishedPVT(Format):
    """The published PVT, PVTv2 and DTN-PVT code, whose names are ours outside DTN; and timm's PVTv2."""

    network = PyramidVisionTransformer
    renames = (
        *DTN_RENAMES,
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^stages\.(\d)\.downsample\.', numbered('patch_embed{}.', 1)),
        (r'^stages\.(\d)\.blocks\.', numbered('block{}.', 1)),
        (r'^stages\.(\d)\.norm\.', numbered('norm{}.', 1)),
        (r'\.mlp\.dwconv\.(?!dwconv)', '.mlp.dwconv.dwconv.'),
    )
    may_leave = (
        DTN_LEFT,
        (r'^(head|norm)\.|^cls_token$', 'of the classifier'),
        (r'^pos_embed', 'the position of the model is not a learned table'),
    )
    leaves_others = False


class PublishedSwin(Format):
    """Swin of the published code, of timm, and of MMDetection and MMSegmentation."""

    network = SwinTransformer
    renames: Renames = (
        (r'^layers\.(\d)\.blocks\.', numbered('block{}.', 1)),
        (r'^norm(\d)\.', numbered('norm{}.', 1)),
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^patch_embed1\.projection\.', 'patch_embed1.proj.'),
        (r'^absolute_pos_embed$', 'pos_embed1'),
        (r'\.attn\.w_msa\.', '.attn.'),
        (r'\.attn\.relative_position_bias_table$', '.attn.position.relative_position_bias_table'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
    )
    may_leave = (
        (r'relative_position_index$|attn_mask$', 'made anew from the window'),
        _CLASSIFIER,
        (r'^norm\d\.', 'the model returns no map of this stage'),
        (r'\.attn\.position\.', 'the model has no relative bias'),
        (r'^pos_embed1$', 'the model has no position table'),
    )
    leaves_others = False

    def rename(self, state: State) -> State:
        """A stage ends with the merging of patches, but begins with it in timm; OpenMMLab's merging has the channels of
        four neighbours side by side."""
        openmmlab = has(state, r'^stages\.')
        layers = {re.sub(r'^stages\.', 'layers.', name): value for name, value in state.items()}
        step = 2 if has(layers, r'^layers\.0\.downsample\.') else 1
        merging = ((r'^layers\.(\d)\.downsample\.', numbered('patch_embed{}.', step)),)
        ours = super().rename({renamed(name, merging): value for name, value in layers.items()})
        for name in [name for name in ours if openmmlab and re.match(r'patch_embed[234]\.', name)]:
            # From (..., C x row x column) to (..., column x row x C).
            ours[name] = ours[name].unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)
        return ours


class PublishedLeViT(Format):
    """LeViT of the published code and of timm, as linear layers or as 1 x 1 convolutions."""

    network = LeViT
    renames = (
        (r'^stem\.conv(\d)\.linear\.', numbered('patch_embed1.convs.{}.', -1)),
        (r'^stem\.conv(\d)\.bn\.', numbered('patch_embed1.norms.{}.', -1)),
        (r'^stages\.(\d)\.blocks\.', numbered('block{}.', 1)),
        (r'^stages\.(\d)\.downsample\.', numbered('patch_embed{}.', 1)),
        (r'\.attn_downsample\.attention_biases$', '.attn.offset_bias.relative_position_bias_table'),
        (r'\.attn_downsample\.', '.attn.'),
        (r'\.attention_biases$', '.position.relative_position_bias_table'),
        (r'\.q\.ln\.', '.q.'),
        (r'\.proj\.ln\.', '.proj.'),
        (r'\.mlp\.ln([12])\.', r'.mlp.fc\1.'),
        (r'\.linear\.', '.'),
        # The norm at the end of a branch is its block's, that of what shrinks the grid the attention's.
        (r'^(block\d\.\d+)\.attn\.proj\.bn\.', r'\1.norm1.'),
        (r'^(block\d\.\d+)\.mlp\.fc2\.bn\.', r'\1.norm2.'),
        (r'^(patch_embed\d)\.mlp\.fc2\.bn\.', r'\1.norm.'),
        (r'\.bn\.', '.norm.'),
    )
    # Heads of a bias come last in ours.
    values = ((r'relative_position_bias_table$', Tensor.t), (r'^(?!patch_embed1\.)', _linear))
    may_leave = (
        (r'attention_bias_idxs$', 'made anew from the grid'),
        (r'^head(_dist)?\.', 'of the classifier'),
        (r'\.attn\.position\.', 'the model has no bias of offsets'),
    )
    leaves_others = False

    def rename(self, state: State) -> State:
        """Through timm's names."""
        found = (re.match(r'blocks\.(\d+)\.kv\.', name) for name in state)
        shrinking = sorted({int(each[1]) for each in found if each})
        return super().rename({_timms(name, shrinking): value for name, value in state.items()})


_LEVIT_TO_TIMM: Renames = (
    (r'\.c\.', '.linear.'),
    (r'\bq\.1\.', 'q.ln.'),
    (r'\bproj\.1\.', 'proj.ln.'),
    # The strides of the stem and of a network have an activation between their layers.
    (r'^patch_embed\.([02468])\.', lambda found: f'stem.conv{int(found[1]) // 2 + 1}.'),
    (r'^(blocks\.\d+\.m)\.([02])\.', lambda found: f'{found[1]}.ln{int(found[2]) // 2 + 1}.'),
)


def _timms(name: str, shrinking: list[int]) -> str:
    """timm's name of an entry of the published LeViT code, which has one list of attentions and feed-forward networks
    through all stages; ``shrinking``: the numbers of the branches that shrink the grid, each before its own network."""
    name = renamed(name, _LEVIT_TO_TIMM)
    branch = re.match(r'blocks\.(\d+)\.(?:m\.)?(.*)', name)
    if not branch:
        return name
    number, rest = int(branch[1]), branch[2]
    stage = bisect_right(shrinking, number)
    past = number - shrinking[stage - 1] if stage else number + 2
    if past < 2:
        return f'stages.{stage}.downsample.{"mlp" if past else "attn_downsample"}.{rest}'
    return f'stages.{stage}.blocks.{past // 2 - 1}.{"mlp" if past % 2 else "attn"}.{rest}'


_PE_NORM = (r'^pe_norm\.(\d+)\.', r'position.joining.norms.\1.')


class PublishedT2T(PlainViT):
    """T2T-ViTs with both kinds of tokens; norms of LaPE as ``pe_norm.N`` beside the blocks."""

    network = T2TViT
    renames = (
        _PE_NORM,
        (r'^encoder\.', 'blocks.'),
        (r'\.ln([12])\.', r'.norm\1.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
    )
    may_leave = (*LEFT, (r'^pos_embed$', 'computed, not learned'))


class PublishedCompact(PlainViT):
    """The published code, and networks of it with LaPE, whose norms are ``pe_norm.N``."""

    network = CompactTransformer
    renames = (
        (r'^classifier\.', ''),
        (r'^class_emb$', 'cls_token'),
        (r'^positional_emb$', 'pos_embed'),
        (r'^attention_pool\.', 'pool.score.'),
        _PE_NORM,
        (r'^(blocks\.\d+)\.norm1\.', r'\1.norm2.'),
        (r'^(blocks\.\d+)\.pre_norm\.', r'\1.norm1.'),
        (r'^(blocks\.\d+)\.self_attn\.', r'\1.attn.'),
        (r'^(blocks\.\d+)\.linear([12])\.', r'\1.mlp.fc\2.'),
        (r'^tokenizer\.conv_layers\.(\d+)\.0\.', r'patch_embed.convs.\1.'),
    )
    may_leave = (
        (r'^fc\.', 'of the classifier'),
        (r'^pool\.', 'the model has no sequence pooling'),
        *LEFT,
    )

    def rename(self, state: State) -> State:
        """Names of the model; patches have a bias, the convolutions of CCT have none."""
        ours = super().rename(state)
        stem = 'patch_embed.convs.0.'
        place = 'patch_embed.proj.' if f'{stem}bias' in ours else stem
        return {name.replace(stem, place): value for name, value in ours.items()}


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
        _PE_NORM,
    )
    values = ((r'\.mlp\.fc[12]\.weight$', _linear),)
    may_leave = (*LEFT, (r'^across_layers\.', 'the output of the model shows no class token'))


# The attention in the neck of HTC++; transformers of MMCV 1 in heads of Mask2Former, where the first attention of a
# decoder's layer reads from the maps.
_MMCV_1 = r'^((?:decode|panoptic)_head\.{}\.layers\.\d+)\.{}\.'
_AROUND_IT: Renames = (
    (r'^neck\.0\.ffn\.', 'neck.0.mlp.'),
    (_MMCV_1.format(r'pixel_decoder\.encoder', r'attentions\.0'), r'\1.self_attn.'),
    (_MMCV_1.format('transformer_decoder', r'attentions\.0'), r'\1.cross_attn.'),
    (_MMCV_1.format('transformer_decoder', r'attentions\.1'), r'\1.self_attn.'),
    (_MMCV_1.format('[a-z_.]+', r'ffns\.0'), r'\1.ffn.'),
)
_OF_ITS_VIT = re.compile(r'(blocks|patch_embed|rel_pos_bias)\.|(pos_embed|cls_token)$')


class ReferenceViTAdapter(Format):
    """The published backbone, in which the ViT (or BEiT) is not a part but the base class; necks and heads kept their
    names, but for transformers."""

    network = ViTAdapter
    renames = ((r'^(vit\.blocks\.\d+)\.gamma([12])$', r'\1.ls\2.gamma'),)
    may_leave = (
        (r'^vit\.cls_token$', 'the model has no such token'),
        (r'\brelative_position_index$', 'computed, not learned'),
        (r'^(spm\.fc1|up|norm[1-4])\.', "not among the model's out_indices"),
    )
    leaves_others = False

    def whole(self, state: State, model: nn.Module) -> State:
        """Necks and heads under the names of MMDetection 3."""
        return {renamed(name, _AROUND_IT): value for name, value in state.items()}

    def rename(self, state: State) -> State:
        """The ViT's entries by timm's names, which are BEiT's."""
        vit = {name: value for name, value in state.items() if _OF_ITS_VIT.match(name)}
        ours = {name: value for name, value in state.items() if name not in vit}
        return super().rename(
            ours | {f'vit.{name}': value for name, value in to_our_names(vit).items()}
        )


class OpenMMLabViT(PlainViT):
    """``VisionTransformer`` of MMSegmentation, with MMCV's attention around PyTorch's, and of MMPretrain."""

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
        (r'^(?:pre_norm|ln_pre)\.', 'norm_pre.'),
    )
    may_leave = (*LEFT, (r'^ln2\.', 'of the classifier'))
    must_place: Reasons = (
        *OTHERS,
        (r'\.ffn\.w(12|3)\.', 'a gated feed-forward network (SwiGLU)'),
        (r'\.gamma_[12]$', 'the layers of a BEiT'),
    )
    others = ((r'^tokens_to_token\.', 't2t'),)

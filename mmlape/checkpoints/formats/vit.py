"""Plain Vision Transformers: timm's and DeiT's, those of the published LaPE code and of transformers."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from mmlape.backbones import AdapterBackbone, EoMT, StagedTransformer, VisionTransformer
from mmlape.layers import Mlp, SwiGLU
from mmlape.layers.basic import ACTIVATIONS, build_activation
from mmlape.position import AttentionPosition, RotaryPosition

from ..files import file_in, read_json
from .base import LAYER_SCALE, Format, Reasons, Renames, State, has, renamed
from .timm_models import to_our_names

# Position tables: of rows and of columns (NaFlex) where it is not one.
_TABLES = r'^(pos_embed|position\.embedding\.)'
# The rotary periods in DINOv3's own files.
_PERIODS = 'rope_embed.periods'
_PARALLEL = 'parallel branches in a layer'
# A model without these is another network.
OTHERS: Reasons = (
    LAYER_SCALE,
    (r'\.[qk]_norm\.', 'normalised queries and keys (qk_norm)'),
    (r'^norm_pre\.', 'a norm before the first layer (CLIP)'),
    (r'^blocks\.\d+\.others\.', _PARALLEL),
    (r'^inside\.', 'relative positions that all layers share (pre-trained BEiT)'),
    (
        r'rel_pos|^(?!inside\.).*(relative_position|\bprefix_table$)',
        'relative positions of each layer (BEiT)',
    ),
    (
        r'\.attn\.qkv\.bias$',
        "a bias of queries, keys and values (qkv_bias=True, or timm's name with _qkvb)",
    ),
    (r'rope|\.position\.freqs$', 'a rotary position'),
    (r'\.mlp\.norm\.', 'a norm in the feed-forward network'),
    (r'\.attn\.norm\.', 'a norm before the output projection'),
    (r'^patch_embed\.(backbone|norm|conv)', 'a convolutional stem'),
)
LEFT: Reasons = (
    (r'^(head|head_dist|heads|fc_norm|pre_logits|pool)\.', 'of the classifier'),
    (r'^(cls|dist)_token$', 'the model has no such token'),
    (r'^norm\.', 'the model does not normalise its output'),
    (r'^(reg_token|register_tokens)$', "register tokens: the outputs differ from the source's"),
    (r'^mask_token$|^decoder_|^(local_cls_norm|projectors)\.', 'of the pre-training'),
    (r'\.position\.prefix_table$', 'the model has no relative positions of prefix tokens'),
)


class PlainViT(Format):
    """A plain ViT: what is left over is known to be dispensable, or it is another network and refused."""

    network: type[nn.Module] = VisionTransformer
    may_leave = LEFT
    must_place = OTHERS
    leaves_others = False

    def problems(self, model: nn.Module, state: State) -> list[str]:
        """More layers than the model's, a gated feed-forward network, parallel branches, or no position table."""
        layers = (re.match(r'blocks\.(\d+)\.', name) for name in state)
        depth = max((int(layer[1]) + 1 for layer in layers if layer), default=0)
        first, second = (state.get(f'blocks.0.mlp.fc{number}.weight') for number in (1, 2))
        doubled = first is not None and second is not None and len(first) == 2 * second.shape[1]
        blocks = getattr(model, 'blocks', ())
        # Parallel branches share the first norm of a layer.
        theirs, ours = (
            'blocks.0.norm1.weight' in each and 'blocks.0.norm2.weight' not in each
            for each in (state, model.state_dict())
        )
        has_attention_position = any(
            isinstance(part, AttentionPosition) for part in model.modules()
        )
        without_position = (
            isinstance(model, StagedTransformer) and model.stages()[0].position is None
        )
        faults = {
            f'has {depth} layers, the model {getattr(model, "depth", 0)}': (
                isinstance(model, StagedTransformer) and depth > model.depth
            ),
            'has a gated feed-forward network (SwiGLU)': (
                doubled and not any(isinstance(block.mlp, SwiGLU) for block in blocks)
            ),
            f'has {_PARALLEL}, which the model does not have': theirs and not ours,
            'has no position table (a rotary or relative position?)': (
                depth and not (has_attention_position or without_position or has(state, _TABLES))
            ),
            f'turns queries and keys by other angles than the {rotary_of(model)} of the model': (
                _other_angles(model, state)
            ),
        }
        return [f'the source {fault}' for fault, found in faults.items() if found]

    def leave(self, name: str, model: nn.Module) -> tuple[str, str]:
        """Do as the base class; layers that are not built and tables that the position lacks may be left out too."""
        layer = re.match(r'blocks\.(\d+)\.', name)
        of_joining = re.match(r'position\.joining\.(norms|gates)\.(\d+)\.', name)
        if isinstance(model, StagedTransformer) and len(model.blocks) < model.depth:
            if layer and len(model.blocks) <= int(layer[1]) < model.depth:
                return 'layers after the last output are not built', ''
            own = getattr(model.position.joining, of_joining[1], None) if of_joining else None
            if of_joining and own is not None and int(of_joining[2]) >= len(own):
                return 'norms of layers that are not built', ''
        if name == _PERIODS and rotary_of(model):
            return 'computed, not learned', ''
        if re.match(_TABLES, name):
            return 'the position of the model is not a learned table', ''
        return super().leave(name, model)


class Timm(PlainViT):
    """timm's plain Vision Transformers (AugReg, DeiT, DINOv2, DINOv3, EVA, BEiT, ...), its PVTv2, Swin and LeViT; and
    the files of DeiT and DeiT-3."""

    prefix_rows = False  # DeiT-3 has none for its class token
    others = (
        (r'^layers\.0\.blocks\.', 'swin'),
        (r'^stem\.conv1\.linear\.', 'levit'),
        (r'^stages\.', 'pvt'),
    )

    def whole(self, state: State, model: nn.Module) -> State:
        """A classifier, whose heads are those of a classifier of MMPretrain."""
        if has(state, r'^backbone\.'):
            return state
        own, ours = model.state_dict(), {}
        for name, value in state.items():
            head = re.fullmatch(r'(head|head_dist)(?:\.fc)?\.(weight|bias)', name)
            places = [f'head.layers.{head[1]}.{head[2]}', f'{head[1]}.fc.{head[2]}'] if head else []
            ours[next((place for place in places if place in own), f'backbone.{name}')] = value
        return ours

    def rename(self, state: State) -> State:
        """Names of the ViT, whatever timm's model calls its parts."""
        return super().rename(to_our_names(state))


class ReferenceLaPE(PlainViT):
    """The published LaPE code: timm's names, a ``pe_norm`` for the position in each block, a table per layer for
    unshared joining, and relative position biases."""

    renames = (
        (r'^blocks\.(\d+)\.pe_norm\.', r'position.joining.norms.\1.'),
        (r'\.attn\.(relative_position_bias_table$|pe_norm\.)', r'.attn.position.\1'),
    )
    # Fixed sinusoids are stored as a parameter, indices of relative positions as a buffer.
    may_leave = (*LEFT, (r'relative_position_index$|^pos_embed$', 'computed, not learned'))
    must_place = (LAYER_SCALE,)

    def rename(self, state: State) -> State:
        """Names of the ViT; tables ``pos_embed0``, ``pos_embed1``, ... become one."""
        ours = super().rename(state)
        numbers = sorted(int(name[9:]) for name in ours if re.fullmatch(r'pos_embed\d+', name))
        if numbers:
            ours['pos_embed'] = torch.cat([ours.pop(f'pos_embed{number}') for number in numbers])
        return ours

    def problems(self, model: nn.Module, state: State) -> list[str]:
        """Return the problems of a ViT, but relative positions need no table."""
        if has(state, 'relative_position'):
            state = {'pos_embed': torch.zeros(0), **state}
        return super().problems(model, state)


def rotary_of(model: nn.Module) -> RotaryPosition | None:
    """The rotary position of a model, if it has one."""
    return next((part for part in model.modules() if isinstance(part, RotaryPosition)), None)


def _other_angles(model: nn.Module, state: State) -> bool:
    """Whether the periods in DINOv3's own files, which are rounded to 8 bits, are not the model's."""
    periods, ours = state.get(_PERIODS), rotary_of(model)
    if periods is None or ours is None:
        return False
    count = ours.head_dims // 4
    wanted = ours.temperature ** (torch.arange(count) / count)
    centred = ours.rule.coordinates == 'centred' and ours.pairs == 'halves'
    same = len(periods) == count and torch.allclose(periods.float(), wanted, rtol=0.01)
    return not (centred and same)


# Prefixes of the names of a network that is a part of another: a classifier, or both towers of CLIP.
_AROUND = re.compile(
    r'^(?:(?:vit|deit|dinov2|dinov2_with_registers|beit|clip|siglip|model|vision_model)\.)+'
)
_LAYER = re.compile(r'^(?:encoder\.)?layers?\.(\d+)\.(.+)$')
_OUTSIDE: Renames = (
    (r'^embeddings\.(cls_token|mask_token|register_tokens)$', r'\1'),
    (r'^embeddings\.class_embedding$', 'cls_token'),
    (r'^embeddings\.distillation_token$', 'dist_token'),
    (r'^embeddings\.(?:position_embeddings|position_embedding\.weight)$', 'pos_embed'),
    (r'^embeddings\.patch_embeddings?\.(?:projection\.)?(weight|bias)$', r'patch_embed.proj.\1'),
    (r'^(?:layernorm|post_layernorm|norm)\.', 'norm.'),
    (r'^pre_layr?norm\.', 'norm_pre.'),  # CLIP misspells it
    (r'^head\.probe$', 'attn_pool.latent'),
    (r'^head\.attention\.out_proj\.', 'attn_pool.proj.'),
    (r'^head\.layernorm\.', 'attn_pool.norm.'),
    (r'^head\.(attention|mlp)\.', r'attn_pool.\1.'),
    (r'^(?:encoder\.relative_position_bias|shared_position_bias)\.', 'rel_pos_bias.'),
)
_INSIDE: Renames = (
    (r'^attention\.attention\.', 'attention.'),
    (r'^(?:attention|self_attn)\.([qkv])(?:uery|ey|alue|_proj)\.', r'attn.\1_proj.'),
    (r'^(?:attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.', 'attn.proj.'),
    (r'^(?:attention\.)?relative_position_bias\.', 'attn.'),
    (r'^(?:layernorm_before|layer_norm1)\.', 'norm1.'),
    (r'^(?:layernorm_after|layer_norm2)\.', 'norm2.'),
    (r'^intermediate\.dense\.', 'mlp.fc1.'),
    (r'^(?:output\.dense|mlp\.down_proj)\.', 'mlp.fc2.'),
    (r'^mlp\.weights_in\.', 'mlp.w12.'),
    (r'^mlp\.weights_out\.', 'mlp.w3.'),
    (r'^mlp\.gate_proj\.', 'mlp.fc1_g.'),
    (r'^(?:layer_scale([12])\.lambda1|lambda_([12]))$', r'gamma_\1\2'),
)


_ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_new': 'gelu_tanh', 'swish': 'silu'}


class Transformers(PlainViT):
    """ViT (MAE's too), DeiT, DINOv2 with and without registers, DINOv3, BEiT, and the images' side of CLIP and SigLIP:
    the files of ``transformers``, in its older and newer names, with or without what is around the network."""

    may_leave = (
        *LEFT,
        (r'^(classifier|cls_classifier|distillation_classifier|pooler)\.', 'of the classifier'),
        (r'^(text_model|text_projection|visual_projection)\.|^logit_(scale|bias)$', 'of the comparison with texts'),
        (r'^(decoder|lm_head)\.', 'of the pre-training'),
        (r'\bposition_ids$|\brelative_position_index$', 'computed, not learned'),
    )  # fmt: skip

    def check_beside(self, checkpoint: Path, model: nn.Module | None) -> None:
        """Compare heads, activation and rotary position with the ``config.json`` beside the weights, if it is there and
        names them."""
        path = file_in(checkpoint).with_name('config.json')
        vit = model.vit if isinstance(model, (AdapterBackbone, EoMT)) else model
        if not isinstance(vit, VisionTransformer) or not path.is_file():
            return
        config = read_json(path, 'config of a model')
        if isinstance(config.get('vision_config'), dict):
            config = config['vision_config']
        act, mlp = str(config.get('hidden_act')), vit.blocks[0].mlp
        act = _ACTIVATIONS.get(act, act)
        pairs: dict[str, tuple] = {
            'num_attention_heads': (config.get('num_attention_heads'), vit.arch['num_heads'])
        }
        if isinstance(mlp, Mlp) and act in ACTIVATIONS:
            pairs['hidden_act'] = (repr(build_activation(act)), repr(mlp.act))
        if rotary := rotary_of(vit):
            pairs['rope_theta'] = (config.get('rope_theta'), rotary.temperature)
        for option, (theirs, ours) in pairs.items():
            if theirs not in (None, ours):
                raise ValueError(f'{str(path)!r} says {option}={theirs}, the model has {ours}')

    def rename(self, state: State) -> State:
        """Names of the ViT; ValueError if two entries have one name there."""
        return super().rename(to_our_names(to_timm_names(state)))


def to_timm_names(state: State) -> State:
    """A state dict of ``transformers`` under timm's names; what is not in a ViT keeps its own."""
    gated = any('.mlp.gate_proj.' in name for name in state)
    renames = (*_INSIDE, (r'^mlp\.up_proj\.', 'mlp.fc1_x.' if gated else 'mlp.fc1.'))
    ours: State = {}
    for theirs, tensor in state.items():
        name = _AROUND.sub('', theirs)
        layer = _LAYER.match(name)
        name = (
            f'blocks.{layer[1]}.{renamed(layer[2], renames)}' if layer else renamed(name, _OUTSIDE)
        )
        if name in ours:
            raise ValueError(f'the source holds {name!r} twice, once as {theirs!r}: two networks?')
        # CLIP and SigLIP store rows without a batch.
        rows = name in ('cls_token', 'pos_embed') and tensor.ndim < 3
        ours[name] = tensor.reshape(1, -1, tensor.shape[-1]) if rows else tensor
    for kind in ('weight', 'bias'):
        merged = ours.pop(f'attn_pool.attention.in_proj_{kind}', None)
        if merged is not None:  # split into queries, and keys and values
            parts = merged.tensor_split([len(merged) // 3])
            ours.update({f'attn_pool.{q}.{kind}': part for q, part in zip(('q', 'kv'), parts)})
    return ours

"""Plain Vision Transformers under timm's names: timm's, DeiT's, the published LaPE code's, and transformers'."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmlape.backbones import StagedTransformer, VisionTransformer, ViTAdapter
from mmlape.layers import Mlp, SwiGLU
from mmlape.layers.basic import ACTIVATIONS, build_activation
from mmlape.position import AttentionPosition, RotaryPosition

from ..files import file_in, read_json
from . import FORMATS
from .base import LAYER_SCALE, Format, Reasons, State
from .timm_models import to_our_names

_CLASSIFIER = r'^(head|head_dist|heads|fc_norm|pre_logits|pool)\.'
# Position tables: of rows and of columns (NaFlex) where it is not one.
_TABLES = ('pos_embed', 'position.embedding.')
# Of DINOv3's own files.
_PERIODS = 'rope_embed.periods'
# What other transformers have and ours has not.
OTHERS: Reasons = (
    LAYER_SCALE,
    (
        r'\.attn\.[qk]_norm\.|\.[qk]_norm\.',
        'normalised queries and keys (qk_norm), which the model has not',
    ),
    (r'^(norm_pre|pre_norm|ln_pre)\.', 'a norm before the first layer (CLIP), which the model has not'),
    (r'^blocks\.\d+\.others\.', 'parallel branches in a layer, which the model has not'),
    (r'^inside\.', 'relative positions that all layers share (pre-trained BEiT), which the model has not'),
    (
        r'rel_pos|^(?!inside\.).*(relative_position|\bprefix_table$)',
        'relative positions of each layer (BEiT), which the model has not',
    ),
    (
        r'\.attn\.qkv\.bias$',
        'a bias of queries, keys and values, which the model has not: build it with qkv_bias=True, '
        "or by timm's name with _qkvb",
    ),
    (r'rope|\.position\.freqs$', 'a rotary position, which the model has not'),
    (r'\.mlp\.norm\.', 'a norm in the feed-forward network, which the model has not'),
    (r'\.attn\.norm\.', 'a norm before the output projection, which the model has not'),
    (r'^patch_embed\.(backbone|norm|conv)', 'a convolutional stem, which the model has not'),
)  # fmt: skip
LEFT: Reasons = (
    (_CLASSIFIER, 'of the classifier'),
    (r'^(cls|dist)_token$', 'the model has no such token'),
    (r'^norm\.', 'the model does not normalise its output'),
    (
        r'^(reg_token|register_tokens)$',
        'register tokens, which the model has not: its outputs differ from the source\'s',
    ),
    (r'^mask_token$|^decoder_|^(local_cls_norm|projectors)\.', 'of the pre-training'),
)  # fmt: skip


class PlainViT(Format):
    """A plain ViT: what is left over is known to be dispensable, or it is another network and refused."""

    network: type[nn.Module] = VisionTransformer
    may_leave = LEFT
    must_place = OTHERS
    leaves_others = False

    def part(self, model: nn.Module, state: State) -> str:
        """A ViT, or the ViT inside an adapter."""
        if self.network is VisionTransformer and isinstance(model, ViTAdapter):
            return 'vit'
        return super().part(model, state)

    def problems(self, model: nn.Module, state: State) -> list[str]:
        """More layers than the model's, a gated feed-forward network, or no position table."""
        found = []
        depth = num_layers(state)
        if isinstance(model, StagedTransformer) and depth > model.depth:
            found.append(f'the source has {depth} layers, the model {model.depth}')
        first, second = (state.get(f'blocks.0.mlp.fc{number}.weight') for number in (1, 2))
        doubled = first is not None and second is not None and len(first) == 2 * second.shape[1]
        blocks = getattr(model, 'blocks', ())
        if doubled and not any(isinstance(block.mlp, SwiGLU) for block in blocks):
            found.append('the source has a gated feed-forward network (SwiGLU)')
        blocks_of = (state, model.state_dict())
        alone = [
            'blocks.0.norm1.weight' in each and 'blocks.0.norm2.weight' not in each
            for each in blocks_of
        ]
        if alone[0] and not alone[1]:
            found.append('the source has parallel branches in a layer, which the model has not')
        turned = any(isinstance(part, AttentionPosition) for part in model.modules())
        if depth and not turned and not any(name.startswith(_TABLES) for name in state):
            found.append('the source has no position table (a rotary or relative position?)')
        return found + _other_turns(model, state)

    def leave(self, name: str, model: nn.Module) -> tuple[str, str]:
        """As for others; position tables of a model without, and layers that are not built, may be left out too."""
        layer = re.match(r'blocks\.(\d+)\.', name)
        joined = re.match(r'position\.joining\.(norms|gates)\.(\d+)\.', name)
        if isinstance(model, StagedTransformer):
            if layer and len(model.blocks) <= int(layer[1]) < model.depth:
                return 'layers after the last output are not built', ''
            if joined and len(model.blocks) < model.depth:
                own = getattr(model.position.joining, joined[1], None)
                if own is not None and int(joined[2]) >= len(own):
                    return 'norms of layers that are not built', ''
        if name == _PERIODS and _rotary(model):
            return 'computed, not learned', ''
        if name == 'pos_embed' or name.startswith(_TABLES[1]):
            return 'the position of the model is no learned table', ''
        return super().leave(name, model)


class Timm(PlainViT):
    """timm's plain Vision Transformers (AugReg, DeiT, DINOv2, DINOv3, EVA, BEiT, ...), its PVTv2, Swin and LeViT."""

    def whole(self, state: State, model: nn.Module) -> State:
        """A classifier, whose heads are those of a classifier of MMPretrain."""
        if any(name.startswith('backbone.') for name in state):
            return state
        there, renamed = model.state_dict(), {}
        for name, value in state.items():
            head = re.fullmatch(r'(head|head_dist)(?:\.fc)?\.(weight|bias)', name)
            places = [f'head.layers.{head[1]}.{head[2]}', f'{head[1]}.fc.{head[2]}'] if head else []
            place = next((place for place in places if place in there), f'backbone.{name}')
            renamed[place] = value
        return renamed

    def resolve(self, state: State) -> Format:
        """The adapter of PVTv2, Swin or LeViT for their layouts."""
        for source, start in (
            ('swin', 'layers.0.blocks.'),
            ('levit', 'stem.conv1.linear.'),
            ('pvt', 'stages.'),
        ):
            if any(name.startswith(start) for name in state):
                return FORMATS[source].resolve(state)
        return self

    def rename(self, state: State) -> State:
        """Names of the ViT, whatever timm's model calls its parts."""
        return super().rename(to_our_names(state))


class DeiT(Timm):
    """The files of DeiT and DeiT-3, under ``model``: timm's names, but for DeiT-3's layer scale."""


class ReferenceLaPE(PlainViT):
    """The published LaPE code: timm's names, a ``pe_norm`` for the position in each block, a table per layer for
    unshared joining, and relative position biases."""

    renames = (
        (r'^blocks\.(\d+)\.pe_norm\.', r'position.joining.norms.\1.'),
        (r'\.attn\.(relative_position_bias_table$|pe_norm\.)', r'.attn.position.\1'),
    )
    # Fixed sinusoids are stored as a parameter, indices of relative positions as a buffer.
    may_leave = (
        *LEFT,
        (r'relative_position_index$|^pos_embed$', 'computed, not learned'),
    )
    must_place = (LAYER_SCALE,)

    def rename(self, state: State) -> State:
        """Names of the ViT; tables ``pos_embed0``, ``pos_embed1``, ... become one."""
        renamed = super().rename(state)
        tables = [name for name in renamed if re.fullmatch(r'pos_embed\d+', name)]
        if tables:
            order = sorted(tables, key=lambda name: int(name.removeprefix('pos_embed')))
            renamed['pos_embed'] = torch.cat([renamed.pop(name) for name in order])
        return renamed

    def problems(self, model: nn.Module, state: State) -> list[str]:
        """As for others, but relative positions stand alone."""
        relative = any('relative_position' in name for name in state)
        table = {} if not relative else {'pos_embed': torch.zeros(0)}
        return super().problems(model, {**table, **state})


def _rotary(model: nn.Module) -> RotaryPosition | None:
    return next((part for part in model.modules() if isinstance(part, RotaryPosition)), None)


def _other_turns(model: nn.Module, state: State) -> list[str]:
    """Whether the periods in DINOv3's own files are others than the model's; those are rounded to 8 bits."""
    periods, ours = state.get(_PERIODS), _rotary(model)
    if periods is None or ours is None:
        return []
    count = ours.head_dims // 4
    wanted = ours.temperature ** (torch.arange(count) / count)
    centred = ours.rule.coordinates == 'centred' and ours.pairs == 'halves'
    if centred and len(periods) == count and torch.allclose(periods.float(), wanted, rtol=0.01):
        return []
    return [f'the source turns queries and keys by other angles than the {ours} of the model']


def num_layers(state: State) -> int:
    """Number of layers in a state dict with timm's names."""
    layers = (re.match(r'blocks\.(\d+)\.', name) for name in state)
    return max((int(found[1]) + 1 for found in layers if found), default=0)


_Pairs = tuple[tuple[str, str], ...]
# What a network's names begin with where it is a part of another: a classifier, or both towers of CLIP.
_AROUND = re.compile(
    r'^(?:(?:vit|deit|dinov2|dinov2_with_registers|beit|clip|siglip|model|vision_model)\.)+'
)
_LAYER = re.compile(r'^(?:encoder\.)?layers?\.(\d+)\.(.+)$')
_OUTSIDE: _Pairs = (
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
_INSIDE: _Pairs = (
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
        """Heads, activation and rotary position, by ``config.json``."""
        check_config(checkpoint, model)

    def rename(self, state: State) -> State:
        """Names of the ViT.

        Raises:
            ValueError: If two entries have one name there.
        """
        return super().rename(to_our_names(to_timm_names(state)))


def to_timm_names(state: State) -> State:
    """A state dict of ``transformers`` under timm's names; what is not in a ViT keeps its own.

    Raises:
        ValueError: If two entries have one name there: the file holds two networks.
    """
    gated = any('.mlp.gate_proj.' in name for name in state)
    inside = (*_INSIDE, (r'^mlp\.up_proj\.', 'mlp.fc1_x.' if gated else 'mlp.fc1.'))
    renamed: State = {}
    for theirs, tensor in state.items():
        name = _AROUND.sub('', theirs)
        layer = _LAYER.match(name)
        if layer:
            name = f'blocks.{layer[1]}.{_apply(inside, layer[2])}'
        else:
            name = _apply(_OUTSIDE, name)
        if name in renamed:
            raise ValueError(f'the source holds {name!r} twice, once as {theirs!r}: two networks?')
        # CLIP and SigLIP store rows without a batch.
        rows = name in ('cls_token', 'pos_embed') and tensor.ndim < 3
        renamed[name] = tensor.reshape(1, -1, tensor.shape[-1]) if rows else tensor
    for kind in ('weight', 'bias'):
        joined = renamed.pop(f'attn_pool.attention.in_proj_{kind}', None)
        if joined is not None:  # of queries, and of keys and values
            parts = joined.tensor_split([len(joined) // 3])
            renamed.update({f'attn_pool.{q}.{kind}': part for q, part in zip(('q', 'kv'), parts)})
    return renamed


def _apply(renames: _Pairs, name: str) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


_ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_new': 'gelu_tanh', 'swish': 'silu'}


def check_config(checkpoint: Path, model: nn.Module | None) -> None:
    """Compare heads, activation and rotary position of a network with the ``config.json`` beside its weights.

    What the file does not name, or is not there at all, is not compared.

    Args:
        checkpoint: The checkpoint: a file, an index or a folder.
        model: The backbone that it is for; None, or no ViT: not compared.

    Raises:
        ValueError: If the model has another.
    """
    path = file_in(checkpoint).with_name('config.json')
    vit = model.vit if isinstance(model, ViTAdapter) else model
    if not isinstance(vit, VisionTransformer) or not path.is_file():
        return
    config = read_json(path, 'config of a model')
    config = config.get('vision_config', config)
    if not isinstance(config, dict):
        return
    ours: dict[str, Any] = {'num_attention_heads': vit.arch['num_heads']}
    theirs = {
        name: config.get(name) for name in ('num_attention_heads', 'hidden_act', 'rope_theta')
    }
    act, mlp = str(theirs['hidden_act']), vit.blocks[0].mlp
    theirs['hidden_act'] = _ACTIVATIONS.get(act, act)
    if isinstance(mlp, Mlp) and theirs['hidden_act'] in ACTIVATIONS:
        own = (name for name in ACTIVATIONS if repr(build_activation(name)) == repr(mlp.act))
        ours['hidden_act'] = next(own, repr(mlp.act))
    rotary = _rotary(vit)
    if rotary is not None:
        ours['rope_theta'] = rotary.temperature
    for option, value in ours.items():
        if theirs[option] not in (None, value):
            raise ValueError(f'{str(path)!r} says {option}={theirs[option]}, the model has {value}')

"""Files of Hugging Face's transformers."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

from mmlape.backbones import VisionTransformer, ViTAdapter
from mmlape.layers import Mlp
from mmlape.layers.basic import ACTIVATIONS, build_activation

from ..files import file_in, read_json
from .base import Renames, State, renamed
from .timm_models import to_our_names
from .vit import LEFT, PlainViT, rotary_of

# What a network's names begin with where it is a part of another: a classifier, or both towers of CLIP.
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
        vit = model.vit if isinstance(model, ViTAdapter) else model
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
        return super().rename(to_our_names(_to_timm_names(state)))


def _to_timm_names(state: State) -> State:
    """A state dict of ``transformers`` under timm's names; what is not in a ViT keeps its own."""
    gated = any('.mlp.gate_proj.' in name for name in state)
    inside = (*_INSIDE, (r'^mlp\.up_proj\.', 'mlp.fc1_x.' if gated else 'mlp.fc1.'))
    ours: State = {}
    for theirs, tensor in state.items():
        name = _AROUND.sub('', theirs)
        layer = _LAYER.match(name)
        name = (
            f'blocks.{layer[1]}.{renamed(layer[2], inside)}' if layer else renamed(name, _OUTSIDE)
        )
        if name in ours:
            raise ValueError(f'the source holds {name!r} twice, once as {theirs!r}: two networks?')
        # CLIP and SigLIP store rows without a batch.
        rows = name in ('cls_token', 'pos_embed') and tensor.ndim < 3
        ours[name] = tensor.reshape(1, -1, tensor.shape[-1]) if rows else tensor
    for kind in ('weight', 'bias'):
        merged = ours.pop(f'attn_pool.attention.in_proj_{kind}', None)
        if merged is not None:  # of queries, and of keys and values
            parts = merged.tensor_split([len(merged) // 3])
            ours.update({f'attn_pool.{q}.{kind}': part for q, part in zip(('q', 'kv'), parts)})
    return ours

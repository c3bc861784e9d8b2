"""timm: weights of a model by its name, what its state dict does not tell, and its names in those of our blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.models.levit import Levit
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from mmlape.backbones import VisionTransformer, ViTAdapter
from mmlape.backbones.timm_archs import UnlikeOursError, describe
from mmlape.layers import Block, ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock
from mmlape.layers.basic import build_activation
from mmlape.registry import MODELS

from ..report import DownloadError
from .base import State

# What differs between models of these shows in the shapes of their weights.
_OTHER_BLOCKS = (ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock)
_SHOWN = (Levit, PyramidVisionTransformerV2, SwinTransformer)
_ELSEWHERE = ('hf-hub:', 'hf_hub:', 'local-dir:', 'timm/')


def check_timm_name(name: str) -> str:
    """Return the name if timm knows such a model and has weights of it (those of other places are looked up later).

    Raises:
        ValueError: If it has not.
    """
    if name.startswith(_ELSEWHERE):
        return name
    if not timm.is_model(name):
        raise ValueError(f'timm {timm.__version__} has no model {name!r}, see timm.list_models()')
    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # of that tag
        raise ValueError(f'timm {timm.__version__}: {error} See timm.list_pretrained()') from error
    if found is None or not found.has_weights:
        raise ValueError(f'timm {timm.__version__} has no weights of {name!r}')
    return name


def read_timm(name: str, model: nn.Module | None) -> State:
    """State dict of a timm model with its published weights, downloaded where they are not cached.

    Args:
        name: timm's name.
        model: The backbone that it is for; None: not compared.

    Raises:
        ValueError: If its layers compute something else than ours, or with another number of heads.
        DownloadError: A ``ConnectionError``, if the weights can be neither downloaded nor found.
    """
    try:
        source = timm.create_model(name, pretrained=True)
    except OSError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f'the weights of the timm model {name!r} cannot be had: {reason}. Without a network, '
            'copy its model.safetensors here and name that file as checkpoint'
        ) from None
    if not isinstance(source, _SHOWN):
        check_timm_layers(name, source, model.vit if isinstance(model, ViTAdapter) else model)
    return source.state_dict()


def check_timm_layers(name: str, source: nn.Module, model: nn.Module | None) -> None:
    """Compare what is not in a state dict: heads, activations, where norms stand, and turns by position.

    Raises:
        ValueError: If the timm model is no plain ViT, or its layers compute something else than those of ``model``.
    """
    try:
        theirs = describe(source)
    except UnlikeOursError as error:
        raise ValueError(f'{name!r} cannot be a backbone of ours: {error}') from error
    if not isinstance(model, VisionTransformer):
        return
    block: Any = model.blocks[0]
    kind, given = MODELS.get(theirs['block']['type']), theirs['num_heads']
    if not isinstance(block, kind) or (kind is Block and isinstance(block, _OTHER_BLOCKS)):
        layers = type(getattr(source, 'blocks')[0]).__name__  # noqa: B009
        raise ValueError(
            f'the layers of {name!r} are of the kind {layers}, ours of the kind {type(block).__name__}'
        )
    wanted, act = build_activation(theirs['mlp']['act']), getattr(block.mlp, 'act', None)
    if repr(wanted) != repr(act):
        raise ValueError(
            f'{name!r} has the activation {wanted}, the layers of the model have {act}'
        )
    heads = model.arch['num_heads']
    if heads != given:
        raise ValueError(f'{name!r} has {given} heads, the model has {heads}')
    inside = theirs['attention_position']
    if inside:
        sizes = dict(embed_dims=theirs['embed_dims'], num_heads=given, grid=model.grid)
        wanted = MODELS.build(dict(inside, **sizes))
        own = getattr(model, 'inside', None) or block.attn.position
        if repr(wanted) != repr(own):
            raise ValueError(
                f'{name!r} has {wanted} inside its attention, the model has {own}: '
                f"attention_position={inside}, or arch={name!r}"
            )


_Entries = dict[str, Tensor]

_RENAMES = (
    (r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'),
    (r'^(register_tokens|storage_tokens)$', 'reg_token'),
    (r'^(blocks\.\d+\.mlp)\.w12\.', r'\1.fc1.'),
    (r'^(blocks\.\d+\.mlp)\.w3\.', r'\1.fc2.'),
    (r'^(blocks\.\d+\.attn)\.rel_pos\.', r'\1.position.'),
    (r'^attn_pool\.', 'pool.'),
    (r'^embeds\.(cls_token|reg_token|pos_embed)$', r'\1'),
    (r'^embeds\.pos_embed_y$', 'position.embedding.rows'),
    (r'^embeds\.pos_embed_x$', 'position.embedding.columns'),
    (r'^embeds\.(proj|norm)\.', r'patch_embed.\1.'),
    (r'^(shared_rel_pos|rel_pos_bias)\.', 'inside.'),
)
_OF_BLOCK = re.compile(r'^blocks\.(\d+)\.(.+)$')


def to_our_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of timm's, of DINOv2's or of DINOv3's code, under the names of our blocks.

    Queries, keys and values become one layer, with a bias of zeros where they have none; so do a gate and what it
    gates. Branches that share a layer (``in_proj``) become two. Keys and values of fewer heads than queries are
    repeated for each. The class token of DINOv2 with registers takes in its row of the table, which timm's has not.
    """
    renamed: dict[str, Tensor] = {}
    blocks: dict[str, _Entries] = {}
    for name, tensor in state.items():
        for pattern, replacement in _RENAMES:
            name = re.sub(pattern, replacement, name)
        found = _OF_BLOCK.match(name)
        if found:
            blocks.setdefault(found[1], {})[found[2]] = tensor
        else:
            renamed[name] = tensor
    table = renamed.get('pos_embed')
    if table is not None and table.ndim == 4:  # NaFlex: a map, channels last
        renamed['pos_embed'] = table.flatten(1, 2)
    if 'register_tokens' in state:
        _add_class_row(renamed)
    freqs = renamed.pop('rope.freqs', None)
    _split_table(renamed, 'inside.', 'inside.')
    for layer, block in blocks.items():
        for step in _STEPS:
            step(block)
        if freqs is not None:
            block['attn.position.freqs'] = freqs[:, int(layer)]
        renamed.update({f'blocks.{layer}.{name}': tensor for name, tensor in block.items()})
    return renamed


def _add_class_row(renamed: dict[str, Tensor]) -> None:
    """The first row of a position table, added to the class token once and for all."""
    if {'cls_token', 'pos_embed'} <= renamed.keys():
        first, renamed['pos_embed'] = renamed['pos_embed'].tensor_split([1], dim=1)
        renamed['cls_token'] = renamed['cls_token'] + first


def _mask_bias(block: _Entries) -> None:
    """A bias times its mask (DINOv3): 0 for keys, 1 for the rest. Some files hold NaN in its place."""
    mask = block.pop('attn.qkv.bias_mask', None)
    bias = block.get('attn.qkv.bias')
    if mask is None or bias is None:
        return
    meant = torch.ones_like(bias)
    meant.tensor_split(3)[1].zero_()
    mask = torch.where(mask.isnan(), meant, mask.to(bias.dtype))
    block['attn.qkv.bias'] = torch.where(mask == 0, mask, bias * mask)


def _join_attention(block: _Entries) -> None:
    """Separate queries, keys and values to one layer; their biases too."""
    if 'attn.q_proj.weight' in block:
        weights = [block.pop(f'attn.{part}_proj.weight') for part in 'qkv']
        biases = [block.pop(f'attn.{part}_proj.bias', None) for part in 'qkv']
        rows = [_for_each_head(part, weights[0], block) for part in weights]
        block['attn.qkv.weight'] = torch.cat(rows)
        if biases[0] is not None:
            block['attn.qkv.bias'] = _biases(biases, biases[0], block)
    if 'attn.q_bias' in block:
        query = block.pop('attn.q_bias')
        biases = [query, None, block.pop('attn.v_bias')]
        block['attn.qkv.bias'] = _biases(biases, query, block)


def _biases(biases: list[Tensor | None], query: Tensor, block: _Entries) -> Tensor:
    parts = [torch.zeros_like(query) if bias is None else bias for bias in biases]
    return torch.cat([_for_each_head(part, query, block) for part in parts])


def _for_each_head(rows: Tensor, query: Tensor, block: _Entries) -> Tensor:
    """Rows of keys or values, repeated for every head of the queries where several share them."""
    repeats = len(query) // len(rows)
    if repeats == 1:
        return rows
    norm = block.get('attn.q_norm.weight')  # it has as many channels as a head
    if norm is None:
        raise ValueError(
            'the source has fewer keys than queries, and nothing that says how many channels a head has'
        )
    heads = rows.unflatten(0, (-1, len(norm)))
    return heads.repeat_interleave(repeats, dim=0).flatten(0, 1)


def _join_gate(block: _Entries) -> None:
    """A gate and what it gates to one layer."""
    for kind in ('weight', 'bias'):
        if f'mlp.fc1_g.{kind}' in block:
            parts = [block.pop(f'mlp.fc1_{part}.{kind}') for part in 'gx']
            block[f'mlp.fc1.{kind}'] = torch.cat(parts)


def _split_branches(block: _Entries) -> None:
    """Layers that serve attention and feed-forward network at once, as those of each."""
    if 'in_proj.weight' not in block:
        return
    inside = block.pop('in_proj.weight')
    hidden = len(inside) - 3 * inside.shape[1]
    block['mlp.fc1.weight'], block['attn.qkv.weight'] = inside[:hidden], inside[hidden:]
    if 'in_proj.bias' in block:
        bias = block.pop('in_proj.bias')
        block['mlp.fc1.bias'], block['attn.qkv.bias'] = bias[:hidden], bias[hidden:]
    if 'mlp_bias' in block:
        block['mlp.fc1.bias'] = block.pop('mlp_bias')
    if 'out_proj.weight' in block:
        outside = block.pop('out_proj.weight')
        dims = len(outside)
        block['attn.proj.weight'], block['mlp.fc2.weight'] = outside[:, :dims], outside[:, dims:]
        if 'out_proj.bias' in block:
            block['attn.proj.bias'] = block.pop('out_proj.bias')
    for ours, theirs in (
        ('norm1', 'in_norm'),
        ('attn.q_norm', 'q_norm'),
        ('attn.k_norm', 'k_norm'),
        ('attn.proj', 'attn_out_proj'),
        ('mlp.fc2', 'mlp_out_proj'),
        ('ls1', 'ls'),
    ):
        for name in [name for name in block if name.startswith(f'{theirs}.')]:
            block[ours + name.removeprefix(theirs)] = block.pop(name)


def _split_table(block: _Entries, source: str = 'attn.', place: str = 'attn.position.') -> None:
    """Relative biases of cells, an odd number of them, and those of prefix tokens, three more."""
    table = block.pop(f'{source}relative_position_bias_table', None)
    if table is None:
        return
    if len(table) % 2 == 0:
        table, block[f'{place}prefix_table'] = table[:-3], table[-3:]
    block[f'{place}relative_position_bias_table'] = table


def _first_branches(block: _Entries) -> None:
    """Branches side by side: the first are the block's own, the others those of blocks beside it."""
    for name in [name for name in block if name.startswith(('attns.', 'ffns.'))]:
        kind, number, part = name.split('.', 2)
        for theirs in ('norm.', 'ls.'):
            if part.startswith(theirs):
                part = f'{theirs[:-1]}{1 if kind == "attns" else 2}.{part.removeprefix(theirs)}'
        place = f'others.{int(number) - 1}.' if int(number) else ''
        block[place + part] = block.pop(name)


def _scale_both(block: _Entries) -> None:
    """A layer scale of the attention alone: 1 for the feed-forward network."""
    if 'ls1.gamma' in block and 'norm2.weight' in block and 'ls2.gamma' not in block:
        block['ls2.gamma'] = torch.ones_like(block['ls1.gamma'])


_STEPS: tuple[Callable[[_Entries], None], ...] = (
    _first_branches, _mask_bias, _join_attention, _join_gate, _split_branches, _split_table, _scale_both
)  # fmt: skip

"""timm: weights of a model by its name, what a state dict does not show, and the names of our blocks for its own."""

from __future__ import annotations

import re

import timm
import torch
from timm.models.levit import Levit
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from mmlape.backbones import AdapterBackbone, EoMT, VisionTransformer
from mmlape.backbones.timm_archs import UnlikeOursError, describe
from mmlape.layers import Block, ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock
from mmlape.layers.basic import build_activation
from mmlape.registry import MODELS

from ..report import DownloadError
from .base import Renames, State, renamed

# Differences between models of the classes _SHOWN show in the shapes of their weights.
_OTHER_BLOCKS = (ParallelBlock, PostNormBlock, SeveralBranchesBlock, StreamNormBlock)
_SHOWN = (Levit, PyramidVisionTransformerV2, SwinTransformer)
_ELSEWHERE = ('hf-hub:', 'hf_hub:', 'local-dir:', 'timm/')


def check_timm_name(name: str) -> str:
    """The name, if timm has weights of such a model (those of other places are looked up later); else ValueError."""
    if name.startswith(_ELSEWHERE):
        return name
    if not timm.is_model(name):
        raise ValueError(f'timm {timm.__version__} has no model {name!r}, see timm.list_models()')
    try:
        found = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # timm has no such tag
        raise ValueError(f'timm {timm.__version__}: {error} See timm.list_pretrained()') from error
    if found is None or not found.has_weights:
        raise ValueError(f'timm {timm.__version__} has no weights of {name!r}')
    return name


def read_timm(name: str, model: nn.Module | None) -> State:
    """State dict of a timm model with its published weights, downloaded if they are not cached, for the backbone
    ``model`` (None: not compared)."""
    try:
        source = timm.create_model(name, pretrained=True)
    except OSError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f'the weights of the timm model {name!r} cannot be had: {reason}. Without a network, '
            'copy its model.safetensors here and name that file as checkpoint'
        ) from None
    if not isinstance(source, _SHOWN):
        check_timm_layers(
            name, source, model.vit if isinstance(model, (AdapterBackbone, EoMT)) else model
        )
    return source.state_dict()


def check_timm_layers(name: str, source: nn.Module, model: nn.Module | None) -> None:
    """Compare what is not in a state dict: heads, activations, where norms stand, and turns by position; ValueError if
    the timm model is not a plain ViT, or another."""
    try:
        theirs = describe(source)
    except UnlikeOursError as error:
        raise ValueError(f'{name!r} cannot be a backbone of ours: {error}') from error
    if not isinstance(model, VisionTransformer):
        return
    block, heads = model.blocks[0], theirs['num_heads']
    kind = MODELS.get(theirs['block']['type'])
    if not isinstance(block, kind) or (kind is Block and isinstance(block, _OTHER_BLOCKS)):
        layers = type(getattr(source, 'blocks')[0]).__name__  # noqa: B009
        raise ValueError(
            f'the layers of {name!r} are of the kind {layers}, ours of the kind {type(block).__name__}'
        )
    act = getattr(block.mlp, 'act', None)
    pairs = {
        'the activation': (build_activation(theirs['mlp']['act']), act),
        'the number of heads': (heads, model.arch['num_heads']),
    }
    position = theirs['attention_position']
    if position:
        sizes = dict(embed_dims=theirs['embed_dims'], num_heads=heads, grid=model.grid)
        own = getattr(model, 'inside', None) or block.attn.position
        pairs['inside its attention'] = MODELS.build(dict(position, **sizes)), own
    for what, (wanted, own) in pairs.items():
        if repr(wanted) != repr(own):
            raise ValueError(
                f'{name!r} has {what} {wanted}, the model {own}; arch={name!r} takes over all'
            )


_RENAMES: Renames = (
    (r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'),
    (r'^(register_tokens|storage_tokens)$', 'reg_token'),
    (r'^(blocks\.\d+\.mlp)\.w12\.', r'\1.fc1.'),
    (r'^(blocks\.\d+\.mlp)\.w1\.', r'\1.fc1_g.'),  # DINOv3's own files
    (r'^(blocks\.\d+\.mlp)\.w2\.', r'\1.fc1_x.'),
    (r'^(blocks\.\d+\.mlp)\.w3\.', r'\1.fc2.'),
    (r'^(blocks\.\d+\.attn)\.rel_pos\.', r'\1.position.'),
    (r'^(blocks\.\d+\.attn\.[qkv])_bias$', r'\1_proj.bias'),
    (r'^attn_pool\.', 'pool.'),
    (r'^embeds\.(cls_token|reg_token|pos_embed)$', r'\1'),
    (r'^embeds\.pos_embed_y$', 'position.embedding.rows'),
    (r'^embeds\.pos_embed_x$', 'position.embedding.columns'),
    (r'^embeds\.(proj|norm)\.', r'patch_embed.\1.'),
    (r'^(shared_rel_pos|rel_pos_bias)\.', 'inside.'),
    # Branches side by side: the first are the block's own, the others those of blocks beside it.
    (r'^(blocks\.\d+)\.attns\.(\d+)\.(norm|ls)\.', r'\1.attns.\2.\g<3>1.'),
    (r'^(blocks\.\d+)\.ffns\.(\d+)\.(norm|ls)\.', r'\1.ffns.\2.\g<3>2.'),
    (r'^(blocks\.\d+)\.(?:attns|ffns)\.0\.', r'\1.'),
    (
        r'^(blocks\.\d+)\.(?:attns|ffns)\.(\d+)\.',
        lambda found: f'{found[1]}.others.{int(found[2]) - 1}.',
    ),
)
# Where attention and feed-forward network share a layer.
_OF_BRANCHES: Renames = (
    (r'^in_norm\.', 'norm1.'),
    (r'^([qk])_norm\.', r'attn.\1_norm.'),
    (r'^(lambda_[qk][12]$|sub_norm\.)', r'attn.\1'),
    (r'^attn_out_proj\.', 'attn.proj.'),
    (r'^mlp_out_proj\.', 'mlp.fc2.'),
    (r'^ls\.', 'ls1.'),
    (r'^mlp_bias$', 'mlp.fc1.bias'),
    (r'^out_proj\.bias$', 'attn.proj.bias'),
)
_OF_BLOCK = re.compile(r'^blocks\.(\d+)\.(.+)$')


def to_our_names(state: State) -> State:
    """A state dict of timm's, of DINOv2's or of DINOv3's code, under the names of our blocks.

    Queries, keys and values become one layer, with a bias of zeros where they have none; so do a gate and what it
    gates. Branches that share a layer (``in_proj``) become two. Keys and values of fewer heads than queries are
    repeated for each. The class token of DINOv2 with registers takes in its row of the table, which timm's has not.
    """
    ours: State = {}
    blocks: dict[str, State] = {}
    for theirs, tensor in state.items():
        name = renamed(theirs, _RENAMES)
        found = _OF_BLOCK.match(name)
        owner, name = (blocks.setdefault(found[1], {}), found[2]) if found else (ours, name)
        owner[name] = tensor
    table = ours.get('pos_embed')
    if table is not None and table.ndim == 4:  # NaFlex: a map, channels last
        ours['pos_embed'] = table.flatten(1, 2)
    if 'register_tokens' in state and {'cls_token', 'pos_embed'} <= ours.keys():
        first, ours['pos_embed'] = ours['pos_embed'].tensor_split([1], dim=1)
        ours['cls_token'] = ours['cls_token'] + first
    freqs = ours.pop('rope.freqs', None)
    _split_table(ours, 'inside.', 'inside.')
    for layer, block in blocks.items():
        block = _to_our_block(block)
        if freqs is not None:
            block['attn.position.freqs'] = freqs[:, int(layer)]
        ours.update({f'blocks.{layer}.{name}': tensor for name, tensor in block.items()})
    return ours


def _to_our_block(block: State) -> State:
    """The entries of one block, without ``blocks.N.``."""
    block = _split_branches(block)
    _mask_bias(block)
    _merge(block, 'attn.qkv', ('attn.q_proj', 'attn.k_proj', 'attn.v_proj'))
    _merge(block, 'mlp.fc1', ('mlp.fc1_g', 'mlp.fc1_x'))
    _split_table(block, 'attn.', 'attn.position.')
    # A layer scale of the attention alone is 1 for the feed-forward network.
    if 'ls1.gamma' in block and 'norm2.weight' in block and 'ls2.gamma' not in block:
        block['ls2.gamma'] = torch.ones_like(block['ls1.gamma'])
    return block


def _mask_bias(block: State) -> None:
    """A bias times its mask (DINOv3): 0 for keys, 1 for the rest. Some files hold NaN in its place."""
    mask = block.pop('attn.qkv.bias_mask', None)
    bias = block.get('attn.qkv.bias')
    if mask is None or bias is None:
        return
    expected = torch.ones_like(bias)
    expected.tensor_split(3)[1].zero_()
    mask = torch.where(mask.isnan(), expected, mask.to(bias.dtype))
    block['attn.qkv.bias'] = torch.where(mask == 0, mask, bias * mask)


def _merge(block: State, name: str, parts: tuple[str, ...]) -> None:
    """Separate layers to one, and their biases; one without has a bias of zeros."""
    for kind in ('weight', 'bias'):
        found = [block.pop(f'{part}.{kind}', None) for part in parts]
        first = found[0]
        if first is not None:
            rows = [torch.zeros_like(first) if each is None else each for each in found]
            block[f'{name}.{kind}'] = torch.cat([_for_each_head(r, first, block) for r in rows])


def _for_each_head(rows: Tensor, query: Tensor, block: State) -> Tensor:
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


def _split_branches(block: State) -> State:
    """Layers that serve attention and feed-forward network at once, as those of each."""
    if 'in_proj.weight' not in block:
        return block
    block = {renamed(name, _OF_BRANCHES): tensor for name, tensor in block.items()}
    dims = block['in_proj.weight'].shape[1]
    hidden = len(block['in_proj.weight']) - 3 * dims
    for kind in ('weight', 'bias'):
        if f'in_proj.{kind}' in block:
            parts = block.pop(f'in_proj.{kind}').tensor_split([hidden])
            block[f'mlp.fc1.{kind}'], block[f'attn.qkv.{kind}'] = parts
    if 'out_proj.weight' in block:
        parts = block.pop('out_proj.weight').tensor_split([dims], dim=1)
        block['attn.proj.weight'], block['mlp.fc2.weight'] = parts
    return block


def _split_table(block: State, source: str, place: str) -> None:
    """Relative biases of cells, an odd number of them, and those of prefix tokens, three more."""
    table = block.pop(f'{source}relative_position_bias_table', None)
    if table is None:
        return
    if len(table) % 2 == 0:
        table, block[f'{place}prefix_table'] = table[:-3], table[-3:]
    block[f'{place}relative_position_bias_table'] = table

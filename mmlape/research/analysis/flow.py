r"""How position flows through a network (Gabor position encoding, Figures 8 to 10), and what it changes: tokens of an
image whose patches change places, and the predictions of a classifier (Table 2).

The *likeness* of a channel is the absolute correlation, over the cells of the grid, of its map with the map that the
same channel has of position alone: what position contributes to the input of the layer's attention, as in
:mod:`~mmlape.research.analysis.position`, through the layer's own projections without their biases."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn

from mmlape.backbones import Stage
from mmlape.checkpoints.plain_files import PlainUnpickler
from mmlape.checks import check_positive_int
from mmlape.layers import PatchEmbed
from mmlape.layout import Grid, Layout

from .attention import pool_keys
from .loading import Result, find_stages, record_calls
from .position import in_stream, layer_positions, pick_channels, plan_sources, position_plan

ROLES = ('query', 'key', 'value')


@dataclass(frozen=True)
class PositionFlow(Result):
    """Channels of one layer as maps, of one image and of position alone. ``(C, H, W)`` each; those of queries, keys
    and values have all heads side by side, those of keys and values a smaller grid where the layer reduces it."""

    stage: str  #: Name of the stage.
    layer: int  #: 0-based index in it.
    patches: np.ndarray  #: What the stage begins with, before position joins.
    #: What joins it: in the stream, up to this layer; with LaPE, what this layer's attention adds.
    position: np.ndarray
    #: Both, and what else is in the stream by then: what enters the layer; with LaPE, what its attention reads.
    summed: np.ndarray
    query: np.ndarray  #: Of the image, as the next two.
    key: np.ndarray
    value: np.ndarray
    position_query: np.ndarray  #: Of position alone, as the next two.
    position_key: np.ndarray
    position_value: np.ndarray
    #: ``(1 + L, C, H, W)``: what enters the first layer of the stage, and what leaves each.
    layers: np.ndarray

    def likeness(self, role: str) -> np.ndarray:
        """Likeness ``(C,)`` to position, 0 to 1, of the channels of ``'summed'``, ``'query'``, ``'key'``,
        ``'value'``."""
        alone = self.position if role == 'summed' else getattr(self, f'position_{role}')
        return channel_likeness(getattr(self, role), alone)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``, with likenesses."""
        likenesses = {f'likeness_{role}': self.likeness(role) for role in ('summed', *ROLES)}
        return super().arrays() | likenesses


def position_flow(backbone: nn.Module, image: Tensor, stage: Stage, layer: int = 0) -> PositionFlow:
    """Run a backbone on an image and keep the maps of a layer's channels, and of position alone.

    Args:
        layer: 0-based. Default 0.

    Raises ValueError if there is no such layer, it receives no position, or its attention has other projections than
    ours."""
    check_positive_int('layer', layer, minimum=0, maximum=len(stage.blocks) - 1)
    attention = stage.blocks[layer].get_submodule('attn')
    _projections(attention)  # refused before anything is computed
    blocks = {f'block {number}': block for number, block in enumerate(stage.blocks)}
    with torch.no_grad():
        with record_calls({'embed': stage.embed, 'attn': attention, **blocks}) as calls:
            backbone(image)
        patches, layout = calls['embed'][1]
        # A warm start has both; in the stream is what it has learned before.
        plan = position_plan(stage, layout.grid)
        source = plan_sources(plan)[-1]
        *_, found = layer_positions(stage, layout.grid, source, [layer]).values()
        tokens, where = calls['attn'][0][:2]
        rows = torch.from_numpy(found).to(tokens)[None, -tokens.shape[1] :]
        heads = _heads(attention, tokens, where, with_bias=True)
        own = _heads(attention, rows, where, with_bias=False)
    position: Any
    if source == 'attention':
        position, summed = rows, tokens
    else:
        with torch.no_grad():
            position = in_stream(stage, plan, layout.grid)[layer]
        summed = calls[f'block {layer}'][0][0]
    outputs = [calls['block 0'][0][0], *(calls[name][1] for name in blocks)]
    height, width = pool_keys(attention, torch.empty(1, 1, *layout.grid)).shape[2:]
    grids = (layout.grid, (height, width), (height, width))
    before = dict(patches=patches, position=position, summed=summed)
    return PositionFlow(
        stage=stage.name,
        layer=layer,
        **{name: _maps(each, layout.grid) for name, each in before.items()},
        **{role: _maps(*each) for role, *each in zip(ROLES, heads, grids)},
        **{f'position_{role}': _maps(*each) for role, *each in zip(ROLES, own, grids)},
        layers=np.stack([_maps(each, layout.grid) for each in outputs]),
    )


def channel_likeness(maps: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Absolute correlation of two maps of each channel, ``(C, H, W)`` both, as ``(C,)``; 0 where a map is constant."""
    centred = [part.reshape(len(part), -1).astype(np.float64) for part in (maps, others)]
    centred = [part - part.mean(axis=1, keepdims=True) for part in centred]
    product = (centred[0] * centred[1]).sum(axis=1)
    lengths = np.prod([np.linalg.norm(part, axis=1) for part in centred], axis=0)
    least = np.finfo(np.float32).eps * np.prod([np.abs(part).max() for part in (maps, others)])
    return np.divide(np.abs(product), lengths, out=np.zeros(len(maps)), where=lengths > least)


def pick_extremes(likeness: np.ndarray, count: int) -> tuple[list[int], list[int]]:
    """The channels most like position, the most alike first, and those least like it, the least alike first."""
    order = np.argsort(-likeness, kind='stable')
    return order[:count].tolist(), order[::-1][:count].tolist()


def pick_flow_channels(flow: PositionFlow, channels: Sequence[int] | None, count: int) -> list[int]:
    """The channels asked for; by default the ``count`` in which position is strongest beside the image. ValueError if a
    channel does not exist in the stream, the queries, the keys and the values alike."""
    if channels is None:
        return pick_extremes(flow.likeness('summed'), count)[0]
    least = min(len(getattr(flow, role)) for role in ('summed', *ROLES))
    return pick_channels(least, channels)


def _projections(attention: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that make queries, keys and values: ``qkv``, or ``q`` and ``kv``."""
    found = {
        name: child for name, child in attention.named_children() if name in ('qkv', 'q', 'kv')
    }
    if not found:
        raise ValueError(
            f'queries, keys and values of a {type(attention).__name__} are not known: an attention layer of ours has '
            'qkv, or q and kv'
        )
    return found


def _heads(
    attention: Any, tokens: Tensor, where: Layout | Grid, with_bias: bool
) -> tuple[Tensor, ...]:
    """Queries, keys and values of an attention layer, ``(1, N, C)`` each, of its tokens."""
    projections = _projections(attention)
    results: dict[str, Tensor] = {}
    with record_calls(projections) as calls:
        if 'qkv' in projections:  # computed token by token, independent of windows
            attention.qkv(tokens)
        else:
            attention(tokens, where)
    for name, ((x, *rest), output) in calls.items():
        # Without its bias: what an affine layer answers beyond its answer to zero.
        zero = 0 if with_bias else projections[name](torch.zeros_like(x[:, :1]), *rest)
        results[name] = output - zero
    if 'q' in results:
        return (results['q'], *results['kv'].chunk(2, dim=-1))
    if not hasattr(attention, 'value_dims'):
        return results['qkv'].chunk(3, dim=-1)
    widths = (attention.key_dims, attention.key_dims, attention.value_dims)
    parts = attention.heads(results['qkv'], *widths)
    return tuple(part.transpose(1, 2).flatten(2) for part in parts)


def _maps(tokens: Tensor, grid: Grid) -> np.ndarray:
    """The cells of ``(1, P + H * W, C)`` as ``(C, H, W)``."""
    cells = tokens[0, -grid[0] * grid[1] :].detach().float().cpu().numpy()
    return cells.T.reshape(-1, *grid)


# Kinds of images in the order of Table 2: right or wrong without position, and with it.
KINDS = ('ignored', 'mislead', 'correct', 'useless')


@dataclass(frozen=True)
class PatchOrder(Result):
    """Tokens of an image beside those of the same image with its patches in another order."""

    grid: Grid  #: ``(H, W)``.
    #: ``(H * W,)``: at place ``n`` of the shuffled image lies patch ``order[n]`` of the image.
    order: np.ndarray
    image: np.ndarray  #: ``(height, width)``, the mean of its channels.
    shuffled: np.ndarray  #: The shuffled one.
    #: ``(layers, H, W)``: of each patch, wherever it lies, ``|after - before| / |before|`` after each layer. All zero
    #: if the layers are permutation equivariant.
    differences: np.ndarray


def shuffle_patches(image: Tensor, patch_size: tuple[int, int], order: Tensor) -> Tensor:
    """Put the patches of images ``(B, 3, height, width)``, multiples of the patch, into the order ``(H * W,)``: what
    lies at each place afterwards."""
    patches = F.unfold(image, patch_size, stride=patch_size)[:, :, order]
    return F.fold(patches, image.shape[2:], patch_size, stride=patch_size)


def patch_order(backbone: nn.Module, image: Tensor, seed: int = 0) -> PatchOrder:
    """Run a network on an image and on its shuffled patches, and compare each patch's tokens, layer by layer.

    Args:
        backbone: In evaluation mode, of one stage, whose tokens are patches: ``mmlape.VisionTransformer`` or what is
            built like it.
        image: ``(1, 3, height, width)``, see :func:`~mmlape.research.analysis.read_images`; what is more than whole
            patches is cut off to the right and below.
        seed: Of the order. Default 0.

    Raises ValueError if tokens of the network are not patches of the image, or the image holds less than two."""
    patch, stem = getattr(backbone, 'patch_size', None), getattr(backbone, 'patch_embed', None)
    whole = type(stem) is PatchEmbed and stem.stride == stem.patch_size
    if patch is None or not whole or len(find_stages(backbone)) != 1:
        raise ValueError(
            f'tokens of {type(backbone).__name__} are not the patches of an image, which could be put into another '
            'order: give a network of one stage with a patch embedding, e.g. mmlape.VisionTransformer'
        )
    grid = image.shape[2] // patch[0], image.shape[3] // patch[1]
    number = grid[0] * grid[1]
    if number < 2:
        raise ValueError(f'the image must hold two patches of {patch} at least, got {grid}')
    image = image[:, :, : grid[0] * patch[0], : grid[1] * patch[1]]
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    shuffled, differences = shuffle_patches(image, patch, order), []
    with torch.no_grad():
        walks = (backbone.walk(each) for each in (image, shuffled))  # type: ignore[operator]  # a method
        for (before, _), (after, _) in zip(*walks):
            before, back = before[0, -number:], torch.empty_like(after[0, -number:])
            back[order] = after[0, -number:]
            distance = (back - before).norm(dim=1) / before.norm(dim=1).clamp(min=1e-12)
            differences.append(distance.reshape(grid).numpy())
    shown, mixed = (each[0].mean(0).numpy() for each in (image, shuffled))
    return PatchOrder(grid, order.numpy(), shown, mixed, np.stack(differences))


def without_position(config: Config) -> Config:
    """The same config with no position embedding, none inside the attention, and nothing to join."""
    config = copy.deepcopy(config)
    options: dict[str, Any] = config.model.backbone
    options.pop('joining', None)
    options.update(position=False, attention_position=False)
    return config


class Predictions(NamedTuple):
    """Predictions of a classifier for the images of a data set."""

    names: tuple[str, ...]  #: In the order of the data set; their numbers where they have no names.
    labels: np.ndarray  #: ``(images,)``, true classes.
    predicted: np.ndarray  #: ``(images,)``, the class with the highest score.


def split_predictions(without: Predictions, with_position: Predictions) -> dict[str, np.ndarray]:
    """Split the images of two files of :func:`read_predictions` by what position does to their classification.

    ==================  ================  ==================
    (Table 2)           with it: right    with it: wrong
    ==================  ================  ==================
    without it: right   ignored           mislead
    without it: wrong   correct           useless
    ==================  ================  ==================

    Returns:
        The indices of the images of each kind, in the order of the table.

    Raises ValueError if they are not of the same images with the same true classes, in the same order."""
    if without.names != with_position.names:
        raise ValueError(
            f'predictions must be of the same images in the same order, got {len(without.names)} and '
            f'{len(with_position.names)}, which differ'
        )
    if not np.array_equal(without.labels, with_position.labels):
        raise ValueError('predictions must have the same true classes (gt_label)')
    first, second = (each.predicted != each.labels for each in (without, with_position))
    kinds = 2 * first + second
    return {kind: np.flatnonzero(kinds == number) for number, kind in enumerate(KINDS)}


def read_predictions(path: str | Path) -> Predictions:
    """Read what ``mmlape test CONFIG CHECKPOINT --out FILE.pkl`` has written of a classifier, or the same as JSON.

    JSON is a list with ``{"gt_label": 3, "pred_label": 5, "img_path": "a.jpg"}`` for each image, its path optional.
    Pickles are read without running anything that is in them.

    Raises FileNotFoundError if there is no such file; ValueError if it holds something else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'there is no file of predictions {str(path)!r}')
    try:
        with path.open('rb') as file:
            entries = json.load(file) if path.suffix == '.json' else PlainUnpickler(file).load()
        names = tuple(str(entry.get('img_path', n)) for n, entry in enumerate(entries))
        labels, predicted = (
            np.array([int(entry[key]) for entry in entries]) for key in ('gt_label', 'pred_label')
        )
    except Exception as error:  # a foreign file raises many types
        raise ValueError(
            f'{str(path)!r} cannot be read as predictions, a list with one class as gt_label and as pred_label for '
            f'each image: {type(error).__name__}: {error}'
        ) from error
    return Predictions(names, labels, predicted)

r"""Analysis of DTN and of norms (DTN, ICLR 2022): learned maps and ratios, lengths and principal components of tokens,
and how far tokens are from the mean that a norm subtracts.

The variation coefficient of a token x (Figure 3 (b)) is :math:`\lVert (x - \mu) / x \rVert`, the Euclidean norm over
its channels, with :math:`\mu` the mean in the normalization layer: of LN the token's own, of IN each channel's over the
tokens, of DTN a mixture of the token's own and of those around it, by its ratios. Values of x near zero weigh heavily,
so that a few tokens can outweigh all others: quartiles say more than means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.backbones import Stage
from mmlape.checks import check_grid, check_option
from mmlape.layers import AttentionLayer
from mmlape.layout import Grid, Layout
from mmlape.norm import DTN, LN, TokenGN, TokenIN
from mmlape.norm.dtn_maps import Windows
from mmlape.training.paper_hooks import RATIO_PREFIX

from . import COMPARED, NORMS
from .loading import Layers, NormPlace, Result, dtn_places, norm_places, record_calls
from .position import centre_of, token_row

# The grid of the paper's figures, where there is no position embedding with another.
DEFAULT_GRID = (14, 14)
SCALARS = 'scalars.json'
BEFORE = 'before'
_KINDS = dict(zip(COMPARED, (LN, TokenIN, DTN)))


class LayerMaps(NamedTuple):
    """One token's row of the maps of one DTN."""

    name: str  #: ``'layer 0 norm1'``, ...
    pool: int  #: Tokens per side of a cell.
    cell: tuple[int, int]  #: ``(row, column)`` of the cell that the token lies in.
    maps: np.ndarray  #: ``(G, A, E)`` over ``A x E`` cells, G = 1 where all heads have the same; every map sums to one.


class PositionMaps(NamedTuple):
    """The maps of a stage."""

    stage: str  #: Its name.
    grid: Grid  #: ``(H, W)`` in tokens.
    token: tuple[int, int]  #: ``(row, column)`` of the token whose row is shown.
    layers: tuple[LayerMaps, ...]  #: One entry per DTN.

    def arrays(self, suffix: str = '') -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``: ``maps_layer0_norm1<suffix>``, ..., ``cell_...``, ``grid``, ``token``."""
        found = {name: np.asarray(getattr(self, name)) for name in ('stage', 'grid', 'token')}
        for layer in self.layers:
            name = layer.name.replace(' ', '', 1).replace(' ', '_')
            found |= {f'maps_{name}{suffix}': layer.maps, f'cell_{name}': np.asarray(layer.cell)}
        return found


def dtn_maps(
    stage: Stage,
    grid: Grid | None = None,
    token: Sequence[int] | None = None,
    layers: Layers = None,
    norms: Sequence[str] = NORMS,
) -> PositionMaps:
    """One token's row of the maps ``P_h`` (eq. 6) of every head of every DTN of a stage: where the token takes its
    inter-token statistics from (Figures 6 and 7).

    Args:
        grid: ``(H, W)`` in tokens. Default None: that of the position embedding of the stage, else 14 x 14.
        token: ``(row, column)``. Default None: the centre. Prefix tokens take no part in the maps.
        layers: 0-based, see :func:`~mmlape.research.analysis.dtn_places`. Default None: all with DTN.
        norms: ``'norm1'``, ``'norm2'`` or both (default).

    Raises ValueError if the grid, the token or a layer does not exist, or a layer has no DTN; TypeError if ``token`` is
    not a pair."""
    if grid is None:
        grid = DEFAULT_GRID if stage.position is None else stage.position.embedding.grid
    grid = check_grid('grid', grid)
    token = divmod(token_row(centre_of(grid) if token is None else token, grid, 0), grid[1])
    places = dtn_places(stage, layers, norms)
    if not places:
        raise ValueError(f'no layer of {stage.name!r} has DTN as its {" or ".join(norms)}')
    found = []
    for place in places:
        norm: Any = place.norm
        y, x = token[0] // norm.pool, token[1] // norm.pool
        with torch.no_grad():
            down, across = norm.axis_maps(grid)
            maps = down[:, y, :, None] * across[:, x, None, :]
        found.append(LayerMaps(place.name, norm.pool, (y, x), maps.cpu().float().numpy()))
    return PositionMaps(stage.name, grid, token, tuple(found))


class NormTokens(NamedTuple):
    """Tokens before and after one norm of a layer, of one image."""

    stage: str  #: Name of the stage.
    name: str  #: ``'layer 0 norm1'``, ...
    grid: Grid  #: ``(H, W)``.
    num_prefix: int  #: Prefix tokens ``P``, which come first.
    num_heads: int  #: Heads ``G``: those of the norm where it has some, else those of the layer's attention.
    #: ``(P + H * W, C)`` each: ``'before'``; the layer's own norm, e.g. ``'after DTN'``; and for every other norm
    #: compared, e.g. ``'LN, initial'``, with its initial weights on the same tokens.
    versions: dict[str, np.ndarray]


def norm_tokens(
    backbone: nn.Module,
    image: Tensor,
    stage: Stage,
    layers: Layers = None,
    norm: str = 'norm1',
    compared: Sequence[str] = COMPARED,
) -> list[NormTokens]:
    """Run a backbone on an image and keep what goes into and comes out of the norms of a stage.

    Args:
        norm: ``'norm1'`` (default), before attention, or ``'norm2'``, before the feed-forward network.
        compared: Other norms: any of ``'LN'``, ``'IN'``, ``'DTN'``; the kind that the layer has itself is left out.
            Default: all. Their weights are 1 and biases 0; a DTN has the heads of the layer, equation 7's positions and
            no pooling.

    Raises ValueError if a layer or a norm does not exist."""
    names = [check_option('compared norm', name, COMPARED) for name in compared]
    places, found = norm_places(stage, layers, (norm,)), []
    with torch.no_grad(), record_calls({place: place.norm for place in places}) as calls:
        backbone(image)
        for place in places:
            (tokens, where, *_), output = calls[place]
            layout, heads = Layout.of(tokens, where), _heads_of(stage, place, tokens)
            versions = {BEFORE: tokens, f'after {_short_name(place.norm)}': output}
            for name in names:
                if not isinstance(place.norm, _KINDS[name]):
                    versions[f'{name}, initial'] = _initial_norm(name, tokens, heads)(tokens, where)
            rows = {version: value[0].cpu().float().numpy() for version, value in versions.items()}
            about = (stage.name, place.name, layout.grid, layout.num_prefix, heads)
            found.append(NormTokens(*about, rows))
    return found


def _heads_of(stage: Stage, place: NormPlace, tokens: Tensor) -> int:
    """Return the heads of the norm, else of the layer; 1 if they do not divide the channels (LeViT has 6 for 256)."""
    if isinstance(place.norm, DTN):
        return place.norm.num_heads
    attention = stage.blocks[place.layer].get_submodule('attn')
    heads = attention.num_heads if isinstance(attention, AttentionLayer) else 1
    return heads if tokens.shape[2] % heads == 0 else 1


def _initial_norm(name: str, tokens: Tensor, num_heads: int) -> nn.Module:
    """A norm of ``COMPARED`` for these tokens with initial weights, always the same."""
    channels = tokens.shape[2]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)  # equation 7 leaves some heads of a DTN random
        norm = DTN(channels, num_heads) if name == 'DTN' else _KINDS[name](channels)
    return norm.to(tokens.device)


def _short_name(norm: nn.Module) -> str:
    """``'LN'``, ``'IN'`` or ``'DTN'``, else the name of its class."""
    names = (name for name, kind in _KINDS.items() if isinstance(norm, kind))
    return next(names, type(norm).__name__)


def magnitude_maps(tokens: NormTokens) -> dict[str, np.ndarray]:
    """Euclidean lengths of every head of the tokens with a place, ``(G, H, W)`` for each version (Figure 1)."""
    found = {}
    for name, rows in tokens.versions.items():
        heads = rows[tokens.num_prefix :].reshape(*tokens.grid, tokens.num_heads, -1)
        found[name] = np.moveaxis(np.linalg.norm(heads, axis=3), 2, 0)
    return found


class Projection(NamedTuple):
    """Tokens in the plane of their first two principal components."""

    points: np.ndarray  #: ``(N, 2)``, from the mean of the tokens.
    #: ``(2,)``, share of the variance of each component; 0 where all tokens are equal.
    explained: np.ndarray
    spread: float  #: Root mean square distance of the tokens from their mean, in all channels.
    num_prefix: int = 0  #: Prefix tokens that the points begin with.


def project(tokens: np.ndarray, directions: bool = False) -> Projection:
    """Project tokens ``(N, C)`` on their first two principal components, whose largest entry is positive.

    Args:
        tokens: At least two channels.
        directions: Scale every token to length one first, so that only directions differ. Default False."""
    x = torch.from_numpy(tokens).double()
    x = F.normalize(x, dim=1) if directions else x
    x = x - x.mean(dim=0)
    # The C x C covariance is small however many tokens there are.
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    axes, variance = vectors[:, [-1, -2]], values[[-1, -2]].clamp(min=0)
    points = x @ (axes * axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)).sign())
    total = x.square().sum() / len(x)
    explained = variance / total if total > 0 else torch.zeros(2)
    return Projection(points.numpy(), explained.numpy(), float(total.sqrt()))


def project_versions(
    tokens: NormTokens, with_prefix: bool = False, directions: bool = False
) -> dict[str, Projection]:
    """Project every version of the tokens of :func:`norm_tokens`, each on components of its own (Figure 9).

    Args:
        with_prefix: Keep prefix tokens, which come first. Default False.
        directions: See :func:`project`."""
    first = 0 if with_prefix else tokens.num_prefix
    return {
        name: project(rows[first:], directions)._replace(num_prefix=tokens.num_prefix - first)
        for name, rows in tokens.versions.items()
    }


@dataclass(frozen=True)
class TokenVariation(Result):
    """Variation coefficients of the tokens with a place, of all images."""

    stage: str  #: Name of the stage.
    norm: str  #: ``'norm1'`` or ``'norm2'``.
    layers: np.ndarray  #: ``(L,)``, 0-based indices.
    #: Whose mean: first that of the first layer's own norm, e.g. ``'DTN'``; then of those compared, ``'LN'``, ``'IN'``
    #: or ``'DTN, initial'``.
    names: tuple[str, ...]
    #: ``(names, L, tokens)``; NaN in the first row for layers with another norm than the first.
    coefficients: np.ndarray

    @property
    def quartiles(self) -> np.ndarray:
        """Lower quartile, median and upper quartile over tokens, ``(names, L, 3)``."""
        return np.moveaxis(np.quantile(self.coefficients, (0.25, 0.5, 0.75), axis=-1), 0, -1)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``, with the quartiles."""
        return super().arrays() | {'quartiles': self.quartiles}


def token_variation(
    backbone: nn.Module,
    images: Iterable[Tensor],
    stages: Sequence[Stage],
    layers: Layers = None,
    norm: str = 'norm1',
    compared: Sequence[str] = COMPARED,
) -> list[TokenVariation]:
    """Variation coefficients before the norms of some layers (Figure 3 (b)).

    Args:
        norm, compared: As for :func:`norm_tokens`; what the first layer has itself is left out.

    Raises ValueError if there is no image, a layer or norm does not exist, or the layers have a norm without mean."""
    kept = [check_option('compared norm', name, COMPARED) for name in compared]
    places = [norm_places(stage, layers, (norm,)) for stage in stages]
    every = {(n, place): place.norm for n, of in enumerate(places) for place in of}
    names = []
    for of_stage in places:
        own = _short_name(of_stage[0].norm)
        names.append([own, *(name for name in kept if name != own)])
    found: list[list[np.ndarray]] = [[] for _ in stages]
    for image in images:
        with torch.no_grad(), record_calls(every) as calls:
            backbone(image)
            for n, stage in enumerate(stages):
                rows = []
                for place in places[n]:
                    args = calls[n, place][0]
                    heads = _heads_of(stage, place, args[0])
                    rows.append(_coefficients(args, place.norm, heads, names[n]))
                found[n].append(np.stack(rows, axis=1))
    if not all(found):
        raise ValueError('images must hold at least one image')
    return [
        TokenVariation(
            stage.name,
            norm,
            np.asarray([place.layer for place in places[n]]),
            (names[n][0], *(f'{k}, initial' if k == 'DTN' else k for k in names[n][1:])),
            np.concatenate(found[n], axis=-1),
        )
        for n, stage in enumerate(stages)
    ]


def _coefficients(args: tuple, norm: nn.Module, num_heads: int, names: Sequence[str]) -> np.ndarray:
    """Compute coefficients of one image before one norm, by the mean of each of ``names``: ``(names, H * W)``."""
    tokens, layout = args[0], Layout.of(*args[:2])
    norms = [_initial_norm(name, tokens, num_heads) for name in names[1:]]
    rows = [
        variation_coefficients(layout.split(tokens)[1], mean_of(each, tokens, layout))[0]
        for each in ([norm] if _short_name(norm) == names[0] else []) + norms
    ]
    missing = [torch.full((layout.num_cells,), torch.nan).double()] * (len(names) - len(rows))
    return torch.stack([*missing, *(row.cpu() for row in rows)]).numpy()


def variation_coefficients(tokens: Tensor, mean: Tensor) -> Tensor:
    """``||(x - mean) / x||`` of every token ``(B, N, C)``, with a mean that broadcasts: ``(B, N)`` float64. A channel
    in which a token is exactly zero is left out of its norm."""
    x = tokens.double()
    return ((x - mean.double()) / x).masked_fill(x == 0, 0).norm(dim=-1)


def mean_of(norm: nn.Module, tokens: Tensor, where: Layout) -> Tensor:
    """The mean that a norm subtracts from the tokens with a place; it broadcasts with ``(B, H * W, C)``.

    Args:
        norm: LN (PyTorch's too), IN, GN or DTN. A DTN that stabilizes subtracts the mean from tokens whose heads are
            divided by their root mean square; it is given for the tokens as they are, which changes no coefficient.
        tokens: ``(B, P + H * W, C)``.
        where: Their layout.

    Raises ValueError if the norm subtracts no such mean."""
    tokens = tokens.double()
    _, cells = where.split(tokens)
    if isinstance(norm, DTN):
        return _mean_of_dtn(norm, cells, where)
    if isinstance(norm, TokenIN):
        return tokens.mean(dim=1, keepdim=True)
    if isinstance(norm, TokenGN):
        groups = tokens.unflatten(2, (norm.num_groups, -1)).mean(dim=(1, 3))
        return groups.repeat_interleave(tokens.shape[2] // norm.num_groups, dim=1)[:, None]
    if isinstance(norm, (LN, nn.LayerNorm)):
        return cells.mean(dim=2, keepdim=True)
    raise ValueError(
        f'a {type(norm).__name__} subtracts no mean that tokens could be compared with: the variation coefficient is '
        'that of LN, IN, GN and DTN'
    )


def _mean_of_dtn(norm: DTN, cells: Tensor, where: Layout) -> Tensor:
    """``r mu_token + (1 - r) P x`` by head (eq. 4), ``(B, H * W, C)``."""
    x = cells.unflatten(2, (norm.num_heads, -1))
    scale = torch.ones_like(x[..., :1])
    if norm.stabilize:
        scale = (x.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    windows = Windows.of(where, norm.pool)
    view = windows.view(x / scale)
    P_y, P_x = (part.double().expand(norm.num_heads, -1, -1) for part in norm.axis_maps(where.grid))
    around = torch.einsum('gya,gxe,baegd->byxgd', P_y, P_x, windows.mean(view))
    own = view.mean(dim=(-2, -1), keepdim=True)
    mean = torch.lerp(windows.spread(around), own, norm.ratio_mean(x))
    return (mean.flatten(1, -3) * scale).flatten(2)


class RatioCourse(NamedTuple):
    """DTN's ratios during a training, of every layer that has some (Figure 8)."""

    steps: np.ndarray  #: ``(S,)``, iterations done, ascending.
    #: ``(S, heads)`` by ``(layer, 'mean' or 'var')``; NaN where a record lacks it.
    values: dict[tuple[str, str], np.ndarray]

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in the order of the network."""
        return list(dict.fromkeys(layer for layer, _ in self.values))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``: ``steps``, and ``<layer>/<mean or var>`` for each."""
        return {'steps': self.steps} | {'/'.join(key): value for key, value in self.values.items()}


def read_ratios(paths: Sequence[str | Path]) -> RatioCourse:
    """Read the ratios that ``mmlape.DTNRatioHook`` has logged in a run.

    Args:
        paths: ``scalars.json`` of a run, its folder ``vis_data``, or a work folder (all runs in it, so that a resumed
            training is one course). Where two files know the same iteration, the later run counts, and what an earlier
            one did after the place where it was resumed is dropped.

    Raises FileNotFoundError if a path does not exist; ValueError if there are no ratios."""
    records: dict[int, dict[str, float]] = {}
    for path in map(Path, paths):
        # Folders of runs are named by the time of their start.
        for file in sorted(path.rglob(SCALARS)) if path.is_dir() else [path]:
            found = _records_of(file)
            first = min(found, default=math.inf)
            records = {step: record for step, record in records.items() if step < first} | found
    if not records:
        listed = ', '.join(repr(str(path)) for path in paths)
        raise ValueError(
            f"no ratios are logged in {listed}: train with custom_hooks=[dict(type='mmlape.DTNRatioHook')]"
        )
    steps = sorted(records)
    heads: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(name for step in steps for name in records[step]):
        layer, kind, _ = name.removeprefix(f'{RATIO_PREFIX}/').rsplit('/', 2)
        heads.setdefault((layer, kind), []).append(name)
    values = {
        key: np.array([[records[step].get(name, np.nan) for name in names] for step in steps])
        for key, names in heads.items()
    }
    return RatioCourse(np.asarray(steps), values)


def _records_of(file: Path) -> dict[int, dict[str, float]]:
    """Ratios of each step by the names of their scalars."""
    found: dict[int, dict[str, float]] = {}
    for line in file.read_text(encoding='utf-8').splitlines():
        with suppress(json.JSONDecodeError):  # an interrupted run leaves a cut line
            record = json.loads(line)
            ratios = {n: float(record[n]) for n in record if n.startswith(f'{RATIO_PREFIX}/')}
            if ratios:
                found.setdefault(int(record['step']), {}).update(ratios)
    return found

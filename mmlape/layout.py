"""The layout of tokens (prefix tokens, grid, padding), and the cache of tensors that depend on a grid alone."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from mmlape.runtime.private import in_transform

Grid = tuple[int, int]
Made = TypeVar('Made')
Arguments = ParamSpec('Arguments')
# Bytes of one cache: enough for the indices, sinusoids and reference points of hundreds of grids.
MAX_BYTES = 32 * 2**20


def maps_of(cells: Tensor, grid: Grid) -> Tensor:
    """``(B, H * W, C)`` as maps ``(B, C, H, W)``, a channels-last view."""
    # transpose(1, 2) first would hide channels-last strides of a single image: depthwise convolutions are then several
    # times slower.
    return cells.unflatten(1, grid).permute(0, 3, 1, 2)


def centres(count: int, extent: int, device: torch.device) -> Tensor:
    """Centres of ``count`` equal parts of an axis of ``extent`` cells, in cells from the first centre, ``(count,)``."""
    steps = torch.arange(count, device=device, dtype=torch.float32)
    return steps if count == extent else (steps + 0.5) * (extent / count) - 0.5


@dataclass(frozen=True)
class Layout:
    """How tokens ``(B, P + H * W, C)`` are arranged: P prefix tokens (class, distillation, registers), then the cells
    of a grid in raster order. It travels through a network beside its tokens, and unpacks into ``height, width``.

    Args:
        grid: ``(H, W)``; ``(1, length)`` for a sequence.
        num_prefix: P. Default 0.
        mask: ``(B, H * W)``, True for cells that are there and False for padding. Default None: all are there.

    Raises:
        ValueError: If a size is out of range, or the mask is not a boolean tensor of one value per cell.
    """

    grid: Grid
    num_prefix: int = 0
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.grid, tuple):  # a config's list cannot be hashed
            object.__setattr__(self, 'grid', tuple(self.grid))
        if len(self.grid) != 2 or min(self.grid) < 1:
            raise ValueError(f'grid must be (height, width), both at least 1, got {self.grid!r}')
        if self.num_prefix < 0:
            raise ValueError(f'num_prefix must be at least 0, got {self.num_prefix}')
        mask = self.mask
        if mask is not None and (
            mask.dtype != torch.bool or mask.ndim != 2 or mask.shape[1] != self.num_cells
        ):
            raise ValueError(
                f'mask must be boolean and (batch, {self.num_cells}), one value per cell of the grid '
                f'{self.grid}, got {mask.dtype} {tuple(mask.shape)}'
            )

    @classmethod
    def of(cls, tokens: Tensor, where: Layout | Grid | None) -> Layout:
        """The layout of ``tokens``.

        Args:
            tokens: ``(B, N, C)``.
            where: Their layout, or their grid: tokens beyond the grid's are prefix tokens. None for a square grid
                without prefix tokens.

        Raises:
            ValueError: If the tokens do not fill it, its mask is for another batch, or there is no layout and their
                number is not a square.
        """
        count = tokens.shape[1]
        if where is None:
            side = math.isqrt(count)
            if not side or side * side != count:
                raise ValueError(
                    f'this layer needs grid=(height, width): {count} tokens are not a square grid. '
                    'A sequence has the grid (1, length); prefix tokens come on top of the grid'
                )
            return cls((side, side))
        if not isinstance(where, Layout):
            return cls.around(where, count)
        if where.num_prefix + where.grid[0] * where.grid[1] != count:
            raise ValueError(f'{where} has {where.num_tokens} tokens, got {count}')
        if where.mask is not None and where.mask.shape[0] != tokens.shape[0]:
            raise ValueError(f'mask of {len(where.mask)} images, got tokens of {len(tokens)}')
        return where

    @classmethod
    def around(cls, grid: Grid, num_tokens: int) -> Layout:
        """The layout of ``num_tokens`` tokens, the last of which are those of ``grid``."""
        if len(grid) != 2 or min(grid) < 1 or grid[0] * grid[1] > num_tokens:
            raise ValueError(
                f'grid must be (height, width) with height * width at most the {num_tokens} tokens '
                f'given (more are prefix tokens), got {grid}'
            )
        return cls((grid[0], grid[1]), num_tokens - grid[0] * grid[1])

    def pooled(self, side: int) -> Grid:
        """Rows and columns of blocks of ``side x side`` cells; the last ones may hold fewer."""
        height, width = self.grid
        return (height + side - 1) // side, (width + side - 1) // side

    @property
    def num_cells(self) -> int:
        """``H * W``."""
        return self.grid[0] * self.grid[1]

    @property
    def num_tokens(self) -> int:
        """``P + H * W``."""
        return self.num_prefix + self.num_cells

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Prefix tokens ``(B, P, C)`` and cells ``(B, H * W, C)``."""
        return tokens[:, : self.num_prefix], tokens[:, self.num_prefix :]

    def join(self, prefix: Tensor, cells: Tensor) -> Tensor:
        """``(B, P + H * W, C)`` of what :meth:`split` took apart."""
        return torch.cat([prefix, cells], dim=1) if self.num_prefix else cells

    def to_maps(self, tokens: Tensor) -> Tensor:
        """The cells as a map ``(B, C, H, W)``, a view."""
        return maps_of(tokens[:, self.num_prefix :] if self.num_prefix else tokens, self.grid)

    def with_prefix(self, num_prefix: int) -> Layout:
        """The same grid after ``num_prefix`` prefix tokens."""
        return self if num_prefix == self.num_prefix else replace(self, num_prefix=num_prefix)

    def token_mask(self) -> Tensor | None:
        """``(B, P + H * W)``, True for prefix tokens and cells that are there; None where all are."""
        if self.mask is None or not self.num_prefix:
            return self.mask
        return torch.nn.functional.pad(self.mask, (self.num_prefix, 0), value=True)

    def __iter__(self) -> Iterator[int]:
        return iter(self.grid)

    def __getitem__(self, axis: int) -> int:
        return self.grid[axis]


def can_cache() -> bool:
    """Whether tensors that are created now can serve later calls: not inside ``torch.compile``, a transform of
    ``torch.func``, or ``FakeTensorMode``."""
    return not (torch.compiler.is_compiling() or in_transform()) and type(torch.empty(0)) is Tensor


class GridCache:
    """Least-recently-used cache whose tensors have at most ``max_bytes`` together (default 32 MiB); a larger value is
    not cached."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The cached value of ``key``, else ``make()``, which is then cached. It is shared: do not write into it.

        Where :func:`can_cache` is False, the cache is neither read nor written.
        """
        if not can_cache():
            return make()
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value  # most recently used
            return value
        # A tensor made in inference mode could not serve a later training step.
        with torch.inference_mode(False):
            value = make()
        if _num_bytes([value]) > self.max_bytes:
            return value
        self._values[key] = value
        while self.num_bytes() > self.max_bytes:
            self._values.popitem(last=False)
        return value

    def num_bytes(self) -> int:
        """Bytes in the cache; a storage that several values share counts once."""
        return _num_bytes(list(self._values.values()))

    def clear(self) -> None:
        """Empty the cache."""
        self._values.clear()

    def __len__(self) -> int:
        return len(self._values)


def cached(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Decorator: cache results in a :class:`GridCache`, the function's attribute ``cache``.

    The function must depend only on its hashable arguments (a device among them), never on parameters.
    """
    cache = GridCache()

    @wraps(make)
    def get(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
        return cache.get((args, *kwargs.items()), partial(make, *args, **kwargs))

    get.cache = cache  # type: ignore[attr-defined]  # a function with an attribute
    return get


def _num_bytes(values: list[Any]) -> int:
    storages = [each.untyped_storage() for value in values for each in _tensors(value)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _tensors(entry)

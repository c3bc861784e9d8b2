"""What a backbone returns of its tokens: maps for dense prediction, vectors for a classifier."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from mmlape.checks import check_option

Grid = tuple[int, int]


def split(tokens: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Feature map ``(B, C, H, W)`` and prefix tokens ``(B, P, C)`` of tokens ``(B, P + H * W, C)``."""
    num_prefix = tokens.shape[1] - grid[0] * grid[1]
    cells = tokens[:, num_prefix:].transpose(1, 2).unflatten(2, grid)
    return cells.contiguous(), tokens[:, :num_prefix]


def _average(tokens: Tensor, grid: Grid) -> Tensor:
    return tokens[:, tokens.shape[1] - grid[0] * grid[1] :].mean(1)


# By the name of an out_type. Prefix tokens come first, the class token before the distillation token.
OUTPUTS = {
    'featmap': lambda tokens, grid: split(tokens, grid)[0],
    'featmap_and_prefix': split,
    'raw': lambda tokens, grid: tokens,
    'cls_token': lambda tokens, grid: tokens[:, 0],
    'cls_and_dist': lambda tokens, grid: (tokens[:, 0], tokens[:, 1]),
    'avg': _average,
}
# Tokens that an out_type cannot do without.
_NEEDED = {'cls_token': ('cls_token',), 'cls_and_dist': ('cls_token', 'dist_token')}


def check_out_type(out_type: str, accepted: Collection[str], prefix_names: Collection[str]) -> str:
    """Return ``out_type`` if it is accepted and the tokens that it names are among ``prefix_names``.

    Raises:
        ValueError: If it is not.
    """
    check_option('out_type', out_type, accepted)
    missing = [name for name in _NEEDED.get(out_type, ()) if name not in prefix_names]
    if missing:
        raise ValueError(
            f'out_type={out_type!r} needs {" and ".join(f"with_{name}=True" for name in missing)}, '
            'and outputs (out_indices) of layers that these tokens have joined'
        )
    return out_type

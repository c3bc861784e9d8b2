"""What a backbone returns of its tokens: maps for dense prediction, vectors for a classifier."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from mmlape.checks import check_option
from mmlape.layout import Layout
from mmlape.registry import MODELS

Output = Callable[[Tensor, Layout], Any]

# By the name of an out_type. Prefix tokens come first: the class token, the distillation token, registers.
OUTPUTS: dict[str, Output] = {
    'featmap': lambda tokens, layout: layout.to_maps(tokens).contiguous(),
    'featmap_and_prefix': lambda tokens, layout: (
        layout.to_maps(tokens).contiguous(),
        layout.split(tokens)[0],
    ),
    'raw': lambda tokens, layout: tokens,
    'cls_token': lambda tokens, layout: tokens[:, 0],
    'cls_and_dist': lambda tokens, layout: (tokens[:, 0], tokens[:, 1]),
    'avg': lambda tokens, layout: layout.split(tokens)[1].mean(1),
}
# Tokens that an out_type cannot do without.
_NEEDED = {'cls_token': ('cls_token',), 'cls_and_dist': ('cls_token', 'dist_token')}
# Of which prefix tokens are a part.
READ_PREFIX = ('featmap_and_prefix', 'raw', 'cls_token', 'cls_and_dist')
# With a value for every token; the others are for classifiers, as poolings with parameters are.
DENSE = ('featmap', 'featmap_and_prefix', 'raw')


def check_out_type(out_type: str | dict, prefix_names: Collection[str]) -> str | dict:
    """Return ``out_type`` if it is known and the tokens that it names are among ``prefix_names``.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(out_type, dict):
        return out_type
    check_option('out_type', out_type, (*OUTPUTS, 'pooled'))
    missing = [name for name in _NEEDED.get(out_type, ()) if name not in prefix_names]
    if missing:
        raise ValueError(
            f'out_type={out_type!r} needs {" and ".join(f"with_{name}=True" for name in missing)}, '
            'and outputs (out_indices) of layers that these tokens have joined'
        )
    return out_type


def check_vector(out_type: str | dict, out_indices: tuple[int, ...], num_stages: int) -> None:
    """Raise ValueError if a classifier's ``out_type`` is asked of other stages than the last."""
    if out_type not in DENSE and out_indices != (num_stages - 1,):
        raise ValueError(
            f'out_type={out_type!r} is for a classifier, which sees the last stage alone: '
            f'out_indices must be {num_stages - 1}, got {out_indices}'
        )


def build_pooling(out_type: str | dict, embed_dims: int) -> nn.Module | None:
    """The pooling with parameters that an ``out_type`` is the config of, or None for one of :data:`OUTPUTS`."""
    return (
        MODELS.build(dict(out_type, embed_dims=embed_dims)) if isinstance(out_type, dict) else None
    )

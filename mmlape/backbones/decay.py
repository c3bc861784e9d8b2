"""Which parameters say where something is, or how much of it counts: shrinking them (weight decay) means nothing."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

# Positions, tokens and level embeddings by the names that our modules and upstream's give them.
EXEMPT_NAMES = (
    'pos_embed',
    'absolute_pos_embed',
    'relative_position_bias_table',
    'level_embed',
    'layer_position',
    'cls_token',
    'dist_token',
    'reg_token',
    'mask_token',
    'cls_emb',
)


def exempt_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Paths below which nothing decays, and the module that says so in its ``no_weight_decay``: a tuple of names of its
    children, ``('',)`` for all of it. Positions, joinings and DTN have one."""
    for path, module in model.named_modules(remove_duplicate=False):
        names = getattr(module, 'no_weight_decay', None)
        for name in names if isinstance(names, tuple) else ():
            yield '.'.join(part for part in (path, name) if part), module


def exempt_parameters(model: nn.Module) -> set[str]:
    """Names of parameters that do not decay, norms and biases apart, about which optimizers have rules of their own."""
    roots = tuple(f'{path}.' if path else '' for path, _ in exempt_modules(model))
    return {
        name
        for name, _ in model.named_parameters()
        if f'{name}.'.startswith(roots) or name.rpartition('.')[2] in EXEMPT_NAMES
    }

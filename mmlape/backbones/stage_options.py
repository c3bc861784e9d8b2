"""Options of backbones with stages: one value for all stages, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmlape.checks import check_keys, check_positive_int
from mmlape.norm import is_dtn

NUM_STAGES = 4
ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'mlp_ratios', 'sr_ratios')
# The published DTN-PVT (DTN, ICLR 2022, appendices A.1 and B): stage 4, which has the class token, keeps LayerNorm.
_DTN_STAGES = (dict(num_heads=4, pool=4), dict(num_heads=4, pool=2), dict(num_heads=5, pool=1))
_LAST_STAGE_NORM = dict(type='mmlape.LN', eps=1e-6)


def per_stage(name: str, value: Any) -> list:
    """One entry per stage from one value for all, or a list of four."""
    if not isinstance(value, (list, tuple)):
        return [value] * NUM_STAGES
    if len(value) != NUM_STAGES:
        raise ValueError(f'{name} must have one entry for each of 4 stages, got {value}')
    return list(value)


def check_arch(arch: Any, num_heads: Sequence[int] | None) -> dict[str, list]:
    """The architecture as lists of four, with ``num_heads`` in place of its own where given.

    Raises:
        ValueError: If keys are unknown or missing, or an entry has not four values or is out of range.
        TypeError: If ``arch`` is no dict, or a value has the wrong type.
    """
    arch = dict(check_keys('arch', arch, ARCH_KEYS))
    if num_heads is not None:
        arch['num_heads'] = num_heads
    resolved = {}
    for key in ARCH_KEYS:
        name = 'num_heads' if key == 'num_heads' else f'arch[{key!r}]'
        if not isinstance(arch[key], (list, tuple)):
            raise TypeError(f'{name} must be a list of 4 values, got {arch[key]!r}')
        resolved[key] = per_stage(name, arch[key])
        for value in resolved[key]:
            if key == 'mlp_ratios' and isinstance(value, float) and value > 0:
                continue
            check_positive_int(name, value)
    return resolved


def stage_norms(
    norm_cfg: dict | Sequence[dict] | None, num_heads: Sequence[int]
) -> list[dict[str, Any]]:
    """Config of the block norms of each stage.

    Args:
        norm_cfg: None for ``mmlape.LN`` with eps 1e-6; one for all stages, except that one ``mmlape.DTN`` goes where
            the published DTN-PVT has it; or a list of four.
        num_heads: Heads of the attention in each stage: those of a DTN in a list that does not name its own.
    """
    if norm_cfg is None:
        return [_LAST_STAGE_NORM] * NUM_STAGES
    if not isinstance(norm_cfg, (list, tuple)) and is_dtn(norm_cfg):
        return [*({**published, **norm_cfg} for published in _DTN_STAGES), _LAST_STAGE_NORM]
    return [
        {'num_heads': heads, **config} if is_dtn(config) else config
        for heads, config in zip(num_heads, per_stage('norm_cfg', norm_cfg))
    ]

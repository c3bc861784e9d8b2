"""Classifiers of a family in timm, as plain data that :mod:`mmlape.timm_models` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TimmRow(NamedTuple):
    """Names of classifiers in timm.

    Attributes:
        name: A name with ``{}``.
        arch: An architecture with ``{}``.
        sizes: What stands in both for ``{}``, separated by spaces; in names with ``_`` instead of ``-``.
        options: Further options of :class:`mmlape.research.pretraining.Classifier`.
        cfg: What timm's tools are told of these, where that differs from the family's ``timm_cfg``.
    """

    name: str
    arch: str
    sizes: str
    options: Mapping[str, Any] = {}
    cfg: Mapping[str, Any] = {}


LAPE: dict[str, Any] = dict(joining='lape')
DTN: dict[str, Any] = dict(norm_cfg=dict(type='mmlape.DTN'))
# Of maps that halve until a stride of 32.
PYRAMID_CFG: dict[str, Any] = dict(first_conv='backbone.patch_embed1.proj', pool_size=(7, 7))

"""The minimum score of a box that a model shows by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmlape.checkpoints.report import CheckpointError

SCORE = 0.3  # of models that know none of their own
KEY = 'score_threshold'  # in the `meta` of a checkpoint


def best_score(content: Mapping[str, Any], checkpoint: str) -> float | None:
    """The score of the best F1 that a training has stored with the weights (``mmlape.ReportHook``); None without one.

    Raises:
        CheckpointError: If it is not a number from 0 to 1.
    """
    meta = content.get('meta')
    stored = meta.get(KEY) if isinstance(meta, Mapping) else None
    if stored is None:
        return None
    try:  # texts in a .safetensors
        score = float(stored)
    except (TypeError, ValueError, OverflowError):
        score = -1.0
    if not 0 <= score <= 1:
        raise CheckpointError(
            f'{checkpoint}: its {KEY} is not a number from 0 to 1: {str(stored)[:40]!r}'
        )
    return score

"""Principal components of tokens before and after a norm (DTN, ICLR 2022, Figure 9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from .tokens import NormTokens


@dataclass(frozen=True)
class Projection:
    """Tokens in the plane of their first two principal components.

    Attributes:
        points: ``(N, 2)``, from the mean of the tokens.
        explained: ``(2,)``, share of the variance that each component holds; 0 where all tokens are equal.
        spread: Root mean square distance of the tokens from their mean, in all channels.
        num_prefix: Prefix tokens that the points begin with.
    """

    points: np.ndarray
    explained: np.ndarray
    spread: float
    num_prefix: int = 0


def project(tokens: np.ndarray, directions: bool = False) -> Projection:
    """Project tokens on their first two principal components.

    The sign of a component is free; here its largest entry is positive.

    Args:
        tokens: ``(N, C)``; at least two channels.
        directions: Scale every token to length one first, so that only directions differ. Default False.
    """
    x = torch.from_numpy(tokens).double()
    if directions:
        x = torch.nn.functional.normalize(x, dim=1)
    x = x - x.mean(dim=0)
    # Of the C x C covariance, which is small however many tokens there are.
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    axes, variance = vectors[:, [-1, -2]], values[[-1, -2]].clamp(min=0)
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    points = x @ (axes * largest.sign())
    total = x.square().sum() / len(x)
    explained = variance / total if total > 0 else torch.zeros(2)
    return Projection(points.numpy(), explained.numpy(), float(total.sqrt()))


def project_versions(
    tokens: NormTokens, with_prefix: bool = False, directions: bool = False
) -> dict[str, Projection]:
    """Project every version of the tokens of a norm, each on components of its own.

    Args:
        tokens: From :func:`~mmlape.analysis.norm_tokens`.
        with_prefix: Keep prefix tokens, which come first. Default False.
        directions: See :func:`project`.
    """
    first = 0 if with_prefix else tokens.num_prefix
    return {
        name: replace(project(rows[first:], directions), num_prefix=tokens.num_prefix - first)
        for name, rows in tokens.versions.items()
    }

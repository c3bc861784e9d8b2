"""Pictures of how far attention looks, and where to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mmlape.analysis.panels import SEQUENTIAL, add_scale, new_panels, new_plots, show_map

from .class_token import ClassAttention
from .distance import AttentionDistances


def draw_distances(stages: Sequence[AttentionDistances]) -> Figure:
    """Mean attention distance of every head by layer (Figure 2), a panel per stage.

    A dot is a head, dots side by side being in the order of the heads. A dashed line is the distance of equal weights.
    """
    figure, axes = new_plots(1, len(stages), share_y=False)
    for place, found in zip(axes[0], stages):
        heads = found.mean.shape[1]
        shift = np.linspace(-0.3, 0.3, heads) if heads > 1 else np.zeros(1)
        uniform = found.uniform.mean(axis=0)
        for layer, index in enumerate(found.layers):
            place.scatter(index + shift, found.mean[layer], s=12, color='tab:blue', linewidths=0)
            place.hlines(uniform[layer], index - 0.4, index + 0.4, 'black', 'dashed', linewidth=1)
        place.set_ylim(0, 1.1 * max(found.mean.max(), uniform.max(), 1e-6))
        place.set_xticks(found.layers)
        place.set_xlim(found.layers[0] - 0.6, found.layers[-1] + 0.6)
        place.set_xlabel('layer', fontsize=7)
        place.set_title(f'{found.stage}, {_grids(found.grids)}', fontsize=7, pad=3)
    axes[0, 0].set_ylabel('mean attention distance (patches)', fontsize=7)
    return figure


def draw_class_attention(images: Sequence[ClassAttention]) -> Figure:
    """The class token's attention: a row for each layer of each image, with the image, each head, and their mean.

    Colours are weights over that of equal attention, on one scale for all; what is more than the 99th percentile is as
    bright as that.

    Raises:
        ValueError: If there is no image, or numbers of heads differ.
    """
    heads = {found.maps.shape[1] for found in images}
    if len(heads) != 1:
        raise ValueError(f'images must be at least one, of equal numbers of heads, got {heads}')
    rows = [
        (found.image, layer, maps, maps[0].size + found.prefix.shape[-1])
        for found in images
        for layer, maps in zip(found.layers, found.maps)
    ]
    top = np.percentile(np.concatenate([(maps * n).ravel() for _, _, maps, n in rows]), 99)
    ratios = [max(image.shape[1] / image.shape[0] for image, *_ in rows)] * (heads.pop() + 2)
    figure, axes = new_panels(len(rows), len(ratios), ratios, with_scale=True)
    for places, (image, layer, maps, count) in zip(axes, rows):
        show_map(places[0], image, 'gray', (image.min(), image.max()), f'layer {layer}')
        titles = [f'head {head}' for head in range(len(maps))]
        for place, values, title in zip(
            places[1:], [*maps, maps.mean(0)], [*titles, 'mean of heads']
        ):
            shown = show_map(place, values * count, SEQUENTIAL, (0, max(top, 1e-6)), title)
    add_scale(figure, shown, 'weight / equal weight')
    return figure


def _grids(grids: np.ndarray) -> str:
    """The grid of all images, or that there are several."""
    different = np.unique(grids, axis=0)
    return '{} x {} tokens'.format(*different[0]) if len(different) == 1 else 'several grids'

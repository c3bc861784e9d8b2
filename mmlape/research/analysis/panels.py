"""Panels of ``mmlape app``, which show the inside of a model."""

from __future__ import annotations

from contextlib import suppress

import cv2
import numpy as np
from matplotlib.figure import Figure

from mmlape.apps.inference import Model, Result

from .attention import patch_sides, token_attention
from .drawing import draw_correlations
from .loading import find_stages, position_stages
from .position import plan_sources, position_correlations, position_plan


class ModelPanels:
    """The panels of a model, see :class:`mmlape.apps.app.Panels`.

    Attributes:
        layers: Layers with a position that can be shown, 0 for none.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.backbone = model, model.model.backbone
        self.layers = 0
        with suppress(ValueError):  # it has no embedding, or is another package's
            self.position = position_stages(self.backbone)[0]
            self.layers = len(self.position.blocks)

    def attention(self, found: Result, x: float, y: float) -> np.ndarray:
        """The image, ``(H, W, 3)``, RGB, under the attention of the token at pixel (x, y), of the last layer, mean of
        the heads; ValueError where no attention can be recorded."""
        tensor, scale = self.model.network_input(
            found.image if found.pixels is None else found.pixels
        )
        weights = token_attention(self.backbone, tensor, (y * scale[0], x * scale[1]))
        height, width = found.image.shape[:2]
        rows, columns = (round(side * each) for side, each in zip((height, width), scale))
        sides = patch_sides(self.backbone, find_stages(self.backbone)[-1])
        heat = np.kron(weights, np.ones(sides, np.float32))[:rows, :columns]
        heat = cv2.resize(heat, (width, height), interpolation=cv2.INTER_NEAREST)
        heat = (255 * heat / max(float(heat.max()), 1e-9)).astype(np.uint8)
        coloured = cv2.applyColorMap(heat, cv2.COLORMAP_INFERNO)
        drawn = cv2.addWeighted(found.image, 0.4, coloured, 0.6, 0)
        white, side = (255, 255, 255), max(height, width) // 30
        cv2.drawMarker(drawn, (int(x), int(y)), white, cv2.MARKER_CROSS, side)
        return drawn[..., ::-1]

    def correlation(self, layer: int) -> Figure:
        """The position correlation of a layer (LaPE, ICCV 2023, eq. 12), of the token in the middle."""
        source = plan_sources(position_plan(self.position))[-1]
        return draw_correlations(
            position_correlations(self.position, source=source, layers=[layer])
        )

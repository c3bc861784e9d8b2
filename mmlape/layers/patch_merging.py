"""Patch merging: from the map of a stage to one of half its sides."""

from __future__ import annotations

from torch import Tensor

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .linear import Linear
from .patch_embed import Stem, check_image, pad_to_multiple


@MODELS.register_module()
class PatchMerging(Stem):
    """Four neighbours become one token: their channels side by side, a norm, a linear layer without bias (Swin, ICCV
    2021, section 3.1).

    A map of odd sides is padded with zeros at the bottom and right. Parameter names are the published ones: ``norm``,
    ``reduction``; so is the order of the neighbours, (0, 0), (1, 0), (0, 1), (1, 1) by (row, column).

    Args:
        in_channels: Channels of the map.
        embed_dims: Channels ``C`` out.
        norm_cfg: Token norm of the ``4 * in_channels`` channels. Default ``mmlape.LN`` with eps 1e-5.

    Raises:
        ValueError: If a number of channels is out of range.
    """

    def __init__(
        self, in_channels: int, embed_dims: int = 192, norm_cfg: dict | None = None
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        check_positive_int('embed_dims', embed_dims)
        self.stride: Grid = (2, 2)
        norm_cfg = norm_cfg or dict(type='mmlape.LN', eps=1e-5)
        self.norm = build_token_norm(norm_cfg, 4 * in_channels)
        self.reduction = Linear(4 * in_channels, embed_dims, bias=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, in_channels, height, width)`` to tokens ``(B, H * W, C)`` and their layout.

        Raises:
            ValueError: If the map has another shape.
        """
        check_image(image, self.in_channels, 'a map')
        maps = pad_to_multiple(image, self.stride)
        # Channels of a neighbour stay together; columns go before rows.
        cells = maps.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 5, 3, 1)
        layout = Layout((cells.shape[1], cells.shape[2]))
        tokens = cells.flatten(3).flatten(1, 2)
        return self.reduction(self.norm(tokens, layout)), layout

"""The position that a stage has from the stage before it."""

from __future__ import annotations

from torch import Tensor

from mmlape.layout import Grid
from mmlape.registry import MODELS

from .base import PositionEmbedding


@MODELS.register_module()
class MergedPosition(PositionEmbedding):
    """What the stage before passes on of its position, merged to the grid of this stage as tokens are.

    LaPE's chain :math:`\\omega_{l+1} = LN_l(\\omega_l)` (ICCV 2023, eq. 8-11) so crosses from stage to stage; the paper
    leaves open how it does. Default joining passes nothing on: the tokens carry its position. It has no parameters.

    Args:
        embed_dims: Channels ``C``.
        grid: Pre-training grid ``(H0, W0)`` in tokens.
        num_prefix_tokens: 0; the stage before has no tokens without a place.
        num_tables: 1; tables of its own for each layer (``mmlape.UnsharedJoining``) need an embedding in every stage.

    Raises:
        ValueError: If there are prefix tokens, or more tables than one.
    """

    def __init__(
        self, embed_dims: int, grid: Grid, num_prefix_tokens: int = 0, num_tables: int = 1
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        if num_prefix_tokens or num_tables > 1:
            raise ValueError(
                'the position of the stage before has one table and no rows for prefix tokens, asked for '
                f'num_tables={num_tables} and num_prefix_tokens={num_prefix_tokens}: '
                'give a list with a position for every stage'
            )

    def forward(self, grid: Grid) -> Tensor:
        """Of itself it knows none.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            'mmlape.MergedPosition is made of the position of the stage before, in a pass of the network'
        )

"""timm's NaFlex Vision Transformers, which take images of several sizes at once, as networks of one size per batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class PlainNaFlex:
    """A ``NaFlexVit`` of timm with the attributes of its other Vision Transformers.

    For images of one size both compute the same: patches are projected by a linear layer in place of a convolution, and
    the position table is stored as a map.

    Args:
        model: timm's model.

    Attributes:
        resize: How its position table is resized, by the names of :class:`~mmlape.position.LearnedPosition`, which may
            not have it.
        square: Whether that is the square of the longer side.
        factorized: Whether position is a table of rows and one of columns.
    """

    no_embed_class = True

    def __init__(self, model: Any) -> None:
        self._model, embeds = model, model.embeds
        self.cls_token, self.reg_token = embeds.cls_token, embeds.reg_token
        self.pos_embed, self.square = embeds.pos_embed, embeds.pos_embed_ar_preserving
        self.factorized = embeds.pos_embed_type == 'factorized'
        grid = embeds.pos_embed_grid_size or (16, 16)
        size = tuple(cells * side for cells, side in zip(grid, embeds.patch_size))
        self.patch_embed = SimpleNamespace(
            img_size=size,
            patch_size=embeds.patch_size,
            proj=embeds.proj,
            norm=embeds.norm,
            norm_input=embeds.norm_input,
            in_channels=embeds.in_chans,
        )
        ways = (
            ('antialias', embeds.pos_embed_antialias),
            ('corners', embeds.pos_embed_align_corners),
            ('square', self.square),
        )
        self.resize = '_'.join([embeds.pos_embed_interp_mode, *(way for way, on in ways if on)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

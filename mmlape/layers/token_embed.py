"""From sequences of token ids to tokens."""

from __future__ import annotations

from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Layout
from mmlape.registry import MODELS

from .patch_embed import Stem, check_image


@MODELS.register_module()
class TokenEmbed(Stem):
    """A learned row for each token id, for sequences that come as images of one channel and one row: ``(B, 1, 1, T)``.

    Ids may be floating point numbers, as data preprocessors for images make of them. The layout has the mask of what is
    no padding, so that attention and norms that mix tokens leave padding out.

    Args:
        in_channels: Channels in, 1 (default).
        embed_dims: Channels ``C`` out. Default 512.
        vocab_size: Number of ids, that of padding among them. Default 16, those of
            :class:`~mmlape.datasets.ListOps`.
        padding_id: The id of padding. Default 0; None for sequences without padding, whose layout has no mask.

    Raises:
        ValueError: If a value is out of range.
    """

    stride = (1, 1)

    def __init__(
        self,
        in_channels: int = 1,
        embed_dims: int = 512,
        vocab_size: int = 16,
        padding_id: int | None = 0,
    ) -> None:
        super().__init__()
        check_positive_int('in_channels', in_channels, maximum=1)
        check_positive_int('vocab_size', vocab_size)
        if padding_id is not None:
            check_positive_int('padding_id', padding_id, minimum=0, maximum=vocab_size - 1)
        self.padding_id = padding_id
        self.embedding = nn.Embedding(vocab_size, check_positive_int('embed_dims', embed_dims))

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """Tokens ``(B, H * W, C)`` of ids ``(B, 1, H, W)``, and their layout.

        Raises:
            ValueError: If ``image`` has another shape.
            IndexError: On a CPU, if an id is not below ``vocab_size``.
        """
        check_image(image, 1, 'token ids')
        ids = image.flatten(1).long()
        mask = None if self.padding_id is None else ids != self.padding_id
        return self.embedding(ids), Layout((image.shape[2], image.shape[3]), mask=mask)

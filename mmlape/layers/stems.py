"""Stems: from an image or map, or a sequence, to the tokens of a stage."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .basic import StridedConv2d, build_map_norm


def pad_to_multiple(image: Tensor, multiple: Grid) -> Tensor:
    """Pad ``(B, C, H, W)`` with zeros at the bottom and right to multiples of ``(h, w)``."""
    height, width = image.shape[-2:]
    # Not -width % multiple: a graph for images of any size must see that the sum is a multiple. Nor
    # -(-width // multiple): ONNX divides towards zero.
    right = (width + multiple[1] - 1) // multiple[1] * multiple[1] - width
    bottom = (height + multiple[0] - 1) // multiple[0] * multiple[0] - height
    # Do not branch on symbolic sizes: that would specialise the graph.
    fits = isinstance(right, int) and isinstance(bottom, int) and not (right or bottom)
    return image if fits else F.pad(image, (0, right, 0, bottom))


def check_image(image: Tensor, in_channels: int, what: str = 'image') -> None:
    """Raise ValueError unless ``image`` is ``(B, in_channels, height, width)`` with sides of at least 1 pixel."""
    if image.ndim != 4 or image.shape[1] != in_channels or 0 in image.shape[-2:]:
        raise ValueError(
            f'{what} must have the shape (batch, {in_channels}, height, width) '
            f'with sides of at least 1 pixel, got {tuple(image.shape)}'
        )


def to_tokens(maps: Tensor) -> tuple[Tensor, Layout]:
    """Maps ``(B, C, H, W)`` as tokens ``(B, H * W, C)`` and their layout."""
    return maps.flatten(2).transpose(1, 2), Layout((maps.shape[2], maps.shape[3]))


class Stem(nn.Module):
    """Base class: makes the tokens of a stage from an image or from the map of the stage before. A subclass writes
    :meth:`embed`, or :meth:`forward` where it takes other input.

    Args:
        in_channels: Channels in. Default 3.

    Attributes:
        stride: Pixels, or cells, from one token to the next, ``(vertical, horizontal)``.
        pads: Whether the input is padded with zeros at the bottom and right to multiples of the stride. Default True.
        needs_grid: Whether it takes ``grid``: the sides, at the pre-training image size, of what it is given. Default
            False.
        kind: What messages call the input. Default ``'image'``.
    """

    stride: Grid
    pads: ClassVar[bool] = True
    needs_grid: ClassVar[bool] = False
    kind: ClassVar[str] = 'image'

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, C', height, width)`` to tokens ``(B, H * W, C)`` and their layout, on the grid of :meth:`grid_of`.

        Raises:
            ValueError: If the input is not ``(B, in_channels, height, width)`` with sides of at least 1.
        """
        check_image(image, self.in_channels, self.kind)
        return self.embed(pad_to_multiple(image, self.stride) if self.pads else image)

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        """:meth:`forward` of maps that are checked and padded."""
        raise NotImplementedError

    def grid_of(self, size: Grid) -> Grid:
        """The grid of an image of ``size = (height, width)``: ``ceil(height / stride)``, ``ceil(width / stride)``."""
        down, across = self.stride
        return (size[0] + down - 1) // down, (size[1] + across - 1) // across


@MODELS.register_module()
class PatchEmbed(Stem):
    """Patches, each projected to a token; the image is padded inside, so that every pixel of any size is covered.

    Patches lie side by side (ViT, PVT), or overlap where they are larger than the stride (PVTv2). Parameter names are
    the published ones: ``proj``, ``norm``.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 192.
        patch_size: Patch height and width in pixels, one integer or a pair. Default 16.
        stride: Pixels from one patch to the next, one integer or a pair. Default None: ``patch_size``.
        norm_cfg: Token norm of the result. Default None, none.

    Raises:
        ValueError: If a size is out of range, patches are smaller than the stride, or the grid would not be
            ``ceil(size / stride)``: an even side with a stride of 1.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        patch_size: int | Grid = 16,
        stride: int | Grid | None = None,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(in_channels)
        self.patch_size = check_grid('patch_size', patch_size)
        self.stride = self.patch_size if stride is None else check_grid('stride', stride)
        if any(side < step for side, step in zip(self.patch_size, self.stride)):
            raise ValueError(
                f'patch_size must be at least the stride, got {self.patch_size} and {self.stride}'
            )
        # Neighbours overlap by as much on both sides; patches side by side do not.
        down, across = (
            0 if side == step else (side - 1) // 2
            for side, step in zip(self.patch_size, self.stride)
        )
        if any(
            step == 1 < side and side % 2 == 0 for side, step in zip(self.patch_size, self.stride)
        ):
            raise ValueError(f'patch_size must be odd where stride is 1, got {self.patch_size}')
        self.proj = StridedConv2d(
            in_channels, embed_dims, self.patch_size, stride=self.stride, padding=(down, across)
        )
        self.norm = None if norm_cfg is None else build_token_norm(norm_cfg, embed_dims)

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        tokens, layout = to_tokens(self.proj(maps))
        return (tokens if self.norm is None else self.norm(tokens, layout)), layout


@MODELS.register_module()
class ImageToTokens(Stem):
    """Image-to-Tokens (CeiT, ICCV 2021, section 3.1): a 7 x 7 convolution of stride 2, a batch norm and a 3 x 3 max
    pooling of stride 2 make a map of stride 4, whose patches are projected.

    The image is padded inside, so that every pixel of any size is covered.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 192.
        patch_size: Patch height and width in pixels of the image, multiples of 4, one integer or a pair. Default 16.
        hidden_channels: Channels of the map. Default 64.
        norm_cfg: Norm of the map, for MMCV's ``build_norm_layer``. Default ``dict(type='BN')``.

    Raises:
        ValueError: If a size is out of range.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        patch_size: int | Grid = 16,
        hidden_channels: int = 64,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(in_channels)
        check_positive_int('hidden_channels', hidden_channels)
        self.patch_size = self.stride = check_grid('patch_size', patch_size)
        height, width = self.patch_size
        if height % 4 or width % 4:
            raise ValueError(f'patch_size must be a multiple of 4, got {patch_size}')
        self.conv = nn.Conv2d(in_channels, hidden_channels, 7, stride=2, padding=3, bias=False)
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        self.norm = build_map_norm(norm_cfg, hidden_channels)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.patches = PatchEmbed(hidden_channels, embed_dims, (height // 4, width // 4))

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        return self.patches(self.pool(self.norm(self.conv(maps))))


@MODELS.register_module()
class ConvStem(Stem):
    """3 x 3 convolutions of stride 2, each but the last with a batch norm and a hardswish, the last with a token norm
    (LeViT, ICCV 2021, section 4.2). Channels double from one to the next; the image is padded inside.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out, a multiple of ``2 ** (num_convs - 1)``. Default 128.
        num_convs: Convolutions; the stride is ``2 ** num_convs``. Default 4.
        norm_cfg: Norm of the maps between, for MMCV's ``build_norm_layer``. Default ``dict(type='BN')``.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 128,
        num_convs: int = 4,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(in_channels)
        check_positive_int('num_convs', num_convs)
        self.stride: Grid = (2**num_convs, 2**num_convs)
        if embed_dims % 2 ** (num_convs - 1):
            raise ValueError(
                f'embed_dims must be a multiple of {2 ** (num_convs - 1)} for {num_convs} convolutions, '
                f'got {embed_dims}'
            )
        widths = [in_channels, *(embed_dims // 2**step for step in reversed(range(num_convs)))]
        self.convs = nn.ModuleList(
            StridedConv2d(before, after, 3, stride=2, padding=1, bias=False)
            for before, after in pairwise(widths)
        )
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        self.norms = nn.ModuleList(build_map_norm(norm_cfg, width) for width in widths[1:-1])
        # The last norm is one of tokens, because a batch can consist of a single token.
        self.norms.append(build_token_norm(dict(type='mmlape.TokenBN'), embed_dims))

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        for conv, norm in zip(self.convs[:-1], self.norms[:-1]):
            maps = F.hardswish(norm(conv(maps)))
        tokens, layout = to_tokens(self.convs[-1](maps))
        return self.norms[-1](tokens, layout), layout


@MODELS.register_module()
class ConvPoolStem(Stem):
    """Convolutions without bias, each followed by ReLU and a 3 x 3 max pooling of stride 2 (Compact Transformers, arXiv
    2021, section 3.3: the "convolutional tokenizer" of CCT).

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 192.
        kernel_size: Sides of the kernels in pixels, odd, one integer or (height, width). Default 3.
        stride: Strides of the convolutions, one integer or a pair. Default 1.
        num_convs: Convolutions. Default 1.
        hidden_dims: Channels between them. Default 64, as published.

    Raises:
        ValueError: If a size is out of range, or a kernel's side is even.
    """

    pads = False  # kernels reach beyond the edge

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        kernel_size: int | Grid = 3,
        stride: int | Grid = 1,
        num_convs: int = 1,
        hidden_dims: int = 64,
    ) -> None:
        super().__init__(in_channels)
        kernel, steps = check_grid('kernel_size', kernel_size), check_grid('stride', stride)
        if not kernel[0] % 2 or not kernel[1] % 2:
            raise ValueError(f'kernel_size must be odd, got {kernel_size}')
        check_positive_int('num_convs', num_convs)
        check_positive_int('hidden_dims', hidden_dims)
        channels = [in_channels, *[hidden_dims] * (num_convs - 1), embed_dims]
        self.stride: Grid = ((2 * steps[0]) ** num_convs, (2 * steps[1]) ** num_convs)
        padding = (kernel[0] // 2, kernel[1] // 2)
        self.convs = nn.ModuleList(
            StridedConv2d(before, after, kernel, stride=steps, padding=padding, bias=False)
            for before, after in pairwise(channels)
        )

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        for conv in self.convs:
            maps = F.max_pool2d(F.relu(conv(maps)), 3, stride=2, padding=1)
        return to_tokens(maps)


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

    stride = (2, 2)
    kind = 'a map'

    def __init__(
        self, in_channels: int, embed_dims: int = 192, norm_cfg: dict | None = None
    ) -> None:
        super().__init__(in_channels)
        norm_cfg = dict(type='mmlape.LN', eps=1e-5) if norm_cfg is None else norm_cfg
        self.norm = build_token_norm(norm_cfg, 4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, embed_dims, bias=False)

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        # Channels of a neighbour stay together; columns go before rows.
        cells = maps.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 5, 3, 1)
        layout = Layout((cells.shape[1], cells.shape[2]))
        tokens = cells.flatten(3).flatten(1, 2)
        return self.reduction(self.norm(tokens, layout)), layout


@MODELS.register_module()
class TokenEmbed(Stem):
    """A learned row for each token id, for sequences that come as images of one channel and one row: ``(B, 1, 1, T)``.

    Ids may be floating point numbers, as data preprocessors for images make of them. The layout has the mask of what is
    no padding, so that attention and norms that mix tokens leave padding out.

    Args:
        in_channels: Channels in, 1 (default).
        embed_dims: Channels ``C`` out. Default 512.
        vocab_size: Number of ids, that of padding among them. Default 16, those of
            :class:`~mmlape.research.datasets.ListOps`.
        padding_id: The id of padding. Default 0; None for sequences without padding, whose layout has no mask.

    Raises:
        ValueError: If a value is out of range.
    """

    stride = (1, 1)
    kind = 'token ids'

    def __init__(
        self,
        in_channels: int = 1,
        embed_dims: int = 512,
        vocab_size: int = 16,
        padding_id: int | None = 0,
    ) -> None:
        super().__init__(check_positive_int('in_channels', in_channels, maximum=1))
        check_positive_int('vocab_size', vocab_size)
        if padding_id is not None:
            check_positive_int('padding_id', padding_id, minimum=0, maximum=vocab_size - 1)
        self.padding_id = padding_id
        self.embedding = nn.Embedding(vocab_size, embed_dims)

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        """See :meth:`Stem.forward`, of ids. Raises IndexError on a CPU if one is not below ``vocab_size``."""
        ids = maps.flatten(1).long()
        mask = None if self.padding_id is None else ids != self.padding_id
        return self.embedding(ids), Layout((maps.shape[2], maps.shape[3]), mask=mask)

"""ViT-Adapter (ICLR 2023) with plain operators, as the published networks compute it, for comparison.

The ViT's attention stores its N x N map, ``unfold`` cuts windows, reference points are computed in every pass, and
deformable attention is the PyTorch form of Deformable DETR's operator, which is what a CPU runs. Names of parameters
are those of :class:`mmlape.backbones.ViTAdapter`, whose weights load and whose maps are the same
(``tests/test_benchmarks.py``). Written from the paper.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from torch import Tensor, nn

Grid = tuple[int, int]


class PublishedViTAdapter(nn.Module):
    """A DeiT of 16 x 16 patches in a ViT-Adapter, for images whose sides are multiples of 32.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads of the ViT.
        depth: Layers of the ViT, a multiple of 4.
        window_size: Side of the windows in two of three layers (published for detection); None: all layers are global.
        per_stage: Each of four maps gets the ViT's after its own interaction (published for segmentation).
        img_size: Side of the images for which the position table was made.
    """

    def __init__(
        self,
        embed_dims: int = 192,
        num_heads: int = 3,
        depth: int = 12,
        window_size: int | None = None,
        per_stage: bool = True,
        img_size: int = 224,
    ) -> None:
        super().__init__()
        self.per_stage, self.depth = per_stage, depth
        windows = [None if (i + 1) % 3 == 0 else window_size for i in range(depth)]
        self.vit = nn.Module()
        self.vit.patch_embed = nn.ModuleDict({'proj': nn.Conv2d(3, embed_dims, 16, 16)})
        self.vit.pos_embed = nn.Parameter(torch.zeros(1, (img_size // 16) ** 2, embed_dims))
        self.vit.blocks = nn.ModuleList(Block(embed_dims, num_heads, w) for w in windows)
        self.level_embed = nn.Parameter(torch.zeros(3, embed_dims))
        self.spm = SpatialPrior(embed_dims)
        self.interactions = nn.ModuleList(Interaction(embed_dims, i == 3) for i in range(4))
        self.up = nn.ConvTranspose2d(embed_dims, embed_dims, 2, 2)
        for index in range(4):
            self.add_module(f'norm{index + 1}', nn.BatchNorm2d(embed_dims))

    def forward(self, image: Tensor) -> list[Tensor]:
        """Maps of strides 4, 8, 16 and 32 for images ``(B, 3, H, W)``."""
        height, width = image.shape[-2:]
        into_vit, into_pyramid = self.geometry(height, width, image.device)
        c1, c2, c3, c4 = self.spm(image)
        shapes = [tuple(level.shape[-2:]) for level in (c2, c3, c4)]
        levels = [tokens_of(level) for level in (c2, c3, c4)]
        pyramid = torch.cat([t + e for t, e in zip(levels, self.level_embed)], dim=1)

        grid = (height // 16, width // 16)
        tokens = tokens_of(self.vit.patch_embed['proj'](image)) + self.position(grid)
        maps, step = [], self.depth // 4
        for index, interaction in enumerate(self.interactions):
            blocks = self.vit.blocks[index * step : (index + 1) * step]
            tokens, pyramid = interaction(
                tokens, pyramid, blocks, grid, shapes, into_vit, into_pyramid
            )
            maps.append(map_of(tokens, grid))

        cells = [h * w for h, w in shapes]
        c2, c3, c4 = (map_of(t, s) for t, s in zip(pyramid.split(cells, dim=1), shapes))
        c1 = self.up(c2) + c1
        maps = maps if self.per_stage else maps[-1:] * 4
        outputs = []
        for index, (level, vit_map, scale) in enumerate(
            zip((c1, c2, c3, c4), maps, (4, 2, 1, 0.5))
        ):
            if scale != 1:
                vit_map = F.interpolate(
                    vit_map, scale_factor=scale, mode='bilinear', align_corners=False
                )
            outputs.append(getattr(self, f'norm{index + 1}')(level + vit_map))
        return outputs

    def geometry(self, height: int, width: int, device: torch.device) -> tuple[tuple, tuple]:
        """(reference points, shapes) of queries that are tokens, and of queries that are the pyramid."""
        pyramid = [(height // s, width // s) for s in (8, 16, 32)]
        vit = [(height // 16, width // 16)]
        return (cell_centres(vit, device), pyramid), (cell_centres(pyramid, device), vit)

    def position(self, grid: Grid) -> Tensor:
        """The position table, resized in every pass."""
        table = self.vit.pos_embed
        side = math.isqrt(table.shape[1])
        table = F.interpolate(
            map_of(table, (side, side)), grid, mode='bicubic', align_corners=False
        )
        return tokens_of(table)


class Attention(nn.Module):
    """Global attention with its map."""

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (embed_dims // num_heads) ** -0.5
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """``(B, N, C)`` to the same."""
        batch, number, channels = x.shape
        qkv = self.qkv(x).reshape(batch, number, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        weights = (query @ key.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, number, channels))


class WindowedAttention(Attention):
    """Attention within windows, cut from zero-padded queries, keys and values by ``unfold``."""

    def __init__(self, embed_dims: int, num_heads: int, window_size: int) -> None:
        super().__init__(embed_dims, num_heads)
        self.window_size = window_size

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """``(B, N, C)`` to the same."""
        batch, _, channels = x.shape
        side, (height, width) = self.window_size, grid
        down, across = (math.ceil(length / side) * side for length in grid)
        maps = F.pad(map_of(self.qkv(x), grid), (0, across - width, 0, down - height))
        windows = F.unfold(maps, side, stride=side)
        number = windows.shape[-1]
        windows = windows.reshape(batch, 3 * channels, side * side, number).permute(0, 3, 2, 1)
        windows = windows.reshape(batch, number, side * side, 3, self.num_heads, -1)
        query, key, value = windows.permute(3, 0, 1, 4, 2, 5).unbind(0)
        weights = (query @ key.transpose(-2, -1) * self.scale).softmax(dim=-1)
        read = (weights @ value).permute(0, 2, 4, 3, 1).reshape(batch, channels * side**2, number)
        maps = F.fold(read, (down, across), side, stride=side)[..., :height, :width]
        return self.proj(tokens_of(maps))


class LayerScale(nn.Module):
    """A factor per channel."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(embed_dims))

    def forward(self, x: Tensor) -> Tensor:
        """Scale."""
        return self.gamma * x


class Block(nn.Module):
    """A ViT's layer."""

    def __init__(self, embed_dims: int, num_heads: int, window_size: int | None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=1e-6)
        if window_size:
            self.attn = WindowedAttention(embed_dims, num_heads, window_size)
        else:
            self.attn = Attention(embed_dims, num_heads)
        self.ls1 = LayerScale(embed_dims)
        self.norm2 = nn.LayerNorm(embed_dims, eps=1e-6)
        layers = dict(
            fc1=nn.Linear(embed_dims, 4 * embed_dims), fc2=nn.Linear(4 * embed_dims, embed_dims)
        )
        self.mlp = nn.ModuleDict(layers)
        self.ls2 = LayerScale(embed_dims)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """``(B, N, C)`` to the same."""
        x = x + self.ls1(self.attn(self.norm1(x), grid))
        return x + self.ls2(self.mlp['fc2'](F.gelu(self.mlp['fc1'](self.norm2(x)))))


class SpatialPrior(nn.Module):
    """Section 3.2."""

    def __init__(self, embed_dims: int, inplanes: int = 64) -> None:
        super().__init__()
        sizes = (inplanes, 2 * inplanes, 4 * inplanes, 4 * inplanes)
        stem = [*conv(3, inplanes, 2), *conv(inplanes, inplanes, 1), *conv(inplanes, inplanes, 1)]
        self.stem = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1))
        self.conv2, self.conv3, self.conv4 = (
            nn.Sequential(*conv(a, b, 2)) for a, b in pairwise(sizes)
        )
        self.fc1, self.fc2, self.fc3, self.fc4 = (nn.Conv2d(s, embed_dims, 1) for s in sizes)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Maps of strides 4 to 32."""
        c1 = self.stem(image)
        c2 = self.conv2(c1)
        c3 = self.conv3(c2)
        c4 = self.conv4(c3)
        return self.fc1(c1), self.fc2(c2), self.fc3(c3), self.fc4(c4)


class DeformableAttention(nn.Module):
    """Deformable DETR (ICLR 2021), eq. 3, with 6 heads of 4 points."""

    def __init__(self, embed_dims: int, num_levels: int) -> None:
        super().__init__()
        self.split = (6, num_levels, 4)
        samples = math.prod(self.split)
        self.sampling_offsets = nn.Linear(embed_dims, 2 * samples)
        self.attention_weights = nn.Linear(embed_dims, samples)
        self.value_proj = nn.Linear(embed_dims, embed_dims)
        self.output_proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, query: Tensor, value: Tensor, points: Tensor, shapes: list[Grid]) -> Tensor:
        """``(B, queries, C)``."""
        batch, number = query.shape[:2]
        heads, levels, samples = self.split
        value = self.value_proj(value).view(batch, value.shape[1], heads, -1)
        offsets = self.sampling_offsets(query).view(batch, number, heads, levels, samples, 2)
        weights = self.attention_weights(query).view(batch, number, heads, -1).softmax(dim=-1)
        sizes = torch.tensor([(w, h) for h, w in shapes], device=query.device)
        locations = points + offsets / sizes[None, None, None, :, None, :]
        weights = weights.view(batch, number, heads, levels, samples)
        return self.output_proj(
            multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
        )


class Attending(nn.Module):
    """Common base of injector and extractor."""

    def __init__(self, embed_dims: int, num_levels: int) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.feat_norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.attn = DeformableAttention(embed_dims, num_levels)

    def attend(self, query: Tensor, feature: Tensor, geometry: tuple) -> Tensor:
        """The attention output of the queries."""
        return self.attn(self.query_norm(query), self.feat_norm(feature), *geometry)


class Injector(Attending):
    """Eq. 1."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__(embed_dims, 3)
        self.gamma = nn.Parameter(torch.zeros(embed_dims))

    def forward(self, tokens: Tensor, pyramid: Tensor, geometry: tuple) -> Tensor:
        """The tokens."""
        return tokens + self.gamma * self.attend(tokens, pyramid, geometry)


class Extractor(Attending):
    """Eq. 2 and 3."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__(embed_dims, 1)
        self.ffn = ConvMlp(embed_dims, embed_dims // 4)
        self.ffn_norm = nn.LayerNorm(embed_dims, eps=1e-6)

    def forward(self, pyramid: Tensor, tokens: Tensor, geometry: tuple, shapes: list) -> Tensor:
        """The pyramid."""
        pyramid = pyramid + self.attend(pyramid, tokens, geometry)
        return pyramid + self.ffn(self.ffn_norm(pyramid), shapes)


class ConvMlp(nn.Module):
    """Linear, depthwise convolution on every level, GELU, linear."""

    def __init__(self, embed_dims: int, hidden_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        depthwise = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.dwconv = nn.ModuleDict({'dwconv': depthwise})
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, tokens: Tensor, shapes: list[Grid]) -> Tensor:
        """``(B, N, C)`` to the same."""
        levels = self.fc1(tokens).split([h * w for h, w in shapes], dim=1)
        mixed = [
            tokens_of(self.dwconv['dwconv'](map_of(level, shape)))
            for level, shape in zip(levels, shapes)
        ]
        return self.fc2(F.gelu(torch.cat(mixed, dim=1)))


class Interaction(nn.Module):
    """Inject, run ViT layers, extract."""

    def __init__(self, embed_dims: int, last: bool) -> None:
        super().__init__()
        self.injector = Injector(embed_dims)
        self.extractor = Extractor(embed_dims)
        extra = (Extractor(embed_dims) for _ in range(2 * last))
        self.extra_extractors = nn.ModuleList(extra)

    def forward(
        self,
        tokens: Tensor,
        pyramid: Tensor,
        blocks: nn.ModuleList,
        grid: Grid,
        shapes: list[Grid],
        into_vit: tuple,
        into_pyramid: tuple,
    ) -> tuple[Tensor, Tensor]:
        """Both streams."""
        tokens = self.injector(tokens, pyramid, into_vit)
        for block in blocks:
            tokens = block(tokens, grid)
        for extractor in (self.extractor, *self.extra_extractors):
            pyramid = extractor(pyramid, tokens, into_pyramid, shapes)
        return tokens, pyramid


def conv(in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
    """Convolution, batch norm, ReLU."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
    return [convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]


def tokens_of(maps: Tensor) -> Tensor:
    """``(B, C, H, W)`` as ``(B, H * W, C)``."""
    return maps.flatten(2).transpose(1, 2)


def map_of(tokens: Tensor, grid: Grid) -> Tensor:
    """``(B, H * W, C)`` as ``(B, C, H, W)``, contiguous."""
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *grid).contiguous()


def cell_centres(shapes: list[Grid], device: torch.device) -> Tensor:
    """(x, y) of the cells in [0, 1], ``(1, cells, 1, 1, 1, 2)``."""
    points = []
    for height, width in shapes:
        ys = torch.linspace(0.5, height - 0.5, height, device=device) / height
        xs = torch.linspace(0.5, width - 0.5, width, device=device) / width
        y, x = torch.meshgrid(ys, xs, indexing='ij')
        points.append(torch.stack((x.reshape(-1), y.reshape(-1)), dim=-1))
    return torch.cat(points)[None, :, None, None, None]

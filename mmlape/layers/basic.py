"""Linear and convolution layers, activations and dropout that the other layers are built from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import timm.layers
import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from timm.layers.activations import QuickGELU
from torch import Tensor, nn

from mmlape.checks import check_eps, check_option, check_rate
from mmlape.layout import Grid, Layout
from mmlape.norm import TokenNorm, build_token_norm
from mmlape.runtime.tracing import is_tracing


class PlainLinear(nn.Linear):
    """A linear layer that keeps PyTorch's initial values, whatever others of a network start from: a norm that follows
    sets the scale."""


def init_linear(module: nn.Module) -> None:
    """Initial values of a linear layer as in ViT and PVT; those before a norm keep PyTorch's."""
    if isinstance(module, nn.Linear) and not isinstance(module, PlainLinear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class NormedLinear(PlainLinear):
    """``norm(W x + b)``, in networks whose norms follow their linear layers (CeiT, LeViT). The norm is by default a
    ``mmlape.TokenBN``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        norm_cfg = dict(type='mmlape.TokenBN') if norm_cfg is None else norm_cfg
        self.norm = build_token_norm(norm_cfg, out_features)

    def forward(self, tokens: Tensor, layout: Layout | Grid | None = None) -> Tensor:
        """``(B, N, in_features)`` to ``(B, N, out_features)``."""
        return self.norm(super().forward(tokens), layout)


def fast_memory_format(maps: Tensor, training: bool) -> Tensor:
    """Maps ``(B, C, H, W)`` in the memory format in which convolutions are fastest on a CPU; elsewhere unchanged.

    That is channels last, but contiguous in training without AVX-512: there oneDNN's gradients of weights take two to
    three times as long with channels last (torch 2.15).
    """
    if not maps.is_cpu or is_tracing():
        return maps
    if training and torch.backends.cpu.get_cpu_capability() != 'AVX512':
        return maps.contiguous()
    return maps.contiguous(memory_format=torch.channels_last)


class StridedConv2d(nn.Conv2d):
    """PyTorch's, where PyTorch computes it.

    On a CPU with AMX, in bfloat16, the result of a strided convolution that has one column stays what was in memory
    before (torch 2.11). There a second column is made, and cut off. Arguments and parameters are ``nn.Conv2d``'s.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C', H', W')`` to ``(B, C, H, W)``."""
        room = maps.shape[-1] + 2 * int(self.padding[1]) - self.kernel_size[1]
        if maps.is_cpu and room < self.stride[1] and _in_bfloat16(maps):
            return super().forward(F.pad(maps, (0, self.stride[1])))[..., :1]
        return super().forward(maps)


class PatchConv2d(StridedConv2d):
    """A convolution of square patches that lie side by side, 1 x 1 among them; ``patch_size`` is their side in cells.
    ``mmlape.cpu.optimize`` computes it as a product of matrices."""

    def __init__(self, in_channels: int, out_channels: int, patch_size: int) -> None:
        super().__init__(in_channels, out_channels, patch_size, stride=patch_size)


def _in_bfloat16(maps: Tensor) -> bool:
    if torch.is_autocast_enabled('cpu'):
        return torch.get_autocast_dtype('cpu') == torch.bfloat16
    return maps.dtype == torch.bfloat16


# 'gelu_tanh' is what SigLIP, 'quick_gelu' what OpenAI's CLIP was trained with.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    'gelu': nn.GELU,
    'gelu_tanh': partial(nn.GELU, approximate='tanh'),
    'quick_gelu': QuickGELU,
    'relu': nn.ReLU,
    'silu': nn.SiLU,
}


def build_activation(name: str) -> nn.Module:
    """The activation of this name; ValueError if there is none."""
    return ACTIVATIONS[check_option('act', name, ACTIVATIONS)]()


def build_dropout(name: str, rate: float) -> nn.Module:
    """Dropout of a ``rate`` in [0, 1), ``name`` in messages; for 0 ``nn.Identity()``, which is cheaper to call."""
    return nn.Dropout(rate) if check_rate(name, rate) else nn.Identity()


class DropPath(timm.layers.DropPath):
    """timm's stochastic depth; in a graph its rate is an input, so that blocks of several rates share one."""

    def forward(self, branch: Tensor) -> Tensor:
        """``branch`` ``(B, ...)``, of which images are dropped in training, and the others scaled up."""
        if not (self.training and torch.compiler.is_compiling()):
            return super().forward(branch)
        keep = 1 - self.drop_prob
        shape = (branch.shape[0], *[1] * (branch.ndim - 1))
        drawn = torch.rand(shape, device=branch.device) + keep
        return branch * ((drawn >= 1) / keep).to(branch.dtype)


def build_map_norm(norm_cfg: dict, channels: int) -> nn.Module:
    """MMCV's ``build_norm_layer`` for maps ``(B, C, H, W)``.

    Raises:
        TypeError: If ``norm_cfg`` is not a dict with a ``type``, or an option has the wrong type.
        ValueError: If the norm is one of tokens, whose channels come last, or an option is out of range.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise TypeError(f"norm_cfg must be a dict with the key 'type', got {norm_cfg!r}")
    try:
        norm = build_norm_layer(norm_cfg, channels)[1]
    except KeyError as error:
        if isinstance(error, ValueError):  # our registry's error names the nearest name
            raise
        raise ValueError(
            f"norm_cfg must name a registered norm of maps, e.g. 'BN', 'SyncBN' or 'mmlape.LN2d', got {norm_cfg}"
        ) from error
    except (AssertionError, ZeroDivisionError) as error:  # raised by GN
        raise ValueError(
            f'norm_cfg needs num_groups that divide {channels} channels, got {norm_cfg}'
        ) from error
    # LayerNorms of maps are subclasses of PyTorch's.
    others = (TokenNorm, nn.BatchNorm1d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm3d)
    if type(norm) is nn.LayerNorm or isinstance(norm, others):
        raise ValueError(
            f"norm_cfg must be a norm of maps (B, C, H, W), e.g. dict(type='BN'), got {norm_cfg}"
        )
    check_eps(getattr(norm, 'eps', 1.0))
    if getattr(norm, 'momentum', None) is not None:
        check_rate('momentum', norm.momentum, with_one=True)
    return norm

"""Cases of ``python -m benchmarks``: our parts and upstream's own classes, timm's, or published maths.

All have the same weights. A new comparison is a function and a line in ``CASES``.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import timm
import torch
from mmdet.models.backbones import PyramidVisionTransformer, SwinTransformer
from mmdet.models.backbones.pvt import pvt_convert
from mmseg.models.backbones import VisionTransformer
from torch import Tensor, nn

from mmlape import gpu
from mmlape.checkpoints import convert
from mmlape.cpu import optimize
from mmlape.norm import DTN, LN
from mmlape.registry import MODELS

from .reference.dtn import DenseDTN
from .reference.vit_adapter import PublishedViTAdapter

OURS, KERNELS = 'ours', 'ours, kernels'
ADAPTED = dict(arch='deit-tiny', with_cls_token=False, final_norm=False, layer_scale=True)


@dataclass
class Case:
    """Implementations of the same computation.

    Attributes:
        models: By name; includes ``'ours'``. The others are compared with the first.
        inputs: Arguments of a model; the first needs a gradient if ``input_grad``.
        alike: Names of models whose outputs must equal ours.
        input_grad: Whether training needs the gradient of the input, as a layer does and a network does not.
        size: Printed description of the inputs.
        dtype: Of :meth:`call`: under autocast unless it is ``torch.float32``.
    """

    models: dict[str, nn.Module]
    inputs: tuple
    alike: list[str]
    input_grad: bool = False
    size: str = field(default='')
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not torch.cuda.is_available():
            self.models[OURS] = optimize(self.models[OURS], keep_memory=False)

    def call(self, model: nn.Module) -> tuple[Tensor, ...]:
        """The outputs of one of them."""
        lower = self.dtype is not torch.float32
        with torch.autocast(self.inputs[0].device.type, self.dtype, enabled=lower):
            found = model(*self.inputs)
        return (found,) if isinstance(found, Tensor) else tuple(found)


def adapter(flavour: str, side: int, batch: int = 1) -> Case:
    """ViT-Adapter-Ti in one of its published flavours."""
    windows = {} if flavour == 'segmentation' else dict(window_size=[14, 14, None] * 4)
    feature = 'per_stage' if flavour == 'segmentation' else 'last'
    vit = dict(ADAPTED, **windows)
    ours = randomised(MODELS.build(dict(type='mmlape.ViTAdapter', vit=vit, vit_feature=feature)))
    theirs = PublishedViTAdapter(window_size=(windows and 14) or None, per_stage=bool(not windows))
    theirs.load_state_dict(ours.state_dict())
    return of_images({'published': theirs, OURS: ours}, (side, side), batch)


def vit(size: str, side: int, batch: int = 1) -> Case:
    """DeiT-Ti or -S as MMSegmentation's ViT, one map."""
    heads = dict(tiny=3, small=6)[size]
    theirs = VisionTransformer(
        (224, 224), 16, embed_dims=64 * heads, num_layers=12, num_heads=heads, out_indices=11,
        norm_cfg=dict(type='LN', eps=1e-6), final_norm=True, patch_bias=True,
    )  # fmt: skip
    randomised(theirs)
    ours = MODELS.build(dict(type='mmlape.VisionTransformer', arch=f'deit-{size}'))
    ours.load_state_dict(convert(theirs.state_dict(), 'mmseg', ours))
    return of_images({'MMSegmentation': theirs, OURS: ours}, (side, side), batch)


def pvt_small(height: int, width: int, batch: int = 1) -> Case:
    """PVT-Small of MMDetection; its norms of branches have another eps unless told."""
    norm = dict(type='mmlape.LN', eps=1e-5)
    ours = MODELS.build(dict(type='mmlape.PyramidVisionTransformer', arch='small', norm_cfg=norm))
    randomised(ours)
    theirs = PyramidVisionTransformer(
        num_layers=[3, 4, 6, 3], drop_path_rate=0.0, norm_cfg=dict(type='LN', eps=1e-5)
    )
    theirs.load_state_dict(pvt_convert(ours.state_dict()))
    return of_images({'MMDetection': theirs, OURS: ours}, (height, width), batch)


def pvt_dtn(height: int, width: int, batch: int = 1) -> Case:
    """PVT-Small with DTN beside the same with LayerNorm."""
    config = dict(type='mmlape.PyramidVisionTransformer', arch='small')
    models = {
        name: randomised(MODELS.build(dict(config, norm_cfg=dict(type=f'mmlape.{kind}'))))
        for name, kind in (('LayerNorm', 'LN'), (OURS, 'DTN'))
    }
    return of_images(models, (height, width), batch, alike=[])


def swin_tiny(side: int, batch: int = 1, width: int = 0) -> Case:
    """Swin-T of MMDetection and of timm."""
    size = (side, width or side)
    theirs = randomised(SwinTransformer(drop_path_rate=0.0))
    ours = MODELS.build(dict(type='mmlape.SwinTransformer', arch='tiny', shift_alone=True))
    ours.load_state_dict(convert(theirs.state_dict(), 'swin', ours))
    of_timm = timm.create_model(
        'swin_tiny_patch4_window7_224', img_size=size, features_only=True, drop_path_rate=0.0
    )
    models = {'MMDetection': theirs, 'timm': of_timm, OURS: ours}
    # timm's maps come without the four norms
    return of_images(models, size, batch, alike=['MMDetection'])


def dtn(side: int, channels: int, heads: int, pool: int, batch: int, width: int = 0) -> Case:
    """DTN as a multiple of LayerNorm, and the published maths where their map fits into memory."""
    grid = (side, width or side)
    models: dict[str, nn.Module] = {'LayerNorm': LN(channels)}
    # Positions as in published training: with equation 7, plain products hit subnormal numbers.
    ours = DTN(channels, heads, pool=pool, position_init='random')
    if side == grid[1] and side // pool < 32:
        published = DenseDTN(channels, heads, side, pool)
        with torch.no_grad():
            published.pos_proj.weight.copy_(ours.positions.weight)
        models['published'] = published
    tokens = torch.randn(batch, grid[0] * grid[1], channels)
    alike = [name for name in models if name == 'published']
    size = f'{batch} x {grid[0]} x {grid[1]} x {channels}'
    return Case({**models, OURS: ours}, (tokens, grid), alike, True, size)


def of_images(
    models: dict[str, nn.Module],
    size: tuple[int, int],
    batch: int,
    alike: list[str] | None = None,
) -> Case:
    """Networks on random images."""
    image = torch.randn(batch, 3, *size)
    alike = [name for name in models if name != OURS] if alike is None else alike
    return Case(models, (image,), alike, size=f'{batch} x {size[0]} x {size[1]}')


def add_kernels(case: Case) -> None:
    """Add ours with DTN by Triton kernels, where there is DTN."""
    ours = case.models[OURS]
    if any(isinstance(module, DTN) for module in ours.modules()):
        case.models[KERNELS] = gpu.optimize(deepcopy(ours))


def randomised(model: nn.Module) -> nn.Module:
    """Randomise all parameters, so that outputs are not equal by chance."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


CASES: dict[str, Callable[[], Case]] = {
    'adapter-tiny segmentation 512': partial(adapter, 'segmentation', 512),
    'adapter-tiny detection 512': partial(adapter, 'detection', 512),
    'vit-tiny 512': partial(vit, 'tiny', 512),
    'pvt-small 512': partial(pvt_small, 512, 512),
    'pvt-small 800 x 1216': partial(pvt_small, 800, 1216),
    'swin-tiny 448': partial(swin_tiny, 448),
    'dtn 56 x 56, C 64, pool 4': partial(dtn, 56, 64, 4, 4, 8),
    'dtn 28 x 28, C 128, pool 2': partial(dtn, 28, 128, 4, 2, 8),
    'dtn 14 x 14, C 320': partial(dtn, 14, 320, 5, 1, 8),
    'dtn 200 x 304, C 64, pool 4': partial(dtn, 200, 64, 4, 4, 1, width=304),
    'dtn 200 x 304, C 64': partial(dtn, 200, 64, 4, 1, 1, width=304),
}

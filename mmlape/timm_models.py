"""Our classifiers under timm's names: ``import mmlape.timm_models`` registers them with timm.

LN baselines that timm has itself are not repeated: ``deit_*`` (default joining), ``pvt_v2_b*``, ``swin_*``,
``levit_*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, register_model
from torch import Tensor, nn

from mmlape.checkpoints import convert
from mmlape.registry import MODELS
from mmlape.research.pretraining.classifier import Classifier, take_indices

__all__: list[str] = []

_LAPE: dict = dict(joining='lape')
_DISTILLED = dict(_LAPE, distilled=True)
_DTN: dict = dict(norm_cfg=dict(type='mmlape.DTN'))
# The published DTN-PVT has 4 heads in the first two stages (DTN, ICLR 2022, code).
_PVT_DTN = dict(_DTN, num_heads=[4, 4, 5, 8])
# "Learnable + RPE" of LaPE (ICCV 2023), Table 1; the table is that of the first stage, which tokens carry on.
_SWIN_LAPE: dict = dict(_LAPE, position='learned')
# Name, network, arch, what stands in both for {}, and further options of the classifier.
_ROWS: tuple[tuple[str, str, str, str, dict], ...] = (
    ('lape_deit_{}_patch16_224', 'VisionTransformer', 'deit-{}', 'tiny small base', _LAPE),
    ('lape_deit_{}_distilled_patch16_224', 'VisionTransformer', 'deit-{}', 'tiny small base', _DISTILLED),
    ('vit_{}_star_patch16_224', 'VisionTransformer', 'vit-{}-star', 'tiny small base', {}),
    ('dtn_vit_{}_star_patch16_224', 'VisionTransformer', 'vit-{}-star', 'tiny small base', _DTN),
    ('dtn_vit_{}_patch16_224', 'VisionTransformer', 'deit-{}', 'small base', _DTN),
    ('lape_swin_{}_patch4_window7_224', 'SwinTransformer', '{}', 'tiny small', _SWIN_LAPE),
    ('dtn_swin_{}_patch4_window7_224', 'SwinTransformer', '{}', 'tiny small', _DTN),
    ('pvt_{}', 'PyramidVisionTransformer', '{}', 'tiny small medium large', {}),
    ('pvt_{}_dtn', 'PyramidVisionTransformer', '{}', 'tiny small medium large', _PVT_DTN),
    ('pvt_v2_{}_dtn', 'PyramidVisionTransformerV2', '{}', 'b0 b1 b2 b3 b4 b5', _DTN),
    ('t2t_vit_{}', 'T2TViT', 't2t-vit-{}', '7 14 t-14', {}),
    ('lape_t2t_vit_{}', 'T2TViT', 't2t-vit-{}', '7', _LAPE),
    ('dtn_t2t_vit_{}', 'T2TViT', 't2t-vit-{}', '14 t-14', _DTN),
    ('ceit_{}_patch16_224', 'CeiT', 'ceit-{}', 'tiny small', {}),
    ('lape_ceit_{}_patch16_224', 'CeiT', 'ceit-{}', 'tiny small', _LAPE),
    ('dtn_levit_{}', 'LeViT', 'levit-{}', '128s', dict(_DTN, distilled=True)),
    ('{}_32', 'CompactTransformer', '{}', 'vit-lite-7-4 cvt-7-4 cct-7-3x1', {}),
    ('lape_{}_32', 'CompactTransformer', '{}', 'vit-lite-7-4 cvt-7-4 cct-7-3x1', _LAPE),
)  # fmt: skip
# Options of :class:`~mmlape.research.pretraining.Classifier` by name.
MODELS_BY_NAME: dict[str, dict[str, Any]] = {
    name.format(size.replace('-', '_')): dict(
        options, network=f'mmlape.{network}', arch=arch.format(size)
    )
    for name, network, arch, sizes, options in _ROWS
    for size in sizes.split()
}
# What timm's tools are told of a network or an architecture, where that differs from a model of one stage on ImageNet.
_PYRAMID = dict(first_conv='backbone.patch_embed1.proj', pool_size=(7, 7))
_TOLD: dict[str, dict] = {
    'mmlape.VisionTransformer': {},
    'mmlape.PyramidVisionTransformer': _PYRAMID,
    'mmlape.PyramidVisionTransformerV2': _PYRAMID,
    'mmlape.SwinTransformer': _PYRAMID,
    'mmlape.T2TViT': dict(first_conv=None, crop_pct=0.9),
    'mmlape.CeiT': dict(first_conv='backbone.patch_embed.conv'),
    'mmlape.LeViT': dict(
        first_conv='backbone.patch_embed1.convs.0',
        pool_size=(4, 4),
        classifier=('head.linear', 'head_dist.linear'),
    ),
    'mmlape.CompactTransformer': dict(
        num_classes=10,
        input_size=(3, 32, 32),
        crop_pct=1.0,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    'cct-7-3x1': dict(first_conv='backbone.patch_embed.convs.0'),
}
_HEAD = r'(?:classifier\.)?(?:(head|head_dist)(?:\.fc)?|fc)\.((?:bn\.|l\.|linear\.)?\w+)'


def _describe(options: dict[str, Any]) -> dict[str, Any]:
    """timm's ``pretrained_cfg``; there are no published weights in our format."""
    told = dict(
        url='',
        num_classes=1000,
        input_size=(3, 224, 224),
        fixed_input_size=False,
        pool_size=None,
        crop_pct=0.875,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv='backbone.patch_embed.proj',
        classifier=('head', 'head_dist') if options.get('distilled') else 'head',
        license='apache-2.0',
    )
    return {**told, **_TOLD[options['network']], **_TOLD.get(options['arch'], {})}


def checkpoint_filter_fn(state: Mapping[str, Any], model: Classifier) -> dict[str, Tensor]:
    """Weights in our layout, timm's or the published one for ``model``; position tables are resized.

    timm calls it for ``create_model(..., pretrained=True, pretrained_cfg_overlay=dict(file=...))``.

    Raises:
        ValueError: If less than 95 % of the backbone's values are there.
    """
    state = next((state[key] for key in ('state_dict', 'model') if key in state), state)
    found = {name: re.fullmatch(_HEAD, name) for name in state}
    heads = {
        f'{m[1] or "head"}.{re.sub("^l[.]", "linear.", m[2])}': state[name]
        for name, m in found.items()
        if m
    }
    rest = {name: value for name, value in state.items() if not found[name]}
    ours = any(name.startswith('backbone.') for name in rest)
    with _of_three_channels(model):
        backbone = convert(rest, 'mmlape' if ours else model.backbone.source, model.backbone)
    return heads | {f'backbone.{name}': value for name, value in backbone.items()}


@contextmanager
def _of_three_channels(model: Classifier) -> Iterator[None]:
    """The first convolution as the file has it: timm adapts it to ``in_chans`` afterwards."""
    described: Any = model.pretrained_cfg
    if described['first_conv'] is None:
        yield
        return
    layer: Any = model.get_submodule(described['first_conv'])
    own = layer.weight
    layer.weight = nn.Parameter(own.new_empty(own.shape[0], 3, *own.shape[2:]))
    try:
        yield
    finally:
        layer.weight = own


def _create(name: str, pretrained: bool, **kwargs: Any) -> Classifier:
    options = {**MODELS_BY_NAME[name], **kwargs}
    out_indices = options.pop('out_indices', None)
    if options.get('features_only'):
        family = MODELS.get(options['network'])
        stages = family.stage_sizes(family.resolve_arch(options['arch'])[0])
        by_stage = family.counts == 'stages'
        steps = len(stages) if by_stage else sum(stage['depth'] for stage in stages)
        wanted = (steps if by_stage else 3) if out_indices is None else out_indices
        indices = take_indices(steps, wanted)
        options.update(out_indices=indices, last_step=indices[-1], feature_cls='getter')
    elif out_indices is not None:
        raise TypeError(f'out_indices={out_indices} needs features_only=True')
    return build_model_with_cfg(
        Classifier, name, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **options
    )


def _register(name: str) -> None:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> Classifier:
        return _create(name, pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f'{name}: see timm.create_model.'
    globals()[name] = register_model(entrypoint)


default_cfgs = {name: _describe(options) for name, options in MODELS_BY_NAME.items()}
for _name in MODELS_BY_NAME:
    _register(_name)

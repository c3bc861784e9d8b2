"""Our classifiers under timm's names: importing this module registers them.

LN baselines that timm has itself are not repeated: ``deit_*`` (default joining), ``pvt_v2_b*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, register_model
from torch import Tensor

from mmlape.checkpoints import convert

from .classifier import Classifier, PyramidClassifier, ViTClassifier
from .options import take_indices

__all__: list[str] = []

SIZES = ('tiny', 'small', 'base')
_DTN: dict = dict(norm_cfg=dict(type='mmlape.DTN'))
# The published DTN-PVT has 4 heads in the first two stages (DTN, ICLR 2022, code).
_PVT_DTN = dict(_DTN, num_heads=[4, 4, 5, 8])
_STAGES = 4
_LAYERS = 12


def _models() -> dict[str, tuple[type[Classifier], dict[str, Any]]]:
    """Class and options by name."""
    models: dict[str, dict] = {}
    for size in SIZES:
        lape: dict = dict(arch=f'deit-{size}', joining='lape')
        models[f'lape_deit_{size}_patch16_224'] = lape
        models[f'lape_deit_{size}_distilled_patch16_224'] = dict(lape, distilled=True)
        star = dict(arch=f'vit-{size}-star')
        models[f'vit_{size}_star_patch16_224'] = star
        models[f'dtn_vit_{size}_star_patch16_224'] = dict(star, **_DTN)
    for size in ('small', 'base'):
        models[f'dtn_vit_{size}_patch16_224'] = dict(arch=f'deit-{size}', **_DTN)
    found: dict[str, tuple[type[Classifier], dict[str, Any]]] = {
        name: (ViTClassifier, options) for name, options in models.items()
    }
    for size in ('tiny', 'small', 'medium', 'large'):
        first: dict = dict(version=1, arch=size)
        found[f'pvt_{size}'] = (PyramidClassifier, first)
        found[f'pvt_{size}_dtn'] = (PyramidClassifier, dict(first, **_PVT_DTN))
    for number in range(6):
        second: dict = dict(version=2, arch=f'b{number}')
        found[f'pvt_v2_b{number}_dtn'] = (PyramidClassifier, dict(second, **_DTN))
    return found


def _describe(cls: type[Classifier], options: dict[str, Any]) -> dict[str, Any]:
    """timm's ``pretrained_cfg``; there are no published weights in our format."""
    pyramid = cls is PyramidClassifier
    return dict(
        url='',
        num_classes=1000,
        input_size=(3, 224, 224),
        fixed_input_size=False,
        pool_size=(7, 7) if pyramid else None,
        crop_pct=0.875,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv='backbone.patch_embed1.proj' if pyramid else 'backbone.patch_embed.proj',
        classifier=('head', 'head_dist') if options.get('distilled') else 'head',
        license='apache-2.0',
    )


def checkpoint_filter_fn(state: Mapping[str, Any], model: Classifier) -> dict[str, Tensor]:
    """Weights in our layout, timm's, DeiT's or the published PVT's for ``model``; position tables are resized.

    timm calls it for ``create_model(..., pretrained=True, pretrained_cfg_overlay=dict(file=...))``.

    Raises:
        ValueError: If less than 95 % of the backbone's values are there.
    """
    state = next((state[key] for key in ('state_dict', 'model') if key in state), state)
    heads = {name: value for name, value in state.items() if name.startswith('head')}
    rest = {name: value for name, value in state.items() if name not in heads}
    published = isinstance(model, PyramidClassifier) and 'patch_embed1.proj.weight' in rest
    foreign = 'pvt' if published else 'timm'
    ours = any(name.startswith('backbone.') for name in rest)
    backbone = convert(rest, 'mmlape' if ours else foreign, model.backbone)
    return heads | {f'backbone.{name}': value for name, value in backbone.items()}


def _create(name: str, pretrained: bool, **kwargs: Any) -> Classifier:
    cls, options = MODELS_BY_NAME[name]
    options = {**options, **kwargs}
    steps = _STAGES if cls is PyramidClassifier else _LAYERS
    out_indices = options.pop('out_indices', None)
    if options.get('features_only'):
        wanted = (_STAGES if steps == _STAGES else 3) if out_indices is None else out_indices
        indices = take_indices(steps, wanted)
        options.update(out_indices=indices, last_step=indices[-1], feature_cls='getter')
    elif out_indices is not None:
        raise TypeError(f'out_indices={out_indices} needs features_only=True')
    return build_model_with_cfg(
        cls, name, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **options
    )


def _register(name: str) -> None:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> Classifier:
        return _create(name, pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f'{name}: see timm.create_model.'
    globals()[name] = register_model(entrypoint)


MODELS_BY_NAME = _models()
default_cfgs = {name: _describe(*model) for name, model in MODELS_BY_NAME.items()}
for _name in MODELS_BY_NAME:
    _register(_name)

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

from mmlape.backbones import StagedTransformer
from mmlape.checkpoints import convert
from mmlape.registry import MODELS
from mmlape.research.pretraining.classifier import Classifier, take_indices

__all__: list[str] = []


def rows_of_families() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, options of the classifier and what timm's tools are told, as all registered families say."""
    for family in MODELS.module_dict.values():
        if isinstance(family, type) and issubclass(family, StagedTransformer):
            # A subclass is another family: it inherits no names.
            for row in vars(family).get('timm_rows', ()):
                for size in row.sizes.split():
                    options = dict(
                        row.options,
                        network=f'mmlape.{family.__name__}',
                        arch=row.arch.format(size),
                    )
                    name = row.name.format(size.replace('-', '_'))
                    yield name, options, {**family.timm_cfg, **row.cfg}


_FOUND = list(rows_of_families())
# Options of :class:`~mmlape.research.pretraining.Classifier` by name.
MODELS_BY_NAME: dict[str, dict[str, Any]] = {name: options for name, options, _ in _FOUND}
_HEAD = r'(?:classifier\.)?(?:(head|head_dist)(?:\.fc)?|fc)\.((?:bn\.|l\.|linear\.)?\w+)'


def _describe(options: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """timm's ``pretrained_cfg``; there are no published weights in our format."""
    usual = dict(
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
    return {**usual, **own}


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


default_cfgs = {name: _describe(options, own) for name, options, own in _FOUND}
for _name in MODELS_BY_NAME:
    _register(_name)

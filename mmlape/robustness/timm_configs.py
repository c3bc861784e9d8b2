"""A config for a classifier of timm, with the mean, the crop and the size that timm tests it at."""

from __future__ import annotations

from mmengine.config import Config

from mmlape.checks import did_you_mean

__all__ = ['timm_config']


def timm_config(name: str) -> Config:
    """A config that tests a timm model on ImageNet's validation images in ``data/imagenet``, by MMPretrain's
    ``TimmClassifier``, which takes timm's checkpoints as they are.

    Args:
        name: Of timm's, or of mmlape's models registered there (``'lape_deit_tiny_patch16_224'``).

    Raises:
        ValueError: There is no such model, or timm does not say how it is tested.
        ModuleNotFoundError: MMPretrain is not installed.
    """
    import mmpretrain  # noqa: F401  is there, or this says so
    import timm

    import mmlape.pretraining  # noqa: F401  registers ours

    if not timm.is_model(name):
        raise ValueError(f'timm has no model {name!r}{did_you_mean(name, timm.list_models())}')
    settings = timm.get_pretrained_cfg(name)
    if settings is None:
        raise ValueError(
            f'timm does not say how {name!r} is tested: give a config with TimmClassifier'
        )
    side = settings.input_size[-1]
    resize = dict(
        type='ResizeEdge',
        scale=int(side / settings.crop_pct),  # as timm rounds
        edge='short',
        backend='pillow',
        interpolation=settings.interpolation or 'bicubic',
    )
    pipeline = [
        dict(type='LoadImageFromFile'),
        resize,
        dict(type='CenterCrop', crop_size=side),
        dict(type='PackInputs'),
    ]
    mean, std = ([255 * value for value in each] for each in (settings.mean, settings.std))
    return Config(
        dict(
            default_scope='mmpretrain',
            model=dict(
                type='TimmClassifier',
                model_name=name,
                data_preprocessor=dict(num_classes=1000, mean=mean, std=std, to_rgb=True),
            ),
            test_dataloader=dict(
                batch_size=128,
                num_workers=8,
                sampler=dict(type='DefaultSampler', shuffle=False),
                dataset=dict(
                    type='ImageNet', data_root='data/imagenet', split='val', pipeline=pipeline
                ),
            ),
            test_evaluator=dict(type='Accuracy', topk=(1, 5)),
            test_cfg=dict(),
        )
    )

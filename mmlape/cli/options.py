"""How the options of training and testing change a config."""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.registry import METRICS
from mmengine.runner import Runner

from mmlape.atomic import atomic_write
from mmlape.checks import check_positive_int, nearest, type_name
from mmlape.shipped import find_config, read_config
from mmlape.training.check_data import datasets_of
from mmlape.training.check_names import config_values, names_read

from .arguments import AMP_DTYPES

# Highest similarity of a new name to a present one: with_dist_token (0.83 to with_cls_token) is new, max_epoch (0.95)
# is a typo.
_LIKENESS = 0.85
_SEG_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # upstream's test-time augmentation
# MMEngine's backends by the package that they need, and their options for a run of this name.
_LOGGERS: dict[str, tuple[str, Callable[[str], dict]]] = {
    'tensorboard': ('TensorboardVisBackend', lambda run: {}),
    'wandb': ('WandbVisBackend', lambda run: dict(init_kwargs=dict(name=run))),
    'mlflow': ('MLflowVisBackend', lambda run: dict(run_name=run)),
}


def config_of(options: argparse.Namespace, made: Config | None = None) -> Config:
    """The config with the common options applied; ``made``: a config without a file, which ``options.config`` names.

    Raises:
        ValueError: If there is no such config, it has no model, or ``--cfg-options`` has a wrong name.
    """
    name = options.config.rpartition('/')[2] if made else find_config(options.config).stem
    cfg = merge_overrides(made or read_config(options.config), options.cfg_options)
    if 'model' not in cfg:
        raise ValueError(f'{options.config} has no model: it is not the config of a training')
    if options.data_root is not None:
        set_data_root(cfg, options.data_root)
    check_weights(cfg, options.allow_partial)
    check_indices(cfg)
    torchrun = {'RANK', 'WORLD_SIZE', 'MASTER_ADDR'} <= os.environ.keys()
    cfg.launcher = options.launcher or ('pytorch' if torchrun else 'none')
    os.environ.setdefault('LOCAL_RANK', str(options.local_rank))
    if options.work_dir is not None:
        cfg.work_dir = str(options.work_dir)
        if report := (cfg.get('default_hooks') or {}).get('report'):
            report.pop('out_dir', None)  # where the work dir was before
    elif cfg.get('work_dir') is None:
        cfg.work_dir = os.path.join('work_dirs', name)
    return cfg


def merge_overrides(cfg: Config, overrides: Mapping[str, Any] | None) -> Config:
    """Merge ``{'a.b.0.c': value}`` into a config, in place.

    Raises:
        ValueError: For names that would have no effect: at the top one that neither the config nor the runner has,
            below it one that is nearly a present name; or if a list has no such entry. Other new names are options of a
            component (``model.backbone.with_cp=True``), which checks them.
    """
    for path in overrides or {}:
        _check_path(cfg, path)
    cfg.merge_from_dict(dict(overrides or {}))
    return cfg


def set_data_root(cfg: Config, folder: str) -> None:
    """Put the data of a config into another folder: of its data sets, and of evaluators that name files in it.

    Raises:
        ValueError: If the config has no ``data_root``, or several.
    """
    values = [*config_values(cfg.to_dict())]
    paths = [path for path, value in values if path.endswith('.data_root') and value]
    roots = {str(value).rstrip('/') for path, value in values if path in paths}
    if len(roots) != 1:
        what = f'several: {", ".join(sorted(roots))}' if roots else 'none'
        raise ValueError(f'--data-root is for configs with one data_root, and this one has {what}')
    (root,) = roots
    for path, value in values:
        parts = path.split('.')
        of_data = any(part.endswith(('dataloader', 'evaluator')) for part in parts)
        if parts[-1] != 'data_root' and not of_data:
            continue
        if isinstance(value, str) and (value.rstrip('/') == root or value.startswith(f'{root}/')):
            cfg.merge_from_dict({path: folder.rstrip('/') + value[len(root) :]})


def check_weights(cfg: Config, allow_partial: bool = False) -> None:
    """Add ``mmlape.CheckWeightsHook`` to a config that has none; ``allow_partial`` loosens it in any."""
    if cfg.get('default_hooks') is None:
        cfg.default_hooks = {}
    hooks = [*cfg.default_hooks.values(), *(cfg.get('custom_hooks') or [])]
    found = [hook for hook in hooks if hook and type_name(hook) == 'CheckWeightsHook']
    if not found:
        found = [ConfigDict(type='mmlape.CheckWeightsHook')]
        cfg.default_hooks['check_weights'] = found[0]
    for hook in found if allow_partial else ():
        hook['allow_partial'] = True


def enable_amp(cfg: Config, dtype: str) -> None:
    """Automatic mixed precision: ``'fp16'`` with a dynamic loss scale, ``'bf16'`` without one and with
    ``mmlape.Bfloat16Hook``.

    Raises:
        ValueError: Without a GPU that can, or if the optimizer wrapper is neither (Amp)``OptimWrapper``.
    """
    dtype = AMP_DTYPES[dtype]
    wrapper = type_name(cfg.optim_wrapper) or 'OptimWrapper'
    if wrapper not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise ValueError(
            f'--amp needs an OptimWrapper, and the config has optim_wrapper.type={wrapper}'
        )
    if get_device() == 'cpu':
        raise ValueError('--amp needs a GPU, and none is visible')
    if (
        dtype == 'bfloat16'
        and torch.cuda.is_available()
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ValueError('this GPU has no bfloat16: use --amp-dtype fp16')
    # float16 loses small gradients without a loss scale; bfloat16 has the range of float32.
    scale = 'dynamic' if dtype == 'float16' else dict(enabled=False)
    cfg.optim_wrapper.update(type='AmpOptimWrapper', dtype=dtype, loss_scale=scale)
    if dtype == 'bfloat16':
        hooks = [h for h in cfg.get('custom_hooks') or [] if type_name(h) != 'Bfloat16Hook']
        cfg.custom_hooks = [*hooks, ConfigDict(type='mmlape.Bfloat16Hook')]


def enable_lr_scaling(cfg: Config) -> None:
    """Let MMEngine scale the learning rate linearly with the batch size; ValueError without a base batch size."""
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    if not isinstance(base, int) or base < 1:
        raise ValueError(
            '--auto-scale-lr needs auto_scale_lr=dict(base_batch_size=...) in the config: the '
            f'images per step that its learning rate is for; got {cfg.get("auto_scale_lr")}'
        )
    cfg.auto_scale_lr.enable = True


def log_to(cfg: Config, names: Sequence[str]) -> None:
    """Log curves to TensorBoard, Weights & Biases or MLflow too, by MMEngine's backends."""
    if cfg.get('visualizer') is None:
        cfg.visualizer = ConfigDict(type='Visualizer')
    backends = [*(cfg.visualizer.get('vis_backends') or [ConfigDict(type='LocalVisBackend')])]
    for name in names:
        kind, options = _LOGGERS[name]
        if all(type_name(each) != kind for each in backends):
            backends.append(ConfigDict(type=kind, **options(Path(cfg.work_dir).name)))
    cfg.visualizer.vis_backends = backends


def add_report(cfg: Config) -> None:
    """End the training with ``report.html``; ``default_hooks.report=None`` in the config switches it off."""
    cfg.default_hooks.setdefault('report', ConfigDict(type='mmlape.ReportHook'))


def show_predictions(cfg: Config, show: bool, folder: str | Path | None, wait_time: float) -> None:
    """Draw predictions on every image: on the screen, or into ``folder``."""
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    out = None if folder is None else str(folder)
    if cfg.get('default_scope') in ('mmdet', 'mmseg'):
        options = dict(out_dir=out, show=show, wait_time=wait_time)
        cfg.default_hooks['visualization'] = ConfigDict(type='mmlape.PictureHook', **options)
    elif cfg.get('default_scope') == 'mmpretrain' and hook is not None:
        hook.update(enable=True, interval=1, show=show, out_dir=out)
        if show:
            hook['wait_time'] = wait_time
    else:
        raise ValueError(
            '--show and --show-dir are for MMDetection, MMSegmentation, and MMPretrain with '
            f'default_hooks.visualization; the config has default_scope={cfg.get("default_scope")!r}'
        )


def keep_predictions(cfg: Config, out: str) -> dict | None:
    """Save predictions: MMSegmentation's into a folder of label maps, others into a ``.pkl`` (else ValueError).

    Returns:
        The config of a metric to add to the test evaluator of the runner, or None.
    """
    if cfg.get('default_scope') == 'mmseg':
        for evaluator in _evaluators(cfg):
            evaluator.update(output_dir=out, keep_results=True)
        return None
    if not out.endswith(('.pkl', '.pickle')):
        raise ValueError(f'--out must end with .pkl, got {out!r}')
    kind = 'mmdet.DumpDetResults' if cfg.get('default_scope') == 'mmdet' else 'DumpResults'
    return dict(type=kind, out_file_path=out)


def use_tta(cfg: Config) -> None:
    """Test-time augmentation by the config's ``tta_model`` and ``tta_pipeline``.

    Default: flips for MMDetection (which merges boxes only, so mask heads are removed), flips and six scales for
    MMSegmentation; ValueError for other toolboxes.
    """
    scope = cfg.get('default_scope')
    if scope not in _TTA and not ('tta_model' in cfg and 'tta_pipeline' in cfg):
        raise ValueError('--tta needs tta_model and tta_pipeline in the config')
    dataset = _only_dataset(cfg, '--tta')
    if 'tta_model' not in cfg:
        cfg.tta_model = _TTA[scope][0]
    if 'tta_pipeline' not in cfg:
        cfg.tta_pipeline = _TTA[scope][1](copy.deepcopy(dataset.pipeline))
    if cfg.tta_model['type'] in ('DetTTAModel', 'mmdet.DetTTAModel'):
        _boxes_alone(cfg)
    dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def first_images(cfg: Config, count: int) -> None:
    """Test on the first ``count`` images only. COCO's metrics count what their files list, so they get shorter ones,
    ``annotations_<count>.json`` and ``panoptic_annotations_<count>.json`` in the work dir.

    Raises:
        ValueError: If ``count`` is less than 1, or the config has several test data sets.
    """
    check_positive_int('--images', count)
    dataset = _only_dataset(cfg, '--images')
    metrics = [each for each in _evaluators(cfg) if _is_coco(each) or _is_panoptic(each)]
    if not metrics:
        dataset['indices'] = count
        return
    # The data set's own file decides which images are the first.
    panoptic = 'Panoptic' in str(dataset['type'])
    metrics.sort(key=lambda each: _is_panoptic(each) != panoptic)
    first: set[int] = set()
    for evaluator in metrics:
        content = json.loads(Path(evaluator['ann_file']).read_text(encoding='utf-8'))
        first = first or {image['id'] for image in content['images'][:count]}
        content['images'] = [image for image in content['images'] if image['id'] in first]
        boxes = content.get('annotations', [])  # a test part has none
        content['annotations'] = [box for box in boxes if box['image_id'] in first]
        name = f'{"panoptic_" * _is_panoptic(evaluator)}annotations_{count}.json'
        path = Path(cfg.work_dir, name).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(content).encode())
        evaluator['ann_file'] = str(path)
    dataset['ann_file'] = metrics[0]['ann_file']


def check_indices(cfg: Config) -> None:
    """Raise ValueError if COCO's metric would count images that ``indices`` of a data set leave out as missed."""
    for split in ('val', 'test'):
        chosen = any(dataset.get('indices') is not None for dataset in datasets_of(cfg, split))
        if chosen and any(map(_is_coco, _evaluators(cfg, split))):
            raise ValueError(
                f'{split}_dataloader.dataset.indices leaves images out, which CocoMetric counts as missed: '
                'use --images N of `mmlape test` and `mmlape robustness`, or an annotation file of these images'
            )


def _evaluators(cfg: Config, split: str = 'test') -> list:
    evaluators = cfg.get(f'{split}_evaluator') or []
    return evaluators if isinstance(evaluators, list) else [evaluators]


def _only_dataset(cfg: Config, option: str) -> Any:
    found = list(datasets_of(cfg, 'test'))
    if len(found) != 1:
        raise ValueError(
            f'{option} is for a config with one test data set, and this one has {len(found)}'
        )
    return found[0]


def _is_coco(evaluator: Mapping[str, Any]) -> bool:
    return type_name(evaluator).endswith('CocoMetric') and bool(evaluator.get('ann_file'))


def _is_panoptic(evaluator: Mapping[str, Any]) -> bool:
    return type_name(evaluator).endswith(('CocoPanopticMetric', 'PanopticQuality'))


def add_metric(runner: Runner, config: dict) -> None:
    """Add a metric to what the runner will test with."""
    runner.test_evaluator.metrics.append(METRICS.build(config))


def _check_path(cfg: Config, path: str) -> None:
    part: Any = cfg
    keys = path.split('.')
    for depth, key in enumerate(keys):
        if isinstance(part, (list, tuple)):
            if not (key.isdigit() and int(key) < len(part)):
                raise ValueError(
                    f'--cfg-options {path}: {".".join(keys[:depth])} is a list of {len(part)} entries, 0 to '
                    f'{len(part) - 1}; it has no {key!r}'
                )
            part = part[int(key)]
        elif not isinstance(part, Mapping) and depth:
            return  # a value that becomes a dict: MMEngine checks it
        elif key not in part:
            # At the top, only parts of the config and what is read can be meant.
            known = {name for name in part if depth or isinstance(part[name], Mapping)}
            return _check_new(path, keys[:depth], key, known)
        elif not depth and key not in names_read() and not isinstance(part[key], Mapping):
            others = [
                name
                for name, value in config_values(cfg.to_dict())
                if value == part[key] and '.' in name
            ]
            raise ValueError(
                f'--cfg-options {path}: {key!r} is only a name in the config file, and changing it has no effect'
                + (f'; its value is that of {", ".join(others[:4])}' if others else '')
            )
        else:
            part = part[key]


def _check_new(path: str, above: list[str], key: str, known: set[str]) -> None:
    """Refuse the new name ``key`` if it would have no effect."""
    if not above:
        known |= names_read()
    close = nearest(key, known, _LIKENESS if above else 0.6)
    if key == '_delete_' or key in known:
        return
    if close is not None:
        right = '.'.join([*above, close])
        raise ValueError(f'--cfg-options {path}: there is no {key!r}; did you mean {right!r}?')
    if not above:
        raise ValueError(
            f'--cfg-options {path}: neither the config nor the runner has {key!r}; put your own names into a config '
            'file'
        )


def _boxes_alone(cfg: Config) -> None:
    """Remove mask heads from a detector and masks from its evaluation."""
    roi_head = cfg.model.get('roi_head')
    if roi_head and roi_head.get('mask_head'):
        roi_head.update(mask_head=None, mask_roi_extractor=None)
    for evaluator in _evaluators(cfg):
        if 'segm' in (evaluator.get('metric') or ()):
            evaluator['metric'] = 'bbox'


# Default meta_keys of PackDetInputs.
_META_KEYS = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')


def _detection_pipeline(pipeline: list) -> list:
    """The test pipeline, with packing, its last step, once flipped and once not."""
    keys = (*pipeline[-1].get('meta_keys', _META_KEYS), 'flip', 'flip_direction')
    pack = dict(pipeline[-1], meta_keys=tuple(dict.fromkeys(keys)))
    # The first view's boxes are the truth for metrics that read it from the samples.
    flips = [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)]
    return [*pipeline[:-1], dict(type='TestTimeAug', transforms=[flips, [pack]])]


def _segmentation_pipeline(pipeline: list) -> list:
    """Upstream's: six scales, flipped or not."""
    scales = [dict(type='Resize', scale_factor=scale, keep_ratio=True) for scale in _SEG_SCALES]
    flips = [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0.0, 1.0)]
    before = [step for step in pipeline if step['type'].startswith('LoadImage')]
    annotations = [step for step in pipeline if step['type'] == 'LoadAnnotations']
    rest = [[step] for step in (*annotations, pipeline[-1])]
    return [*before, dict(type='TestTimeAug', transforms=[scales, flips, *rest])]


_TTA = {
    'mmdet': (
        dict(
            type='DetTTAModel',
            tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100),
        ),
        _detection_pipeline,
    ),
    'mmseg': (dict(type='SegTTAModel'), _segmentation_pipeline),
}

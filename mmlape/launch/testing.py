"""What differs between the toolboxes when a model is tested: pictures, predictions, test-time augmentation."""

from __future__ import annotations

import copy

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner

_SEG_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # upstream's


def show_predictions(cfg: Config, show: bool, folder: str | None, wait_time: float) -> None:
    """Draw predictions on every image: on the screen, or into ``folder`` (MMDetection: of the work dir, as upstream).

    Raises:
        ValueError: If the config has no visualization hook.
    """
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        kinds = {'mmseg': 'SegVisualizationHook', 'mmdet': 'DetVisualizationHook'}
        kind = kinds.get(cfg.get('default_scope'))
        if kind is None:
            raise ValueError('--show and --show-dir need default_hooks.visualization in the config')
        hook = cfg.default_hooks['visualization'] = ConfigDict(type=kind)
    if cfg.get('default_scope') == 'mmpretrain':
        hook.update(enable=True, interval=1, show=show, out_dir=folder)
        if show:
            hook['wait_time'] = wait_time
        return
    hook.update(draw=True, interval=1)
    if show:
        hook.update(show=True, wait_time=wait_time)
    if folder and cfg.get('default_scope') == 'mmdet':
        hook['test_out_dir'] = folder
    elif folder:
        cfg.visualizer['save_dir'] = folder


def keep_predictions(cfg: Config, out: str) -> dict | None:
    """Say where predictions go: a folder of label maps for MMSegmentation, a pickle for the others.

    Returns:
        The config of a metric to add to the test evaluator of the runner, or None.

    Raises:
        ValueError: If ``out`` is no ``.pkl`` where it must be one.
    """
    if cfg.get('default_scope') == 'mmseg':
        evaluators = cfg.test_evaluator
        for evaluator in evaluators if isinstance(evaluators, list) else [evaluators]:
            evaluator.update(output_dir=out, keep_results=True)
        return None
    if not out.endswith(('.pkl', '.pickle')):
        raise ValueError(f'--out must end with .pkl, got {out!r}')
    kind = 'mmdet.DumpDetResults' if cfg.get('default_scope') == 'mmdet' else 'DumpResults'
    return dict(type=kind, out_file_path=out)


def use_tta(cfg: Config) -> None:
    """Test-time augmentation by the config's ``tta_model`` and ``tta_pipeline``, or the toolbox's usual ones.

    Those are flips for MMDetection (which merges boxes alone, so mask heads are left out), flips and six scales for
    MMSegmentation.

    Raises:
        ValueError: If the config has none, and its toolbox no usual one.
    """
    scope = cfg.get('default_scope')
    if scope not in _TTA and not ('tta_model' in cfg and 'tta_pipeline' in cfg):
        raise ValueError('--tta needs tta_model and tta_pipeline in the config')
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset['dataset']
    if 'tta_model' not in cfg:
        cfg.tta_model = _TTA[scope][0]
    if 'tta_pipeline' not in cfg:
        cfg.tta_pipeline = _TTA[scope][1](copy.deepcopy(dataset.pipeline))
    if cfg.tta_model['type'] in ('DetTTAModel', 'mmdet.DetTTAModel'):
        _boxes_alone(cfg)
    dataset.pipeline = cfg.tta_pipeline
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)


def add_metric(runner: Runner, config: dict) -> None:
    """Add a metric to what the runner will test with."""
    from mmengine.registry import METRICS

    runner.test_evaluator.metrics.append(METRICS.build(config))


def _boxes_alone(cfg: Config) -> None:
    """Take mask heads out of a detector and masks out of its evaluation."""
    roi_head = cfg.model.get('roi_head')
    if roi_head and roi_head.get('mask_head'):
        roi_head.update(mask_head=None, mask_roi_extractor=None)
    evaluators = cfg.test_evaluator
    for evaluator in evaluators if isinstance(evaluators, list) else [evaluators]:
        if 'segm' in (evaluator.get('metric') or ()):
            evaluator['metric'] = 'bbox'


def _detection_pipeline(pipeline: list) -> list:
    """The test pipeline with its last step, packing, after a flip and no flip."""
    keys = (*pipeline[-1].get('meta_keys', ()), 'flip', 'flip_direction')
    pack = dict(pipeline[-1], meta_keys=tuple(dict.fromkeys(keys)))
    flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
    return [*pipeline[:-1], dict(type='TestTimeAug', transforms=[flips, [pack]])]


def _segmentation_pipeline(pipeline: list) -> list:
    """Upstream's: the image as it is at six scales, flipped or not."""
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

"""Misspelt names in a config file, which upstream ignores or reports only after hours of training."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import (
    DATA_SAMPLERS,
    HOOKS,
    LOG_PROCESSORS,
    LOOPS,
    METRICS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    VISBACKENDS,
    VISUALIZERS,
    Registry,
)
from mmengine.runner import (
    EpochBasedTrainLoop,
    FlexibleRunner,
    IterBasedTrainLoop,
    LogProcessor,
    Runner,
    TestLoop,
    ValLoop,
)
from mmengine.visualization import Visualizer
from torch import nn
from torch.utils.data import DataLoader

from mmlape.checks import nearest, options_of, type_name

# Names at the top of a config that are not arguments of the runner.
_READ = (
    'activation_checkpointing', 'auto_scale_lr', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
    'find_unused_parameters', 'init_weights_for_test_or_val', 'model_wrapper_cfg', 'runner_type', 'sync_bn',
    'tta_model', 'tta_pipeline', 'work_dir',
)  # fmt: skip
# All keys that are read, by the path of a dict.
_ALL = {
    'auto_scale_lr': 'base_batch_size enable',
    'env_cfg': 'cudnn_benchmark mp_cfg dist_cfg resource_limit',
    'env_cfg.mp_cfg': 'mp_start_method opencv_num_threads',
    'randomness': 'seed diff_rank_seed deterministic',
    'optim_wrapper.clip_grad': 'type max_norm norm_type clip_value error_if_nonfinite foreach',
}
_PARAMWISE = (
    'custom_keys bias_lr_mult bias_decay_mult norm_decay_mult flat_decay_mult dwconv_decay_mult dcn_offset_lr_mult '
    'bypass_duplicate'
)
# Keys of dicts that may hold others too. Those of train_cfg and test_cfg are what the models of MMDetection,
# MMSegmentation and MMPretrain read; they take most by `get`.
_SOME = {
    'default_hooks':
        'runtime_info timer sampler_seed logger param_scheduler checkpoint visualization finite exact_resume '
        'check_weights safe_loading report cpu gpu',
    'env_cfg.dist_cfg': 'backend init_backend init_method timeout port rank world_size device_id',
    'optim_wrapper*.paramwise_cfg':
        f'{_PARAMWISE} decay_rate layer_decay_rate decay_type num_layers force_default_settings full_rate_layers '
        'position_decay_mult dtn_lr_mult dtn_decay_mult',
    'optim_wrapper*.paramwise_cfg.custom_keys.*': 'lr_mult decay_mult use_muon',
    '*_dataloader.*metainfo':
        'classes palette base_classes novel_classes thing_classes stuff_classes dataset_type task_name',
    '*_dataloader.*filter_cfg': 'filter_empty_gt min_size bbox_min_size',
    '*_dataloader.*data_prefix':
        'img img_path img_path2 seg seg_map_path depth_map_path anno sub_data_root pts',
    '*test_cfg.*nms *train_cfg.*nms *tta_cfg.*nms':
        'type iou_threshold iou_thr class_agnostic split_thr max_num score_threshold offset method sigma min_score',
    'log_processor.custom_cfg.*': 'data_src method_name log_name window_size reduction',
    'model.*train_cfg* model.*test_cfg*':
        'rpn rcnn rpn_proposal assigner sampler pos_weight allowed_border debug nms nms_pre nms_post nms_thr nms_cfg '
        'nms_across_levels max_num max_per_img max_per_image min_bbox_size score_thr mask_thr mask_thr_binary '
        'mask_size num_points oversample_ratio importance_sample_ratio subdivision_steps subdivision_num_points '
        'scale_factor mode crop_size stride size size_divisor pad_val seg_pad_val augments probs init refine alpha '
        'beta initial_epoch initial_assigner reg_assigner ga_assigner ga_sampler center_ratio ignore_ratio '
        'neg_pos_ratio smoothl1_beta isr carl k bias dynamic_rcnn iou_topk beta_topk update_iter_interval '
        'initial_iou initial_beta max_num_grid pos_radius conf_thr iou_thr filter_thr filter_low_score kernel sigma '
        'topk top_k corner_topk local_maximum_kernel distance_threshold chunked_size score_voting object_mask_thr '
        'panoptic panoptic_on semantic_on instance_on mask_overlap stuff_area_limit',
    'tta_model.tta_cfg': 'nms max_per_img',
}  # fmt: skip
# Constructors of optimizers that read _PARAMWISE and nothing else.
_PLAIN = ('', 'DefaultOptimWrapperConstructor', 'MergedGroupsOptimizerConstructor')
# Parts that check their options when they are built or used, which for checkpoints is after hours, or not at all: where
# they are, their registry, their class without a `type`, and what else their configs may hold.
_PARTS: tuple[tuple[str, Registry | None, tuple[type, ...], str], ...] = (
    ('default_hooks.* custom_hooks.#', HOOKS, (), 'priority'),
    ('*_evaluator *_evaluator.# *_evaluator.metrics *_evaluator.metrics.#', METRICS, (), 'metrics'),
    ('train_cfg', LOOPS, (EpochBasedTrainLoop, IterBasedTrainLoop), 'by_epoch'),
    ('val_cfg', LOOPS, (ValLoop,), ''),
    ('test_cfg', LOOPS, (TestLoop,), ''),
    ('log_processor', LOG_PROCESSORS, (LogProcessor,), ''),
    ('visualizer', VISUALIZERS, (Visualizer,), ''),
    ('*_dataloader.sampler *_dataloader.batch_sampler', DATA_SAMPLERS, (), ''),
    ('visualizer.vis_backends.#', VISBACKENDS, (), ''),
    ('optim_wrapper', OPTIM_WRAPPERS, (OptimWrapper,), 'optimizer constructor paramwise_cfg'),
    ('optim_wrapper.optimizer', OPTIMIZERS, (), ''),
    ('param_scheduler param_scheduler.#', PARAM_SCHEDULERS, (), 'convert_to_iter_based'),
    (  # always this class: there is no registry
        'train_dataloader val_dataloader test_dataloader', None, (DataLoader,),
        'num_batch_per_epoch disable_subprocess_warning',
    ),
)  # fmt: skip


def check_names(cfg: Config | Mapping[str, Any]) -> None:
    """Refuse misspelt names that upstream ignores, or finds only when it uses them.

    A name that nothing reads is refused if it is close to one that something reads: at the top, where config files
    have variables of their own (``data_root``, ``train_pipeline``); slots of default hooks; keys of the model's
    ``train_cfg`` and ``test_cfg``, of ``metainfo`` and similar dicts; options of hooks, metrics, loops, schedules and
    optimizers. Schedules by epochs are refused in a training by iterations, which never steps them.

    Raises:
        ValueError: With the path of the name, its value, and the name that was meant.
    """
    config = {key: cfg[key] for key in cfg}
    scope = config.get('default_scope')
    _check('', config, names_read())
    for path, part in config_values(config):
        if not isinstance(part, Mapping):
            continue
        place = re.sub(r'\.\d+(?=\.|$)', '.#', path)
        if place in _ALL:
            _check(path, part, _ALL[place].split(), complete=True)
        for patterns, names in _SOME.items():
            # Constructors of components inside train_cfg and test_cfg check theirs.
            if _matches(place, patterns) and not ('type' in part and patterns.startswith('model')):
                _check(path, part, names.split())
        for patterns, registry, default, more in _PARTS:
            if _matches(place, patterns):
                known = [
                    options_of(each)
                    for kind in _classes(part, registry, default, scope)
                    for each in kind.__mro__
                ]
                _check(path, part, {*more.split(), *chain(*known)} if known else ())
    wrapper = config.get('optim_wrapper') or {}
    constructor = wrapper.get('constructor') or ''
    if isinstance(constructor, str) and constructor.rpartition('.')[2] in _PLAIN:
        part = wrapper.get('paramwise_cfg') or {}
        _check('optim_wrapper.paramwise_cfg', part, _PARAMWISE.split(), complete=True)
    _check_schedules(config)


def check_custom_keys(paramwise: Mapping[str, Any] | None, model: Any) -> list[str]:
    """Raise ValueError if a key of ``paramwise['custom_keys']`` is a misspelt part of a parameter's name.

    Other keys without a parameter are returned: upstream's configs share them among models (``absolute_pos_embed``).
    None are checked if ``model`` is a config still: a ``FlexibleRunner`` builds it when it trains.
    """
    if not isinstance(model, nn.Module):
        return []
    names = [name for name, _ in model.named_parameters()]
    parts = {part for name in names for part in name.split('.') if not part.isdigit()}
    keys = (paramwise or {}).get('custom_keys') or ()
    for key in keys:
        for part in key.split('.'):
            if not any(part in name for name in names):
                close = _meant(part, parts)
                if close is not None:
                    raise ValueError(
                        f'custom_keys names {key!r}, which is in no name; did you mean {close!r}?'
                    )
    return [key for key in keys if not any(key in name for name in names)]


def names_read() -> set[str]:
    """Names at the top of a config that a program or a runner reads."""
    return {*_READ, *options_of(Runner), *options_of(FlexibleRunner)} - {'cfg'}


def config_values(config: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """All values of a config with their paths."""
    entries = config.items() if isinstance(config, Mapping) else ()
    for key, value in enumerate(config) if isinstance(config, (list, tuple)) else entries:
        yield f'{path}{key}', value
        yield from config_values(value, f'{path}{key}.')


def _matches(place: str, patterns: str) -> bool:
    return any(fnmatchcase(place, pattern) for pattern in patterns.split())


def _classes(
    part: Mapping[str, Any], registry: Registry | None, default: tuple[type, ...], scope: str | None
) -> tuple[type, ...]:
    """The class that a config is for; none if it is unknown here."""
    kind = part.get('type')
    if registry is None or kind is None:
        return default
    if isinstance(kind, str):
        with registry.switch_scope_and_registry(part.get('_scope_') or scope) as own:
            kind = own.get(kind)
    return (kind,) if isinstance(kind, type) else ()


def _check(
    path: str, part: Mapping[str, Any], known: Collection[str], *, complete: bool = False
) -> None:
    """Refuse keys of ``part`` that are close to a known one; others too if these are ``complete``."""
    for key, value in part.items():
        if key in known or key in ('type', '_scope_') or not isinstance(key, str):
            continue
        close = _meant(key, known)
        if close is not None or complete:
            hint = f'; did you mean {close!r}?' if close else f'; there are {", ".join(known)}'
            where = f'{path}.{key}' if path else key
            raise ValueError(f'{where}={reprlib.repr(value)}: there is no {key!r}{hint}')


def _meant(name: str, known: Collection[str]) -> str | None:
    """The known name of which ``name`` is a misspelling, or None.

    The name must be very similar, or each of its words similar: ``test_pipeline`` is no misspelling of
    ``tta_pipeline``, and ``val_evaluator_2`` and ``pipeline`` are other names.
    """
    close = nearest(name, known, 0.8)
    if close is None:
        return None
    words, others = (each.lower().split('_') for each in (name, close))
    same = SequenceMatcher(None, ''.join(words), ''.join(others)).ratio() >= 0.9
    if len(words) == len(others):
        alike = (SequenceMatcher(None, *pair).ratio() >= 0.6 for pair in zip(words, others))
        same = same or all(alike)
    elif set(words) <= set(others) or set(words) >= set(others):
        same = False
    return close if same else None


def _check_schedules(config: Mapping[str, Any]) -> None:
    loop = config.get('train_cfg') or {}
    if loop.get('by_epoch') is not False and type_name(loop) != 'IterBasedTrainLoop':
        return
    for path, part in config_values({'param_scheduler': config.get('param_scheduler')}):
        if not isinstance(part, Mapping) or 'type' not in part:
            continue
        # ReduceOnPlateau steps after each validation.
        steps = part.get('convert_to_iter_based') or 'ReduceOnPlateau' in type_name(part)
        if part.get('by_epoch', True) and not steps:
            raise ValueError(
                f'{path}.by_epoch={part.get("by_epoch", "True (default)")} has no effect in a training by iterations: '
                'write by_epoch=False, with begin and end in iterations, or add convert_to_iter_based=True'
            )

"""Checks before a run: numbers in the config, and whether the data are what the config says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from inspect import signature
from typing import Any

from mmengine.config import Config
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, OPTIMIZERS, Registry
from mmengine.runner import Runner
from mmengine.runner.priority import Priority, get_priority

from mmlape.checkpoints.report import listed
from mmlape.checks import (
    check_bool,
    check_number,
    check_options,
    check_positive_int,
    did_you_mean,
    type_name,
)
from mmlape.registry import HOOKS, RUNNERS, TRANSFORMS

from .check_names import check_names, config_values
from .checkpoint_hooks import built_loops
from .data_audit import DataReport, check_coco, check_label_maps, repeated


class DataError(ValueError):
    """Data are missing, or not what the config says; the message is one line."""


def main_process_says(answer: Callable[[], Any], kind: type[ValueError] = ValueError) -> Any:
    """Return in all processes what ``answer`` returns in the main one.

    Raises:
        ValueError: In all of them, of this ``kind``, if there is an error in the main one.
    """
    outcome: list[Any] = [None, None]
    cause = None
    if is_main_process():
        try:
            outcome[0] = answer()
        except Exception as error:  # the other processes wait for the broadcast below
            plain = isinstance(error, (ValueError, OSError))
            outcome[1] = str(error) if plain else repr(error)
            cause = error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise kind(outcome[1]) from cause
    return outcome[0]


def _check_interval(name: str, value: Any) -> None:
    if value != -1:  # -1 disables it
        check_positive_int(name, value)


def _check_warmup(name: str, value: Any) -> None:
    if isinstance(value, (list, tuple)):  # steps of two stages, either of which may be left out
        for steps in value:
            check_positive_int(name, steps, minimum=0)
    else:
        check_positive_int(name, value)


def _check_classes(name: str, value: Any) -> None:
    twice = repeated(map(str, value)) if isinstance(value, (list, tuple)) else []
    if twice:
        raise ValueError(f'{name} must be different, {listed(map(repr, twice), 5)} come twice')


def _check_strategy(path: str, value: Any) -> None:
    if str(value).removeprefix('mmengine.') == 'FSDPStrategy':
        raise ValueError(
            f'{path}={value!r} flattens parameters, so that norms and biases cannot be told from weights: write '
            "strategy=dict(type='mmlape.FSDPStrategy'), without further options"
        )


def _check_optimizer(scope: str | None, path: str, value: Any) -> None:
    with OPTIMIZERS.switch_scope_and_registry(scope) as registry:
        if isinstance(value, str) and registry.get(value) is None:  # MMEngine calls it: no message
            hint = did_you_mean(value, {*OPTIMIZERS.module_dict, *registry.module_dict})
            raise ValueError(f'{path}={value!r} is not a registered optimizer{hint}')


def _check_priority(path: str, value: Any) -> None:
    if isinstance(value, str) and value.upper() not in Priority.__members__:
        names = list(Priority.__members__)
        hint = did_you_mean(value, names) or f'; there are {", ".join(names)}'
        raise ValueError(f'{path}={value!r} is not a priority{hint}')
    get_priority(value)


# Checks of values by their paths in a config; `*` is any part of a path.
_RULES: dict[str, Callable[[str, Any], Any]] = {
    'train_cfg.max_epochs train_cfg.max_iters train_cfg.val_interval train_cfg.val_begin '
    'default_hooks.logger.interval auto_scale_lr.base_batch_size *_dataloader.batch_size '
    'optim_wrapper*.accumulative_counts param_scheduler*.end param_scheduler*.T_max': check_positive_int,
    'param_scheduler*.warmup': _check_warmup,
    '*_dataloader.num_workers param_scheduler*.begin randomness.seed': partial(
        check_positive_int, minimum=0
    ),
    'optim_wrapper*.optimizer.lr optim_wrapper*.optimizer.eps optim_wrapper*.clip_grad.max_norm '
    'optim_wrapper*.clip_grad.clip_value param_scheduler*.start_factor param_scheduler*.gamma '
    'param_scheduler*.power': partial(check_number, above=0),
    'optim_wrapper*.optimizer.weight_decay param_scheduler*.eta_min': partial(
        check_number, minimum=0
    ),
    'train_cfg.by_epoch param_scheduler*.by_epoch randomness.deterministic resume': check_bool,
    'default_hooks.checkpoint.interval': _check_interval,
    'default_hooks.*.priority custom_hooks.*.priority': _check_priority,
    '*_dataloader.dataset*metainfo.classes': _check_classes,
    'strategy.type': _check_strategy,
}


def check_config(cfg: Config | Mapping[str, Any]) -> None:
    """Check what upstream does not: numbers (optimizers, schedules, intervals, batch sizes, workers, the seed), options
    of our hooks and transforms, that optimizers are registered, that no class name of a data set comes twice, that FSDP
    is ours, that variables of the environment reach the network that they are for, and that no name is misspelt
    (:func:`~mmlape.training.check_names.check_names`).

    Raises:
        ValueError: If a value is out of range, an optimizer is unknown, a class name comes twice, a variable reaches
            nothing, or a name is misspelt.
        TypeError: If a value has the wrong type, or one of our hooks or transforms has no such option.
    """
    accepted = dict(_RULES)
    # DeepSpeed's and ColossalAI's optimizers are registered when their strategy is built.
    if not cfg.get('strategy'):
        scope = cfg.get('default_scope')
        accepted['optim_wrapper*.optimizer.type'] = partial(_check_optimizer, scope)
    rules = [(pattern, check) for names, check in accepted.items() for pattern in names.split()]
    for path, value in config_values({key: cfg[key] for key in cfg if key != 'model'}):
        for pattern, check in rules:
            if value is not None and fnmatchcase(path, pattern):
                check(path, value)
    for hook in (*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or [])):
        if kind := _our_kind(hook, HOOKS):
            options = {key: hook[key] for key in hook if key not in ('type', 'priority')}
            check_options(kind, options)
    for split in ('train', 'val', 'test'):
        for step in pipeline_steps(cfg, split):
            if kind := _our_kind(step, TRANSFORMS):
                options = {key: step[key] for key in step if key != 'type'}
                check_options(kind, options)
                kind(**options)  # checks their values
    check_names(cfg)


def _our_kind(part: Any, registry: Registry) -> type | None:
    """The class that a part of a config names; None if it is none of ours."""
    kind = part.get('type') if isinstance(part, Mapping) else None
    kind = registry.get(kind) if str(kind).startswith('mmlape.') else kind
    return kind if isinstance(kind, type) and kind.__module__.startswith('mmlape.') else None


def datasets_of(cfg: Config | Mapping[str, Any], split: str) -> Iterator[Mapping[str, Any]]:
    """Configs of a split's data sets, inside wrappers such as ``ConcatDataset`` and ``RepeatDataset``."""
    found: list[Any] = [(cfg.get(f'{split}_dataloader') or {}).get('dataset')]
    while found:
        config = found.pop(0)
        if isinstance(config, Mapping):
            inner = config.get('datasets') or config.get('dataset')
            found[:0] = inner if isinstance(inner, (list, tuple)) else [inner]
            if inner is None:
                yield config


def pipeline_steps(cfg: Config | Mapping[str, Any], split: str) -> list[Mapping[str, Any]]:
    """The steps of all pipelines of a split's data sets, and of the outermost wrapper's own."""
    wrapper = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
    data = [*datasets_of(cfg, split)]
    data += [] if wrapper in data else [wrapper]
    return [step for each in data for step in each.get('pipeline') or []]


def check_data_is_there(cfg: Config | Mapping[str, Any], splits: Sequence[str]) -> None:
    """Raise DataError if a folder or file that the data sets of ``splits`` name is not on this machine.

    The message ends with the config's ``data_from``, where it has one: how the data are made or where they come from.
    """
    reports = []
    for split in splits:
        for config in datasets_of(cfg, split):
            reports.append(DataReport(f'{split} data ({config.get("type")})'))
            if not _is_remote(config):
                reports[-1].look_for(config)
            if reports[-1].problems and _downloads(config, cfg.get('default_scope')):
                reports.pop()
    _stop('the data are not there', reports, cfg.get('data_from'))


def _downloads(config: Mapping[str, Any], scope: str | None) -> bool:
    """Whether a data set that is not there downloads itself, as some of MMPretrain's do by default."""
    with DATASETS.switch_scope_and_registry(config.get('_scope_') or scope) as registry:
        name = config.get('type')
        cls = registry.get(name) if isinstance(name, str) else name
    option = None if cls is None else signature(cls).parameters.get('download')
    return option is not None and bool(config.get('download', option.default))


def _is_remote(config: Mapping[str, Any]) -> bool:
    """Whether MMEngine reads a data set from elsewhere than the local disk."""
    backend = get_file_backend(
        config.get('data_root') or '', backend_args=config.get('backend_args')
    )
    return not isinstance(backend, LocalBackend)


def _stop(what: str, reports: Sequence[DataReport], source: str | None = None) -> None:
    found = [f'{r.title}: {"; ".join(r.problems)}' for r in reports if r.problems]
    if found:
        raise DataError('. '.join([f'{what}: {"; ".join(found)}', *([source] if source else [])]))


@HOOKS.register_module()
class CheckDataHook(Hook):
    """Check the data sets of a run before it starts; all problems come in one error of one line.

    Local data sets of MMDetection in COCO format (``CocoDataset``) and of MMSegmentation (``BaseSegDataset`` and what
    inherits its file layout) are checked; for others the log says that they are not. docs/data.md lists what is
    refused, and what is counted in the log. Process 0 does the work; all processes raise the error. In any config::

        custom_hooks = [dict(type='mmlape.CheckDataHook')]
        runner_type = 'mmlape.EarlyHookRunner'  # check before upstream reads the data

    Args:
        max_decode: How many images (and label maps) of each data set are decoded, evenly spread; ``None`` for all, 0
            for none. Default 1000 (some seconds).

    Raises:
        TypeError, ValueError: If ``max_decode`` is not an integer, or negative.
        DataError: A ``ValueError``, from the runner's ``train``, ``val`` or ``test``, when there is a problem.
    """

    priority = 'VERY_HIGH'

    def __init__(self, max_decode: int | None = 1000) -> None:
        if max_decode is not None:
            max_decode = check_positive_int('max_decode', max_decode, minimum=0)
        self.max_decode = max_decode
        self.checked: dict[str, list[DataReport]] = {}  # by the main process, by the split

    def before_run(self, runner: Runner) -> None:
        """Check the data sets of the loops that are about to run, unless :meth:`before_build` has."""
        self.before_build(runner, built_loops(runner))

    def before_build(self, runner: Runner, splits: Sequence[str]) -> None:
        """Check the named data sets (stage of :class:`EarlyHookRunner`)."""
        splits = [name for name in splits if name not in self.checked]
        main_process_says(lambda: self._check(runner, splits), DataError)

    def _check(self, runner: Runner, splits: Sequence[str]) -> None:
        self.check(runner.cfg, splits, runner.logger.info)

    def check(
        self,
        cfg: Config | Mapping[str, Any],
        splits: Sequence[str],
        says: Callable[[str], Any] = lambda text: None,
    ) -> None:
        """Raise DataError if a data set of these splits has a problem; ``says`` gets the notes of each before."""
        found = {split: self.reports(cfg, split) for split in splits}
        self.checked.update(found)
        reports = [report for some in found.values() for report in some]
        for report in reports:
            says('\n  - '.join([report.title, *report.notes]))
        _stop('the data do not fit the config', reports)

    def reports(self, cfg: Config | Mapping[str, Any], split: str) -> list[DataReport]:
        """Problems and notes of the data sets of ``'train'``, ``'val'`` or ``'test'``."""
        return [self._report(split, config, cfg) for config in datasets_of(cfg, split)]

    def _report(self, split: str, config: Mapping[str, Any], cfg: Any) -> DataReport:
        with DATASETS.switch_scope_and_registry(config.get('_scope_')) as registry:
            name = config['type']
            cls = registry.get(name) if isinstance(name, str) else name
        report = DataReport(f'{split} data ({cls.__name__}, {config.get("data_root")})')
        kind = None if _is_remote(config) else _kind(cls)
        if kind is None:
            report.notes.append('not checked: not a local CocoDataset or BaseSegDataset')
            return report
        report.look_for(config)
        if report.problems:
            return report
        dataset = DATASETS.build({**config, 'lazy_init': True, 'pipeline': []})
        classes = dataset.metainfo['classes']
        steps = [step for step in config.get('pipeline', []) if isinstance(step, Mapping)]
        # Test data may have none: for submissions.
        truth = split != 'test' or any('Annotations' in type_name(step) for step in steps)
        if kind == 'CocoDataset':
            masks = any(step.get('with_mask') for step in steps)
            check_coco(
                dataset,
                report,
                masks=masks,
                max_decode=self.max_decode,
                boxes=truth,
                evaluated=_evaluated(cfg, split, masks) if split != 'train' else (),
                turns=_turns(steps),
                steps=steps,
            )
        elif not truth:
            report.notes.append('not checked: the pipeline reads no label maps')
        else:
            loaders = ('LoadAnnotations', 'mmseg.LoadAnnotations')
            squeezes = any(step['type'] in loaders for step in steps)
            check_label_maps(
                dataset,
                report,
                squeezes=squeezes,
                max_decode=self.max_decode,
                turns=_turns(steps),
                steps=steps,
            )
        report.refuse(repeated(classes), 'class names appear more than once')
        for path, count in config_values(cfg.get('model')):
            head = re.fullmatch(r'(decode|auxiliary)_head(\.\d+)?\.num_classes', path)
            if kind == 'BaseSegDataset' and head and count != len(classes):
                what = f'is {count}, but there are {len(classes)} class names'
                report.problems.append(f'model.{path} {what}')
        return report


@RUNNERS.register_module()
class EarlyHookRunner(Runner):
    """MMEngine's runner with one more hook stage, ``before_build(runner, splits)``, before the data sets are built.

    MMEngine builds the data sets before it calls the first stage of its hooks, so an annotation file without images,
    for example, ends in a numpy error that no hook can prevent. ``runner_type = 'mmlape.EarlyHookRunner'`` in a config
    makes the tools of MMDetection and MMSegmentation use this runner.
    """

    def train(self):
        """Check the numbers of the config, call ``before_build`` for the training and validation data, then train."""
        check_config(self.cfg)
        self.call_hook('before_build', splits=('train', 'val'))
        return super().train()

    def val(self):
        """Call ``before_build`` for the validation data, then validate."""
        self.call_hook('before_build', splits=('val',))
        return super().val()

    def test(self):
        """Call ``before_build`` for the test data, then test."""
        self.call_hook('before_build', splits=('test',))
        return super().test()


def _evaluated(cfg: Config | Mapping[str, Any], split: str, masks: bool) -> tuple[str, ...]:
    """Metrics that pycocotools computes for a split: of evaluators that read a file; without an evaluator, all."""
    evaluators = cfg.get(f'{split}_evaluator')
    if evaluators is None:
        return ('bbox', 'segm') if masks else ('bbox',)
    found: list[str] = []
    for each in evaluators if isinstance(evaluators, (list, tuple)) else [evaluators]:
        evaluates = each.get('ann_file') and not each.get('format_only')
        metrics = each.get('metric', 'bbox') if evaluates else ()
        found += [metrics] if isinstance(metrics, str) else metrics
    return tuple(found)


def _turns(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a pipeline turns images as their EXIF data say."""
    for step in steps:
        if 'LoadImage' in type_name(step):
            kind = step.get('color_type', 'color')
            by_turbo = step.get('imdecode_backend') == 'turbojpeg'
            return not (by_turbo or kind == 'unchanged' or 'ignore_orientation' in kind)
    return True


def _kind(cls: Any) -> str | None:
    """The class whose files a data set has, if we know them; upstream is not imported for this."""
    for module, name in (('mmdet.datasets', 'CocoDataset'), ('mmseg.datasets', 'BaseSegDataset')):
        base = getattr(sys.modules.get(module), name, None)
        if base and issubclass(cls, base) and cls.load_data_list is base.load_data_list:
            return name
    return None

"""Profile of a training step, from the image file to the log.

    python -m benchmarks.training_step [--only mask-rcnn ...] [--steps 5] [--threads 1] [--out FILE.json]

Trains unchanged configs for a few steps with MMEngine's runner and all hooks, from random weights on digit scenes of
photograph size. Parts are timed in processor time, so that other load matters little, or with a GPU in wall-clock time,
synchronised at every border. Configs in the record are skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.cpu import optimize
from mmlape.research.datasets import DIGIT_CLASSES, build_digit_scenes
from mmlape.shipped import find_config

from .side_by_side import keep_freed_memory, write_record

CLONE = Path(__file__).resolve().parents[1]
CONFIGS = {
    'mask-rcnn': 'lape/mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco',
    'upernet': 'lape/upernet_deit-t-adapter-lape_8xb2-160k_ade20k-512x512',
    'segmenter': 'lape/segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512',
}
PARTS = {
    'data': 'data',
    'preprocessing': 'pre-processing',
    'backbone': 'backbone',
    'neck': 'neck',
    'heads': 'heads and losses',
    'backward': 'backward',
    'optimizer': 'optimizer',
    'hooks': 'hooks, log',
    'rest': 'rest',
}
IMAGE_SIDE = 640


class Ledger:
    """Time by part: time counts for the innermost watched call, else for ``rest``.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open = ['rest']
        self._since = clock()

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count calls of ``owner.name`` for ``part`` from now on."""
        call = getattr(owner, name)

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._open.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._turn()
                self._open.pop()

        setattr(owner, name, timed)

    def close(self) -> dict[str, float]:
        """Seconds since the last call of this, by part."""
        self._turn()
        taken, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return taken

    def _turn(self) -> None:
        now = self.clock()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now


class StepTimes(Hook):
    """Stores the times of every iteration in ``steps``."""

    priority = 'LOWEST'

    def __init__(self, clock: Callable[[], float]) -> None:
        self.ledger = Ledger(clock)
        self.steps: list[dict[str, float]] = []

    def before_train(self, runner: Runner) -> None:
        """Watch the calls of a step. Requires no workers, which would load data in parallel."""
        model, optimizer, watch = runner.model, runner.optim_wrapper, self.ledger.watch
        loader = runner.train_loop.dataloader
        watch(loader.dataset, 'prepare_data', 'data')
        watch(loader, 'collate_fn', 'data')
        watch(model.data_preprocessor, 'forward', 'preprocessing')
        watch(model.backbone, 'forward', 'backbone')
        if model.with_neck:
            watch(model.neck, 'forward', 'neck')
        watch(model, 'forward', 'heads')
        watch(optimizer, 'backward', 'backward')
        for name in ('step', 'zero_grad'):
            watch(optimizer, name, 'optimizer')
        watch(runner, 'call_hook', 'hooks')
        self.ledger.close()

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """This hook is the last of a step."""
        self.steps.append(self.ledger.close())


def seconds_now() -> float:
    """Return this process's processor time; with a GPU, the wall clock once the GPU is done."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def prepared(config: str, data: Path, steps: int, work_dir: Path) -> Config:
    """A shipped config for some steps on the digit scenes in ``data``: one process, no weights, no validation."""
    cfg = Config.fromfile(find_config(config))
    loader = cfg.train_dataloader
    loader.update(num_workers=0, persistent_workers=False)
    loader.dataset.data_root = str(data)
    if cfg.default_scope == 'mmdet':
        loader.dataset.ann_file = 'annotations/instances_train.json'
        loader.dataset.data_prefix = dict(img='images/train/')
        loader.dataset.metainfo = dict(classes=DIGIT_CLASSES)
    else:
        loader.dataset.data_prefix = dict(img_path='images/train', seg_map_path='annotations/train')
        loader.dataset.update(img_suffix='.jpg', seg_map_suffix='.png')
    for part in (cfg.model.backbone, cfg.model.backbone.get('vit', {})):
        part.pop('init_cfg', None)
    for kind in ('val', 'test'):
        for rest in ('cfg', 'dataloader', 'evaluator'):
            cfg[f'{kind}_{rest}'] = None
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=steps)
    cfg.default_hooks.checkpoint = None
    cfg.randomness = dict(seed=0)
    cfg.work_dir, cfg.launcher = str(work_dir), 'none'
    cfg.experiment_name = f'step-{Path(config).name}'
    return cfg


def measure(cfg: Config, warm_up: int) -> dict[str, Any]:
    """Train; milliseconds of each part (medians over the steps after ``warm_up``), of a step, and what was trained."""
    times = StepTimes(seconds_now)
    runner = Runner.from_cfg(cfg)
    optimize(runner.model, keep_memory=False)
    runner.register_hook(times)
    runner.train()
    steps = times.steps[warm_up:]
    return {
        'images_per_step': cfg.train_dataloader.batch_size,
        'steps': len(steps),
        'parts_ms': {
            part: round(1e3 * statistics.median(step[part] for step in steps), 2) for part in PARTS
        },
        'step_ms': round(1e3 * statistics.median(sum(step.values()) for step in steps), 1),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """A row per config, a column per part: its share of the sum in percent."""
    lines = [
        f'| | step | {" | ".join(PARTS.values())} |',
        f'|{"---|" * (len(PARTS) + 2)}',
    ]
    for name, result in results.items():
        whole = sum(result['parts_ms'].values())
        shares = (f'{100 * taken / whole:.1f} %' for taken in result['parts_ms'].values())
        seconds = f'{result["step_ms"] / 1e3:.2f} s'
        lines.append(
            f'| {name}, {result["images_per_step"]} images | {seconds} | {" | ".join(shares)} |'
        )
    return '\n'.join(lines)


def kept(path: Path) -> dict[str, dict[str, Any]]:
    """The contents of a record, empty if there is none."""
    return json.loads(path.read_text(encoding='utf-8'))['results'] if path.is_file() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', nargs='+', choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument('--steps', type=int, default=5)
    parser.add_argument('--warm-up', type=int, default=2)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--again', action='store_true', help='measure again what the record has')
    parser.add_argument('--out', type=Path, default=CLONE / 'benchmarks/records/training_step.json')
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `mmlape train` does
    results = kept(options.out)
    with tempfile.TemporaryDirectory() as folder:
        data = build_digit_scenes(
            Path(folder, 'data'), num_train=16, num_val=1, image_size=IMAGE_SIDE,
            digits_per_image=(4, 10), digit_size=(40, 300),
        )  # fmt: skip
        for name in options.only:
            if options.again or name not in results:
                steps = options.warm_up + options.steps
                cfg = prepared(CONFIGS[name], data, steps, Path(folder, name))
                results[name] = measure(cfg, options.warm_up)
                write_record(options.out, results, show=False)
    print(table({name: results[name] for name in options.only}))


if __name__ == '__main__':
    main()

"""Trainings that are killed and go on: a process that has imported everything forks the ones that train.

    python tests/kill_runs.py KILLS [SEED]     # more than the tests do; prints what was done

Configs are the demo's, made small, with everything in them that a resumed run could lose.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import mmengine.config.config
import mmengine.registry
import mmengine.runner.runner
import numpy as np
import torch
import yapf.yapflib.yapf_api
from mmengine.config import Config
from mmengine.hooks import Hook
from ports import free_port

from mmlape.datasets import build_digit_scenes
from mmlape.registry import HOOKS

# Everything that a training imports on its way.
for toolbox in ('mmdet', 'mmseg'):
    for part in ('models', 'datasets', 'engine', 'evaluation', 'visualization'):
        importlib.import_module(f'{toolbox}.{part}')
importlib.import_module('matplotlib.backends.backend_agg')
for registry in vars(mmengine.registry).values():
    if isinstance(registry, mmengine.registry.Registry):
        registry.import_from_location()
gc.collect()
gc.freeze()  # upstream collects garbage at each start

REPO = Path(__file__).resolve().parents[1]
DEMO = REPO / 'configs' / 'demo'
INTERVAL = 3


@HOOKS.register_module(force=True)
class RecordSteps(Hook):
    """Append a line per iteration: number, checksum of the images, random numbers of the step."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        images = data_batch['inputs']
        self.images = zlib.crc32(b''.join(image.numpy().tobytes() for image in images))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        draws = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        line = [runner.iter, batch_idx, self.images, *draws]
        with open(Path(runner.work_dir, f'steps_{runner.rank}.jsonl'), 'a') as file:
            file.write(json.dumps(line) + '\n')


@dataclass(frozen=True)
class Case:
    """A training to be killed."""

    config: str
    processes: int
    by_epoch: bool
    workers: int

    def build(self, data: Path, work_dir: Path, steps: int) -> Config:
        cfg = Config.fromfile(DEMO / self.config)
        cfg.work_dir, cfg.launcher = str(work_dir), 'pytorch' if self.processes > 1 else 'none'
        pipeline = cfg.train_dataloader.dataset.pipeline
        jitter = [dict(type='PhotoMetricDistortion'), dict(type='RandomFlip', prob=0.5)]
        pipeline[-1:-1] = jitter
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.batch_size = 2
            loader.dataset.data_root = f'{data}/'
        _shrink(cfg.model)
        if 'ann_file' in cfg.val_evaluator:
            cfg.val_evaluator.ann_file = f'{data}/annotations/instances_val.json'
        cfg.train_dataloader.num_workers = self.workers
        cfg.train_dataloader.persistent_workers = self.workers > 0
        cfg.custom_hooks = [
            dict(type='mmlape.RecordSteps'),
            dict(type='EMAHook', momentum=0.1),
            *cfg.get('custom_hooks', []),
        ]
        # No seed: the run draws one, and keeps it.
        cfg.randomness = dict(seed=None)
        cfg.default_hooks.checkpoint.update(interval=INTERVAL, save_best='auto', rule='greater')
        cfg.default_hooks.logger.interval = 1
        if self.by_epoch:
            cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
            if 'Det' in cfg.visualizer.type:
                cfg.train_dataloader.batch_sampler = dict(type='AspectRatioBatchSampler')
            epoch = 10 // (2 * self.processes) + (10 % (2 * self.processes) > 0)
            cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=-(-steps // epoch))
            cfg.log_processor.by_epoch = True
        else:
            cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=steps, val_interval=4)
        return cfg


def _shrink(model) -> None:
    if 'vit' in model.backbone:
        model.backbone.vit.arch.embed_dims, model.backbone.conv_inplanes = 24, 8
        model.neck.update(in_channels=[24] * 4, out_channels=24)
        for head in (model.decode_head, model.auxiliary_head):
            head.in_channels = head.channels = 24
        model.decode_head.embed_dims = 24
    else:
        dims = [8, 16, 20, 24]
        model.backbone.arch.update(embed_dims=dims, depths=[1] * 4)
        model.neck.update(in_channels=dims, out_channels=24)
        model.bbox_head.update(in_channels=24, feat_channels=24, stacked_convs=1)


SEGMENTER = 'segmenter_vit-micro-adapter-lape_mask_digit-scenes.py'
RETINANET = 'retinanet_pvt-micro-dtn_fpn_digit-scenes.py'
CASES = {
    'segmentation, 1 process, iterations': Case(SEGMENTER, 1, False, 0),
    'detection, 1 process, epochs': Case(RETINANET, 1, True, 1),
    'segmentation, 2 processes, epochs': Case(SEGMENTER, 2, True, 1),
    'detection, 2 processes, iterations': Case(RETINANET, 2, False, 0),
}


class Attempt:
    """The forked processes of one start of a training."""

    def __init__(self, cfg: Config, processes: int, resume: str | None = 'auto') -> None:
        self.log = Path(cfg.work_dir, 'attempts.log')
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = dict(
            MASTER_ADDR='127.0.0.1', MASTER_PORT=str(free_port()), WORLD_SIZE=str(processes)
        )
        if processes == 1:
            environment = {}
        self.children = []
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)
                if environment:
                    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
                _train(cfg, resume, self.log)
            with contextlib.suppress(OSError):
                os.setpgid(child, child)
            self.children.append(child)

    def wait(self, seconds: float = 180) -> list[int]:
        """The exit codes."""
        end, codes = time.monotonic() + seconds, {}
        while len(codes) < len(self.children):
            for child in self.children:
                done, status = (0, 0) if child in codes else os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(self.log.read_text()[-3000:])
            time.sleep(0.002)
        return [codes[child] for child in self.children]

    def alive(self) -> bool:
        return all(
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            for child in self.children
        )

    def kill(self) -> None:
        """SIGKILL for all of them and their workers."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        for child in self.children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _train(cfg: Config, resume: str | None, log: Path) -> None:
    """What a child does; it never returns."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    code = 1
    # Describing the machine and making configs pretty takes longer than these trainings.
    plain = lambda text, **_: (text, True)  # noqa: E731
    mmengine.config.config.FormatCode = yapf.yapflib.yapf_api.FormatCode = plain
    mmengine.runner.runner.collect_env = dict
    try:
        tool = runpy.run_path(str(REPO / 'tools' / 'train.py'))
        with tool['joined'](cfg):
            tool['train'](cfg, resume)
        code = 0
    except SystemExit as end:
        print(end.code, flush=True)
        code = int(bool(end.code))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


@dataclass
class Tally:
    """What was done to the runs, and what came of it."""

    kills: Counter = field(default_factory=Counter)
    lost: list[int] = field(default_factory=list)
    in_save: int = 0
    chains: int = 0
    seconds_alone: list[float] = field(default_factory=list)


class Killer:
    """Trains a case without interruption once, and then again and again with kills, comparing the outcomes.

    Args:
        case: What is trained.
        data: Digit scenes, ten images to train on.
        folder: Where the runs go.
        seed: Of the moments; the training's seed is drawn by the uninterrupted run.
        steps: Iterations (a whole number of epochs at least).
    """

    def __init__(self, case: Case, data: Path, folder: Path, seed: int, steps: int = 10) -> None:
        self.case, self.data, self.folder, self.steps = case, data, folder, steps
        self.random, self.tally = random.Random(seed), Tally()
        self.whole = folder / 'whole'
        started = time.monotonic()
        self._finish(self.whole)
        self.seconds = time.monotonic() - started
        self.seed = last_checkpoint(self.whole)['meta']['seed']

    def chain(self, kills: int) -> None:
        """One more training, killed up to ``kills`` times; its end must be that of the uninterrupted one."""
        self.tally.chains += 1
        work_dir = self.folder / f'killed_{self.tally.chains}'
        reached = 0
        for _ in range(kills):
            attempt = self._start(work_dir)
            before = len(steps_of(work_dir))
            if not self._kill(attempt, work_dir, before):
                break
            steps = [line[0] for line in steps_of(work_dir)[before:]]
            if steps:
                self.tally.lost.append(reached - steps[0])
                reached = steps[-1] + 1
        before = len(steps_of(work_dir))
        self._finish(work_dir)
        steps = [line[0] for line in steps_of(work_dir)[before:]]
        self.tally.lost.append(reached - (steps[0] if steps else reached))
        self._compare(work_dir)

    def _start(self, work_dir: Path) -> Attempt:
        cfg = self.case.build(self.data, work_dir, self.steps)
        if work_dir != self.whole and not (work_dir / 'last_checkpoint').exists():
            cfg.randomness.seed = self.seed  # later, the checkpoint knows it
        return Attempt(cfg, self.case.processes)

    def _finish(self, work_dir: Path) -> None:
        codes = self._start(work_dir).wait()
        assert not any(codes), (codes, (work_dir / 'attempts.log').read_text()[-3000:])

    def _kill(self, attempt: Attempt, work_dir: Path, before: int) -> bool:
        """Kill at a random moment; whether the training was still running."""
        kinds = ['any moment', 'step', 'step', 'save', 'save']
        kind = self.random.choice([*kinds, *['one process'] * 2 * (self.case.processes > 1)])
        moment = time.monotonic() + self.random.uniform(0, self.seconds)
        steps, pause = self.random.randint(0, INTERVAL + 2), self.random.uniform(0, 0.1)
        while attempt.alive():
            due = time.monotonic() > moment
            if kind == 'save':
                due = any(work_dir.glob('.*draft'))
            elif kind != 'any moment':
                due = len(steps_of(work_dir)) - before >= steps
            if due:
                break
            time.sleep(0.0003 if kind == 'save' else 0.005)
        else:
            codes = attempt.wait()
            assert not any(codes), (codes, (work_dir / 'attempts.log').read_text()[-3000:])
            return False
        if kind in ('step', 'one process'):
            time.sleep(pause)
        if kind == 'one process':
            os.kill(attempt.children[self.random.randrange(2)], signal.SIGKILL)
            started = time.monotonic()
            codes = attempt.wait(60)
            assert 0 not in codes or self._ended(work_dir), codes
            self.tally.seconds_alone.append(time.monotonic() - started)
        attempt.kill()
        self.tally.kills[kind] += 1
        self.tally.in_save += any(work_dir.glob('.*draft'))
        return True

    def _ended(self, work_dir: Path) -> bool:
        steps = steps_of(work_dir)
        return bool(steps) and steps[-1][0] == steps_of(self.whole)[-1][0]

    def _compare(self, work_dir: Path) -> None:
        for rank in range(self.case.processes):
            whole = {line[0]: line for line in steps_of(self.whole, rank)}
            for line in steps_of(work_dir, rank):
                assert line == whole[line[0]], (work_dir, rank, line, whole[line[0]])
        names = [
            sorted(path.name for path in folder.iterdir() if path.suffix in ('.pth', '.sha256'))
            for folder in (self.whole, work_dir)
        ]
        assert names[0] == names[1], names
        for name in names[0]:
            if name.endswith('.pth'):
                one, other = (load(folder / name) for folder in (self.whole, work_dir))
                fault = difference(one, other)
                assert fault is None, (work_dir, name, fault)


def steps_of(work_dir: Path, rank: int = 0) -> list[list[int]]:
    path = work_dir / f'steps_{rank}.jsonl'
    text = path.read_text() if path.is_file() else ''
    return [json.loads(line) for line in text.splitlines()]


def load(path: Path) -> dict:
    return torch.load(path, map_location='cpu', weights_only=False)


def last_checkpoint(work_dir: Path) -> dict:
    return load(Path((work_dir / 'last_checkpoint').read_text()))


TIMES = ('time', 'data_time', 'cfg', 'experiment_name', 'memory', 'eta')


def difference(one, other, path: str = '') -> str | None:
    """Where two checkpoints differ, apart from times and the work dir's name; None if they do not."""
    if isinstance(one, torch.Tensor):
        return None if isinstance(other, torch.Tensor) and torch.equal(one, other) else path
    if type(one) is not type(other):
        return f'{path}: {type(one)} and {type(other)}'
    if isinstance(one, dict):
        if list(one) != list(other):
            return f'{path}: {set(one) ^ set(other) or "order"}'
        pairs = [(key, one[key], other[key]) for key in one if str(key).split('/')[-1] not in TIMES]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f'{path}: {len(one)} and {len(other)} entries'
        pairs = list(zip(range(len(one)), one, other, strict=True))
    elif hasattr(one, '_log_history'):
        pairs = [('history', one._log_history.tolist(), other._log_history.tolist())]
    elif isinstance(one, str) and '/whole/' in one:
        return None if Path(one).name == Path(other).name else path
    else:
        return None if one == other or one != one else f'{path}: {one!r} and {other!r}'
    faults = (difference(a, b, f'{path}/{key}') for key, a, b in pairs)
    return next((fault for fault in faults if fault), None)


def main() -> None:
    kills, seed = int(sys.argv[1]), int((sys.argv[2:] or ['0'])[0])
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            data = build_digit_scenes(Path(folder, 'data'), num_train=10, num_val=2)
            killer = Killer(case, data, Path(folder), seed)
            while killer.tally.kills.total() < kills:
                killer.chain(5)
            print(f'{name}: {killer.seconds:.1f} s uninterrupted; {killer.tally}', flush=True)


if __name__ == '__main__':
    main()

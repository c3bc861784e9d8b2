"""Evaluates, trains and draws a model of the demo with MMEngine's Runner in its own process."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.cpu import optimize

from .catalogue import TASKS, Call, Job, describe
from .console import output_to
from .pictures import draw
from .state import State, fingerprint, last_checkpoint


def run_task(job: Job, report: Callable[[Call], None]) -> dict:
    """Run all steps of a model; return its results and the machine's properties."""
    if job.threads:
        torch.set_num_threads(job.threads)
    with output_to(job.log_file):
        run = TaskRun(job, Relay(report))
        results = run.run()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'
    return dict(
        results,
        machine=dict(device=device, threads=torch.get_num_threads(), torch=torch.__version__),
    )


class Relay:
    """Forwards calls of a :class:`~mmlape.research.demo.console.Console` to the process that has the screen."""

    def __init__(self, report: Callable[[Call], None]) -> None:
        self.report = report

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.report((name, args, kwargs))


class ProgressHook(Hook):
    """Reports iterations to the console, and the seconds spent to ``on_checkpoint``."""

    # After the hook that writes checkpoints.
    priority = 'LOWEST'

    def __init__(self, console: Relay, on_checkpoint: Callable[[int], None] | None = None) -> None:
        self.console = console
        self.on_checkpoint = on_checkpoint
        self.resumed = 0.0

    def before_train(self, runner: Runner) -> None:
        self.resumed = runner.iter / runner.max_iters

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        done = runner.iter + 1
        loss = runner.message_hub.get_scalar('train/loss').mean(20)
        self.console.progress(
            done / runner.max_iters,
            f'iteration {done} of {runner.max_iters}, loss {loss:.2f}',
            self.resumed,
        )
        checkpoints = runner.cfg.default_hooks.checkpoint.interval
        if self.on_checkpoint and (done % checkpoints == 0 or done == runner.max_iters):
            self.on_checkpoint(done)

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        batches = len(runner.val_dataloader)
        self.console.progress((batch_idx + 1) / batches, f'batch {batch_idx + 1} of {batches}')


class TaskRun:
    """One task from the untrained model to the picture; completed steps are never repeated.

    Args:
        job: What to do, and where.
        console: Where to report.
    """

    def __init__(self, job: Job, console: Relay) -> None:
        self.task, self.console = TASKS[job.key], console
        self.folder = job.work_dir / job.key
        self.cfg = Config.fromfile(job.config_root / self.task.config)
        if job.iterations is not None:
            shorten(self.cfg, job.iterations)
        self.state = State(self.folder, fingerprint(self.cfg.to_dict(), job.data_id), console.say)
        self.cfg.work_dir = str(self.folder)
        move_data(self.cfg, job.data_root)
        self.untrained, self.training, self.trained = self.task.steps

    @property
    def picture(self) -> Path:
        return self.folder.parent / f'{self.task.key}.png'

    def run(self) -> dict:
        """Run the remaining steps; return the results."""
        self._evaluate_untrained()
        checkpoint = self._train()
        self._evaluate_trained(checkpoint)
        iterations = self.cfg.train_cfg.max_iters
        return {
            'untrained': self.state.get('untrained'),
            'trained': self.state.get('trained'),
            'iterations': iterations,
            'training_seconds': round(self.state.get('seconds')[str(iterations)], 1),
            'parameters': self.state.get('parameters'),
            'picture': self.picture.name,
        }

    def _evaluate_untrained(self) -> None:
        if self.state.get('untrained') is not None:
            self.console.skip(self.untrained, describe(self.state.get('untrained')))
            return
        self.console.begin(self.untrained)
        runner = self._runner('untrained')
        runner.model.init_weights()
        metrics = self._evaluate(runner)
        parameters = sum(parameter.numel() for parameter in runner.model.parameters())
        self.state.put(untrained=metrics, parameters=parameters)
        self.console.end(describe(metrics))

    def _train(self) -> Path:
        checkpoint, done = last_checkpoint(self.folder, self.console.say)
        iterations = self.cfg.train_cfg.max_iters
        seconds = self.state.get('seconds', {})
        if checkpoint and done >= iterations and str(done) in seconds:
            self.console.skip(self.training, f'{iterations} iterations')
            return checkpoint
        if checkpoint:
            self.console.say(f'  {self.training}  continuing after iteration {done}')
        self.console.begin(self.training)
        started, before = time.monotonic(), seconds.get(str(done), 0.0)

        def keep_time(iteration: int) -> None:
            seconds[str(iteration)] = before + time.monotonic() - started
            self.state.put(seconds=seconds)

        runner = self._runner(
            'train',
            load_from=checkpoint and str(checkpoint),
            resume=checkpoint is not None,
            # Evaluation is a separate step.
            val_cfg=None,
            val_dataloader=None,
            val_evaluator=None,
        )
        runner.register_hook(ProgressHook(self.console, keep_time))
        runner.train()
        if str(iterations) not in seconds:  # killed between the last checkpoint and its note
            keep_time(iterations)
        self.console.end(f'{iterations} iterations')
        return self.folder / f'iter_{iterations}.pth'

    def _evaluate_trained(self, checkpoint: Path) -> None:
        if self.state.get('trained') is not None and self.picture.is_file():
            self.console.skip(self.trained, describe(self.state.get('trained')))
            return
        self.console.begin(self.trained)
        runner = self._runner('trained', load_from=str(checkpoint))
        metrics = self._evaluate(runner)
        draw(runner, self.picture)
        self.state.put(trained=metrics)
        self.console.end(describe(metrics))

    def _evaluate(self, runner: Runner) -> dict[str, float]:
        runner.register_hook(ProgressHook(self.console))
        reported = runner.val()
        return {
            name: round(float(reported[key]) * factor, 4)
            for name, (key, factor) in self.task.metrics.items()
        }

    def _runner(self, purpose: str, **changes) -> Runner:
        cfg = self.cfg.copy()
        # MMEngine caches loggers by this name for the life of the process.
        cfg.experiment_name = f'demo-{self.task.key}-{purpose}-{os.getpid()}'
        for name, value in changes.items():
            cfg[name] = value
        runner = Runner.from_cfg(cfg)
        if get_device() == 'cpu':
            optimize(runner.model)
        return runner


def shorten(cfg: Config, iterations: int) -> None:
    """Change a config's number of iterations, and its learning rate schedule with it."""
    part = iterations / cfg.train_cfg.max_iters
    cfg.train_cfg.max_iters = cfg.train_cfg.val_interval = iterations
    for schedule in cfg.param_scheduler:
        if 'end' in schedule:
            schedule.begin = round(schedule.begin * part)
            schedule.end = max(round(schedule.end * part), schedule.begin + 1)
    if cfg.default_hooks.get('checkpoint'):
        cfg.default_hooks.checkpoint.interval = max(1, iterations // 3)


def move_data(cfg: Config, data_root: Path) -> None:
    """Change where a config expects the digit scenes."""
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[loader].dataset.data_root = str(data_root)
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        if 'ann_file' in evaluator:
            evaluator.ann_file = str(data_root / 'annotations/instances_val.json')

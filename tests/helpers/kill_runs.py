"""Trainings that are killed, and what is lost by it.

python tests/helpers/kill_runs.py KILLS [SEED [CASE ...]]     # of each case; prints what was done, a line per case
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from checkpoint_difference import difference
from forked_training import CASES, INTERVAL, Attempt, Case

from mmlape.research.datasets import build_digit_scenes


@dataclass
class Tally:
    """What was done to the runs. ``lost``: iterations that were trained again, per start."""

    kills: Counter = field(default_factory=Counter)
    lost: list[int] = field(default_factory=list)
    in_save: int = 0
    chains: int = 0
    seconds_alone: list[float] = field(default_factory=list)


class Killer:
    """Trains a case without interruption once, and then again and again with kills, comparing the outcomes."""

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
        for attempt_number in range(kills + 1):
            before, running = len(steps_of(work_dir)), False
            if attempt_number == kills:
                self._finish(work_dir)
            else:
                running = self._kill(self._start(work_dir), work_dir, before)
            steps = [line[0] for line in steps_of(work_dir)[before:]]
            if steps:
                self.tally.lost.append(reached - steps[0])
                assert self.tally.lost[-1] <= INTERVAL
                reached = steps[-1] + 1
            if not running:
                break
        self._compare(work_dir)

    def _start(self, work_dir: Path) -> Attempt:
        cfg = self.case.build(self.data, work_dir, self.steps)
        if work_dir != self.whole and not list(work_dir.glob('iter_*.pth')):
            cfg.randomness.seed = self.seed  # later, the checkpoint knows it
        return Attempt(cfg, self.case.processes)

    def _finish(self, work_dir: Path) -> None:
        codes = self._start(work_dir).wait()
        assert not any(codes), (codes, (work_dir / 'attempts.log').read_text()[-3000:])

    def _kill(self, attempt: Attempt, work_dir: Path, before: int) -> bool:
        """Kill at a random moment; whether the training was still running."""
        kinds = ['any moment', 'step', 'step', 'save', 'save']
        kind = self.random.choice([*kinds, *['one process'] * 2 * (self.case.processes > 1)])
        limit = time.monotonic() + 180
        moment = time.monotonic() + self.random.uniform(0, self.seconds)
        # Before a step there may be no group whose other process could notice: there, torchrun ends it.
        steps = self.random.randint(kind == 'one process', INTERVAL + 2)
        pause = self.random.uniform(0, 0.1)
        while attempt.alive():
            due = time.monotonic() > moment
            if kind == 'save':
                due = any(work_dir.glob('.*draft'))
            elif kind != 'any moment':
                due = len(steps_of(work_dir)) - before >= steps
            if due:
                break
            if time.monotonic() > limit:
                attempt.wait(0)  # says what it did last
            time.sleep(0.0003 if kind == 'save' else 0.005)
        else:
            codes = attempt.wait()
            assert not any(codes), (codes, (work_dir / 'attempts.log').read_text()[-3000:])
            return False
        if kind in ('step', 'one process'):
            time.sleep(pause)
        if kind == 'one process':
            attempt.children[self.random.randrange(2)].kill()
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


def main() -> None:
    kills, seed = int(sys.argv[1]), int((sys.argv[2:] or ['0'])[0])
    for name in sys.argv[3:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            data = build_digit_scenes(Path(folder, 'data'), num_train=10, num_val=2)
            killer = Killer(CASES[name], data, Path(folder), seed)
            while killer.tally.kills.total() < kills:
                killer.chain(5)
            report = dict(case=name, seconds=round(killer.seconds, 1), **vars(killer.tally))
            print(json.dumps(report), flush=True)


if __name__ == '__main__':
    main()

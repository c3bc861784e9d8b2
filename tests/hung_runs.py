"""Trainings of two processes, of which one hangs.

python tests/hung_runs.py [KIND ...]     # prints what came of it, a line per kind
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from forked_training import Attempt
from mmengine.hooks import Hook
from toy_training import toy_config

from mmlape.registry import HOOKS

TIMEOUT, GROUP_TIMEOUT, ITERATION = 4, 10, 5
# What: the process that hangs, and in which call.
KINDS = {
    'data': (1, 'loading'),
    'forward': (1, 'before_train_iter'),
    'validation': (1, 'before_val_iter'),
    'saving': (0, 'before_save_checkpoint'),
    'stopped': (1, 'before_train_iter'),
    'stopped first': (0, 'before_train_iter'),  # which has the store
    'slow': (1, 'before_train_iter'),
}


@HOOKS.register_module(force=True)
class Hangs(Hook):
    """Makes one process hang, once."""

    priority = 'LOWEST'  # the other hook knows already what begins

    def __init__(self, kind, marker):
        self.kind, self.marker = kind, Path(marker)

    def _perhaps(self, runner, call):
        if (runner.rank, call) != KINDS[self.kind] or runner.iter < ITERATION:
            return
        if self.marker.exists():
            return
        if self.kind.startswith('stopped'):
            # Others have heard of it by then, as in a training of more than a moment.
            time.sleep(TIMEOUT / 4)
        self.marker.write_text(str(time.time()))
        if self.kind == 'slow':
            end = time.monotonic() + 2 * TIMEOUT
            while time.monotonic() < end:
                sum(range(10000))
                time.sleep(0.001)
        elif self.kind.startswith('stopped'):
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            threading.Event().wait()

    def before_train(self, runner):
        data = runner.train_loop.dataloader.dataset
        prepare = data.prepare_data

        def prepared(idx):
            self._perhaps(runner, 'loading')
            return prepare(idx)

        data.prepare_data = prepared

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self._perhaps(runner, 'before_train_iter')

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        self._perhaps(runner, 'before_val_iter')

    def before_save_checkpoint(self, runner, checkpoint):
        self._perhaps(runner, 'before_save_checkpoint')


def start(kind: str, folder: Path) -> Attempt:
    cfg = toy_config(folder, log_level='INFO', launcher='pytorch')
    cfg.default_hooks.hung = dict(type='mmlape.HungProcessHook', timeout=TIMEOUT)
    cfg.env_cfg = dict(dist_cfg=dict(backend='gloo', timeout=GROUP_TIMEOUT))
    cfg.custom_hooks.append(dict(type='mmlape.Hangs', kind=kind, marker=str(folder / 'hung')))
    return Attempt(cfg, 2)


def run(kind: str, folder: Path) -> dict:
    """Let one hang; when the first of the others has ended, stop the rest, and go on."""
    attempt = start(kind, folder)
    end = time.monotonic() + 120
    while attempt.alive() and time.monotonic() < end:
        time.sleep(0.02)
    seconds = time.time() - float((folder / 'hung').read_text())
    if kind == 'slow':
        return dict(kind=kind, codes=attempt.wait(), log=attempt.log.read_text())
    well = os.waitpid(attempt.children[1 - KINDS[kind][0]], os.WNOHANG)
    code = os.waitstatus_to_exitcode(well[1]) if well[0] else None
    attempt.kill()
    log = attempt.log.read_text()
    codes = start(kind, folder).wait()
    return dict(
        kind=kind, hung=attempt.children[KINDS[kind][0]], seconds=round(seconds, 1), code=code,
        log=log, resumed=codes, goes_on='resumed epoch' in attempt.log.read_text()[len(log) :],
    )  # fmt: skip


def main() -> None:
    for kind in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(run(kind, Path(folder))), flush=True)


if __name__ == '__main__':
    main()

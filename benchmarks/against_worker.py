"""One side of against.py: a process with one ``mmlape``. Requests and answers are lines of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from side_by_side import CLOCKS, keep_freed_memory, milliseconds, saved_bytes, versions
from torch.utils._pytree import tree_leaves

import mmlape
from mmlape.registry import MODELS


class Side:
    """The requests, by the names of the methods."""

    def __init__(self) -> None:
        self.device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.model = self.image = None

    def about(self) -> dict:
        """The imported ``mmlape`` and package versions."""
        return dict(
            folder=str(Path(mmlape.__file__).resolve().parents[1]),
            versions=versions(),
        )

    def build(self, config: dict, size: list[int], batch: int) -> dict:
        """Replace the current backbone by another."""
        self.model = None
        torch.manual_seed(0)
        self.model = MODELS.build(config).to(self.device)
        # Not hasattr: an editable installation would add this clone's package to an older revision.
        if (Path(mmlape.__file__).parent / 'cpu').is_dir():
            self.model = mmlape.cpu.optimize(self.model, keep_memory=False)
        self.image = torch.randn(batch, 3, *size, device=self.device)
        return dict(
            parameters=sum(p.numel() for p in self.model.parameters()),
            flops=self.flops(config, size),
            saved_bytes=saved_bytes(lambda: self.model.train()(self.image)),
        )

    def flops(self, config: dict, size: list[int]) -> int | None:
        """FLOPs of one image; None if the counter fails."""
        try:
            from mmlape.research.analysis import count_flops

            model = MODELS.build(config).eval()
            with count_flops() as counter:
                model(torch.empty(1, 3, *size))
        except Exception as error:
            print(f'FLOPs: {type(error).__name__}: {error}', file=sys.stderr)
            return None
        return counter.get_total_flops()

    def forward(self, clock: str, number: int) -> float:
        """Milliseconds of an inference, the mean of some."""
        self.model.eval()
        with torch.no_grad():
            return mean_time(lambda: self.model(self.image), clock, number)

    def train_step(self, clock: str, number: int) -> float:
        """Milliseconds of forward and backward; the optimizer's step depends only on the number of parameters."""
        self.model.train()

        def step() -> None:
            self.model.zero_grad()
            sum(maps.square().mean() for maps in tree_leaves(self.model(self.image))).backward()

        return mean_time(step, clock, number)

    def deployed(self, clock: str, number: int) -> float:
        """Milliseconds of an inference with position folded for good, where that is known; nothing can be trained
        afterwards."""
        getattr(self.model, 'switch_to_deploy', self.model.eval)()
        return self.forward(clock, number)


def mean_time(call: Callable[[], object], clock: str, number: int) -> float:
    """Measure the mean time of ``number`` calls."""
    return milliseconds(lambda: [call() for _ in range(number)], CLOCKS[clock]) / number


def main() -> None:
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    torch.set_num_threads(1)
    keep_freed_memory()
    side = Side()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(side, request.pop('ask'))(**request)
        except Exception as error:
            answer = dict(error=f'{type(error).__name__}: {error}')
        answers.write(json.dumps(answer) + '\n')
        answers.flush()


if __name__ == '__main__':
    main()

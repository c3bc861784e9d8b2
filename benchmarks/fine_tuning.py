"""A step of fine-tuning DINOv3-S at 512 x 512, batch 1: full, with LoRA and DoRA, frozen, and on cached features.

python benchmarks/fine_tuning.py [--repeats 5] [--threads 1] [--out benchmarks/records/fine_tuning_cpu.json]

The heads are those of two shipped configs, a linear one and UPerNet. Forward, backward and AdamW's update are taken in
turns on one random image, and timed by processor time, which excludes other processes. The memory is that of
`mmlape estimate`.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from side_by_side import in_turns, keep_freed_memory, milliseconds, write_record

from mmlape.cpu import optimize
from mmlape.research.analysis import measure_step_memory, random_batch, training_model

CLONE = Path(__file__).resolve().parents[1]
SIDE = 512
HEADS = {
    'linear': 'linear_dinov3-s_8xb2-40k_ade20k-512x512',
    'UPerNet': 'upernet_dinov3-s_4xb8-60k_ade20k-512x512',
}
WAYS = {
    'full': dict(frozen_stages=-1),
    'LoRA, rank 8': dict(frozen_stages=-1, lora=dict(rank=8)),
    'DoRA, rank 8': dict(frozen_stages=-1, lora=dict(rank=8, dora=True)),
    'frozen': dict(frozen_stages=12),
    'cached features': dict(frozen_stages=12),
}


def config_of(head: str, way: str) -> Config:
    """The head's config with the backbone trained in this way."""
    cfg = Config.fromfile(CLONE / f'configs/foundation/{HEADS[head]}.py')
    cfg.model.backbone.update(WAYS[way])
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-5))
    return cfg


def training_step(head: str, way: str) -> tuple[Callable[[], None], int]:
    """A step on a CPU, as in `mmlape train`, and the number of values that it trains."""
    torch.manual_seed(0)
    cfg = config_of(head, way)
    model, batch = training_model(cfg), random_batch(cfg, (SIDE, SIDE))
    optimize(model, keep_memory=False)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    if way == 'cached features':
        with torch.no_grad():
            data = model.data_preprocessor(copy.deepcopy(batch), training=True)
            features = model.backbone(data['inputs'])
        model.backbone.forward = lambda images: features

    def step() -> None:
        model.train_step(copy.deepcopy(batch), optimizer)

    return step, sum(value.numel() for value in model.parameters() if value.requires_grad)


def measure(head: str, repeats: int) -> dict[str, dict]:
    """Trained values, bytes and seconds of a step of each way, and their ratio to full fine-tuning's."""
    made = {way: training_step(head, way) for way in WAYS}
    steps = {way: _processor_time(step) for way, (step, _) in made.items()}
    taken = in_turns(steps, repeats, warm_up=1)
    found = {}
    for way, (_, trained) in made.items():
        ratios = (own / full for own, full in zip(taken[way], taken['full']))
        found[way] = dict(
            trained=trained,
            processor_s=round(statistics.median(taken[way]) / 1e3, 3),
            ratio=round(statistics.median(ratios), 3),
        )
        if way != 'cached features':
            memory = measure_step_memory(config_of(head, way), 1, (SIDE, SIDE))
            found[way]['step_bytes'] = memory.total
    return found


def _processor_time(call: Callable[[], None]) -> Callable[[], float]:
    return lambda: milliseconds(call, time.process_time)


def table(results: dict[str, dict[str, dict]]) -> str:
    """A row per head and way."""
    lines = [
        '| head | backbone | trained, M | step, s | x full | a step on a GPU, GB |',
        '|---|---|---|---|---|---|',
    ]
    for head, ways in results.items():
        for way, found in ways.items():
            size = f'{found["step_bytes"] / 1e9:.2f}' if 'step_bytes' in found else '-'
            trained, seconds = f'{found["trained"] / 1e6:.2f}', f'{found["processor_s"]:.2f}'
            lines.append(
                f'| {head} | {way} | {trained} | {seconds} | {found["ratio"]:.2f} | {size} |'
            )
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--threads', type=int, default=1)
    out = CLONE / 'benchmarks/records/fine_tuning_cpu.json'
    parser.add_argument('--out', type=Path, default=out)
    options = parser.parse_args()
    logging.disable(logging.INFO)  # of MMEngine: a line for every weight
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `mmlape train` does
    results = {head: measure(head, options.repeats) for head in HEADS}
    write_record(options.out, results, show=False)
    print(table(results))


if __name__ == '__main__':
    main()

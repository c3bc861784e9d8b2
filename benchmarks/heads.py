"""Costs of heads on one backbone: parameters, FLOPs, time and memory of a training step at 512 x 512, batch 1.

python benchmarks/heads.py [--only gfl ...] [--repeats 5] [--threads 1] [--out benchmarks/records/heads_cpu.json]

Every head is that of a shipped config. Its backbone becomes DeiT-S with LaPE in ViT-Adapter, with the maps that it
reads, or stays that ViT without the adapter (Segmenter, EoMT). Values are random; a detector's image has 8 boxes. The
steps are taken in turns with those of RetinaNet, and timed by wall clock and by processor time, which excludes other
processes. The memory is that of `mmlape estimate`.
"""

from __future__ import annotations

import argparse
import copy
import logging
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config
from side_by_side import in_turns, keep_freed_memory, milliseconds, write_record

from mmlape.cpu import optimize
from mmlape.research.analysis import (
    measure_complexity,
    measure_step_memory,
    random_batch,
    training_model,
)

CLONE = Path(__file__).resolve().parents[1]
SIDE = 512
REFERENCE = 'retinanet'
ADAPTER = 'lape/mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco'
# A config that is not on this backbone gets it.
HEADS = {
    'mask-rcnn': ADAPTER,
    'retinanet': 'lape/retinanet_deit-s-adapter-lape_fpn_1x_coco',
    'atss': 'detectors/atss_deit-s-adapter-lape_fpn_ms-3x_coco',
    'fcos': 'detectors/fcos_deit-s-adapter-lape_fpn_ms-3x_coco',
    'gfl': 'detectors/gfl_deit-s-adapter-lape_fpn_ms-3x_coco',
    'sparse-rcnn': 'detectors/sparse-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco',
    'dino, 4 maps': 'detr/dino-4scale_deit-s-adapter-lape_8xb2-12e_coco',
    'ddq, 4 maps': 'detr/ddq-detr-4scale_deit-s-adapter-lape_8xb2-12e_coco',
    'mask2former, instances': 'foundation/mask2former_dinov3-s-adapter_lsj-1x_coco',
    'upernet': 'lape/upernet_deit-s-adapter-lape_8xb2-160k_ade20k-512x512',
    'segformer': 'segformer/segformer_deit-s-adapter-lape_8xb2-160k_ade20k-512x512',
    'mask2former, semantic': 'foundation/mask2former_dinov3-s-adapter_8xb2-40k_ade20k-512x512',
    'segmenter, plain ViT': 'lape/segmenter_deit-s-lape_mask_8xb1-160k_ade20k-512x512',
    'eomt, plain ViT': 'eomt/eomt_deit-s-lape_8xb2-40k_ade20k-512x512',
}


def config_of(name: str) -> Config:
    """The config of a head on the backbone of all."""
    cfg = Config.fromfile(CLONE / 'configs' / f'{HEADS[name]}.py')
    if 'dinov3' in HEADS[name]:
        shared = Config.fromfile(CLONE / 'configs' / f'{ADAPTER}.py').model.backbone
        cfg.model.backbone = copy.deepcopy(shared)
    return cfg


def training_step(name: str) -> Callable[[], None]:
    """Forward and backward pass on a CPU, as in `mmlape train`; the optimizer's part is that of the parameters."""
    torch.manual_seed(0)
    cfg = config_of(name)
    model, batch = training_model(cfg), random_batch(cfg, (SIDE, SIDE))
    optimize(model, keep_memory=False)

    def step() -> None:
        model.zero_grad()
        data = model.data_preprocessor(copy.deepcopy(batch), training=True)
        model.parse_losses(model(**data, mode='loss'))[0].backward()

    return step


def measure(name: str, repeats: int, threads: int) -> dict:
    """Sizes and FLOPs of a head, bytes of a step, its seconds and their ratio to the reference's."""
    logging.disable(logging.INFO)  # of MMEngine: a line for every weight
    torch.set_num_threads(threads)
    keep_freed_memory()  # as `mmlape train` does
    cfg = config_of(name)
    size = measure_complexity(cfg, (SIDE, SIDE))
    memory = measure_step_memory(cfg, batch_size=1, image_size=(SIDE, SIDE))
    steps = {key: _timed(training_step(key)) for key in (name, REFERENCE)}
    taken = in_turns(steps, repeats, warm_up=1)
    wall, processor = zip(*taken[name])
    ratios = (own[1] / other[1] for own, other in zip(taken[name], taken[REFERENCE]))
    return dict(
        config=HEADS[name],
        parameters=size.parameters,
        backbone_parameters=size.backbone_parameters,
        flops=size.flops,
        backbone_flops=size.backbone_flops,
        activation_bytes=memory.activations,
        step_bytes=memory.total,
        wall_s=round(statistics.median(wall) / 1e3, 3),
        processor_s=round(statistics.median(processor) / 1e3, 3),
        ratio=round(statistics.median(ratios), 3),
    )


def _timed(call: Callable[[], None]) -> Callable[[], tuple[float, float]]:
    def both() -> tuple[float, float]:
        before = time.process_time()
        wall = milliseconds(call, time.perf_counter)
        return wall, 1e3 * (time.process_time() - before)

    return both


def table(results: dict[str, dict]) -> str:
    """A row per head, the quickest first."""
    lines = [
        '| head | parameters, M | of the head | FLOPs, G | of the head | step, s | x RetinaNet | a step on a GPU, GB |',
        '|---|---|---|---|---|---|---|---|',
    ]
    for name, found in sorted(results.items(), key=lambda item: item[1]['ratio']):
        parameters, flops = found['parameters'], found['flops']
        cells = [
            name,
            f'{parameters / 1e6:.1f}',
            f'{(parameters - found["backbone_parameters"]) / 1e6:.1f}',
            f'{flops / 1e9:.0f}',
            f'{(flops - found["backbone_flops"]) / 1e9:.0f}',
            f'{found["processor_s"]:.1f}',
            f'{found["ratio"]:.2f}',
            f'{found["step_bytes"] / 1e9:.1f}',
        ]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', nargs='+', choices=list(HEADS), default=list(HEADS))
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--out', type=Path, default=CLONE / 'benchmarks/records/heads_cpu.json')
    options = parser.parse_args()
    results = {}
    for name in options.only:
        # Each in a process of its own, which gives all memory back.
        with multiprocessing.get_context('spawn').Pool(1) as pool:
            results[name] = pool.apply(measure, (name, options.repeats, options.threads))
    write_record(options.out, results, show=False)
    print(table(results))


if __name__ == '__main__':
    main()

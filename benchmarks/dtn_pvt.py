"""PVT with DTN against PVT with LayerNorm: time of a train step and of inference, memory of a detector's train step.

python benchmarks/dtn_pvt.py [--batch 4] [--repeats 9] [--out benchmarks/records/dtn_pvt_cpu.json]

PVT-Tiny at 224 x 224 is timed, with its own attention heads for both norms, and with those of the published DTN-PVT.
PVT-Small at 800 x 1216, one image, is measured for memory. A train step is forward and backward; the optimizer's step
is the same for both.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from side_by_side import (
    CLONE,
    interleaved,
    keep_freed_memory,
    peak_bytes,
    saved_bytes,
    write_record,
)

from mmlape.cpu import optimize
from mmlape.registry import MODELS

LN, DTN = dict(type='mmlape.LN', eps=1e-6), dict(type='mmlape.DTN')
CANDIDATES = {
    'LN': dict(norm_cfg=LN),
    'DTN': dict(norm_cfg=DTN),
    'DTN, published heads': dict(norm_cfg=DTN, num_heads=[4, 4, 5, 8]),
}


def build(arch: str, device: str, names: list[str]) -> dict[str, torch.nn.Module]:
    """Untrained backbones by name."""
    config = dict(type='mmlape.PyramidVisionTransformer', arch=arch)
    models = {name: MODELS.build({**config, **CANDIDATES[name]}).to(device) for name in names}
    return {name: optimize(model, keep_memory=False) for name, model in models.items()}


def step(model: torch.nn.Module, image: torch.Tensor) -> None:
    model.zero_grad()
    sum(maps.square().mean() for maps in model(image)).backward()


@torch.no_grad()
def infer(model: torch.nn.Module, image: torch.Tensor) -> None:
    model(image)


def time_classifier(batch: int, repeats: int, device: str) -> dict:
    """PVT-Tiny at 224 x 224."""
    image = torch.randn(batch, 3, 224, 224, device=device)
    models = build('tiny', device, list(CANDIDATES))
    results = {'batch': batch}
    for name, call, training in (('train_step', step, True), ('inference', infer, False)):
        calls = {key: partial(call, model.train(training), image) for key, model in models.items()}
        results[name] = interleaved(calls, repeats)
    return results


def measure_detector(size: tuple[int, int], device: str) -> dict:
    """PVT-Small, one image: peak bytes of a train step, and bytes saved for backward."""
    image = torch.randn(1, 3, *size, device=device)
    results = {'size': size, 'peak_bytes': {}, 'saved_bytes': {}}
    for name, model in build('small', device, ['LN', 'DTN']).items():
        results['saved_bytes'][name] = saved_bytes(partial(model, image))
        results['peak_bytes'][name] = peak_bytes(partial(step, model, image))
        model.zero_grad()
    for kind in ('peak_bytes', 'saved_bytes'):
        results[kind]['ratio'] = round(results[kind]['DTN'] / results[kind]['LN'], 4)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--batch', type=int, default=4, help='images in the timed steps')
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument(
        '--size', type=int, nargs=2, default=(800, 1216), help='of the image for memory'
    )
    parser.add_argument('--only', choices=('time', 'memory'), help='default: both')
    parser.add_argument('--out', type=Path, default=CLONE / 'benchmarks/records/dtn_pvt_cpu.json')
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    results = {'freed_memory_is_kept': keep_freed_memory()}
    if options.only != 'memory':
        timed = time_classifier(options.batch, options.repeats, device)
        results['PVT-Tiny at 224'] = timed
    if options.only != 'time':
        results['PVT-Small, train step'] = measure_detector(tuple(options.size), device)
    write_record(options.out, results)


if __name__ == '__main__':
    main()

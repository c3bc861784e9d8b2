"""LaPE against default joining: train step, inference, inference with the position folded, memory. DeiT-Ti.

python benchmarks/lape.py [--repeats 9] [--out benchmarks/records/lape_cpu.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from side_by_side import CLONE, interleaved, peak_bytes, saved_bytes, write_record

from mmlape.cpu import optimize
from mmlape.registry import MODELS

SIZES = ((8, 224), (1, 512))  # images and their sides
JOININGS = {'default': 'mmlape.DefaultJoining', 'lape': 'mmlape.LaPE'}


def build(joining: str, device: str) -> torch.nn.Module:
    model = MODELS.build(
        dict(type='mmlape.VisionTransformer', arch='deit-tiny', joining=dict(type=joining))
    ).to(device)
    return optimize(model, keep_memory=False)


def step(model: torch.nn.Module, image: torch.Tensor) -> None:
    model.zero_grad()
    model(image)[0].square().mean().backward()


@torch.no_grad()
def infer(model: torch.nn.Module, image: torch.Tensor) -> None:
    model(image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--out', type=Path, default=CLONE / 'benchmarks/records/lape_cpu.json')
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {f'{n} x {side} x {side}': compare(n, side, options.repeats) for n, side in SIZES}
    write_record(options.out, {'repeats': options.repeats, **results})


def compare(batch: int, side: int, repeats: int) -> dict:
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    image = torch.randn(batch, 3, side, side, device=device)
    models = {name: build(joining, device) for name, joining in JOININGS.items()}
    folded = build(JOININGS['lape'], device)
    folded.switch_to_deploy()
    training = {name: lambda m=m: step(m.train(), image) for name, m in models.items()}
    inference = {
        name: lambda m=m: infer(m, image) for name, m in [*models.items(), ('folded', folded)]
    }
    results = {
        'parameters': {name: sum(p.numel() for p in m.parameters()) for name, m in models.items()},
        'saved_bytes': {name: saved_bytes(lambda m=m: m(image)) for name, m in models.items()},
        'peak_bytes': {name: peak_bytes(call) for name, call in training.items()},
        'train_step': interleaved(training, repeats),
    }
    for model in models.values():
        model.eval()
    results['inference_peak_bytes'] = {name: peak_bytes(call) for name, call in inference.items()}
    return {**results, 'inference': interleaved(inference, repeats)}


if __name__ == '__main__':
    main()

"""DTN against the published maths with its T x T map: forward, forward + backward, bytes saved for backward.

python benchmarks/dtn_operator.py [--repeats 15] [--eager] [--out benchmarks/records/dtn_operator_cpu.json]

Candidates: the map built for every image, as published; the map built once for the batch; ``mmlape.DTN``; and that
under ``torch.compile`` (not with ``--eager``). LayerNorm is timed for scale. On further grids only ours and LayerNorm
are timed. Processor time excludes other processes; with one thread on an idle machine it equals wall-clock time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from reference.dtn import DenseDTN
from side_by_side import CLONE, interleaved, keep_freed_memory, saved_bytes, write_record

from mmlape.cpu import optimize
from mmlape.norm import DTN, LN

# batch, side of the grid, channels, heads, pool
SETTINGS = {
    'B8 14x14 C384 H6': (8, 14, 384, 6, 1),
    'B8 56x56 C64 H4, pool 4': (8, 56, 64, 4, 4),
}
BESIDE_LAYER_NORM = {
    'B8 56x56 C64 H4, pool 4': ((8, 56, 56), 64, 4, 4),
    'B8 28x28 C128 H4, pool 2': ((8, 28, 28), 128, 4, 2),
    'B8 14x14 C320 H5': ((8, 14, 14), 320, 5, 1),
    'B1 200x304 C64 H4, pool 4': ((1, 200, 304), 64, 4, 4),
    'B1 200x304 C64 H4': ((1, 200, 304), 64, 4, 1),
}
# memory of the map: too large to time
UNPOOLED = (8, 56, 64, 4, 1)


def build(
    setting: tuple[int, ...], device: str, compiled: bool
) -> tuple[dict[str, torch.nn.Module], torch.Tensor]:
    """Candidates with equal maps and ratios, and their input. Positions start as in the published training code."""
    batch, side, channels, heads, pool = setting
    published = DenseDTN(channels, heads, side, pool)
    once = DenseDTN(channels, heads, side, pool, map_per_image=False)
    ours = DTN(channels, heads, pool=pool, position_init='random')
    with torch.no_grad():
        for dense in (published, once):
            dense.pos_proj.weight.copy_(ours.positions.weight)
    tokens = torch.randn(batch, side * side, channels, device=device)
    candidates = {
        'published': published,
        'published, one map': once,
        'ours': ours,
        'LayerNorm': LN(channels),
    }
    if compiled:
        candidates['ours, compiled'] = torch.compile(ours, fullgraph=True, dynamic=False)
    return {k: optimize(m.to(device), keep_memory=False) for k, m in candidates.items()}, tokens


def time_setting(setting: tuple[int, ...], device: str, repeats: int, compiled: bool) -> dict:
    """Times, bytes and the largest difference of the outputs."""
    models, tokens = build(setting, device, compiled)
    grid = (setting[1], setting[1])
    with torch.no_grad():
        difference = (models['ours'](tokens, grid) - models['published'](tokens, grid)).abs().max()
    times = {'': time.perf_counter, ', processor time': time.process_time}
    return {
        'largest_difference': difference.item(),
        'saved_bytes': {
            name: saved_bytes(lambda m=m: m(tokens.requires_grad_(), grid))
            for name, m in models.items()
        },
        **{
            name + suffix: taken
            for suffix, clock in times.items()
            for name, taken in time_models(models, tokens, grid, repeats, clock).items()
        },
    }


def beside_layer_norm(device: str, repeats: int) -> dict:
    """Processor times of LayerNorm and ours, with either initial value of the positions."""
    results = {}
    for name, ((batch, *grid), channels, heads, pool) in BESIDE_LAYER_NORM.items():
        inits = {'ours': 'local', 'ours, random positions': 'random'}
        models = {'LayerNorm': LN(channels)} | {
            key: DTN(channels, heads, pool=pool, position_init=init) for key, init in inits.items()
        }
        models = {k: optimize(m.to(device), keep_memory=False) for k, m in models.items()}
        tokens = torch.randn(batch, grid[0] * grid[1], channels, device=device)
        results[name] = time_models(models, tokens, tuple(grid), repeats, time.process_time)
    return results


def time_models(
    models: dict[str, torch.nn.Module],
    tokens: torch.Tensor,
    grid: tuple[int, int],
    repeats: int,
    clock: Callable[[], float],
) -> dict:
    """Forward, and forward + backward."""
    cotangent = torch.randn_like(tokens)

    def both(norm: torch.nn.Module) -> None:
        norm.zero_grad()
        norm(tokens.detach().requires_grad_(), grid).backward(cotangent)

    @torch.no_grad()
    def forward(norm: torch.nn.Module) -> torch.Tensor:
        return norm(tokens, grid)

    return {
        name: interleaved({k: partial(call, m) for k, m in models.items()}, repeats, clock=clock)
        for name, call in (('forward', forward), ('forward_backward', both))
    }


def map_bytes(setting: tuple[int, ...]) -> dict[str, int]:
    """Bytes of the positional map alone: one copy of the published one, and both of our factors."""
    batch, side, channels, heads, pool = setting
    factors = DTN(channels, heads, pool=pool).axis_maps((side, side))
    return {
        'published': batch * heads * (side // pool) ** 4 * 4,
        'ours': sum(factor.numel() * factor.element_size() for factor in factors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--repeats', type=int, default=15)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--eager', action='store_true', help='nothing compiled')
    parser.add_argument(
        '--out', type=Path, default=CLONE / 'benchmarks/records/dtn_operator_cpu.json'
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    results = {'freed_memory_is_kept': keep_freed_memory()}
    for name, setting in SETTINGS.items():
        results[name] = time_setting(setting, device, options.repeats, not options.eager)
    results['beside LayerNorm, processor time'] = beside_layer_norm(device, options.repeats)
    results['map bytes, B8 56x56 H4 without pooling'] = map_bytes(UNPOOLED)
    write_record(options.out, results)


if __name__ == '__main__':
    main()

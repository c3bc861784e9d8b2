"""DTN against the published maths with its T x T map: forward, forward + backward, bytes kept for the backward pass.

python benchmarks/dtn_operator.py [--repeats 15] [--out benchmarks/records/dtn_operator_cpu.json]

Candidates: the map built for every image, as published; the map built once for the batch; ``mmlape.DTN``; and that
under ``torch.compile``. LayerNorm is timed with them for scale. Processor time leaves out what other processes on the
machine took; with one thread on an idle machine it is the time.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from reference.dtn import DenseDTN
from side_by_side import interleaved, keep_freed_memory, saved_bytes, write_record

from mmlape.norm import DTN, LN

# batch, side of the grid, channels, heads, pool
SETTINGS = {
    'B8 14x14 C384 H6': (8, 14, 384, 6, 1),
    'B8 56x56 C64 H4, pool 4': (8, 56, 64, 4, 4),
}
# what the map takes of memory: too large to time
UNPOOLED = (8, 56, 64, 4, 1)


def build(setting: tuple[int, ...], device: str) -> tuple[dict[str, torch.nn.Module], torch.Tensor]:
    """Candidates with equal random maps and ratios, and their input."""
    batch, side, channels, heads, pool = setting
    published = DenseDTN(channels, heads, side, pool)
    once = DenseDTN(channels, heads, side, pool, map_per_image=False)
    ours = DTN(channels, heads, pool=pool)
    with torch.no_grad():
        for dense in (published, once):
            dense.pos_proj.weight.copy_(ours.positions.weight)
    tokens = torch.randn(batch, side * side, channels, device=device)
    candidates = {
        'published': published,
        'published, one map': once,
        'ours': ours,
        'ours, compiled': torch.compile(ours, fullgraph=True, dynamic=False),
        'LayerNorm': LN(channels),
    }
    return {k: m.to(device) for k, m in candidates.items()}, tokens


def time_setting(setting: tuple[int, ...], device: str, repeats: int) -> dict:
    """Times, bytes and the largest difference of the outputs."""
    models, tokens = build(setting, device)
    grid, cotangent = (setting[1], setting[1]), torch.randn_like(tokens)

    def both(norm: torch.nn.Module) -> None:
        norm.zero_grad()
        norm(tokens.detach().requires_grad_(), grid).backward(cotangent)

    @torch.no_grad()
    def forward(norm: torch.nn.Module) -> torch.Tensor:
        return norm(tokens, grid)

    difference = (forward(models['ours']) - forward(models['published'])).abs().max()
    return {
        'largest_difference': difference.item(),
        'saved_bytes': {
            name: saved_bytes(lambda m=m: m(tokens.requires_grad_(), grid))
            for name, m in models.items()
        },
        **{
            name: interleaved(
                {k: partial(call, m) for k, m in models.items()}, repeats, clock=clock
            )
            for name, call, clock in (
                ('forward', forward, time.perf_counter),
                ('forward_backward', both, time.perf_counter),
                ('forward, processor time', forward, time.process_time),
                ('forward_backward, processor time', both, time.process_time),
            )
        },
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
    parser.add_argument(
        '--out', type=Path, default=Path('benchmarks/records/dtn_operator_cpu.json')
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    results = {'freed_memory_is_kept': keep_freed_memory()}
    for name, setting in SETTINGS.items():
        results[name] = time_setting(setting, device, options.repeats)
    results['map bytes, B8 56x56 H4 without pooling'] = map_bytes(UNPOOLED)
    write_record(options.out, results)


if __name__ == '__main__':
    main()

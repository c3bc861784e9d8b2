"""Deformable attention of upstream's heads on a CPU: MMCV's module against ours, same weights, one process, in turns.

python benchmarks/deformable_heads.py [--repeats 9] [--threads 1] [--out benchmarks/records/deformable_heads_cpu.json]

An attention layer and the whole pixel decoder of Mask2Former (COCO's config of MMDetection) for an image of 512 x 512,
and the cross-attention of DINO's decoder: forward, and forward + backward, by wall clock and by processor time, which
excludes other processes; bytes saved for the backward pass.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.models.layers import MSDeformAttnPixelDecoder
from mmengine.hub import get_config
from side_by_side import CLONE, interleaved, keep_freed_memory, saved_bytes, write_record
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mmlape.cpu import optimize

SIDE = 512
CONFIG = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'
CLOCKS = {'wall clock': time.perf_counter, 'processor time': time.process_time}


def attention(strides: tuple[int, ...], queries: int | None, sides: int) -> tuple[nn.Module, dict]:
    """An attention layer over maps of these strides and its inputs; without ``queries``, those of the maps."""
    shapes = torch.tensor([(SIDE // stride, SIDE // stride) for stride in strides])
    ends = shapes.prod(dim=1).cumsum(dim=0)
    module = MultiScaleDeformableAttention(num_levels=len(strides), dropout=0.0, batch_first=True)
    nn.init.normal_(module.sampling_offsets.weight, std=0.02)
    nn.init.normal_(module.attention_weights.weight, std=0.02)
    values = int(ends[-1])
    queries = queries or values
    return module, dict(
        query=torch.randn(1, queries, 256),
        value=torch.randn(1, values, 256),
        reference_points=torch.rand(1, queries, len(strides), sides),
        spatial_shapes=shapes,
        level_start_index=torch.cat([ends.new_zeros(1), ends[:-1]]),
    )


def pixel_decoder() -> tuple[nn.Module, dict]:
    """Mask2Former's on a ResNet-50's maps."""
    config = get_config(CONFIG).model.panoptic_head.pixel_decoder
    config.pop('type')
    module = MSDeformAttnPixelDecoder(
        in_channels=[256, 512, 1024, 2048], feat_channels=256, out_channels=256, **config
    )
    module.init_weights()
    maps = zip((256, 512, 1024, 2048), (4, 8, 16, 32))
    return module, dict(feats=[torch.randn(1, c, SIDE // s, SIDE // s) for c, s in maps])


CASES: dict[str, Callable[[], tuple[nn.Module, dict]]] = {
    "attention of Mask2Former's pixel decoder": lambda: attention((32, 16, 8), None, 2),
    "cross-attention of DINO's decoder, 900 boxes": lambda: attention((8, 16, 32, 64), 900, 4),
    "Mask2Former's pixel decoder": pixel_decoder,
}


def measure(module: nn.Module, inputs: dict, repeats: int) -> dict:
    """Times of MMCV's and ours, and the largest difference of their outputs."""
    models = {'MMCV': module.eval(), 'ours': optimize(copy.deepcopy(module), keep_memory=False)}
    # Else linear layers are faster too.
    for name, layer in list(models['ours'].named_modules()):
        if isinstance(layer, nn.Linear):
            models['ours'].set_submodule(name, module.get_submodule(name))
    leaves = [each for each in tree_leaves(inputs) if each.is_floating_point()]

    @torch.no_grad()
    def forward(model: nn.Module) -> list[Tensor]:
        return tree_leaves(model(**inputs))

    def both(model: nn.Module) -> None:
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        model.zero_grad()
        sum(out.mean() for out in tree_leaves(model(**inputs))).backward()

    theirs, ours = map(forward, models.values())
    difference = max(float((a - b).abs().max()) for a, b in zip(theirs, ours))
    scale = max(float(each.abs().max()) for each in theirs)
    if difference > 1e-4 * scale:
        raise RuntimeError(f'outputs differ by {difference:.1e} of {scale:.1e}')
    found = {
        'largest_difference': difference,
        'saved_bytes': {
            key: saved_bytes(partial(model, **inputs)) for key, model in models.items()
        },
    }
    for name, call in (('forward', forward), ('forward_backward', both)):
        for clock, read in CLOCKS.items():
            calls = {key: partial(call, model) for key, model in models.items()}
            found[f'{name}, {clock}'] = interleaved(calls, repeats, clock=read)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument(
        '--out', type=Path, default=CLONE / 'benchmarks/records/deformable_heads_cpu.json'
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {'freed_memory_is_kept': keep_freed_memory()}
    for name, build in CASES.items():
        torch.manual_seed(0)
        results[name] = measure(*build(), options.repeats)
    write_record(options.out, results)


if __name__ == '__main__':
    main()

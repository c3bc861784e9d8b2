"""Costs of heads on one backbone: parameters, FLOPs, time and kept memory of a training step at 512 x 512, batch 1.

python benchmarks/heads.py [--only gfl ...] [--repeats 5] [--threads 1] [--out benchmarks/records/heads_cpu.json]

Every head is that of a shipped config. Its backbone becomes DeiT-S with LaPE in ViT-Adapter, with the maps that it
reads, or stays that ViT without the adapter (Segmenter, EoMT). Values are random; a detector's image has 8 boxes. The
steps are taken in turns with those of RetinaNet, and timed by wall clock and by processor time, which excludes other
processes.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from side_by_side import in_turns, keep_freed_memory, milliseconds, saved_bytes, write_record
from torch import Tensor, nn

from mmlape.analysis import measure_complexity, random_batch
from mmlape.cpu import optimize

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
    """The config of a head on the backbone of all, without weights to download, for crops of one size."""
    cfg = Config.fromfile(CLONE / 'configs' / f'{HEADS[name]}.py')
    if 'dinov3' in HEADS[name]:
        shared = Config.fromfile(CLONE / 'configs' / f'{ADAPTER}.py').model.backbone
        cfg.model.backbone = copy.deepcopy(shared)
    for part in (cfg.model.backbone, cfg.model.backbone.get('vit', {})):
        part.pop('init_cfg', None)
    # Images of a detector are padded to one size, which costs what these crops do not have.
    cfg.model.data_preprocessor.pop('batch_augments', None)
    return cfg


def built(cfg: Config) -> BaseModel:
    """The model in training mode, but for batch norms, as `mmlape train` runs it on a CPU."""
    scope = cfg.default_scope
    import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope(scope):
        model = revert_sync_batchnorm(MODELS.build(copy.deepcopy(cfg.model)))
        model.init_weights()
    model.train()
    for module in model.modules():  # one map of one cell has no statistics
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return optimize(model, keep_memory=False)


def loss(model: BaseModel, data: dict) -> Tensor:
    """The sum of all losses of one forward pass."""
    data = model.data_preprocessor(copy.deepcopy(data), training=True)
    return model.parse_losses(model(**data, mode='loss'))[0]


def step(model: BaseModel, data: dict) -> None:
    """Forward and backward; the optimizer's part is that of the parameters."""
    model.zero_grad()
    loss(model, data).backward()


def measure(names: list[str], repeats: int) -> dict[str, dict]:
    """Sizes, FLOPs, MB kept, seconds of every head and their ratio to the reference's; one at a time is in memory."""
    _, reference, _ = prepared(REFERENCE)
    results = {}
    for name in names:
        cfg, call, kept = prepared(name)
        size = measure_complexity(cfg, (SIDE, SIDE))
        taken = in_turns({name: _timed(call), '': _timed(reference)}, repeats, warm_up=1)
        wall, processor = zip(*taken[name])
        ratios = (own[1] / other[1] for own, other in zip(taken[name], taken['']))
        results[name] = dict(
            config=HEADS[name],
            parameters=size.parameters,
            backbone_parameters=size.backbone_parameters,
            flops=size.flops,
            backbone_flops=size.backbone_flops,
            saved_bytes=kept,
            wall_s=round(statistics.median(wall) / 1e3, 3),
            processor_s=round(statistics.median(processor) / 1e3, 3),
            ratio=round(statistics.median(ratios), 3),
        )
    return results


def prepared(name: str) -> tuple[Config, Callable[[], None], int]:
    """The config of a head, its training step, and the bytes that this keeps."""
    cfg = config_of(name)
    torch.manual_seed(0)
    model, data = built(cfg), random_batch(cfg, (SIDE, SIDE))
    return cfg, partial(step, model, data), saved_bytes(partial(loss, model, data))


def _timed(call: Callable[[], None]) -> Callable[[], tuple[float, float]]:
    def both() -> tuple[float, float]:
        before = time.process_time()
        wall = milliseconds(call, time.perf_counter)
        return wall, 1e3 * (time.process_time() - before)

    return both


def table(results: dict[str, dict]) -> str:
    """A row per head, cheapest step first."""
    lines = [
        '| head | parameters, M | of the head | FLOPs, G | of the head | step, s | x RetinaNet | kept, MB |',
        '|---|---|---|---|---|---|---|---|',
    ]
    for name, found in sorted(results.items(), key=lambda item: item[1]['processor_s']):
        parameters, flops = found['parameters'], found['flops']
        cells = [
            name,
            f'{parameters / 1e6:.1f}',
            f'{(parameters - found["backbone_parameters"]) / 1e6:.1f}',
            f'{flops / 1e9:.0f}',
            f'{(flops - found["backbone_flops"]) / 1e9:.0f}',
            f'{found["processor_s"]:.1f}',
            f'{found["ratio"]:.2f}',
            f'{found["saved_bytes"] / 1e6:,.0f}',
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
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `mmlape train` does
    results = measure(options.only, options.repeats)
    write_record(options.out, results, show=False)
    print(table(results))


if __name__ == '__main__':
    main()

"""Compare both constructions of mmlape.LaPEWarmStart with plain continuing, on the digit cells.

    python benchmarks/warm_start.py [--seeds 3] [--minutes 12] [--out benchmarks/records/warm_start.json]

For each seed, a micro Segmenter with default joining is trained from scratch. Four networks continue from its weights,
with the same images in the same order: default joining, LaPEWarmStart in both constructions, and LaPE itself, whose
first output differs. Results are saved in ``--work-dir``; after Ctrl-C or the time limit, the same command resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from PIL import Image
from side_by_side import write_record

import mmlape  # noqa: F401  registers our types
from mmlape.research.datasets import build_digit_cells

CLONE = Path(__file__).resolve().parents[1]
CONFIG = CLONE / 'configs/experiments/segmenter_vit-micro_mask_digit-cells.py'
BATCH = 32
BASE = dict(type='mmlape.DefaultJoining')
ARMS = {
    'continue': BASE,
    'affine': dict(type='mmlape.LaPEWarmStart', construction='affine'),
    'gate': dict(type='mmlape.LaPEWarmStart', construction='gate'),
    'lape': dict(type='mmlape.LaPE'),
}
TITLES = {
    'base': 'default joining, common start',
    'continue': 'default joining, trained on',
    'affine': "`LaPEWarmStart(construction='affine')`",
    'gate': "`LaPEWarmStart(construction='gate')`",
    'lape': '`LaPE`, not a warm start',
}


class Boards:
    """A split of the digit cells in memory, because decoding files would take longer than training."""

    def __init__(self, root: Path, split: str) -> None:
        self.images, self.labels = (
            np.stack([np.asarray(Image.open(p)) for p in sorted((root / kind / split).glob('*'))])
            for kind in ('images', 'annotations')
        )

    def batch(self, rows: torch.Tensor) -> dict[str, list]:
        """Images (BGR, uint8) and label maps of some rows, as MMSegmentation's loaders give them."""
        inputs, samples = [], []
        for row in rows.tolist():
            image = torch.from_numpy(self.images[row, ..., ::-1].copy()).permute(2, 0, 1)
            label = torch.from_numpy(self.labels[row]).long()[None]
            shape = tuple(label.shape[1:])
            sample = SegDataSample(metainfo=dict(img_shape=shape, ori_shape=shape))
            sample.gt_sem_seg = PixelData(data=label)
            inputs.append(image)
            samples.append(sample)
        return dict(inputs=inputs, data_samples=samples)


def train(
    joining: dict, state: dict | None, iterations: int, rate: float, seed: int, boards: Boards
) -> tuple[torch.nn.Module, list[float]]:
    """Train the experiment's Segmenter, from scratch or from weights; it and its losses."""
    config = Config.fromfile(CONFIG)
    config.model.backbone.joining = joining
    torch.manual_seed(seed)
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(config.model)
        model.init_weights()
        optimizer = build_optim_wrapper(model, dict(config.optim_wrapper))
    if state is not None:
        report = model.load_state_dict(state, strict=False)
        if report.unexpected_keys or not all('joining' in key for key in report.missing_keys):
            raise RuntimeError(f'not taken over from the weights: {report}')
    for group in optimizer.param_groups:
        group['factor'] = group['lr'] / config.optim_wrapper.optimizer.lr
    # A separate generator, so that all arms see the same images.
    order = torch.Generator().manual_seed(seed)
    model.train()
    losses = []
    for step in range(iterations):
        for group in optimizer.param_groups:
            group['lr'] = rate * group['factor'] * schedule(step, iterations)
        rows = torch.randint(len(boards.images), (BATCH,), generator=order)
        data = model.data_preprocessor(boards.batch(rows), training=True)
        loss, _ = model.parse_losses(model.loss(**data))
        optimizer.update_params(loss)
        losses.append(loss.item())
    return model, losses


def schedule(step: int, iterations: int) -> float:
    """Linear over the first twentieth, then a cosine to a hundredth, as in the experiment."""
    warm_up = max(iterations // 20, 1)
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    done = (step - warm_up) / max(iterations - warm_up, 1)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def mean_iou(model: torch.nn.Module, boards: Boards) -> float:
    """Mean over classes, all images together, 0 to 1."""
    model.eval()
    classes = model.num_classes
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    for rows in torch.arange(len(boards.images)).split(100):
        data = model.data_preprocessor(boards.batch(rows), training=False)
        metas = [sample.metainfo for sample in data['data_samples']]
        found = model.encode_decode(data['inputs'], metas).argmax(dim=1)
        truth = torch.from_numpy(boards.labels[rows.numpy()]).long()
        pairs = torch.bincount((truth * classes + found).flatten(), minlength=classes**2)
        matrix += pairs.view(classes, classes)
    hit = matrix.diagonal()
    return float((hit / (matrix.sum(0) + matrix.sum(1) - hit)).mean())


def run_all(options: argparse.Namespace) -> dict[str, dict[str, dict]]:
    """Run what is not finished; return measurements by arm and seed."""
    stop = time.monotonic() + 60 * options.minutes
    data_root = build_digit_cells(options.data_root)
    training, validation = Boards(data_root, 'train'), Boards(data_root, 'val')
    done: dict[str, dict[str, dict]] = {name: {} for name in ('base', *ARMS)}
    for seed in range(options.seeds):
        base = None
        for arm in done:
            start = arm == 'base'
            # The second training uses a different order of images.
            plan = (
                (BASE, options.base_iterations, options.base_rate, seed)
                if start
                else (ARMS[arm], options.iterations, options.rate, 1000 + seed)
            )
            folder = options.work_dir / f'{arm}_seed{seed}'
            settings = fingerprint(plan, base)
            kept = read(folder / 'measured.json', settings)
            if kept is None:
                if time.monotonic() > stop:
                    raise SystemExit('the minutes are over; the same command goes on')
                started = time.monotonic()
                joining, iterations, rate, order = plan
                state = None if start else torch.load(base, weights_only=True)
                model, losses = train(joining, state, iterations, rate, order, training)
                kept = {
                    'miou': round(mean_iou(model, validation), 4),
                    'first_loss': round(losses[0], 4),
                    'last_loss': round(statistics.mean(losses[-10:]), 4),
                    'seconds': round(time.monotonic() - started, 1),
                    'settings': settings,
                }
                folder.mkdir(parents=True, exist_ok=True)
                if start:
                    torch.save(model.state_dict(), folder / 'weights.pth')
                (folder / 'measured.json').write_text(json.dumps(kept) + '\n', encoding='utf-8')
                print(f'{arm}, seed {seed}: mIoU {kept["miou"]:.3f}, {kept["seconds"]:.0f} s')
            if start:
                base = folder / 'weights.pth'
            done[arm][str(seed)] = {key: kept[key] for key in kept if key != 'settings'}
    return done


def fingerprint(plan: tuple, base: Path | None) -> str:
    """Fingerprint of everything that a result depends on."""
    digest = hashlib.sha256(json.dumps(plan).encode() + CONFIG.read_bytes())
    if base is not None:
        digest.update(base.read_bytes())
    return digest.hexdigest()[:16]


def read(file: Path, settings: str) -> dict | None:
    """The saved results with the same settings, else None."""
    try:
        kept = json.loads(file.read_text(encoding='utf-8'))
    except (FileNotFoundError, ValueError):
        return None
    return kept if kept.get('settings') == settings else None


def summary(done: dict[str, dict[str, dict]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation over seeds, and the mean difference from plain continuing with its standard error."""
    result = {}
    for arm, runs in done.items():
        scores = [run['miou'] for run in runs.values()]
        gains = [run['miou'] - done['continue'][seed]['miou'] for seed, run in runs.items()]
        result[arm] = {
            'miou_mean': round(statistics.mean(scores), 4),
            'miou_std': round(spread(scores), 4),
            'gain_mean': round(statistics.mean(gains), 4),
            'gain_error': round(spread(gains) / len(gains) ** 0.5, 4),
            'first_loss_mean': round(statistics.mean(r['first_loss'] for r in runs.values()), 4),
            'last_loss_mean': round(statistics.mean(r['last_loss'] for r in runs.values()), 4),
        }
    return result


def spread(values: list[float]) -> float:
    """Standard deviation of a sample; of one value 0."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def table(result: dict[str, dict[str, float]]) -> str:
    """The summary as Markdown."""
    lines = [
        '| | mIoU | against plain continuing | first loss | last loss |',
        '|---|---|---|---|---|',
    ]
    for arm, row in result.items():
        gain = f'{row["gain_mean"]:+.4f} ± {row["gain_error"]:.4f}' if arm in ARMS else ''
        lines.append(
            f'| {TITLES[arm]} | {row["miou_mean"]:.3f} ± {row["miou_std"]:.3f} '
            f'| {"" if arm == "continue" else gain} | {row["first_loss_mean"]:.3f} '
            f'| {row["last_loss_mean"]:.3f} |'
        )
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--base-iterations', type=int, default=150)
    parser.add_argument('--base-rate', type=float, default=2e-3)
    parser.add_argument('--iterations', type=int, default=100)
    parser.add_argument('--rate', type=float, default=1e-3)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--minutes', type=float, default=float('inf'))
    parser.add_argument('--data-root', type=Path, default=CLONE / 'data/digit_cells')
    parser.add_argument('--work-dir', type=Path, default=CLONE / 'work_dirs/warm_start')
    parser.add_argument('--out', type=Path, default=CLONE / 'benchmarks/records/warm_start.json')
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    done = run_all(options)
    protocol = {
        name: getattr(options, name)
        for name in ('seeds', 'base_iterations', 'base_rate', 'iterations', 'rate')
    }
    result = summary(done)
    write_record(options.out, {'protocol': protocol, 'summary': result, 'runs': done})
    print(table(result))


if __name__ == '__main__':
    main()

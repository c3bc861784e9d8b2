"""The six saved work dirs of tests/data/frozen: where they are, and the data that their configs name."""

import io
import json
import lzma
import re
import shutil
from pathlib import Path

import numpy as np
import torch
from config_utils import coco_content, write_coco, write_image, write_label_map
from PIL import Image
from torch.utils._pytree import tree_leaves

FOLDER = Path(__file__).resolve().parents[1] / 'data' / 'frozen'
RECORD = FOLDER / 'record.json'
# name of the folder: its checkpoint, which has been trained for so many epochs or iterations; for how many more
# `--resume` is asked here
CHECKPOINTS = dict(
    mmdet='epoch_6.pth',
    mmseg='iter_16.pth',
    mmpretrain='epoch_2.pth',
    dino='epoch_3.pth',
    custom='iter_18.pth',
    demo='iter_8.pth',
)
# What their configs still name: both did nothing when they were removed.
_REMOVED = re.compile(r'^ *(hung=dict\(.*\)|max_files=\d+),\n', re.MULTILINE)
# A module that a config imports, and where it is now.
_MOVED = ('mmlape.pretraining.dino', 'mmlape.research.pretraining.dino')
STEPS = dict(mmdet=1, mmseg=2, mmpretrain=1, dino=1, custom=2, demo=2)


def restore(name: str, folder: Path) -> tuple[Path, Path]:
    """The work dir as it was, as ``folder / 'run'``, and the data of its config; returns config and checkpoint.

    MMEngine stores the config's text in the checkpoint too.
    """
    run, checkpoint = folder / 'run', CHECKPOINTS[name]
    run.mkdir()
    content = lzma.decompress((FOLDER / name / f'{checkpoint}.xz').read_bytes())
    saved = torch.load(io.BytesIO(content), map_location='cpu', weights_only=False)['meta']['cfg']
    config = run / f'{name}.py'
    config.write_text(_REMOVED.sub('', saved).replace(*_MOVED))
    shutil.copy(FOLDER / name / f'{checkpoint}.sha256', run)
    (run / checkpoint).write_bytes(content)
    (run / 'last_checkpoint').write_text(str(run / checkpoint))
    write_data(name, folder)
    return config, run / checkpoint


def shortened(name: str) -> list[str]:
    """Options for a few more steps, with the loss of each step in the log."""
    unit, done = Path(CHECKPOINTS[name]).stem.split('_')
    end = f'train_cfg.max_{unit}s={int(done) + STEPS[name]}'
    return ['--cfg-options', end, 'log_processor.window_size=1']


def write_data(name: str, folder: Path) -> None:
    """Write what the saved config reads, under the paths that it has, relative to ``folder``."""
    if name == 'mmdet':
        _coco(folder / 'data' / 'coco')
    elif name == 'mmseg':
        root = folder / 'data' / 'ade' / 'ADEChallengeData2016'
        _label_maps(root, dict(training=8, validation=3), classes=5)
    elif name == 'mmpretrain':
        for split in ('train', 'val'):
            for number in range(32):
                path = folder / 'data' / 'imagenet' / split / f'n{number % 8}' / f'{number}.png'
                write_image(path, (48, 40), number)
    elif name == 'custom':
        _label_maps(folder / 'data' / 'streets', dict(train=8, val=3), classes=3)
    elif name == 'demo':
        from mmlape.research.datasets import build_digit_scenes

        build_digit_scenes(folder / 'data' / 'digit_scenes', num_train=8, num_val=4)


def _coco(root: Path) -> None:
    """Images and boxes of three of COCO's classes."""
    from mmdet.datasets import CocoDataset

    classes = CocoDataset.METAINFO['classes']
    for split in ('train', 'val'):
        content = coco_content(8 if split == 'train' else 4, classes=classes[:3])
        content['categories'] += [
            dict(id=100 + number, name=name) for number, name in enumerate(classes[3:])
        ]
        write_coco(root, content, split=f'{split}2017')
        written = root / 'annotations' / f'{split}2017.json'
        written.rename(root / 'annotations' / f'instances_{split}2017.json')


def _label_maps(root: Path, splits: dict[str, int], classes: int) -> None:
    """Images whose brightness is the class."""
    for split, count in splits.items():
        for number in range(count):
            labels = np.zeros((72, 96), dtype=np.uint8)
            for label in range(1, classes):
                labels[(number * 7 + label * 13) % 50 :, label * 96 // classes :] = label
            write_label_map(root / 'annotations' / split / f'{number}.png', labels)
            noise = np.random.default_rng(number).integers(0, 40, (72, 96, 3))
            write_picture(root / 'images' / split / f'{number}.jpg', labels[..., None] * 40 + noise)


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """Write an RGB image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)


def logged(folder: Path, key: str = 'loss') -> list[dict]:
    """What the last run in a work dir logged of its steps, or of its evaluation."""
    path = max(folder.rglob('*.json'), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if key in line]


def outputs(model, side: int = 64) -> list[list[float]]:
    """Features of a fixed image: 50 values of each map, spread over it."""
    image = torch.from_numpy(np.random.RandomState(0).standard_normal((1, 3, side, side))).float()
    with torch.no_grad():
        leaves = tree_leaves(model.eval().extract_feat(image))
    return [leaf.flatten()[:: max(leaf.numel() // 50, 1)].tolist() for leaf in leaves]

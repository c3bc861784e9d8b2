"""Label maps of large images in tiles are those of MMSegmentation's sliding window, and need little memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import DefaultScope
from mmseg.models import build_segmentor

import mmlape
from mmlape.apps.inference import LogitMean, Tile

RESIZE = dict(type='Resize', scale=(90, 60), keep_ratio=True)


def save(path, classes=7, pipeline=(), data=None, test_cfg=None, **head):
    """A checkpoint of a small network with random weights, whose features depend on pixels around."""
    model = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor', mean=[120.0] * 3, std=[60.0] * 3, test_cfg=data),
        backbone=dict(
            type='ResNet', depth=18, base_channels=8, stem_channels=8, num_stages=1, out_indices=(0,), strides=(1,),
            dilations=(1,),
        ),
        decode_head=dict(
            type='FCNHead', in_channels=8, channels=8, num_convs=0, concat_input=False, num_classes=classes, **head
        ),
        test_cfg=test_cfg or dict(mode='whole'),
    )  # fmt: skip
    steps = [dict(type='LoadImageFromFile'), *pipeline, dict(type='PackSegInputs')]
    loader = dict(dataset=dict(type='BaseSegDataset', pipeline=steps))
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmseg'):
        network = build_segmentor(model)
    torch.nn.init.normal_(network.decode_head.conv_seg.weight)
    cfg = f"default_scope = 'mmseg'\nmodel = {model}\ntest_dataloader = {loader}\n"
    meta = dict(classes=[f'class {number}' for number in range(classes)], palette=None)
    content = dict(state_dict=network.state_dict(), meta=dict(cfg=cfg, dataset_meta=meta))
    torch.save(content, path)
    return path


def image(height, width):
    rng = np.random.default_rng(height)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def label_map(model, of, **options):
    (result,) = model.predict(of, **options)
    few = len(model.classes) <= 256
    assert result.label_map.dtype == (np.uint8 if few else np.int16)
    assert result.label_map.shape == of.shape[:2]
    return result.label_map


HEADS = {
    'classes': dict(),
    'more classes than 8 bits': dict(classes=257),
    'corners': dict(align_corners=True),
    'one channel': dict(classes=2, out_channels=1, threshold=0.9),
}


@pytest.mark.parametrize('head', HEADS.values(), ids=HEADS)
def test_label_maps_of_tiles_are_those_of_the_sliding_window(head, tmp_path, monkeypatch):
    """Last tiles end at the edge; images may be smaller than a tile, in one or both directions."""
    model = mmlape.load(save(tmp_path / 'a.pth', **head), device='cpu')
    for (height, width), side, overlap, batch in (
        ((100, 135), 64, 0.25, 1),
        ((131, 77), 64, 0.25, 3),
        ((101, 64), 40, 0.6, 2),
        ((50, 150), 64, 0.5, 4),
        ((96, 96), 32, 0.0, 2),
        ((33, 47), 64, 0.2, 2),
    ):
        large, stride = image(height, width), round(side * (1 - overlap))
        tiled = label_map(model, large, tile=side, overlap=overlap, batch=batch)
        with monkeypatch.context() as patch:
            slide = ConfigDict(mode='slide', crop_size=(side, side), stride=(stride, stride))
            patch.setattr(model.model, 'test_cfg', slide)
            assert (tiled == label_map(model, large)).all()
        assert np.bincount(tiled.ravel()).max() < 0.9 * tiled.size


@pytest.mark.parametrize('head', HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    'options',
    [
        dict(pipeline=[RESIZE]),
        dict(data=dict(size=(160, 160))),
        dict(data=dict(size_divisor=32), pipeline=[RESIZE]),
        dict(test_cfg=dict(mode='slide', crop_size=(48, 48), stride=(32, 32)), pipeline=[RESIZE]),
    ],
    ids=['resized', 'padded', 'resized and padded', 'sliding'],
)
def test_one_tile_is_the_image_for_every_pipeline(options, head, tmp_path):
    model = mmlape.load(save(tmp_path / 'a.pth', **options, **head), device='cpu')
    large = image(101, 150)
    assert (label_map(model, large, tile=150) == label_map(model, large)).all()


def test_logits_of_one_channel_are_averaged_before_the_sigmoid():
    """The probabilities of 40 and -30 are 1 and 0 in float32."""
    means = {}
    tiles = [Tile(0, 0, 40, 32), Tile(20, 0, 60, 32)]
    mean = LogitMean(tiles, lambda tile, logits: means.update({tile: logits.unique().tolist()}))
    mean.add(tiles, [torch.full((1, 32, 40), value) for value in (40.0, -30.0)])
    assert means == {Tile(0, 0, 20, 32): [40], Tile(20, 0, 40, 32): [5], Tile(40, 0, 60, 32): [-30]}


MEMORY = """
import sys
from pathlib import Path
import numpy as np
import mmlape
model = mmlape.load(sys.argv[1], device='cpu')
image = np.random.default_rng(0).integers(0, 256, (4000, 6000, 3), dtype=np.uint8)
(found,) = model.predict(image, tile=1024)
assert found.label_map.shape == (4000, 6000) and len(np.unique(found.label_map)) > 5
# Not ru_maxrss, which begins with that of the process that started this one.
print('peak', Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])
"""


@pytest.mark.slow
def test_150_classes_of_24_megapixels_need_less_than_4_gigabytes(tmp_path):
    """All logits would take 14.4 GB."""
    path = save(tmp_path / 'a.pth', classes=150)
    done = subprocess.run([sys.executable, '-c', MEMORY, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.rpartition('peak')[2]) < 4 * 1024**2  # in KiB

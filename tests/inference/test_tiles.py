"""Tiles cover an image, and what is found in them is one result of the image."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from mmlape.apps.inference import LogitMean, MaskCrop, Result, Tile, merge_boxes, tiles_of
from mmlape.apps.inference.tiles import input_side

CLASSES = ('cat', 'dog')


@pytest.mark.parametrize('size', [(400, 300), (100, 100), (101, 250), (40, 1000), (33, 32)])
@pytest.mark.parametrize(('side', 'overlap'), [(100, 0.2), (64, 0.0), (37, 0.75)])
def test_tiles_cover_every_pixel_and_end_at_the_edge(size, side, overlap):
    height, width = size
    seen = np.zeros(size, int)
    tiles = tiles_of(height, width, side, overlap)
    for tile in tiles:
        assert tile.bottom - tile.top == min(side, height) and tile.right <= width
        tile.cut(seen)[:] += 1
    assert seen.min() >= 1 and len(set(tiles)) == len(tiles)
    tops = sorted({tile.top for tile in tiles})
    assert all(second - first <= round(side * (1 - overlap)) for first, second in pairwise(tops))


def test_the_side_that_a_model_takes_as_it_is():
    for steps, model, side in (
        ([dict(type='LoadImageFromFile'), dict(type='Resize', scale=(1333, 800))], {}, 800),
        ([dict(type='mmdet.FixShapeResize', width=9)], dict(test_cfg=dict(crop_size=(512, 640))), 512),
        ([dict(type='Resize', scale_factor=2.0)], dict(data_preprocessor=dict(size=(96, 96))), 96),
        ([], dict(test_cfg=None), 1024),
    ):  # fmt: skip
        cfg = dict(model=model, test_dataloader=dict(dataset=dict(pipeline=steps)))
        assert input_side(cfg) == side


def test_wrong_options():
    for options, error in (((31,), ValueError), ((64, 1.0), ValueError), ((2.5,), TypeError)):
        with pytest.raises(error):
            tiles_of(100, 100, *options)


def found(image, *boxes):
    """A result of ``(x1, y1, x2, y2, score, label)``, with a mask that fills each box."""
    rows = np.array(boxes, float).reshape(-1, 6)
    crops = []
    for x1, y1, x2, y2 in rows[:, :4].astype(int):
        mask = np.zeros(image.shape[:2], bool)
        mask[y1:y2, x1:x2] = True
        crops.append(MaskCrop.of(mask))
    options = dict(boxes=rows[:, :4].astype(np.float32), scores=rows[:, 4].astype(np.float32))
    return Result(image, 'a', CLASSES, labels=rows[:, 5].astype(int), crops=crops, **options)


def merged(parts, whole=(), down=False):
    """Of an image of 90 x 180 in two tiles of 100 columns, 80 to 180 the second; or of one that is turned ``down``."""
    image = np.zeros((180, 90, 3) if down else (90, 180, 3), np.uint8)
    tiles = [Tile(0, 0, 100, 90), Tile(80, 0, 180, 90)]
    if down:
        tiles = [Tile(y1, x1, y2, x2) for x1, y1, x2, y2 in tiles]
        *parts, whole = [
            [(y1, x1, y2, x2, *more) for x1, y1, x2, y2, *more in boxes]
            for boxes in (*parts, whole)
        ]
    cuts = [found(tile.cut(image), *boxes) for tile, boxes in zip(tiles, parts, strict=True)]
    return merge_boxes(found(image, *whole), tiles, cuts)


def test_an_object_in_both_tiles_is_one():
    for moved, count in ((4, 1), (5, 2)):  # half of the union, and less
        moved_box = (4 + moved, 10, 16 + moved, 30, 0.9, 0)
        assert len(merged([[(84, 10, 96, 30, 0.7, 0)], [moved_box]])) == count
    result = merged([[(84, 10, 96, 30, 0.7, 0)], [(4, 10, 16, 30, 0.9, 0)]])
    assert result.boxes.tolist() == [[84, 10, 96, 30]] and result.scores.tolist() == [
        np.float32(0.9)
    ]
    assert (
        len(result.crops) == 1 and result.masks[0, 10:30, 84:96].all() and result.masks.sum() == 240
    )
    result = merged([[(84, 10, 96, 30, 0.7, 0)], [(4, 10, 16, 30, 0.9, 0)]], down=True)
    assert result.masks[0, 84:96, 10:30].all() and result.masks.sum() == 240


@pytest.mark.parametrize('down', [False, True])
@pytest.mark.parametrize(
    ('border', 'at', 'count'),
    [(100, 100, 1), (100, 98.5, 1), (100, 97, 2), (80, 0, 1), (80, 1.5, 1), (80, 3, 2)],
)
def test_a_cut_box_yields_to_the_whole_one_whatever_its_score(border, at, count, down):
    """A box within two pixels of a border inside of the image is cut."""
    if border == 100:
        parts, whole = [[(90, 10, at, 30, 0.9, 0)], [(10, 10, 40, 30, 0.5, 0)]], [90, 10, 120, 30]
    else:
        parts, whole = [[(70, 10, 95, 30, 0.5, 0)], [(at, 10, 15, 30, 0.9, 0)]], [70, 10, 95, 30]
    result = merged(parts, down=down)
    assert len(result) == count
    assert result.boxes[-1].tolist() == [whole[k] for k in ((1, 0, 3, 2) if down else range(4))]


def test_what_stays():
    """Another class, another place, a box cut by the image's own edge, an object that no tile sees whole."""
    result = merged([[(84, 10, 96, 30, 0.7, 0)], [(4, 10, 16, 30, 0.9, 1)]])
    assert result.labels.tolist() == [1, 0]
    result = merged(
        [[(10, 10, 20, 30, 0.7, 0), (0, 50, 10, 60, 0.6, 0)], [(50, 10, 60, 30, 0.9, 0)]]
    )
    assert result.boxes.tolist() == [[130, 10, 140, 30], [10, 10, 20, 30], [0, 50, 10, 60]]
    result = merged([[(10, 10, 100, 30, 0.7, 0)], [(0, 10, 70, 30, 0.9, 0)]])
    assert len(result) == 2
    # Two objects of one tile are never one, however much they overlap.
    assert len(merged([[(10, 10, 50, 30, 0.7, 0), (11, 10, 50, 30, 0.6, 0)], []])) == 2


def test_the_best_are_first_also_where_they_are_cut():
    result = merged([[(90, 10, 100, 30, 0.9, 0), (10, 50, 20, 60, 0.5, 0)], []])
    assert result.boxes.tolist() == [[90, 10, 100, 30], [10, 50, 20, 60]]


@pytest.mark.parametrize('down', [False, True])
def test_an_edge_of_the_image_cuts_nothing(down):
    large = [(100, 10, 180, 30, 0.9, 0), (0, 50, 80, 60, 0.9, 0)]
    parts = [[(0, 50, 30, 60, 0.3, 0)], [(70, 10, 100, 30, 0.3, 0)]]
    assert len(merged(parts, large, down)) == 4


def test_the_whole_image_has_large_objects_and_yields_to_nobody_of_another_class():
    parts = [[(10, 10, 100, 30, 0.7, 0)], [(0, 10, 70, 30, 0.9, 0)]]
    result = merged(parts, whole=[(10, 10, 150, 30, 0.4, 0)])
    assert result.boxes.tolist() == [[10, 10, 150, 30]]
    result = merged([[], [(4, 10, 16, 30, 0.3, 0)]], whole=[(10, 10, 150, 30, 0.4, 1)])
    assert result.labels.tolist() == [1, 0]


def test_nothing_found():
    result = merged([[], []])
    assert len(result) == 0 and result.crops == [] and result.boxes.dtype == np.float32


@pytest.mark.parametrize('size', [(70, 95), (33, 100), (200, 64), (20, 30), (130, 131)])
@pytest.mark.parametrize(('side', 'overlap'), [(40, 0.3), (40, 0.0), (32, 0.8)])
def test_mean_logits_of_tiles(size, side, overlap):
    """Of every pixel once, and with fewer logits held than a row of tiles has."""
    tiles, rng = tiles_of(*size, side, overlap), np.random.default_rng(0)
    parts = [
        torch.from_numpy(rng.normal(size=(3, tile.bottom - tile.top, tile.right - tile.left)))
        for tile in tiles
    ]
    sums, counts = torch.zeros(3, *size, dtype=torch.float64), torch.zeros(size)
    for tile, part in zip(tiles, parts, strict=True):
        sums[:, tile.top : tile.bottom, tile.left : tile.right] += part
        tile.cut(counts)[:] += 1
    found, seen = torch.zeros_like(sums), torch.zeros(size)

    def finish(tile, logits):
        found[:, tile.top : tile.bottom, tile.left : tile.right] = logits
        tile.cut(seen)[:] += 1

    mean, held = LogitMean(tiles, finish), []
    for first in range(0, len(tiles), 2):
        mean.add(tiles[first : first + 2], parts[first : first + 2])
        held.append(sum(total.untyped_storage().nbytes() for total in mean.pending.values()))
    assert (found == sums / counts).all() and (seen == 1).all()
    assert not mean.pending
    assert max(held) < 3 * side * size[1] * found.element_size()

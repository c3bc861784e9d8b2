"""What is refused of COCO files is what pycocotools cannot evaluate, or evaluates wrongly."""

import contextlib
import copy
import io
import json

import numpy as np
import pytest
from pycocotools import mask as masks_of
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmlape.training.coco_evaluation import check_evaluated, evaluation_fault, mended
from mmlape.training.data_audit import DataReport

SIDE = 40


def square(start):
    left, top = start, start + 2
    return dict(
        bbox=[left, top, 10, 12],
        area=120,
        segmentation=[[left, top, left + 10, top, left + 10, top + 12, left, top + 12]],
    )


def content(count=4):
    images = [
        dict(id=n, file_name=f'{n}.png', height=SIDE, width=SIDE) for n in range(1, count + 1)
    ]
    boxes = [
        dict(id=2 * n + part, image_id=n + 1, category_id=1, iscrowd=0, **square(3 * n + 9 * part))
        for n in range(count)
        for part in (1, 2)
    ]
    return dict(images=images, annotations=boxes, categories=[dict(id=1, name='square')])


def precision(made, folder):
    """AP of masks by pycocotools, of predictions that are right."""
    path = folder / 'made.json'
    path.write_text(json.dumps(made))
    right = [
        dict(image_id=b['image_id'], category_id=1, score=0.9, segmentation=masks_of.merge(
            masks_of.frPyObjects(square(b['bbox'][0])['segmentation'], SIDE, SIDE)))
        for b in made['annotations']
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        run = COCOeval(truth, truth.loadRes(right), 'segm')
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run.stats[0]


def is_right(made, folder):
    try:
        return precision(made, folder) > 0.99
    except Exception:  # pycocotools stumbles in any way
        return False


def first(**changes):
    def change(made):
        made['annotations'][0].update(changes)

    return change


def of_all(change):
    def changed(made):
        for box in made['annotations']:
            change(box)

    return changed


# What is wrong, what is said of it, and whether it can be mended.
FAULTS = {
    'no iscrowd': (of_all(lambda b: b.pop('iscrowd')), "8 boxes have no 'iscrowd'", True),
    'iscrowd is null': (first(iscrowd=None), "1 boxes have no 'iscrowd'", True),
    'ids from 0': (of_all(lambda b: b.update(id=b['id'] - 1)), 'a box has the id 0', True),
    'ids are texts': (of_all(lambda b: b.update(id=f'a{b["id"]}')), 'are no integers', True),
    'an empty polygon': (first(segmentation=[[]]), 'a polygon of 0 numbers', False),
    'two points': (first(segmentation=[[1, 1, 9, 9]]), 'a polygon of 4 numbers', False),
    'an odd polygon': (
        first(segmentation=[[1, 1, 9, 9, 3, 8, 2]]),
        'a polygon of 7 numbers',
        False,
    ),
    'no polygon': (first(segmentation=[]), 'no segmentation', False),
    'a flat polygon': (first(segmentation=[1, 1, 9, 9, 3, 8]), 'not a list of finite', False),
    'another size': (
        first(segmentation=dict(size=[9, 9], counts=[0, 81])),
        'of size [9, 9]',
        False,
    ),
    'a length below 0': (
        first(segmentation=dict(size=[SIDE, SIDE], counts=[10, -5, 1595])),
        'a run length of -5, image of 1600 pixels',
        False,
    ),
    'a length below 0, compressed': (  # the same lengths
        first(segmentation=dict(size=[SIDE, SIDE], counts=':Kka1')),
        'a run length of -5, image of 1600 pixels',
        False,
    ),
}


@pytest.mark.parametrize('name', FAULTS)
def test_files_that_break_an_evaluation_are_refused(name, tmp_path):
    change, said, can_be_mended = FAULTS[name]
    made = content()
    change(made)
    report = DataReport('val')
    check_evaluated(copy.deepcopy(made), report, masks=True)
    assert len(report.problems) == 1 and said in report.problems[0]
    assert not is_right(made, tmp_path), 'this needs no check'
    right, notes = mended(made)
    report = DataReport('val')
    check_evaluated(right, report, masks=True)
    assert (not report.problems) == can_be_mended == bool(notes)
    if can_be_mended:
        assert precision(right, tmp_path) == pytest.approx(1)


def test_what_is_right_passes(tmp_path):
    made, report = content(), DataReport('val')
    for box, compressed in zip(made['annotations'][:2], (True, False), strict=True):
        run = masks_of.merge(masks_of.frPyObjects(box['segmentation'], SIDE, SIDE))
        pixels = masks_of.decode(run).flatten(order='F')
        edges = np.flatnonzero(np.diff(pixels)) + 1
        lengths = np.diff([0, *edges, pixels.size]).tolist()
        counts = run['counts'].decode() if compressed else lengths
        box['segmentation'] = dict(size=[SIDE, SIDE], counts=counts)
    check_evaluated(made, report, masks=True)
    assert not report.problems
    assert precision(made, tmp_path) == pytest.approx(1)
    assert mended(made) == (made, [])


@pytest.mark.parametrize('compressed', [True, False])
def test_run_lengths_that_end_too_soon(compressed):
    """pycocotools reads on behind them, for ever."""
    lengths = [7, 5, SIDE * SIDE - 50]
    counts = masks_of.frPyObjects(dict(size=[SIDE, SIDE], counts=lengths), SIDE, SIDE)['counts']
    mask = dict(size=[SIDE, SIDE], counts=counts.decode() if compressed else lengths)
    assert evaluation_fault(mask, (SIDE, SIDE)) == 'run lengths of 1562 pixels, image of 1600'
    assert evaluation_fault([[1, 1, 9, 9, 3, 8]], None) is None  # a triangle


@pytest.mark.parametrize('height', [1, 37])
def test_run_lengths_of_texts(height):
    numbers = np.random.default_rng(0)
    for share in (0.01, 0.3, 0.9):
        pixels = np.asfortranarray(numbers.random((height, 60)) < share, dtype=np.uint8)
        mask = masks_of.encode(pixels)
        mask['counts'] = mask['counts'].decode()
        assert evaluation_fault(mask, (height, 60)) is None


def test_ids_that_are_right_or_mended():
    made, report = content(), DataReport('val')
    made['images'][0]['id'] = 'first'
    check_evaluated(made, report, masks=False)
    assert 'numbers and texts' in report.problems[0]
    made = content()
    of_all(lambda b: b.update(id=float(b['id'])))(made)
    assert mended(made)[1] == [], 'pycocotools takes whole floats'
    for given, right in ((None, 0), ('0', 0), ('1', 1), (True, True)):
        made['annotations'][1]['iscrowd'] = given
        assert mended(made)[0]['annotations'][1]['iscrowd'] == right

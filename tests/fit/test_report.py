"""What ``mmlape fit`` shows after a training: curves, and the truth beside predictions."""

import json

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from mmlape.apps.fit import OwnData, Part, compare_with_truth, truths
from mmlape.apps.inference import Result
from mmlape.apps.report import (
    best_scores,
    curves,
    draw_curves,
    for_people,
    read_curves,
    write_table,
)
from mmlape.apps.report.curves import is_validation

ROWS = [
    dict(loss=2.0, epoch=1, step=5), dict(loss=1.0, epoch=1, step=10), {'mIoU': 20.0, 'step': 1},
    dict(loss=0.5, epoch=2, step=20), {'mIoU': 15.0, 'step': 2},
]  # fmt: skip


class Blind:
    """A model that finds nothing."""

    classes, palette = ('a', 'b'), None

    def predict(self, file, score=None):
        image = cv2.imread(str(file))
        maps = None if image.shape[0] == 20 else np.zeros(image.shape[:2], np.uint8)
        yield Result(image, 'x', self.classes, label_map=maps)


def test_curves_of_all_runs_in_order(tmp_path):
    for run, rows in (('20260101_1', ROWS[:3]), ('20260101_2', ROWS[3:])):
        folder = tmp_path / run / 'vis_data'
        folder.mkdir(parents=True)
        (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)) + '\n')
    assert read_curves(tmp_path) == ROWS
    write_table(ROWS, tmp_path / 'curves.csv')
    lines = (tmp_path / 'curves.csv').read_text().splitlines()
    assert (lines[0], lines[3]) == ('loss,epoch,step,mIoU', ',,1,20.0')
    assert best_scores(ROWS, 'mIoU') == {'mIoU': 20.0, 'step': 1}
    assert best_scores(ROWS[:2], 'mIoU') == {}
    assert best_scores(ROWS, 'mIoU', least=True)['mIoU'] == min(row.get('mIoU', 99) for row in ROWS)


def test_metrics_have_names_for_people_and_nothing_that_was_not_measured():
    """MMDetection calls the AP of a class precision: that of the masks, where it evaluates them after the boxes."""
    boxes = {'coco/RBC_precision': 0.4, 'coco/bbox_mAP': 0.5, 'coco/bbox_mAP_s': -1.0, 'step': 2}
    assert for_people(boxes) == {'box AP': 0.5, 'box AP of RBC': 0.4}
    masks = {'coco/RBC_precision': float('nan'), 'coco/bbox_mAP': 0.5, 'coco/segm_mAP_50': 0.6}
    assert for_people(masks) == {'box AP': 0.5, 'mask AP50': 0.6}
    assert [*for_people({**masks, 'coco/RBC_precision': 0.3})][-1] == 'mask AP of RBC'
    maps = {'mIoU': 40.0, 'aAcc': 90.0, 'time': 0.1, 'own/thing': 1.0}
    assert for_people(maps) == {'mIoU': 40.0, 'pixel accuracy': 90.0, 'own/thing': 1.0}
    assert [*for_people({'a/bbox_mAP': 0.1, 'b/bbox_mAP': 0.2})] == ['a/bbox_mAP', 'b/bbox_mAP']


def test_curves_are_of_the_last_training(tmp_path):
    """A resumed run replaces what it logs again, a new training in the same folder everything."""
    begun = [*ROWS[:3], dict(loss=0.8, epoch=2, step=15)]
    resumed = [dict(loss=0.7, epoch=2, step=15), *ROWS[3:]]
    anew = [dict(loss=3.0, epoch=1, step=5), {'mIoU': 10.0, 'step': 1}]
    for number, (rows, wanted) in enumerate(
        [
            (begun, begun),
            (resumed, ROWS[:3] + resumed),
            ([{'mIoU': 90.0, 'step': 0}], ROWS[:3] + resumed),  # a test
            (anew[:1], anew[:1]),  # not validated yet
            (anew, anew),
        ]
    ):
        folder = tmp_path / f'2026010{number}_1' / 'vis_data'
        folder.mkdir(parents=True)
        (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)) + '\n')
        assert read_curves(tmp_path) == wanted


def test_curves_of_a_training_shorter_than_the_interval_of_the_log(tmp_path):
    folder = tmp_path / '20260101_1' / 'vis_data'
    folder.mkdir(parents=True)
    (folder / 'scalars.json').write_text('{"mIoU": 20.0, "step": 2}\n')
    assert read_curves(tmp_path) == [{'mIoU': 20.0, 'step': 2}]


def test_ratios_of_dtn_are_no_validation(tmp_path):
    ratio = {'dtn_ratio/blocks.0.norm1/mean/0': 0.5}
    for number, epochs in enumerate(((1, 2, 3), (3, 4))):
        folder = tmp_path / f'2026010{number}_1' / 'vis_data'
        folder.mkdir(parents=True)
        rows = [dict(ratio, step=10 * epochs[0])]
        for epoch in epochs:
            rows += [dict(loss=1.0, epoch=epoch, step=10 * epoch), {'mIoU': 1.0, 'step': epoch}]
        (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)))
    assert [row['step'] for row in read_curves(tmp_path) if 'mIoU' in row] == [1, 2, 3, 4]
    times = dict(time=0.1, data_time=0.1, step=1)
    assert not is_validation(ratio) and not is_validation(times)
    assert is_validation({**times, 'mIoU': 1.0})


def test_metrics_of_a_training_by_iterations_that_counts_epochs(tmp_path):
    """MMEngine's default logs them all at step 0 then."""
    folder = tmp_path / '20260101_1' / 'vis_data'
    folder.mkdir(parents=True)
    rows = [
        dict(loss=2.0, step=50),
        {'mIoU': 20.0, 'step': 0},
        dict(loss=1.0, step=100),
        {'mIoU': 30.0, 'step': 0},
    ]
    (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)))
    assert [row['step'] for row in read_curves(tmp_path)] == [50, 50, 100, 100]


@pytest.mark.parametrize(('rows', 'wide'), [(ROWS, True), (ROWS[:2], False)])
def test_curves_are_drawn_with_and_without_scores(rows, wide, tmp_path):
    draw_curves(rows, 'mIoU', tmp_path / 'curves.png')
    width, height = Image.open(tmp_path / 'curves.png').size
    assert (width > 2 * height) == wide and width >= 600


def test_curves_are_drawn_over_epochs_or_iterations(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(curves, 'save_figure', lambda figure, path: figures.append(figure))
    of_iterations = [dict(loss=2.0, step=50), {'mIoU': 20.0, 'step': 50}]
    for rows in (ROWS, of_iterations):
        draw_curves(rows, 'mIoU', tmp_path)
    shown = [[each.get_xlabel(), *each.lines[0].get_xdata()] for f in figures for each in f.axes]
    assert shown == [['epoch', 0.5, 1, 2], ['epoch', 1, 2], *[['iteration', 50]] * 2]


def images(folder, height, width, count=5):
    folder.mkdir()
    for number in range(count):
        cv2.imwrite(str(folder / f'{number}.png'), np.full((height, width, 3), 100, np.uint8))


def test_boxes_beside_predictions(tmp_path):
    images(tmp_path / 'val', 20, 30)
    mask = np.zeros((20, 30), np.uint8, order='F')
    mask[4:12, 10:22] = 1
    rle = coco_mask.encode(mask)
    box = dict(bbox=[10, 4, 12, 8], area=96, iscrowd=0, category_id=7)
    box['segmentation'] = dict(rle, counts=rle['counts'].decode())
    coco = dict(
        images=[dict(id=i, file_name=f'{i}.png', height=20, width=30) for i in range(5)],
        annotations=[
            dict(box, id=1, image_id=0),
            dict(box, id=2, image_id=4, category_id=3),
            dict(box, id=3, image_id=0, iscrowd=1),
            dict(box, id=4, image_id=4, category_id=9),
        ],
        categories=[dict(id=3, name='a'), dict(id=7, name='b'), dict(id=9, name='left out')],
    )
    (tmp_path / 'val.json').write_text(json.dumps(coco))
    part = Part(str(tmp_path / 'val'), str(tmp_path / 'val.json'), 5)
    data = OwnData('instance', 'COCO', ('a', 'b'), part, part)
    first, *_, last = truths(Blind(), data, part)
    for truth, label in ((first, 1), (last, 0)):
        assert truth.boxes.tolist() == [[10, 4, 22, 12]] and truth.labels.tolist() == [label]
        assert np.array_equal(truth.masks[0], mask)
    written = compare_with_truth(Blind(), data, tmp_path / 'pictures', count=2)
    assert [path.name for path in written] == ['0.jpg', '2.jpg']
    picture = cv2.imread(str(written[0])).astype(int)
    width = picture.shape[1]
    left, right = picture[:, : (width - 8) // 2], picture[:, (width + 8) // 2 :]
    assert (abs(left - right).sum(2) > 60).mean() > 0.1  # the mask is in the truth
    assert abs(right[:400] - 100).max() < 10  # nothing was found
    plain = cv2.imread(str(written[1])).astype(int)
    assert abs(plain[:400, : (width - 8) // 2] - 100).max() < 10


@pytest.mark.parametrize('listed', [True, False])
def test_label_maps_beside_predictions(listed, tmp_path):
    images(tmp_path / 'val', 24, 30)
    (tmp_path / 'maps').mkdir()
    labels = np.zeros((24, 30), np.uint8)
    labels[:, 15:], labels[:5] = 1, 255
    for number in range(5):
        Image.fromarray(labels).save(tmp_path / 'maps' / f'{number}.png')
    (tmp_path / 'val.txt').write_text('3\n4\n')
    file = str(tmp_path / 'val.txt') if listed else ''
    part = Part(str(tmp_path / 'val'), file, 2 if listed else 5, str(tmp_path / 'maps'))
    data = OwnData('segment', 'label maps', ('a', 'b'), part, None, '.png', '.png')
    written = compare_with_truth(Blind(), data, tmp_path / 'pictures', count=2)
    assert [path.name for path in written] == (['3.jpg', '4.jpg'] if listed else ['0.jpg', '2.jpg'])
    picture = cv2.imread(str(written[0])).astype(int)
    height, width = picture.shape[:2]
    side = (width - 8) // 2
    assert abs(picture[: height // 6, :side] - 100).max() < 12  # ignored pixels stay as they are
    difference = abs(
        picture[height // 2, 9 : side // 2 - 9] - picture[height // 2, 9 - side : -side // 2 - 9]
    )
    assert difference.max() < 12  # class a left and right
    assert (
        abs(
            picture[height // 2, side // 2 + 9 : side - 3]
            - picture[height // 2, -side // 2 + 9 : -3]
        ).max()
        > 60
    )

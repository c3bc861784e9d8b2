"""What a report counts, by hand, and the page that shows it."""

from collections import Counter

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample

from mmlape.apps.report import Tally, page
from mmlape.apps.report.classes import class_table, score_figures
from mmlape.apps.report.rates import BINS, ScoreCounts
from mmlape.apps.report.tally import match

BOXES = [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]


def boxes_sample(path, true, found, scores):
    """True and found boxes: pairs of a number in BOXES and a label."""
    sample = DetDataSample(metainfo=dict(img_path=path))

    def instances(pairs, **more):
        boxes = torch.tensor([BOXES[number] for number, _ in pairs]).float().reshape(-1, 4)
        labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
        return InstanceData(bboxes=boxes, labels=labels, **more)

    sample.gt_instances = instances(true)
    sample.pred_instances = instances(found, scores=torch.tensor(scores))
    return sample


def test_boxes_right_confused_missed_and_extra():
    tally = Tally(2, 1, boxes=True)
    # The better of two at one place is of another class: it stays without a partner.
    found, scores = [(0, 1), (0, 0), (1, 0), (2, 1), (2, 0)], [0.9, 0.8, 0.7, 0.31, 0.29]
    tally.add(boxes_sample('a', [(0, 0), (1, 1)], found, scores))
    assert tally.confusion.tolist() == [[1, 0, 0], [1, 0, 0], [0, 2, 0]]
    tally.add(boxes_sample('b', [(0, 0)], [(0, 0)], [0.9]))
    tally.add(boxes_sample('c', [(0, 1)], [], []))
    tally.add(boxes_sample('d', [], [], []))  # neither good nor bad
    assert tally.confusion.tolist() == [[2, 0, 0], [1, 0, 1], [0, 2, 0]]
    assert [(each.path, each.score) for each in tally.best + tally.worst] == [('b', 1), ('c', 0)]
    other = Tally(2, 1, boxes=True)
    other.add(boxes_sample('e', [(0, 0), (1, 0)], [(0, 0)], [0.9]))
    merged = other.merge([tally])
    assert merged.confusion[0].tolist() == [3, 0, 1]
    assert merged.best[0].path == 'b' and merged.worst[0].path == 'c'


def test_a_found_box_has_one_partner():
    """The nearest that is left."""
    assert match(np.array([[0.6, 0.9], [0.8, 0], [0.7, 0.9]])).tolist() == [1, 0]
    assert match(np.array([[0.5, 0.9], [0.4, 0.6]])).tolist() == [0, 1]
    for iou, partner in ((0.5, 0), (0.49, -1)):
        assert match(np.array([[iou]])).tolist() == [partner]


def test_precision_recall_and_f1_over_the_score():
    tally = Tally(2, 1, boxes=True, score=0.9)
    # A second box at one place is wrong, whatever its score; a low one counts as well.
    found, scores = [(0, 0), (0, 0), (1, 1), (2, 0), (2, 1)], [0.9, 0.8, 0.61, 0.4, 0.2]
    tally.add(boxes_sample('a', [(0, 0), (1, 1), (2, 1)], found, scores))
    other = Tally(2, 1, boxes=True)
    other.add(boxes_sample('b', [(0, 0)], [(0, 0)], [0.3]))
    assert other.counts.best() == 150  # the middle of all that include it
    tally.merge([other])
    assert tally.confusion.tolist() == [[2, 0, 0], [0, 0, 2], [0, 0, 0]]  # at 0.9, and 0.3
    rates = tally.counts.rates()
    for score, right, number in ((0.9, 1, 1), (0.7, 1, 2), (0.61, 2, 3), (0.3, 3, 5), (0, 4, 6)):
        place = round(score * BINS)
        expected = [right / number, right / 4, 2 * right / (number + 4)]
        np.testing.assert_allclose(rates[:, -1, place], expected)
    assert rates[:, 0, 500].tolist() == [0.5, 0.5, 0.5] and np.isnan(rates[0, 1, 700])
    assert tally.counts.best() == 100 and tally.total == 2 and tally.images.tolist() == [2, 1]
    assert ScoreCounts(2).best() is None
    trained = Counter({'a': 3, 'b': 1, '': 4}), Counter(a=7, b=2000)
    text = class_table(tally, ('a', 'b'), trained)
    for row in (
        '<th>training images (of 4)</th>', '<td>b</td><td>1</td><td>2,000</td><td>1</td><td>2</td>',
        '<td>all</td><td></td><td>2,007</td><td></td><td>4</td><td>0.667</td><td>1.000</td><td>0.800</td>',
    ):  # fmt: skip
        assert row in text
    shown = score_figures(tally.counts, ('a', 'b'))
    assert 'is highest, 0.800, at a minimum score of 0.1' in shown and shown.count('<img') == 2


def test_each_score_has_its_bin_and_the_longest_range_is_best():
    counts, scores = ScoreCounts(1), np.arange(BINS, dtype=np.float32) / BINS
    counts.add(np.zeros(0, int), np.zeros(BINS, int), scores, np.ones(BINS, bool))
    assert counts.right.tolist() == [[1] * BINS]
    counts = ScoreCounts(1)
    # F1 is 2/3 above 0.8, and again up to 0.2.
    found, right = np.float32([0.9, 0.8, 0.8, 0.2]), np.array([True, False, False, True])
    counts.add(np.zeros(2, int), np.zeros(4, int), found, right)
    assert counts.best() == 100


def test_masks_stay_with_their_boxes():
    tally, sample = Tally(2, 1, boxes=True), boxes_sample('a', [], [(0, 0), (1, 0)], [0.4, 0.9])
    sample.pred_instances.masks = torch.zeros(2, 20, 60, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(sample.pred_instances.masks, BOXES, strict=False):
        mask[top:bottom, left:right] = True
    tally.add(sample)
    found = tally.worst[0].found
    assert found['boxes'].tolist() == [[*crop.box] for crop in found['crops']] == BOXES[1::-1]


def test_true_boxes_that_were_resized():
    tally, sample = Tally(2, 1, boxes=True), boxes_sample('a', [(1, 0)], [(1, 0)], [0.9])
    sample.gt_instances.bboxes *= torch.tensor([2, 3, 2, 3])
    tally.add(sample, np.array([2, 3, 2, 3]))
    assert tally.confusion[0, 0] == 1 and tally.best[0].truth['boxes'].tolist() == [BOXES[1]]


@pytest.mark.parametrize('scale', [None, np.array([2, 3, 2, 3])])
def test_boxes_in_crowds_are_neither_right_nor_wrong(scale):
    """Of the crowd's class, and by half at least; what has a partner is right."""
    found = [(0, 0), (1, 0), (1, 1), (2, 0)]
    sample = boxes_sample('a', [(0, 0), (2, 1)], found, [0.9, 0.8, 0.7, 0.6])
    crowd, factor = torch.tensor([[0.0, 0, 45, 10]]), 1 if scale is None else torch.tensor(scale)
    sample.gt_instances.bboxes *= factor
    sample.ignored_instances = InstanceData(bboxes=crowd * factor, labels=torch.tensor([0]))
    tally = Tally(2, 1, boxes=True)
    tally.add(sample, scale)
    assert tally.confusion.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert (tally.counts.right.sum(), tally.counts.wrong.sum()) == (1, 1)
    assert tally.best[0].score == 2 / 4 and tally.best[0].found['labels'].tolist() == [0, 1]
    sample.ignored_instances.bboxes[:, 2] -= 1 if scale is None else 2
    # Less than half of the last one is inside now, so that it counts, in the place of the other class.
    tally.add(sample, scale)
    assert tally.confusion.tolist() == [[2, 0, 0], [1, 0, 1], [0, 2, 0]]


def test_label_maps_and_labels():
    tally = Tally(3, 2, boxes=False)
    sample = SegDataSample(metainfo=dict(img_path='a'))
    sample.gt_sem_seg = PixelData(data=torch.tensor([[[0, 0, 1], [1, 255, 1]]]))
    sample.pred_sem_seg = PixelData(data=torch.tensor([[[0, 1, 1], [1, 2, 0]]]))
    tally.add(sample)
    assert tally.confusion.tolist() == [[1, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert tally.best[0].score == (1 / 3 + 2 / 4) / 2
    text = class_table(tally, ('a', 'b', 'c'))
    assert '<td>b</td><td>1</td><td>3</td><td>50.0</td><td>66.7</td>' in text
    assert '<td>c</td><td>0</td><td>0</td><td></td><td></td>' in text  # in no pixel
    assert '<td>all</td><td></td><td>5</td><td>41.7</td><td>58.3</td>' in text
    assert tally.images.tolist() == [1, 1, 0]
    sample.pred_sem_seg = PixelData(data=torch.tensor([[[2, 2, 1]]]))
    tally.add(sample)  # of another size
    assert tally.total == 1
    sample.gt_sem_seg = PixelData(data=torch.tensor([[[0, 0, 1]]]))
    tally.add(sample)
    assert (tally.images.tolist(), tally.total) == ([2, 2, 0], 2)
    sample.pred_sem_seg = PixelData(data=torch.tensor([[[7, 7, 1]]]))  # labels without a class
    tally.add(sample)
    assert tally.confusion.tolist() == [[1, 1, 2], [1, 4, 0], [0, 0, 0]]
    many = Tally(300, 1, boxes=False)
    sample.gt_sem_seg = sample.pred_sem_seg = PixelData(data=torch.tensor([[[0, 299]]]))
    many.add(sample)
    assert many.best[0].truth['label_map'].tolist() == [[0, 299]]
    images = Tally(3, 2, boxes=False)
    images.add(DataSample().set_gt_label(2).set_pred_label(1))
    assert images.confusion[2, 1] == images.confusion.sum() == 1 and not images.best
    assert class_table(images, ('a', 'b', 'c')) == ''


def test_a_sample_without_truth_or_of_another_kind_is_left_out():
    sample = boxes_sample('a', [], [(0, 0)], [0.9])
    del sample.gt_instances
    rotated = boxes_sample('a', [(0, 0)], [(0, 0)], [0.9])
    rotated.gt_instances.bboxes = torch.zeros(1, 5)
    several = DataSample().set_gt_label([0, 1]).set_pred_label([1])
    for other in (sample, DataSample(), rotated, several):
        tally = Tally(2, 1, boxes=True)
        tally.add(other)
        assert not tally.confusion.any() and not tally.best


def test_without_a_path_an_image_is_counted_and_not_shown():
    tally, sample = Tally(2, 1, boxes=True), boxes_sample('a', [(0, 0)], [(0, 0)], [0.9])
    bare = DetDataSample(gt_instances=sample.gt_instances, pred_instances=sample.pred_instances)
    tally.add(bare)
    assert tally.confusion[0, 0] == 1 and not tally.best


def test_the_page_is_one_file_and_shows_names_as_text(tmp_path):
    cv2.imwrite(str(tmp_path / '<b>.png'), np.full((40, 60, 3), 99, np.uint8))
    tally = Tally(2, 1, boxes=True)
    tally.add(boxes_sample(str(tmp_path / '<b>.png'), [(0, 0)], [(0, 1)], [0.9]))
    classes = ('<script>', 'b')
    html = page.page('<i>', [
        ('Best', page.examples(tally.best, classes, None)),
        ('Confusion', page.confusion(tally, classes)), ('Nothing', ''),
    ])  # fmt: skip
    assert '<script' not in html and '<i>' not in html and '<b>' not in html and 'http' not in html
    assert 'data:image/jpeg;base64,' in html and '<h2>Nothing' not in html
    many = Tally(30, 1, boxes=False)
    many.confusion[3, 7], many.confusion[4, 4] = 5, 9
    listed = page.confusion(many, [f'class {k}' for k in range(30)])
    assert '<td>class 3</td><td>class 7</td><td>5</td><td>100.0%</td>' in listed
    assert 'class 4' not in listed and not page.confusion(Tally(2, 1, True), classes)

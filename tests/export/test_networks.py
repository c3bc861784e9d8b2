"""Networks of fixed shapes answer as upstream's test step: every kind of detector and segmentor."""

import copy

import numpy as np
import pytest
import torch
from export_rows import ROWS, small
from mmengine.config import ConfigDict

from mmlape.apps.export import verify
from mmlape.apps.export.network import Network, limit_boxes
from mmlape.apps.export.verify import Difference, compare, made_images

SLOW = ('Cascade R-CNN', 'HTC', 'Mask2Former')


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in ROWS]
)
def test_answers_are_those_of_upstream(name):
    """On two images of odd sides, taller and wider; every box, mask, logit and id."""
    answers_as_upstream(*small(name))


def test_a_segmentor_that_slides_is_compared_by_windows():
    """A file answers for one window; upstream would slide several over these images."""
    model, scope = small('Segmenter')
    model.test_cfg = ConfigDict(mode='slide', crop_size=(64, 64), stride=(48, 48))
    answers_as_upstream(model, scope)
    assert model.test_cfg.mode == 'slide'


def test_panoptic_segments_with_pixels_of_low_scores():
    """As a config without ``filter_low_score`` has it; the shipped ones leave such pixels out."""
    model, scope = small('Mask2Former, panoptic')
    del model.panoptic_fusion_head.test_cfg['filter_low_score']
    answers_as_upstream(model, scope)


def test_nan_and_boxes_of_the_file_alone_are_differences():
    found = Difference((1, 3, 64, 96))
    found.note('logits', float('nan'))
    found.note('logits', 0.0)
    assert not found.within(1e-3)
    theirs = dict(bboxes=[[1.0, 2, 30, 40]], scores=[0.9], labels=[0])
    theirs = {name: torch.tensor(value) for name, value in theirs.items()}
    boxes = np.array([[1, 2, 30, 40], [5, 5, 20, 20], [0, 0, 0, 0]], np.float32)
    for second, alike in ((0.8, False), (0.0, True)):
        found = Difference((1, 3, 64, 96))
        own = dict(boxes=boxes, scores=np.array([0.9, second, 0]), labels=np.array([0, 1, 0]))
        verify._compare_boxes(found, own, theirs, 1e-3)
        assert found.within(1e-3) == alike


def test_boxes_under_the_lowest_score_are_left_out():
    model, scope = small('Mask R-CNN, plain ViT')
    images = made_images(1, (75, 118), 3)
    model.roi_head.test_cfg.score_thr = 0.0
    scores = verify.upstream_answers(model, images, scope)[0].pred_instances.scores
    model.roi_head.test_cfg.score_thr = float(scores[len(scores) // 4])
    network = Network(copy.deepcopy(model))
    with torch.no_grad():
        (found,) = compare(
            model, lambda batch: [each.numpy() for each in network(torch.from_numpy(batch))], network.outputs,
            iter([images]), scope, 1e-3,
        )  # fmt: skip
    assert found.within(1e-3)


def test_small_images_are_padded_and_limits_only_fall():
    network = Network.__new__(Network)
    torch.nn.Module.__init__(network)
    network.is_bgr, network.mean, network.least, network.divisor = False, None, (64, 96), 1
    network.answer, network.channels = lambda image, size: image, None
    assert network(torch.zeros(1, 3, 40, 50)).shape == (1, 3, 64, 96)
    model = torch.nn.Module()
    model.test_cfg = ConfigDict(max_per_img=100)
    for count, limit in ((300, 100), (7, 7)):
        limit_boxes(model, count)
        assert model.test_cfg.max_per_img == limit


def answers_as_upstream(model, scope):
    network = Network(copy.deepcopy(model))

    def run(images):
        with torch.no_grad():
            found = network(torch.from_numpy(images))
        assert network.outputs != ('panoptic',) or len(found.unique()) > 2
        return [each.numpy() for each in (found if isinstance(found, tuple) else [found])]

    batches = (made_images(count, size, 3) for count, size in ((2, (75, 118)), (1, (101, 67))))
    for difference in compare(model, run, network.outputs, batches, scope, 1e-3):
        assert difference.within(1e-3), difference
        numbers = {name: each for name, each in difference.largest.items() if name != 'masks'}
        assert max(numbers.values()) <= 1e-4, difference
        assert difference.compared > 8 or 'boxes' not in network.outputs, difference
        assert set(difference.largest) == set(network.outputs) - {'labels'}, difference


def answers(count=3):
    """Boxes of one image that are found, as upstream has them and as a file does."""
    boxes = np.array([[1, 2, 30, 40], [5, 5, 20, 20], [50, 8, 61, 33]], np.float32)
    scores, labels = np.array([0.9, 0.8, 0.7], np.float32), np.array([0, 1, 0])
    return boxes[:count], scores[:count], labels[:count]


class Upstream(torch.nn.Module):
    """Finds the same in every image."""

    def test_step(self, data):
        from mmengine.structures import InstanceData

        boxes, scores, labels = map(torch.from_numpy, answers())
        for sample in data['data_samples']:
            sample.pred_instances = InstanceData(bboxes=boxes, scores=scores, labels=labels)
        return data['data_samples']


CHANGES = {
    'a box that is missing': (slice(0, 2), 0, 0, None),
    'a box that moved': (slice(None), 5, 0, None),
    'another score': (slice(None), 0, 0.05, None),
    'another label': (slice(None), 0, 0, 1),
    'none': (slice(None), 0, 0, None),
}


@pytest.mark.parametrize('name', CHANGES)
def test_what_differs_is_found(name):
    chosen, moved, added, label = CHANGES[name]

    def run(images):
        boxes, scores, labels = (each[chosen].copy() for each in answers())
        boxes[1] += moved
        scores[1] += added
        labels[1] = labels[1] if label is None else label - 1
        parts = (boxes, scores, labels)
        return [np.concatenate([each, np.zeros_like(each[:1])])[None] for each in parts]

    images = iter([made_images(1, (64, 96))])
    outputs = ('boxes', 'scores', 'labels')
    (found,) = compare(Upstream(), run, outputs, images, 'mmdet', 1e-3)
    assert found.within(1e-3) == (name == 'none'), found

"""Networks of fixed shapes answer as upstream's test step: every kind of detector and segmentor."""

import copy

import numpy as np
import pytest
import torch
from config_utils import cut, use_scope
from test_configs import CONFIGS, build, load, take_less_work

from mmlape.export.network import Network
from mmlape.export.verify import Difference, compare, made_images

ROWS = {
    'Mask R-CNN': 'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'Mask R-CNN, plain ViT': 'demo/mask-rcnn_vit-micro-dinov3_sfp_digit-scenes.py',
    'RetinaNet': 'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes.py',
    'GFL': 'experiments/gfl_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'ATSS': 'detectors/atss_deit-s-adapter-lape_fpn_ms-3x_coco.py',
    'FCOS': 'detectors/fcos_deit-s-adapter-lape_fpn_ms-3x_coco.py',
    'Sparse R-CNN': 'experiments/sparse-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'Cascade R-CNN': 'lape/cascade-mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco.py',
    'HTC': 'vit_adapter/htc_augreg-l-adapter_fpn_ms-3x_coco.py',
    'DINO': 'experiments/dino-3scale_vit-micro-adapter-lape_digit-scenes.py',
    'Deformable DETR': 'detr/deformable-detr-refine-twostage_pvt-s-dtn_16xb2-50e_coco.py',
    'Mask2Former, panoptic': 'experiments/mask2former_vit-micro-dinov3_sfp_digit-scenes-panoptic.py',
    'EoMT, instances': 'eomt/eomt_dinov2-l_lsj-1x_coco.py',
    'EoMT': 'experiments/eomt_vit-micro-lape_digit-scenes.py',
    'Mask2Former': 'foundation/mask2former_dinov2-b-adapter_8xb2-40k_ade20k-512x512.py',
    'Segmenter': 'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
    'UPerNet': 'demo/upernet_vit-micro-dinov3_sfp_digit-scenes.py',
    'SegFormer': 'demo/segformer_vit-micro-dinov3_sfp_digit-scenes.py',
    'linear': 'foundation/linear_dinov2-s_8xb2-40k_ade20k-512x512.py',
}
SLOW = ('Cascade R-CNN', 'HTC', 'Mask2Former')


def small(name):
    """The model of a row, shaken, with small heads; and its scope."""
    path = CONFIGS / ROWS[name]
    cfg = load(path)
    use_scope(cfg.default_scope)
    take_less_work(cfg)
    if 'dinov2' in path.name:
        cfg = cut(cfg)
    if name in ('Cascade R-CNN', 'HTC'):  # of so few classes, random scores pass the threshold
        for head in (*cfg.model.roi_head.bbox_head, *_listed(cfg.model.roi_head.mask_head)):
            head.num_classes = 3
    if name == 'HTC':  # soft suppression has no operator; and a smaller backbone
        cfg.model.test_cfg.rcnn.update(nms=dict(type='nms', iou_threshold=0.5), score_thr=0.05)
        donor = load(CONFIGS / ROWS['Cascade R-CNN']).model
        cfg.model.update(backbone=donor.backbone, neck=donor.neck)
    torch.manual_seed(0)
    model = build(cfg).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.1 * parameter.abs().mean() + 0.01
            parameter += scale * torch.randn(parameter.shape)
    return model, cfg.default_scope


def _listed(value):
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in ROWS]
)
def test_answers_are_those_of_upstream(name):
    """On two images of odd sides, taller and wider; every box, mask, logit and id."""
    model, scope = small(name)
    network = Network(copy.deepcopy(model))

    def run(images):
        with torch.no_grad():
            found = network(torch.from_numpy(images))
        return [each.numpy() for each in (found if isinstance(found, tuple) else [found])]

    batches = (made_images(count, size, 3) for count, size in ((2, (75, 118)), (1, (101, 67))))
    for difference in compare(model, run, network.outputs, batches, scope, 1e-4):
        assert difference.within(1e-4), difference
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
    assert isinstance(found, Difference)
    assert found.within(1e-3) == (name == 'none'), found

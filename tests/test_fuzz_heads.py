"""Whole detectors and segmentors on images of any size and content, from bytes to finished predictions."""

import importlib
import zlib
from dataclasses import replace

import pytest
import torch
from config_utils import CONFIGS, use_scope
from hypothesis import given, seed, settings
from mmengine.config import Config
from mmengine.registry import DefaultScope
from test_fuzz import SETTINGS, cases

from mmlape.registry import MODELS

# A detector's stages of proposals and boxes take their time, whatever the size of the image.
FAST, SLOW = 2, 24
HEADS = {
    'mask-rcnn': 'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'retinanet': 'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes.py',
    'segmenter': 'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
}


@pytest.fixture(params=HEADS)
def row(request):
    """Its name, the library it is of, and the model."""
    config = Config.fromfile(CONFIGS / HEADS[request.param])
    utils = importlib.import_module(f'{config.default_scope}.utils')
    utils.register_all_modules(init_default_scope=False)
    use_scope(config.default_scope)
    torch.manual_seed(0)
    yield request.param, config.default_scope, MODELS.build(config.model)
    DefaultScope._instance_dict.popitem(last=True)


def samples(library, size, batch):
    """What a pipeline says of each image."""
    meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0), pad_shape=size)
    if library == 'mmdet':
        from mmdet.structures import DetDataSample as Sample
    else:
        from mmseg.structures import SegDataSample as Sample
    return [Sample(metainfo=dict(meta)) for _ in range(batch)]


def check(library, model, case):
    images = list(case.images().clamp(0, 255).byte())
    data = dict(inputs=images, data_samples=samples(library, case.size, case.batch))
    with torch.no_grad(), case.autocast():
        data = model.data_preprocessor(data, False)
        results = model(**data, mode='predict')
    assert len(results) == case.batch
    height, width = case.size
    for result in results:
        if library == 'mmseg':
            assert result.pred_sem_seg.data.shape == (1, height, width), case
            assert result.seg_logits.data.isfinite().all(), case
            continue
        found = result.pred_instances
        assert found.bboxes.isfinite().all() and found.scores.isfinite().all(), case
        limits = found.bboxes.new_tensor([width, height] * 2)
        assert ((found.bboxes >= 0) & (found.bboxes <= limits)).all(), case
        if 'masks' in found:
            assert found.masks.shape[1:] == case.size, case


def fuzz(row, examples):
    name, library, model = row
    model.eval()
    done = []

    @seed(zlib.crc32(name.encode()))
    @settings(SETTINGS, max_examples=examples)
    @given(cases)
    def run(case):
        # The suppression of boxes on a CPU (MMCV's) knows float32 alone.
        precision = 'fp32' if library == 'mmdet' else case.precision
        case = replace(case, normalised=False, training=False, precision=precision)
        check(library, model, case)
        done.append(case)

    run()
    assert len(done) >= examples


def test_every_row(row):
    fuzz(row, FAST)


@pytest.mark.slow
def test_every_row_often(row):
    fuzz(row, SLOW)


def test_rows_are_there():
    assert all((CONFIGS / path).is_file() for path in HEADS.values())
    assert len(HEADS) * SLOW >= 70

"""EoMT in whole detectors and segmentors: losses and results of the upstream heads, on its predictions."""

import math

import pytest
import torch
from backbone_variants import build_eomt, component, randomise
from config_utils import use_scope
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample

from mmlape.heads.segmentation import SlidingWindows
from mmlape.registry import MODELS

VIT = component(
    'VisionTransformer', arch=dict(embed_dims=24, depth=3, num_heads=3), patch_size=8, img_size=64
)
TRAIN = dict(num_points=64)


def eomt(num_classes):
    return component('EoMT', vit=VIT, num_classes=num_classes, num_queries=6, num_blocks=2)


def detector(stuff, **test_cfg):
    use_scope('mmdet')
    fusion = dict(type='mmdet.MaskFormerFusionHead', num_things_classes=3, num_stuff_classes=stuff)
    config = dict(
        type='mmdet.Mask2Former',
        data_preprocessor=dict(type='mmdet.DetDataPreprocessor', pad_mask=True, pad_seg=True, pad_size_divisor=8),
        backbone=eomt(3 + stuff),
        panoptic_head=component('EoMTHead', num_things_classes=3, num_stuff_classes=stuff),
        panoptic_fusion_head=fusion,
        train_cfg=TRAIN,
        test_cfg=dict(panoptic_on=False, semantic_on=False, instance_on=True, max_per_image=5, **test_cfg),
    )  # fmt: skip
    return randomise(MODELS.build(ConfigDict(config)), 0.2)


def segmentor(**test_cfg):
    use_scope('mmseg')
    config = dict(
        type='mmseg.EncoderDecoder',
        data_preprocessor=dict(type='mmseg.SegDataPreProcessor', size_divisor=8, seg_pad_val=255),
        backbone=eomt(4),
        decode_head=component('EoMTSegHead', num_classes=4, train_cfg=TRAIN),
        test_cfg=dict(test_cfg or dict(mode='whole')),
    )
    return randomise(MODELS.build(ConfigDict(config)), 0.2)


def boxed(stuff, size=(40, 52)):
    """An image with two instances; below them, where there is stuff, a class of it."""
    masks = torch.zeros(2, *size, dtype=torch.long)
    masks[0, 4:20, 6:30] = masks[1, 22:36, 20:50] = 1
    sample = DetDataSample(metainfo=dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0)))
    sample.gt_instances = InstanceData(
        labels=torch.tensor([0, 2]),
        bboxes=torch.rand(2, 4),
        masks=BitmapMasks(masks.numpy().astype('uint8'), *size),
    )
    if stuff:
        sample.gt_sem_seg = PixelData(sem_seg=torch.full((1, *size), 3))
    return dict(inputs=[torch.randint(255, (3, *size), dtype=torch.uint8)], data_samples=[sample])


def labelled(size=(40, 52)):
    labels = torch.full((1, *size), 255)
    labels[:, 5:20], labels[:, 20:30, :9] = 1, 3
    sample = SegDataSample(metainfo=dict(img_shape=size, ori_shape=size, pad_shape=size))
    sample.gt_sem_seg = PixelData(data=labels)
    return dict(inputs=[torch.randint(255, (3, *size), dtype=torch.uint8)], data_samples=[sample])


CASES = {
    'instance': (lambda: detector(0), lambda: boxed(0)),
    'panoptic': (lambda: detector(2), lambda: boxed(2)),
    'semantic': (segmentor, labelled),
}


@pytest.mark.parametrize(
    ('case', 'dtype'),
    [('instance', None), ('panoptic', torch.bfloat16), ('semantic', torch.float16)],
)
def test_losses_of_every_prediction(case, dtype):
    """Every parameter has a gradient; in half precision matching and losses are float32."""
    build, batch = CASES[case]
    model, batch = build().train(), batch()
    data = model.data_preprocessor(batch, True)
    with torch.autocast('cpu', dtype or torch.bfloat16, enabled=dtype is not None):
        losses = model(**data, mode='loss')
    losses = {name.removeprefix('decode.'): loss for name, loss in losses.items()}
    kinds = ('loss_cls', 'loss_mask', 'loss_dice')
    names = {f'{start}{kind}' for start in ('', 'd0.', 'd1.') for kind in kinds}
    assert set(losses) == names
    assert all(loss.isfinite() and loss.dtype == torch.float32 for loss in losses.values())
    sum(losses.values()).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert not without
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize('targets', [0, 1])
def test_losses_are_the_formulas(targets):
    """Of one query and at most one mask, both without a value anywhere, so that sampled points do not matter."""
    use_scope('mmdet')
    head = MODELS.build(
        component('EoMTHead', num_things_classes=2, class_weight=3.0, mask_weight=4.0, dice_weight=6.0,
                  no_object_weight=0.2, train_cfg=TRAIN)
    )  # fmt: skip
    logits = torch.tensor([[[0.3, -0.4, 1.1]]])
    x = ([logits], [torch.zeros(1, 1, 8, 8)])
    classes, masks = head(x)
    target = InstanceData(labels=torch.ones(targets).long(), masks=torch.zeros(targets, 16, 16))
    losses = head.loss_by_feat(classes, masks, [target], [{}])
    label = 1 if targets else 2
    expected = 3 * -logits.log_softmax(-1)[0, 0, label]
    torch.testing.assert_close(losses['loss_cls'], expected)
    if targets:
        halves = TRAIN['num_points'] / 2
        values = dict(loss_mask=4 * math.log(2), loss_dice=6 * (1 - 1 / (halves + 1)))
        assert {name: losses[name].item() for name in values} == pytest.approx(values)
        query = InstanceData(scores=logits[0], masks=torch.zeros(1, 64))
        (cost,) = head.assigner.match_costs
        expected = -3 * logits.softmax(-1)[0, 0, 1] + sum(values.values())
        torch.testing.assert_close(
            cost(query, InstanceData(labels=target.labels, masks=torch.zeros(1, 64))),
            expected.view(1, 1),
        )


def test_instances():
    """The best queries times classes, scored by class and mask, at the size of the original image."""
    model = detector(0).eval()
    batch = boxed(0)
    with torch.no_grad():
        (result,) = model.test_step(batch)
        data = model.data_preprocessor(boxed(0), False)
        classes, _ = model.backbone(model.data_preprocessor(batch, False)['inputs'])
    found = result.pred_instances
    assert data['inputs'].shape[-2:] == (40, 56)
    assert found.masks.shape == (5, 40, 52) and found.masks.dtype == torch.bool
    best = classes[-1].softmax(-1)[0, :, :-1].max()
    assert found.scores.isfinite().all() and found.scores.max() <= best + 1e-5


def test_panoptic():
    model = detector(2, object_mask_thr=0.0, iou_thr=0.0, filter_low_score=False).eval()
    model.panoptic_fusion_head.test_cfg.update(panoptic_on=True, instance_on=False)
    with torch.no_grad():
        (result,) = model.test_step(boxed(2))
    segments = result.pred_panoptic_seg.sem_seg
    assert segments.shape == (1, 40, 52)
    assert set((segments % 1000).unique().tolist()) <= {0, 1, 2, 3, 4, 5}


def test_semantic_in_windows_and_whole():
    """One window of the image's size is the whole; windows of a padded image have their own size (mmseg #3666)."""
    batch = labelled((40, 48))
    whole = segmentor()
    slide = segmentor(mode='slide', crop_size=(40, 48), stride=(40, 48))
    slide.load_state_dict(whole.state_dict())
    smaller = segmentor(mode='slide', crop_size=(24, 32), stride=(16, 16))
    with torch.no_grad():
        results = [model.eval().test_step(batch)[0].seg_logits.data for model in (whole, slide)]
        (result,) = smaller.eval().test_step(batch)
    torch.testing.assert_close(results[0], results[1])
    assert result.pred_sem_seg.data.shape == (1, 40, 48)


def test_heads_have_no_parameters():
    for name, options in (
        ('EoMTHead', dict(num_things_classes=2)),
        ('EoMTSegHead', dict(num_classes=2)),
    ):
        head = MODELS.build(component(name, **options))
        assert isinstance(head, Mask2FormerHead) and not list(head.parameters())
        head.init_weights()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_things_classes=0), 'num_things_classes'),
        (dict(num_things_classes=2, mask_weight=-1), 'mask_weight'),
        (dict(num_things_classes=2, train_cfg=dict(num_points=0)), 'num_points'),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        MODELS.build(component('EoMTHead', **options))


def test_refuses_other_numbers_of_classes():
    head = MODELS.build(component('EoMTHead', num_things_classes=2))
    with pytest.raises(ValueError, match='the head has 2 classes, the backbone num_classes=3'):
        head(build_eomt()(torch.randn(1, 3, 32, 32)))


def test_windows_are_those_of_a_test_that_slides():
    class Upstream:
        def predict(self, x, batch_img_metas, test_cfg):
            return [meta['pad_shape'] for meta in batch_img_metas]

    class Head(SlidingWindows, Upstream):
        pass

    metas = [dict(img_shape=(4, 6), pad_shape=(8, 8))]
    slide, whole = (Head().predict(None, metas, dict(mode=mode)) for mode in ('slide', 'whole'))
    assert (slide, whole) == ([(4, 6)], [(8, 8)])
    assert Head().predict(None, metas, None) == whole  # MMSegmentation's heads take None

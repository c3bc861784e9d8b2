"""The pictures of a test are those of ``mmlape predict``, for both toolboxes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample

from mmlape.apps.inference import Result, read_image
from mmlape.apps.inference.drawing import draw, side_by_side
from mmlape.apps.inference.results import MaskCrop, write_picture
from mmlape.apps.inference.samples import prediction_of, truth_of
from mmlape.apps.report import PictureHook

CLASSES = ('cat', 'dog')
BOX = [10.0, 20.0, 50.0, 60.0]


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (90, 120, 3)).astype(np.uint8)
    write_picture(pixels, tmp_path / 'data/deep/a.png')
    return tmp_path / 'data/deep/a.png'


def picture_of(sample, image, folder, steps=(), stored=None, **options):
    transforms = [type(name, (), {})() for name in steps]
    pipeline = SimpleNamespace(transforms=transforms)
    prefix = dict(img_path=str(image.parents[1]))
    data = SimpleNamespace(metainfo=dict(classes=CLASSES), data_prefix=prefix, pipeline=pipeline)
    runner = SimpleNamespace(test_loop=SimpleNamespace(dataloader=SimpleNamespace(dataset=data)))
    runner.visualizer = SimpleNamespace(show=lambda *given: shown.append(given))
    shown = []
    sample.set_metainfo(dict(img_path=str(image), ori_shape=(90, 120), scale_factor=(2.0, 4.0)))
    hook = PictureHook(str(folder), **options)
    runner.cfg = {}
    hook.after_load_checkpoint(runner, dict(meta=dict(score_threshold=stored)))
    hook.after_test_iter(runner, 0, outputs=[sample])
    assert len(shown) == hook.show and all(given[1:] == ('deep/a', 2) for given in shown)
    written = read_image(folder / 'deep/a.jpg')
    assert all(same(given[0][..., ::-1], written) for given in shown)  # RGB
    return written


def same(found, wanted):
    return found.shape == wanted.shape and abs(found.astype(int) - wanted).mean() < 12  # a JPEG


@pytest.mark.parametrize('scaled', [True, False])
def test_boxes_and_masks_beside_the_truth(scaled, image, tmp_path):
    masks = np.zeros((2, 90, 120), bool)
    masks[:, 30:50, 15:40] = True
    scale = torch.tensor((2.0, 4.0, 2.0, 4.0)) if scaled else 1
    sample = DetDataSample(
        gt_instances=InstanceData(
            bboxes=torch.tensor([BOX]) * scale, labels=torch.tensor([0]), masks=BitmapMasks(masks[:1], 90, 120)
        ),
        pred_instances=InstanceData(
            bboxes=torch.tensor([[0.0, 0, 9, 9], BOX]), labels=torch.tensor([1, 1]),
            scores=torch.tensor([0.2, 0.9]), masks=torch.from_numpy(masks),
        ),
    )  # fmt: skip
    blank = Result(read_image(image), 'a', CLASSES, boxes=np.array([BOX], np.float32))
    crops = [MaskCrop.of(masks[0])]
    truth = Result(**{**vars(blank), 'labels': np.array([0]), 'crops': None if scaled else crops})
    found = Result(
        **{**vars(blank), 'labels': np.array([1]), 'scores': np.array([0.9]), 'crops': crops}
    )
    steps = ('LoadAnnotations', 'Resize') if scaled else ('Resize', 'LoadAnnotations')
    drawn = picture_of(sample, image, tmp_path / 'out', steps, show=True)
    assert same(drawn, side_by_side(truth, found))
    del sample.gt_instances
    assert same(picture_of(sample, image, tmp_path / 'out', steps), draw(found))
    options = dict(steps=steps, stored=0.1)
    low = picture_of(sample, image, tmp_path / 'low', **options)  # with the box of score 0.2
    assert abs(low[:12, :12].astype(int) - draw(found)[:12, :12]).mean() > 20
    assert same(picture_of(sample, image, tmp_path / 'high', score=0.3, **options), draw(found))


def test_label_maps_and_panoptic_maps(image, tmp_path):
    labels = torch.zeros(1, 90, 120, dtype=torch.int64)
    labels[:, 40:, 60:] = 1
    sample = SegDataSample(pred_sem_seg=PixelData(data=labels))
    found = Result(read_image(image), 'a', CLASSES, label_map=labels[0].numpy())
    assert same(picture_of(sample, image, tmp_path), draw(found))
    sample.gt_sem_seg = PixelData(data=labels)
    assert same(picture_of(sample, image, tmp_path), side_by_side(found, found))
    with_boxes = DetDataSample(gt_sem_seg=PixelData(data=labels), pred_instances=InstanceData())
    assert truth_of(with_boxes) is None, 'that of stuff, as HTC has it, is of another kind'
    ids = labels.clone()
    ids[:, :20], ids[:, 20:30, :10] = 1001, 2  # a dog, and nothing known
    panoptic = DetDataSample(pred_panoptic_seg=PixelData(sem_seg=ids))
    options = prediction_of(panoptic, CLASSES, 0.3)
    assert options['boxes'].tolist() == [[0, 0, 120, 20]] and options['labels'].tolist() == [1]
    assert (options['label_map'][:30, :10] == 2).all() and (
        options['label_map'][40:, 60:] == 1
    ).all()
    with pytest.raises(ValueError, match='nothing to draw'):
        prediction_of(DetDataSample(), CLASSES, 0.3)

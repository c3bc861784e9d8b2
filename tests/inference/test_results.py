"""Masks as crops, pictures and files of a result."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image
from pycocotools import mask as coco_mask

from mmlape.apps.inference import MaskCrop, Result, read_image, results
from mmlape.apps.inference.samples import prediction_of, truth_of

HEIGHT, WIDTH = 37, 52


def masks():
    """Scattered, whole columns side by side, in the corners, one pixel, none."""
    rng = np.random.default_rng(0)
    found = np.zeros((6, HEIGHT, WIDTH), bool)
    found[0] = rng.random((HEIGHT, WIDTH)) < 0.3
    found[1, :, 10:13] = True
    found[2, [0, 0, -1, -1], [0, -1, 0, -1]] = True
    found[3, 5, 7] = True
    found[4, 23:29, 4:20] = True
    return found


@pytest.mark.parametrize('number', range(6))
def test_run_lengths_of_a_crop_are_those_of_the_image(number):
    mask = masks()[number]
    crop = MaskCrop.of(mask[2:, 1:] if number == 3 else mask, *((1, 2) if number == 3 else ()))
    found = crop.in_image(HEIGHT, WIDTH)
    expected = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    assert found == dict(expected, counts=expected['counts'].decode())
    if number == 4:
        assert crop.rle['size'] == [6, 16] and (crop.left, crop.top) == (4, 23)


def result(**options):
    image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    return Result(image, 'a', ('cat', 'dog'), **options)


def detections():
    found = masks()[[4, 1]]
    return result(
        boxes=np.array([[4, 23, 20, 29], [10, 0, 13, HEIGHT]], np.float32),
        scores=np.array([0.9, 0.4], np.float32),
        labels=np.array([1, 0]),
        crops=[MaskCrop.of(mask) for mask in found],
    )


def test_masks_and_annotations():
    found = detections()
    assert (found.masks == masks()[[4, 1]]).all() and result().masks is None and len(result()) == 0
    first, second = found.annotations()
    assert first['category_id'] == 2 and first['bbox'] == [4, 23, 16, 6] and first['area'] == 96
    assert first['score'] == pytest.approx(0.9) and second['segmentation']['size'] == [
        HEIGHT,
        WIDTH,
    ]
    found.crops, found.scores = None, found.scores[:0]  # of ground truth
    assert not {'segmentation', 'score'} & {*next(found.annotations())}


def test_a_picture_shows_boxes_and_masks_in_the_colour_of_their_class(tmp_path):
    found = detections()
    found.palette = [[0, 0, 200], [200, 0, 0]]
    enlarged = found.picture()
    assert enlarged.shape[0] > 15 * HEIGHT and enlarged.shape[1] == 15 * WIDTH  # with a legend
    drawn = enlarged[7::15, 7::15]  # the middle of each pixel
    assert drawn[27, 17].tolist() == [45, 45, 145]  # BGR, half of the red
    assert enlarged[15 * 29, 15 * 17].tolist() == [0, 0, 200] and drawn[36, 40].tolist() == [
        90,
        90,
        90,
    ]
    assert (found.image == 90).all()
    found.save(tmp_path / 'deep' / 'a.png')
    assert (read_image(tmp_path / 'deep' / 'a.png') == enlarged).all()
    with pytest.raises(ValueError, match='no picture can be written'):
        found.save(tmp_path / 'a.txt')


def test_a_label_map_is_drawn_and_written(tmp_path):
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[:9], labels[20:] = 1, 255
    found = result(label_map=labels, palette=[[0, 0, 200], [200, 0, 0]])
    drawn = found.picture()[::15, ::15]
    assert drawn[0, 0].tolist() == [45, 45, 145] and drawn[30, 0].tolist() == [90, 90, 90]
    found.save_label_map(tmp_path / 'deep' / 'a.png')
    with Image.open(tmp_path / 'deep' / 'a.png') as image:
        assert image.mode == 'P' and image.getpalette()[:6] == [0, 0, 200, 200, 0, 0]
        assert (np.asarray(image) == labels).all()
    for count, mode in ((256, 'P'), (257, 'I;16')):
        found.classes = [str(number) for number in range(count)]
        found.label_map = np.full((HEIGHT, WIDTH), count - 1, np.int16)
        found.save_label_map(tmp_path / f'{count}.png')
        with Image.open(tmp_path / f'{count}.png') as image:
            assert image.mode == mode and (np.asarray(image) == count - 1).all()
    with pytest.raises(ValueError, match='has no label map'):
        result().save_label_map(tmp_path / 'b.png')


def test_a_line_and_a_picture_for_notebooks():
    assert repr(detections()) == "Result('a', 52 x 37: 1 cat, 1 dog)"
    assert repr(result()) == "Result('a', 52 x 37: nothing)"
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[:, : WIDTH // 4], labels[:, -WIDTH // 4 :] = 1, 255
    assert repr(result(label_map=labels)) == "Result('a', 52 x 37: 50% cat, 25% dog)"
    wide = replace(result(), image=np.zeros((100, 4000, 3), np.uint8))
    shown = cv2.imdecode(np.frombuffer(wide._repr_png_(), np.uint8), cv2.IMREAD_COLOR)
    assert shown.shape == (40, 1600, 3)
    assert replace(wide, image=wide.image[:1])._repr_png_()


def test_detections_of_supervision(monkeypatch):
    monkeypatch.setitem(sys.modules, 'supervision', None)
    with pytest.raises(ImportError, match='pip install supervision'):
        detections().to_supervision()
    fields = ('xyxy', 'mask', 'confidence', 'class_id')

    def as_dict(*values, data):
        return dict(zip(fields, values, strict=True), **data)

    package = SimpleNamespace(Detections=as_dict)
    monkeypatch.setitem(sys.modules, 'supervision', package)
    found = detections().to_supervision()
    assert found['class_name'].tolist() == ['dog', 'cat'] and found['class_id'].tolist() == [1, 0]
    assert (found['mask'] == masks()[[4, 1]]).all() and found['confidence'][1] == np.float32(0.4)
    labels = np.full((HEIGHT, WIDTH), 255, np.uint8)
    labels[3:9, 5:8] = 1
    found = result(label_map=labels).to_supervision()
    assert found['xyxy'].tolist() == [[5, 3, 8, 9]] and found['class_name'].tolist() == ['dog']
    assert (found['mask'][0] == (labels == 1)).all() and found['confidence'] is None


def test_a_label_map_of_many_classes(tmp_path):
    labels = np.full((HEIGHT, WIDTH), 299, np.int16)
    labels[:9] = 7
    found = replace(result(label_map=labels), classes=tuple(map(str, range(300))))
    found.save_label_map(tmp_path / 'a.png')
    with Image.open(tmp_path / 'a.png') as image:
        assert (np.asarray(image) == labels).all()


def test_a_picture_that_is_too_wide_for_jpeg(tmp_path):
    wide = replace(result(), image=np.zeros((2, 70000, 3), np.uint8))
    with pytest.raises(ValueError, match=r'no picture can be written to .*a.jpg., 70000 x 2'):
        wide.save(tmp_path / 'a.jpg')
    wide.save(tmp_path / 'a.png')
    assert Image.open(tmp_path / 'a.png').width == 70000


def test_an_image_that_cannot_be_read(tmp_path):
    (tmp_path / 'a.jpg').write_bytes(b'no image')
    for name in ('a.jpg', 'b.jpg'):
        with pytest.raises(ValueError, match=f'{name} cannot be'):
            read_image(tmp_path / name)


def test_an_image_of_12_bits_in_a_file_of_16_is_nearly_black(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(results, 'print_log', lambda line, **_: lines.append(line))
    for name, brightest in (('dark', 4095), ('bright', 65535)):
        cv2.imwrite(str(tmp_path / f'{name}.png'), np.full((3, 4), brightest, np.uint16))
        read_image(tmp_path / f'{name}.png')
    cv2.imwrite(str(tmp_path / 'black.png'), np.zeros((3, 4), np.uint8))
    read_image(tmp_path / 'black.png')
    (line,) = lines
    assert 'dark.png has 16 bits, of which MMCV keeps the upper 8' in line


def test_truth_in_pixels_of_the_file_and_labels_beyond_255():
    truth = InstanceData(bboxes=torch.tensor([[2.0, 4, 12, 24]]), labels=torch.tensor([1]))
    sample = DetDataSample(gt_instances=truth)
    assert truth_of(sample, np.array([2.0, 4.0]))['boxes'].tolist() == [[1, 1, 6, 6]]
    assert truth_of(sample)['boxes'].tolist() == [[2, 4, 12, 24]]
    many = SegDataSample(pred_sem_seg=PixelData(data=torch.tensor([[[0, 299]]])))
    assert prediction_of(many, range(300), 0.0)['label_map'].tolist() == [[0, 299]]

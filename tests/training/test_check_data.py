"""Wrong data are refused before training, with a message that says what is wrong; what upstream skips is counted."""

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import mmdet.datasets
import mmseg.datasets
import numpy as np
import pytest
import torch
from config_utils import (
    CLASSES,
    coco_content,
    coco_dataset,
    use_scope,
    write_coco,
    write_image,
    write_label_map,
    write_label_maps,
)
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.registry import RUNNERS
from PIL import Image
from ports import free_port
from pycocotools import mask as mask_api
from torch import distributed, multiprocessing

from mmlape.registry import MODELS
from mmlape.training import CheckDataHook, DataError, EarlyHookRunner, check_data_is_there

WITH_MASK = [dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]


def runner_of(dataset, model=None):
    """What the hook reads of a runner."""
    cfg = ConfigDict(train_dataloader=dict(dataset=dataset), model=model or {})
    return SimpleNamespace(cfg=cfg, logger=logging.getLogger('check-data'))


def check(caplog, dataset, max_decode=1000, model=None):
    """The early stage of the hook: the error's text, or None, and the log."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    try:
        CheckDataHook(max_decode).before_build(runner_of(dataset, model), splits=('train',))
    except DataError as error:
        return str(error), caplog.text
    return None, caplog.text


def label_maps(root, **options):
    folders = dict(img_path='images/train', seg_map_path='annotations/train')
    usual = dict(type='BaseSegDataset', data_root=str(root), metainfo=dict(classes=CLASSES))
    return {**usual, 'data_prefix': folders, **options}


def write_map(root, number, value, size=(71, 97), dtype=np.uint8):
    path = root / 'annotations' / 'train' / f'{number}.png'
    write_label_map(path, np.full(size, value, dtype=dtype))


def changed(*path, to):
    """A change of a COCO object: ``to`` at ``path``."""

    def change(content):
        *parents, last = path
        for key in parents:
            content = content[key]
        content[last] = to

    return change


def without(*path):
    def change(content):
        *parents, last = path
        for key in parents:
            content = content[key]
        del content[last]

    return change


def in_corners(content):
    for box in content['annotations']:
        x, y, w, h = box['bbox']
        box['bbox'] = [x + 50, y + 30, x + 50 + w, y + 30 + h]


def outside(content):
    for box in content['annotations'][:7]:
        box['bbox'] = [97, 0, 10, 10]


def without_area(content):
    for box in content['annotations']:
        box['area'] = 0


def all_are_crowds(content):
    for box in content['annotations']:
        box['iscrowd'] = 1


def of_two_points(content):
    for box in content['annotations']:
        box['segmentation'] = [[1, 1, 9, 9]]


BOX, IMAGE = ('annotations', 1), ('images', 2)
REFUSED = {
    'empty lists': (changed('images', to=[]), "the list 'images' of the annotation file is empty"),
    'no list': (without('annotations'), "the list 'annotations' of the annotation file is missing"),
    'a key': (without(*BOX, 'area'), "1 entries of 'annotations' have no 'area'; ids: 2"),
    'a number as entry': (changed(*IMAGE, to=3), "1 entries of 'images' are not objects: 3"),
    'a box is null': (changed(*BOX, to=None), "1 entries of 'annotations' are not objects: None"),
    'no name': (changed('categories', 0, to=dict(id=10)), "'categories' have no 'name'; ids: 10"),
    'a file twice': (
        changed(*IMAGE, 'file_name', to='0.jpg'), "1 values of 'file_name' in 'images' appear more than once: '0.jpg'"),
    'a file is a number': (
        changed(*IMAGE, 'file_name', to=3), r"1 values of 'file_name' .* are not a text; .*: '3 \(3\)'"),
    'an id twice': (changed(*IMAGE, 'id', to=1), "1 values of 'id' in 'images' appear more than once: 1"),
    'an id is a list': (
        changed(*BOX, 'image_id', to=[1]), r"1 values of 'image_id' .* or a text; name or id: '2 \(\[1\]\)'"),
    'an id of 64 bits': (
        changed(*BOX, 'id', to=2**63), "1 values of 'id' in 'annotations' are not an integer or a text"),
    'a category twice': (
        changed('categories', 1, 'name', to='red cell'), "1 values of 'name' in 'categories' appear more than once"),
    'unknown classes': (
        changed('categories', 1, 'name', to='white cells'),
        "1 of 3 class names are not categories of the annotation file: 'white cell'; the file has 'red cell', "
        "'white cells', \"crow's foot\"; did you mean 'white cells'[?]"),
    'another order': (
        lambda content: content['categories'].reverse(),
        "not in the order of the annotation file.* as \"crow's foot,white cell,red cell\""),
    'a box twice': (changed(*BOX, 'id', to=1), "1 values of 'id' in 'annotations' appear more than once: 1"),
    'no width': (changed(*IMAGE, 'width', to=0), r"1 values of 'width' in 'images' .* above 0; .*: '2.jpg \(0\)'"),
    'height is text': (changed(*IMAGE, 'height', to='71'), r"1 values of 'height' .*: \"2.jpg \('71'\)"),
    'a box of text': (
        changed(*BOX, 'bbox', to=['1', 2, 3, 4]), r"1 values of 'bbox' .* are not four finite numbers, .*: .2 \(\['1'"),
    'a box of NaN': (changed(*BOX, 'bbox', to=[1, 2, float('nan'), 4]), r": '2 \(\[1, 2, nan, 4\]"),
    'three numbers': (changed(*BOX, 'bbox', to=[1, 2, 3]), r": '2 \(\[1, 2, 3\]"),
    'area is text': (changed(*BOX, 'area', to='3'), r"1 values of 'area' .* are not a finite number; .*: .2 \('3'\)"),
    'corners': (in_corners, r'12 of 12 boxes reach .*, not \[x1, y1, x2, y2\]'),
    'most are outside': (outside, '7 of 12 boxes reach beyond their image'),
    'no usable box': (without_area, 'no usable box is left'),
    'no mask': (without(*BOX, 'segmentation'), r"no mask .* ids: '2 \(no segmentation\)'"),
    'a mask of text': (changed(*BOX, 'segmentation', to='yes'), r"ids: '2 \(a str\)'"),
    'a mask of NaN': (changed(*BOX, 'segmentation', to=[[1, 2, float('nan')]]), 'not a list of finite numbers'),
    'a mask of 400 digits': (changed(*BOX, 'segmentation', to=[[10**400] * 6]), 'not a list of finite numbers'),
    'a mask of another size': (
        changed(*BOX, 'segmentation', to=dict(size=[10, 10], counts=[0, 100])),
        r"ids: '2 \(run lengths of size \[10, 10\], image \[71, 97\]\)'"),
    'a mask that ends too soon': (
        changed(*BOX, 'segmentation', to=dict(size=[71, 97], counts=[9, 9])), 'run lengths of 18 pixels, image of 68'),
    'a sliver': (
        changed(*BOX, 'bbox', to=[96.9999999, 9, 9, 9]), r"left inside their image, in float32; ids: '2 \(0.jpg\)'"),
    'a sliver at the left': (
        changed(*BOX, 'bbox', to=[9, -9.0, 9, 9.0000001]), r"left inside their image, in float32; ids: '2 \(0.jpg\)'"),
    'a sliver of some steps of float32': (
        changed(*BOX, 'bbox', to=[96.99997, -3, 9, 9]), r"left inside their image, in float32; ids: '2 \(0.jpg\)'"),
    'all are crowds': (all_are_crowds, r"no usable box is left: 12 boxes mark crowds"),
    'all polygons are of two points': (of_two_points, "no usable box is left"),
    'iscrowd is text': (changed(*BOX, 'iscrowd', to='0'), "1 values of 'iscrowd' are neither 0 nor 1; ids of boxes: 2"),
    'a mask without run lengths': (
        changed(*BOX, 'segmentation', to=dict(size=[71, 97])), r"ids: '2 \(run lengths of size \[71, 97\]"),
}  # fmt: skip


class TestCoco:
    @pytest.fixture(autouse=True)
    def written(self, tmp_path):
        use_scope('mmdet')
        self.root, self.content = tmp_path, write_coco(tmp_path)
        self.file = tmp_path / 'annotations' / 'train.json'

    def check(self, caplog, change=lambda content: None, classes=CLASSES, **options):
        change(self.content)
        self.file.write_text(json.dumps(self.content))
        dataset = {**coco_dataset(self.root), 'metainfo': dict(classes=classes)}
        return check(caplog, {**dataset, **options})

    @pytest.mark.parametrize('fault', REFUSED)
    def test_refused(self, fault, caplog):
        change, words = REFUSED[fault]
        error, _ = self.check(caplog, change, pipeline=WITH_MASK)
        assert error and re.search(words, error), error

    def test_run_lengths_are_masks(self, caplog):
        """As a list of numbers, and compressed."""
        lengths = dict(size=[71, 97], counts=[71 * 97])
        compressed = mask_api.frPyObjects(lengths, 71, 97)
        for mask in (lengths, dict(compressed, counts=compressed['counts'].decode())):
            error, _ = self.check(
                caplog, changed(*BOX, 'segmentation', to=mask), pipeline=WITH_MASK
            )
            assert error is None

    def test_good_data_are_counted(self, caplog):
        """Masks are read by mask detectors only."""
        error, log = self.check(caplog, without(*BOX, 'segmentation'))
        assert error is None
        assert "4 images, 12 usable boxes (red cell 4, white cell 4, crow's foot 4)" in log
        assert 'decoded 4 of 4 images' in log and 'skipped' not in log
        content = coco_content()
        content['annotations'] = content['annotations'][:2] * 2 + content['annotations'][3:4]
        for number, box in enumerate(content['annotations'], 1):
            content['annotations'][number - 1] = dict(box, id=number)
        write_coco(self.root, content)
        (report,) = CheckDataHook().reports(runner_of(coco_dataset(self.root)).cfg, 'train')
        assert report.images == {'': 4, 'red cell': 2, 'white cell': 1}
        assert report.objects == {'red cell': 3, 'white cell': 2}

    def test_slivers_are_refused_in_training_alone(self, caplog):
        self.content['annotations'][1]['bbox'] = [96.9999999, 9, 9, 9]
        self.file.write_text(json.dumps(self.content))
        dataset = coco_dataset(self.root)
        cfg = dict(train_dataloader=dict(dataset=dataset))
        cfg['val_dataloader'] = dict(dataset={**dataset, 'test_mode': True})
        for split, refused in (('train', True), ('val', False)):
            (report,) = CheckDataHook().reports(cfg, split)
            assert bool(report.problems) == refused

    def test_test_data_may_have_no_boxes(self, caplog):
        """Those of a submission: COCO's test-dev."""
        del self.content['annotations']
        self.file.write_text(json.dumps(self.content))
        for pipeline, refused in (([dict(type='LoadImageFromFile')], False), (WITH_MASK, True)):
            dataset = {**coco_dataset(self.root), 'test_mode': True, 'pipeline': pipeline}
            (report,) = CheckDataHook().reports(dict(test_dataloader=dict(dataset=dataset)), 'test')
            assert bool(report.problems) == refused, report
            assert refused or 'decoded 4 of 4 images' in report.notes

    @pytest.mark.parametrize('split', ['val', 'test'])
    @pytest.mark.parametrize(
        'evaluator',
        [
            None,
            dict(ann_file='a'),
            [dict(metric='bbox')],
            [dict(ann_file='a', format_only=True)],
        ],
    )
    def test_files_that_are_evaluated(self, evaluator, split):
        """Only if an evaluator reads the file: MMDetection's makes its own otherwise."""
        self.content['annotations'][1].pop('iscrowd')
        self.file.write_text(json.dumps(self.content))
        dataset = {**coco_dataset(self.root), 'test_mode': True, 'pipeline': WITH_MASK}
        cfg = {f'{name}_dataloader': dict(dataset=dataset) for name in ('train', split)}
        cfg[f'{split}_evaluator'] = evaluator
        (report,) = CheckDataHook().reports(cfg, split)
        refused = ["1 boxes have no 'iscrowd' (0 for all but crowds); ids: 2"]
        assert report.problems == ([] if isinstance(evaluator, list) else refused)
        assert not CheckDataHook().reports(cfg, 'train')[0].problems

    @pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16'])
    def test_byte_order_marks(self, encoding, caplog):
        """MMDetection and pycocotools read neither."""
        self.file.write_text(json.dumps(self.content), encoding=encoding)
        words = "train.json' begins with a byte order mark: save it as UTF-8 without one"
        assert words in check(caplog, coco_dataset(self.root))[0]

    def test_polygons_that_are_dropped(self, caplog):
        error, log = self.check(
            caplog, changed(*BOX, 'segmentation', to=[[], [1, 1, 9, 9]]), pipeline=WITH_MASK
        )
        assert error is None and '11 usable boxes' in log
        words = '1 boxes are skipped by MMDetection: without a polygon of three points or more'
        assert words in log
        some = changed(*BOX, 'segmentation', to=[[1, 1, 9, 9], [1, 1, 9, 9, 1, 9]])
        assert '12 usable boxes' in self.check(caplog, some, pipeline=WITH_MASK)[1]

    def test_files_and_folders(self, caplog):
        for text, words in (
            (' ', "train.json' is empty"),
            ('{"images": [', "train.json' is not JSON"),
            ('[]', "the list 'images' of the annotation file is missing, or is not a list"),
        ):
            self.file.write_text(text)
            assert words in check(caplog, coco_dataset(self.root))[0]
        self.file.unlink()
        words = f"the annotation file '{self.file}' does not exist"
        assert words in check(caplog, coco_dataset(self.root))[0]
        (self.root / 'train').rename(self.root / 'pictures')
        assert f"image folder '{self.root}/train' does not exist" in self.check(caplog)[0]
        error = check(caplog, coco_dataset(self.root / 'x'))[0]
        assert error.endswith(f": the data folder '{self.root}/x' does not exist")

    def test_images(self, caplog, monkeypatch):
        images = self.root / 'train'
        whole = (images / '1.jpg').read_bytes()
        (images / '1.jpg').write_bytes(whole[: len(whole) // 2])
        (images / '2.jpg').write_bytes(b'no image at all')
        (images / '3.jpg').write_bytes(b'')
        (images / '0.jpg').unlink()
        error, _ = self.check(caplog)
        assert f"1 of 4 images are not in '{images}': '0.jpg'" in error
        assert '3 files cannot be decoded' in error and '1.jpg (image file is truncated' in error
        assert '2.jpg (not an image)' in error and '3.jpg (the file is empty)' in error
        write_image(images / '2.jpg', (70, 90))
        error, _ = self.check(caplog)
        assert '1 of 1 decoded images have another size than the annotation file says' in error
        monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 3000)
        assert '6300 pixels' in self.check(caplog)[0]

    def test_labels_of_another_size(self, caplog):
        """Of most images: refused. Of few: refused where a box or run lengths do not fit."""
        images = self.root / 'train'
        for name in '013':
            write_image(images / f'{name}.jpg', (48, 35))
        error, _ = self.check(caplog)
        words = r"3 of 4 decoded images have another size than the annotation file says \(use the images that were "
        assert re.search(words + r"labelled, or scale .*\): '0.jpg \(48 x 35\)'", error)
        for name in '01':
            write_image(images / f'{name}.jpg', (97, 71))
        assert "'3.jpg (48 x 35)'" in self.check(caplog)[1]
        self.content['annotations'][-1]['bbox'] = [60, 7, 20, 18]
        words = "1 boxes or masks do not fit their image, whose size is not the one in the file"
        error, _ = self.check(caplog)
        assert words in error and error.endswith("ids: '12 (3.jpg)'")
        mask = dict(size=[71, 97], counts=[71 * 97])
        self.content['annotations'][-1].update(bbox=[5, 7, 20, 18], segmentation=mask)
        assert words in self.check(caplog)[0]

    def test_images_that_are_too_narrow(self, caplog):
        """OpenCV would end the loader; images under the filter's least side never come."""
        write_image(self.root / 'train/3.jpg', (3000, 2))
        self.content['images'][3].update(width=3000, height=2)
        self.content['annotations'] = self.content['annotations'][:9]
        resize = dict(type='RandomResize', scale=(400, 200), ratio_range=(0.5, 2), keep_ratio=True)
        nested = dict(type='RandomChoice', transforms=[[dict(type='RandomFlip')], [resize]])
        words = "1 images are so narrow that the pipeline resizes them to nothing: crop or remove "
        words += "them: '3.jpg (3000 x 2)'"
        for step in (resize, nested):
            error, _ = self.check(caplog, filter_cfg=dict(min_size=1), pipeline=[step])
            assert words in error
        for options in (
            dict(filter_cfg=dict(min_size=3), pipeline=[resize]),
            dict(filter_cfg=None, pipeline=[dict(resize, keep_ratio=False)]),
            dict(filter_cfg=None, pipeline=[dict(resize, scale=(4000, 2000))]),
            dict(filter_cfg=None, pipeline=[dict(resize, scale=(1600, 800), ratio_range=(1, 2))]),
        ):
            assert self.check(caplog, **options)[0] is None
        at_test = dict(test_mode=True, filter_cfg=dict(min_size=3))  # nothing is filtered then
        assert words in self.check(caplog, **at_test, pipeline=[resize])[0]
        small = dict(resize, scale=(1600, 800), ratio_range=(0.1, 1))
        assert words in self.check(caplog, filter_cfg=None, pipeline=[small])[0]

    @pytest.mark.parametrize('orientation', range(1, 9))
    def test_photos_that_exif_data_turn(self, orientation, caplog):
        turned = Image.Exif()
        turned[0x0112] = orientation
        Image.new('RGB', (97, 71)).save(self.root / 'train/2.jpg', exif=turned)
        error, _ = self.check(caplog)
        if orientation < 5:  # as they are, mirrored, or upside down
            assert error is None
            return
        assert '1 of 4 decoded images are turned by their EXIF data' in error
        assert "color_ignore_orientation" in error and error.endswith("'2.jpg (71 x 97)'")
        for option in (
            dict(color_type='color_ignore_orientation'),
            dict(color_type='unchanged'),
            dict(imdecode_backend='turbojpeg'),
        ):
            loader = dict(option, type='LoadImageFromFile')
            assert self.check(caplog, pipeline=[loader])[0] is None
        swap = dict(width=71, height=97)
        assert self.check(caplog, lambda c: c['images'][2].update(swap))[0] is None
        Image.new('RGB', (71, 97)).save(self.root / 'train/2.jpg')  # nothing turns it
        self.content['images'][2].update(width=97, height=71)
        error, log = self.check(caplog)
        assert error is None and '1 images have another size than the annotation file says' in log

    @pytest.mark.parametrize(('brightest', 'noted'), [(4095, True), (65535, False)])
    def test_images_of_12_bits_in_files_of_16(self, brightest, noted, caplog):
        self.content['images'][1]['file_name'] = '1.png'
        values = np.full((71, 97), brightest, np.uint16)
        Image.fromarray(values).save(self.root / 'train' / '1.png')
        error, log = self.check(caplog)
        assert error is None
        assert ("1 images of 16 bits are nearly black: upstream keeps the upper 8" in log) == noted

    def test_only_some_images_are_decoded(self, caplog):
        (self.root / 'train' / '1.jpg').write_bytes(b'broken')
        error, log = check(caplog, coco_dataset(self.root), max_decode=2)
        assert error is None and 'decoded 2 of 4 images' in log
        assert 'cannot be decoded' in check(caplog, coco_dataset(self.root), max_decode=None)[0]

    def test_what_upstream_skips_is_counted(self, caplog):
        """The numbers of usable boxes and images are those of the built data set."""
        self.content = content = coco_content(6)
        boxes = content['annotations']
        changes = [dict(bbox=[97, 10, 20, 20]), dict(bbox=[80, 10, 40, 20])]  # outside, beyond
        changes += [dict(bbox=[10, 10, 0.5, 20]), dict(iscrowd=1), dict(ignore=True)]
        changes += [dict(image_id=99), dict(category_id=12345)]
        changes += [dict(category_id=77, image_id=6)]
        for box, change in zip(boxes, changes, strict=False):
            box.update(change)
        content['categories'].append(dict(id=77, name='dust'))
        boxes += [dict(boxes[8], id=1000 + number) for number in range(1001)]
        for box in boxes[12:15]:
            box['bbox'] = [1, 1, 10, 10]
        for box, left in zip(boxes[9:11], (78, 78.6), strict=True):  # 1 pixel beyond, and more
            box['bbox'] = [left, 1, 20, 10]
        boxes[11]['bbox'] = [1, -1.5, 20, 10]
        content['annotations'] = [b for b in boxes if b['image_id'] != 6 or b['category_id'] == 77]
        write_coco(self.root, content)
        content['images'][4].update(width=20, height=40)
        error, log = self.check(caplog)
        assert error is None, error
        for reason in (
            'outside the image',
            'smaller than one pixel, or of no area',
            'marked "ignore"',
            'of an image that the file does not list',
            'of a category that the file does not list',
            'of a category that is not among the class names',
        ):
            assert f'1 boxes are skipped by MMDetection: {reason}' in log
        for line in (
            '3 boxes reach beyond their image and are clipped by MMDetection; ids: 2, 11, 12',
            '1 boxes mark crowds',
            "1 images are skipped by MMDetection: no box of these classes: '5.jpg'",
            "1 images are skipped by MMDetection: a side under 32: '4.jpg'",
            "1 images have more than 1000 boxes: much memory: '2.jpg (1002)'",
        ):
            assert line in log
        from mmdet.registry import DATASETS

        plain = {**coco_dataset(self.root), 'pipeline': []}
        kept = sum(
            not box['ignore_flag']
            for entry in DATASETS.build({**plain, 'filter_cfg': None})
            for box in entry['instances']
        )
        assert f'6 images, {kept} usable boxes' in log and kept == 1009
        assert len(DATASETS.build(plain)) == 4

    def test_inside_wrappers_and_other_data_sets(self, caplog):
        both = dict(
            type='ConcatDataset', datasets=[coco_dataset(self.root), coco_dataset(self.root / 'x')]
        )
        missing = coco_dataset(self.root / 'y')
        nested = [dict(type='RepeatDataset', times=2, dataset=both), missing]
        error, _ = check(caplog, dict(type='ConcatDataset', datasets=nested))
        assert re.search(r"/x' does not exist.*/y' does not exist", error) and '\n' not in error
        error, _ = check(caplog, label_maps(self.root / 'x', _scope_='mmseg'))
        assert 'train data (BaseSegDataset' in error
        remote = dict(coco_dataset(self.root / 'x'), backend_args=dict(backend='http'))
        check_data_is_there(dict(train_dataloader=dict(dataset=remote)), ['train'])
        # It may read other files.
        own = type('Own', (mmdet.datasets.CocoDataset,), dict(load_data_list=lambda self: []))
        for other in (dict(type='VOCDataset', data_root=str(self.root)), remote, dict(type=own)):
            error, log = check(caplog, other)
            assert error is None
            assert 'not checked: not a local CocoDataset or BaseSegDataset' in log


class TestLabelMaps:
    @pytest.fixture(autouse=True)
    def written(self, tmp_path):
        use_scope('mmseg')
        self.root = tmp_path
        self.images, self.maps = tmp_path / 'images' / 'train', tmp_path / 'annotations' / 'train'
        write_label_maps(tmp_path)

    def check(self, caplog, model=None, **options):
        return check(caplog, label_maps(self.root, **options), model=model)

    def test_files_that_are_not_there(self, caplog):
        error, log = self.check(caplog)
        assert error is None, error
        assert '4 images with label maps; decoded 4' in log and 'skipped' not in log
        error, _ = self.check(caplog, data_prefix=dict(img_path='a', seg_map_path='b'))
        assert 'the image folder' in error and 'the label map folder' in error
        error, _ = self.check(caplog, data_prefix=dict(img_path='images/train'))
        assert 'data_prefix needs both folders' in error
        error, _ = self.check(caplog, img_suffix='.tif')
        assert "ends in '.tif'; there are '0.jpg', '1.jpg'" in error
        (self.maps / '2.png').rename(self.maps / 'other.png')
        write_image(self.images / '1.png', (97, 71))
        error, log = self.check(caplog)
        assert '1 of 4 images have no label map' in error and "'2.png'" in error
        assert "1 label maps are skipped: no image of that name: 'other.png'" in log
        assert f"1 files in '{self.images}' are skipped: they do not end in '.jpg': '1.png'" in log

    def test_list_of_images(self, caplog):
        (self.root / 'train.txt').write_text('1\n3\n')
        error, log = self.check(caplog, ann_file='train.txt')
        assert error is None and '2 images with label maps; decoded 2' in log
        (self.root / 'train.txt').write_text('1\n7\n')
        error, _ = self.check(caplog, ann_file='train.txt')
        assert f"1 listed images are not in '{self.images}': '7.jpg'" in error
        assert "train2.txt' does not exist" in self.check(caplog, ann_file='train2.txt')[0]
        (self.root / 'train.txt').write_text('')
        assert "train.txt' is empty" in self.check(caplog, ann_file='train.txt')[0]

    def test_contents(self, caplog):
        (self.images / '0.jpg').write_bytes(b'no image')
        whole = (self.maps / '1.png').read_bytes()
        (self.maps / '1.png').write_bytes(whole[:60])
        write_image(self.maps / '2.png', (97, 71))
        write_map(self.root, 3, 0, size=(71, 90))
        error, _ = self.check(caplog)
        assert '3 files cannot be decoded' in error
        assert '0.jpg (not an image)' in error and '1.png (' in error
        assert '2.png (3 channels; a label map has one' in error
        assert "another size than their image: '3.png (90 x 71, image 97 x 71)'" in error

    def test_images_that_are_too_narrow(self, caplog):
        write_image(self.images / '2.jpg', (3000, 2))
        write_map(self.root, 2, 1, size=(2, 3000))
        resize = dict(type='Resize', scale=(512, 128), keep_ratio=True)
        error, _ = self.check(caplog, pipeline=[resize])
        assert "resizes them to nothing: crop or remove them: '2.jpg (3000 x 2)'" in error

    def test_values_without_class(self, caplog):
        write_map(self.root, 2, 3)
        error, _ = self.check(caplog)
        assert (
            '1 label maps hold the value 3, which is not a class (there are 3 class names' in error
        )
        assert "reduce_zero_label is False): '2.png'" in error
        # With the zero label as background to be ignored, 1..3 are the three classes.
        assert self.check(caplog, reduce_zero_label=True)[0] is None
        assert self.check(caplog, metainfo=dict(classes=('a', 'b', 'c', 'd')))[0] is None
        write_map(self.root, 2, 257, dtype=np.uint16)
        assert 'hold the value 257' in self.check(caplog)[0], '16 bits do not wrap'
        many = dict(classes=[*map(str, range(300))])
        for value in (257, 256):
            write_map(self.root, 2, value, dtype=np.uint16)
            assert 'values above 255, of which upstream' in self.check(caplog, metainfo=many)[0]

    def test_images_of_12_bits_in_files_of_16(self, caplog):
        for name in '0123':
            values = np.full((71, 97), 4095 if name == '2' else 60000, np.uint16)
            Image.fromarray(values).save(self.images / f'{name}.png')
            (self.images / f'{name}.jpg').unlink()
        error, log = self.check(caplog, img_suffix='.png')
        assert error is None
        assert "1 images of 16 bits are nearly black" in log and "'2.png'" in log

    def test_some_of_the_classes_of_a_data_set(self, caplog):
        @mmseg.registry.DATASETS.register_module(force=True)
        class ThreeClasses(mmseg.datasets.BaseSegDataset):
            METAINFO = dict(classes=CLASSES, palette=[[0, 0, 0]] * 3)

        some = dict(type='ThreeClasses', metainfo=dict(classes=CLASSES[:0:-1]))
        assert self.check(caplog, **some)[0] is None
        assert self.check(caplog, metainfo=some['metainfo'])[0] is not None

    def test_images_are_turned_as_their_exif_data_say(self, caplog):
        """Label maps are not, by upstream neither."""
        turned = Image.Exif()
        turned[0x0112] = 6
        Image.new('RGB', (97, 71)).save(self.images / '2.jpg', exif=turned)
        assert "another size than their image: '2.png (97 x 71, image 71 x 97)'" in str(
            self.check(caplog)[0]
        )
        write_map(self.root, 2, 1, size=(97, 71))
        assert self.check(caplog)[0] is None

    def test_classes(self, caplog):
        write_map(self.root, 2, 255)
        names = dict(classes=(*CLASSES, 'moon'))
        error, log = self.check(caplog, metainfo=names)
        assert error is None, error
        assert "1 of the classes in none of the decoded label maps: 'moon'" in log
        assert "1 label maps hold nothing but the ignored label: '2.png'" in log
        heads = dict(
            decode_head=dict(num_classes=150),
            auxiliary_head=[dict(num_classes=3), dict(num_classes=151)],
        )
        error, _ = self.check(caplog, heads)
        assert 'model.decode_head.num_classes is 150, but there are 3 class names' in error
        assert 'model.auxiliary_head.1.num_classes is 151' in error and 'head.0' not in error
        error, _ = self.check(caplog, metainfo=dict(classes=('road', 'house', 'road')))
        assert "1 class names appear more than once: 'road'" in error
        for number in range(4):
            write_map(self.root, number, 255)
        words = '4 label maps hold nothing but the ignored label'
        assert words in self.check(caplog)[0]

    def test_sides_of_one_pixel(self, caplog):
        """They are right, but MMSegmentation's own loader drops such a side, and a later step stops the training."""
        write_image(self.images / '2.jpg', (5, 1))
        write_map(self.root, 2, 1, size=(1, 5))
        assert self.check(caplog)[0] is None
        for loader in ('mmseg.LoadAnnotations', 'LoadAnnotations'):
            types = ('LoadImageFromFile', loader, 'PackSegInputs')
            steps = [dict(type=name) for name in types]
            error, _ = self.check(caplog, pipeline=steps)
            assert re.search(
                "1 label maps have a side of 1 pixel, .*LoadAnnotations drops: '2.png'", error
            )
        from mmseg.registry import DATASETS

        with pytest.raises(AssertionError, match='must be 2 or 3'):
            DATASETS.build(label_maps(self.root, pipeline=steps))[2]


def _check_in_a_process(rank, port, root, outcomes):
    address = f'tcp://127.0.0.1:{port}'
    distributed.init_process_group('gloo', init_method=address, rank=rank, world_size=2)
    try:
        CheckDataHook().before_build(runner_of(label_maps(root)), splits=('train',))
    except DataError as error:
        outcomes.put((rank, str(error)))
    distributed.destroy_process_group()


def test_a_split_is_checked_once_and_all_processes_stop(tmp_path, caplog):
    use_scope('mmseg')
    write_label_maps(tmp_path)
    caplog.set_level(logging.INFO)
    hook, runner = CheckDataHook(), runner_of(label_maps(tmp_path))
    hook.before_build(runner, splits=('train',))
    hook.before_build(runner, splits=('train', 'val'))
    assert caplog.text.count('4 images with label maps') == 1
    (report,) = hook.checked['train']
    assert report.images == {'': 4, **dict.fromkeys(CLASSES, 4)}
    # Of the value 255, there are 5 rows in each map.
    assert [report.objects[name] for name in CLASSES] == [4 * (66 * 97 - 2300), 4 * 1100, 4 * 1200]
    (tmp_path / 'annotations' / 'train' / '2.png').unlink()
    outcomes = multiprocessing.get_context('fork').SimpleQueue()
    multiprocessing.start_processes(
        _check_in_a_process, (free_port(), tmp_path, outcomes), nprocs=2, start_method='fork'
    )
    messages = dict(outcomes.get() for _ in range(2))
    assert messages[0] == messages[1] and 'no label map' in messages[0]


# -- whole runs -----------------------------------------------------------------------------------


@MODELS.register_module(force=True)
class NeverTrained(BaseModel):
    """A model that fails the test when a step is asked of it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *args, **kwargs):
        raise AssertionError('training started')


def runnable(root, work_dir, **options):
    loader = dict(batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False))
    return Config(
        dict(
            model=dict(type='mmlape.NeverTrained'),
            work_dir=str(work_dir),
            train_dataloader=dict(loader, dataset=coco_dataset(root)),
            train_cfg=dict(by_epoch=True, max_epochs=1),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            default_scope='mmdet',
            custom_hooks=[dict(type='mmlape.CheckDataHook')],
            experiment_name=f'check-{work_dir.name}',
            **options,
        )
    )


def test_any_runner_stops_before_training_and_the_early_one_before_upstreams_error(tmp_path):
    """Upstream trains with wrong class names, and ends with a numpy error where there are no images."""
    content = write_coco(tmp_path)
    cfg = runnable(tmp_path, tmp_path / 'plain')
    cfg.train_dataloader.dataset.metainfo.classes = ('red cell', 'yeast')
    with pytest.raises(DataError, match='1 of 2 class names are not categories'):
        RUNNERS.build(cfg).train()
    file = tmp_path / 'annotations' / 'train.json'
    file.write_text(json.dumps(dict(content, images=[], annotations=[])))
    with pytest.raises(ValueError, match='need at least one array'):
        RUNNERS.build(runnable(tmp_path, tmp_path / 'empty')).train()
    runner = RUNNERS.build(
        runnable(tmp_path, tmp_path / 'early', runner_type='mmlape.EarlyHookRunner')
    )
    assert type(runner) is EarlyHookRunner
    with pytest.raises(DataError, match="list 'images' of the annotation file is empty"):
        runner.train()
    write_coco(tmp_path / 'good')
    missing = dict(batch_size=1, num_workers=0, dataset=coco_dataset(tmp_path / 'nowhere'))
    parts = dict(dataloader=missing, cfg={}, evaluator=dict(type='CocoMetric'))
    for run in ('train', 'val', 'test'):
        cfg = runnable(tmp_path / 'good', tmp_path / run, runner_type='mmlape.EarlyHookRunner')
        for split in ('val', 'test'):
            cfg.merge_from_dict({f'{split}_{name}': value for name, value in parts.items()})
        runner = RUNNERS.build(cfg)
        words = f"{'test' if run == 'test' else 'val'} data .*nowhere' does not exist"
        with pytest.raises(DataError, match=words):
            getattr(runner, run)()
    runner.cfg.optim_wrapper.optimizer.lr = 0
    with pytest.raises(ValueError, match=r'optimizer\.lr must be'):
        runner.train()


def test_data_that_are_not_there(tmp_path, monkeypatch):
    def config(root, **options):
        loader = dict(dataset=dict(type='ConcatDataset', datasets=[coco_dataset(root)]))
        return Config(dict(train_dataloader=loader, val_dataloader=None, **options))

    write_coco(tmp_path)
    check_data_is_there(config(tmp_path), ('train', 'val'))
    cfg = config(tmp_path / 'nowhere', data_from='`make data` makes them')
    with pytest.raises(DataError, match=r"data folder '.*nowhere' does not exist.*makes them$"):
        check_data_is_there(cfg, ('train', 'val'))
    monkeypatch.chdir(tmp_path)
    check_data_is_there(config(''), ('train',))
    Path(tmp_path, 'annotations', 'train.json').unlink()
    with pytest.raises(DataError, match=r"annotation file '.*train.json' does not exist"):
        check_data_is_there(config(tmp_path), ('train',))


def test_data_that_download_themselves(tmp_path):
    def config(**options):
        dataset = dict(type='CIFAR10', data_root=str(tmp_path / 'cifar'), **options)
        return Config(dict(train_dataloader=dict(dataset=dataset), default_scope='mmpretrain'))

    check_data_is_there(config(), ['train'])
    with pytest.raises(DataError, match="cifar' does not exist"):
        check_data_is_there(config(download=False), ['train'])
    cfg = config(_scope_='mmpretrain')
    cfg.default_scope = 'mmdet'
    check_data_is_there(cfg, ['train'])

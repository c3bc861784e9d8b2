"""Faults of data that would end a training in the middle, or nobody would notice; more in test_check_data.py."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from config_utils import (
    CLASSES,
    coco_content,
    coco_dataset,
    use_scope,
    write_coco,
    write_image,
    write_label_map,
)
from config_utils import write_label_maps as write_maps
from mmengine.config import Config, ConfigDict
from mmengine.registry import DefaultScope
from PIL import Image

from mmlape.engine import CheckDataHook, check_data_is_there

WITH_MASK = [dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]


@pytest.fixture(params=['mmdet'])
def scope(request):
    __import__(f'{request.param}.datasets')
    use_scope(request.param)
    yield request.param
    DefaultScope._instance_dict.popitem(last=True)


def check(caplog, dataset):
    """The error's text, or None, and the log."""
    caplog.set_level(logging.INFO)
    cfg = ConfigDict(train_dataloader=dict(dataset=dataset), model={})
    runner = SimpleNamespace(cfg=cfg, logger=logging.getLogger('check-faults'))
    try:
        CheckDataHook().before_build(runner, splits=('train',))
    except ValueError as error:
        return str(error), caplog.text
    return None, caplog.text


def changed(path, value):
    """A change of a COCO object: ``value`` at ``path``."""

    def change(content):
        *parents, last = path
        part = content
        for key in parents:
            part = part[key]
        part[last] = value

    return change


BOX, IMAGE, CATEGORY = ('annotations', 1), ('images', 2), ('categories', 0)
REFUSED = {
    'a file twice': (changed((*IMAGE, 'file_name'), '0.jpg'), "1 files are those of more than one entry .*'0.jpg'"),
    'no width': (changed((*IMAGE, 'width'), 0), "1 images have a width or height that is no integer .*'2.jpg'"),
    'height is text': (changed((*IMAGE, 'height'), '71'), "1 images have a width or height .*'2.jpg'"),
    'an entry is a number': (changed(IMAGE, 3), "1 entries of 'images' are no objects: 3"),
    'a box is null': (changed(BOX, None), "1 entries of 'annotations' are no objects: None"),
    'a category without name': (changed(CATEGORY, dict(id=10)), "1 entries of 'categories' have no 'name'; ids: 10"),
    'a box of text': (changed((*BOX, 'bbox'), ['1', '2', '3', '4']), 'annotation 2: bbox is .*not 4 finite numbers'),
    'a box of NaN': (changed((*BOX, 'bbox'), [1, 2, float('nan'), 4]), 'annotation 2: bbox is .*nan'),
    'a mask of another size': (
        changed((*BOX, 'segmentation'), dict(size=[10, 10], counts=[0, 100])),
        r'1 boxes have a mask that cannot be .*: .2 \(run lengths of size \[10, 10\], image \[71, 97\]\)',
    ),
    'a mask of text': (changed((*BOX, 'segmentation'), 'yes'), r'annotation ids: .2 \(a str\)'),
    'a mask of NaN': (changed((*BOX, 'segmentation'), [[1, 2, float('nan'), 4, 5, 6]]), 'no list of finite numbers'),
}  # fmt: skip


@pytest.mark.parametrize('fault', REFUSED)
def test_coco_refused(scope, fault, tmp_path, caplog):
    content = write_coco(tmp_path)
    change, words = REFUSED[fault]
    change(content)
    (tmp_path / 'annotations' / 'train.json').write_text(json.dumps(content))
    error, _ = check(caplog, {**coco_dataset(tmp_path), 'pipeline': WITH_MASK})
    assert error is not None
    with pytest.raises(ValueError, match=words):
        raise ValueError(error)


def test_coco_counted(scope, tmp_path, caplog):
    """Labels out of range, and more boxes in an image than fit into memory."""
    content = coco_content()
    content['annotations'][0]['category_id'] = 12345
    many = [dict(content['annotations'][1], id=1000 + number) for number in range(1001)]
    content['annotations'] += many
    write_coco(tmp_path, content)
    error, log = check(caplog, coco_dataset(tmp_path))
    assert error is None, error
    assert '1 boxes are skipped by MMDetection: of a category that the file does not list' in log
    assert "1 images have more than 1000 boxes, which takes much memory: '0.jpg (1003)'" in log


def test_a_huge_image(scope, tmp_path, caplog, monkeypatch):
    write_coco(tmp_path)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 3000)
    error, _ = check(caplog, coco_dataset(tmp_path))
    assert '4 images cannot be decoded' in error
    assert '6887 pixels' in error


def label_maps(root, **options):
    folders = dict(img_path='images/train', seg_map_path='annotations/train')
    return dict(
        dict(type='BaseSegDataset', data_root=str(root), data_prefix=folders, metainfo=dict(classes=CLASSES)),
        **options,
    )  # fmt: skip


@pytest.mark.parametrize('scope', ['mmseg'], indirect=True)
class TestLabelMaps:
    def test_nothing_but_the_ignored_label(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        for number in range(4):
            blank = np.full((71, 97), 255, dtype=np.uint8)
            write_label_map(tmp_path / 'annotations' / 'train' / f'{number}.png', blank)
        assert (
            '4 label maps hold nothing but the ignored label'
            in check(caplog, label_maps(tmp_path))[0]
        )

    def test_class_names_twice(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        names = dict(classes=('road', 'house', 'road'))
        error, _ = check(caplog, label_maps(tmp_path, metainfo=names))
        assert "1 class names appear more than once: 'road'" in error

    def test_two_files_of_one_name(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        write_image(tmp_path / 'images' / 'train' / '1.png', (97, 71))
        error, log = check(caplog, label_maps(tmp_path))
        assert error is None
        assert (
            "1 of these have the name of an image that ends in '.jpg', which is taken: '1.png'"
            in log
        )


class TestDataThatAreNotThere:
    @staticmethod
    def config(root, **options):
        loader = dict(dataset=dict(type='ConcatDataset', datasets=[coco_dataset(root)]))
        return Config(dict(train_dataloader=loader, val_dataloader=None, **options))

    def test_all_there(self, tmp_path):
        write_coco(tmp_path)
        check_data_is_there(self.config(tmp_path), ('train', 'val'))

    def test_no_folder(self, tmp_path):
        cfg = self.config(tmp_path / 'nowhere', data_from='`make data` makes them')
        with pytest.raises(
            ValueError,
            match=r"data folder '.*nowhere' does not exist.*(?s:.)*`make data` makes them$",
        ):
            check_data_is_there(cfg, ('train', 'val'))

    def test_no_file(self, tmp_path):
        write_coco(tmp_path)
        (tmp_path / 'annotations' / 'train.json').unlink()
        with pytest.raises(ValueError, match=r"annotation file '.*train.json' does not exist"):
            check_data_is_there(self.config(tmp_path), ('train',))

"""Wrong data are refused before training, with a message that says what is wrong."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
from config_utils import (
    CLASSES,
    coco_content,
    use_scope,
    write_coco,
    write_image,
    write_label_map,
)
from config_utils import coco_dataset as coco
from config_utils import write_label_maps as write_maps
from mmengine.config import ConfigDict
from mmengine.registry import HOOKS, DefaultScope
from ports import free_port
from torch import distributed, multiprocessing

from mmlape.engine import CheckDataHook


@pytest.fixture
def scope(request):
    """Default scope of a run, as the runner sets it."""
    name = request.param
    __import__(f'{name}.datasets')
    before = DefaultScope.get_current_instance()
    use_scope(name)
    yield name
    DefaultScope._instance_dict.popitem(last=True)
    assert DefaultScope.get_current_instance() is before


def runner_of(caplog, split='train', model=None, **dataset):
    """What the hook reads of a runner."""
    caplog.set_level(logging.INFO)
    cfg = ConfigDict({f'{split}_dataloader': dict(dataset=dataset), 'model': model or {}})
    return SimpleNamespace(cfg=cfg, logger=logging.getLogger('check-data'))


def maps(root, **options):
    return {
        **dict(
            type='BaseSegDataset',
            data_root=str(root),
            data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
            metainfo=dict(classes=CLASSES),
        ),
        **options,
    }


def check(caplog, dataset, max_decode=1000, split='train', model=None):
    """Run the early stage of the hook; return the error's text, or None, and the log."""
    hook = CheckDataHook(max_decode)
    try:
        hook.before_build(runner_of(caplog, split, model, **dataset), splits=(split,))
    except ValueError as error:
        return str(error), caplog.text
    return None, caplog.text


@pytest.mark.parametrize('scope', ['mmdet'], indirect=True)
class TestCoco:
    def test_good_data_pass_and_are_counted(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        error, log = check(caplog, coco(tmp_path))
        assert error is None
        assert "4 images, 12 usable boxes (red cell 4, white cell 4, crow's foot 4)" in log
        assert 'decoded 4 of 4 images' in log
        assert 'skipped' not in log

    def test_folder_missing(self, scope, tmp_path, caplog):
        error, _ = check(caplog, coco(tmp_path / 'nowhere'))
        assert "annotations' does not exist" in error
        write_coco(tmp_path)
        (tmp_path / 'train').rename(tmp_path / 'pictures')
        error, _ = check(caplog, coco(tmp_path))
        assert "image folder '" in error
        assert "'annotations', 'pictures'" in error, 'the message says which folders there are'

    @pytest.mark.parametrize(
        ('text', 'message'),
        [
            ('', 'is empty'),
            ('{"images": [', 'is not JSON'),
            ('[]', 'not a COCO object'),
            (json.dumps(dict(images=[], annotations=[], categories=[])), "list 'images' of the"),
            (json.dumps(dict(images=[dict(id=1)], categories=[])), "no list 'annotations'"),
        ],
    )
    def test_useless_annotation_file(self, scope, tmp_path, caplog, text, message):
        write_coco(tmp_path)
        (tmp_path / 'annotations' / 'train.json').write_text(text)
        error, _ = check(caplog, coco(tmp_path))
        assert message in error

    def test_annotation_file_missing(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        (tmp_path / 'annotations' / 'train.json').unlink()
        error, _ = check(caplog, coco(tmp_path))
        assert "train.json' does not exist" in error

    def test_missing_key(self, scope, tmp_path, caplog):
        content = coco_content()
        del content['annotations'][2]['area']
        write_coco(tmp_path, content)
        error, _ = check(caplog, coco(tmp_path))
        assert "1 entries of 'annotations' have no 'area'; ids: 3" in error

    def test_class_names_do_not_match(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        names = ('red cell', 'white cells', 'yeast')
        error, _ = check(caplog, {**coco(tmp_path), 'metainfo': dict(classes=names)})
        assert (
            "2 of 3 class names are not categories of the annotation file: 'white cells', 'yeast'"
            in error
        )
        assert "the file has 'red cell', 'white cell'" in error
        assert "did you mean 'white cell' for 'white cells'" in error

    def test_class_names_in_another_order(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        error, _ = check(caplog, {**coco(tmp_path), 'metainfo': dict(classes=CLASSES[::-1])})
        assert ','.join(CLASSES) in error

    def test_corrupt_image(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        whole = (tmp_path / 'train' / '1.jpg').read_bytes()
        (tmp_path / 'train' / '1.jpg').write_bytes(whole[: len(whole) // 2])
        (tmp_path / 'train' / '2.jpg').write_bytes(b'no image at all')
        (tmp_path / 'train' / '3.jpg').write_bytes(b'')
        error, _ = check(caplog, coco(tmp_path))
        assert '3 images cannot be decoded' in error
        assert '1.jpg (image file is truncated' in error
        assert '2.jpg (not an image)' in error
        assert '3.jpg (the file is empty)' in error

    def test_missing_image(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        (tmp_path / 'train' / '2.jpg').unlink()
        error, _ = check(caplog, coco(tmp_path))
        assert "1 of 4 images are not in '" in error
        assert "'2.jpg'" in error

    def test_image_of_another_size_is_noted(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        write_image(tmp_path / 'train' / '2.jpg', (71, 97))
        error, log = check(caplog, coco(tmp_path))
        assert error is None
        assert '1 images have another size than the annotation file says' in log

    def test_what_upstream_skips_is_counted(self, scope, tmp_path, caplog):
        content = coco_content(6)
        boxes = content['annotations']
        boxes[0]['bbox'] = [200, 10, 20, 20]  # outside
        boxes[1]['bbox'] = [80, 10, 40, 20]  # reaches beyond
        boxes[2]['bbox'] = [10, 10, 0.5, 20]
        boxes[3]['iscrowd'] = 1
        boxes[4]['ignore'] = True
        boxes[5]['image_id'] = 99
        for box in boxes[12:15]:
            box['bbox'] = [1, 1, 10, 10]
        content['annotations'] = [b for b in boxes if b['image_id'] != 6]
        content['images'][4].update(width=20, height=20)
        write_coco(tmp_path, content)
        error, log = check(caplog, coco(tmp_path))
        assert error is None, error
        for line in (
            '1 boxes are skipped by MMDetection: outside the image',
            '1 boxes reach beyond their image and are clipped by MMDetection; annotation ids: 2',
            '1 boxes are skipped by MMDetection: smaller than one pixel',
            '1 boxes mark crowds',
            '1 boxes are skipped by MMDetection: marked "ignore"',
            '1 boxes are skipped by MMDetection: of an image that the file does not list',
            "1 images are skipped by MMDetection: no box of these classes: '5.jpg'",
            "1 images are skipped by MMDetection: a side under 32: '4.jpg'",
        ):
            assert line in log

    def test_counts_agree_with_upstream(self, scope, tmp_path, caplog):
        """The number of usable boxes and images is what the built data set really holds."""
        content = coco_content(6)
        content['annotations'][0]['bbox'] = [200, 10, 20, 20]
        content['annotations'][4]['bbox'] = [-50, 10, 50, 20]
        content['annotations'][7]['area'] = 0
        content['annotations'][8]['category_id'] = 77
        content['categories'].append(dict(id=77, name='dust'))
        content['images'][4].update(width=20, height=71)
        write_coco(tmp_path, content)
        _, log = check(caplog, coco(tmp_path))
        from mmdet.registry import DATASETS

        dataset = DATASETS.build({**coco(tmp_path), 'pipeline': [], 'filter_cfg': None})
        kept = sum(len(entry['instances']) for entry in dataset)
        assert f'6 images, {kept} usable boxes' in log
        assert kept == 18 - 4 - 2, (
            'four are unusable, and two boxes of the narrow image lie outside'
        )
        assert len(DATASETS.build({**coco(tmp_path), 'pipeline': []})) == 5

    def test_corner_boxes_are_refused(self, scope, tmp_path, caplog):
        content = coco_content()
        for box in content['annotations']:
            x, y, w, h = box['bbox']
            box['bbox'] = [x + 50, y + 30, x + 50 + w, y + 30 + h]
        write_coco(tmp_path, content)
        error, _ = check(caplog, coco(tmp_path))
        assert 'not [x1, y1, x2, y2]' in error

    def test_masks_are_asked_for_only_by_mask_detectors(self, scope, tmp_path, caplog):
        content = coco_content()
        for box in content['annotations'][:2]:
            del box['segmentation']
        write_coco(tmp_path, content)
        assert check(caplog, coco(tmp_path))[0] is None
        with_mask = [dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
        error, _ = check(caplog, {**coco(tmp_path), 'pipeline': with_mask})
        assert '2 boxes have no segmentation' in error

    def test_no_usable_box(self, scope, tmp_path, caplog):
        content = coco_content()
        for box in content['annotations']:
            box['area'] = 0
        write_coco(tmp_path, content)
        error, _ = check(caplog, coco(tmp_path))
        assert 'no usable box is left' in error

    def test_only_some_images_are_decoded(self, scope, tmp_path, caplog):
        write_coco(tmp_path, coco_content(9))
        (tmp_path / 'train' / '1.jpg').write_bytes(b'broken')
        error, log = check(caplog, coco(tmp_path), max_decode=3)
        assert error is None
        assert 'decoded 3 of 9 images' in log
        assert 'cannot be decoded' in check(caplog, coco(tmp_path), max_decode=None)[0]

    def test_inside_wrappers(self, scope, tmp_path, caplog):
        write_coco(tmp_path)
        bad = coco(tmp_path / 'nowhere')
        both = dict(type='ConcatDataset', datasets=[coco(tmp_path), bad])
        error, _ = check(caplog, dict(type='RepeatDataset', times=2, dataset=both))
        assert error.count('does not exist') == 1

    def test_other_data_sets_are_named_as_unchecked(self, scope, tmp_path, caplog):
        error, log = check(caplog, dict(type='VOCDataset', data_root=str(tmp_path)))
        assert error is None
        assert 'not checked: neither a CocoDataset nor a BaseSegDataset' in log


@pytest.mark.parametrize('scope', ['mmseg'], indirect=True)
class TestLabelMaps:
    def test_good_data_pass_and_are_counted(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        error, log = check(caplog, maps(tmp_path))
        assert error is None, error
        assert '4 images with label maps; decoded 4' in log

    def test_folder_missing(self, scope, tmp_path, caplog):
        error, _ = check(caplog, maps(tmp_path))
        assert 'the image folder' in error
        assert 'the label map folder' in error

    def test_no_image_of_that_suffix(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        error, _ = check(caplog, maps(tmp_path, img_suffix='.tif'))
        assert "ends in '.tif'; it holds '4 x .jpg'" in error

    def test_image_without_label_map(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        (tmp_path / 'annotations' / 'train' / '2.png').rename(
            tmp_path / 'annotations' / 'train' / 'other.png'
        )
        error, log = check(caplog, maps(tmp_path))
        assert '1 of 4 images have no label map' in error
        assert "'2.png'" in error
        assert "1 label maps are skipped: no image of that name: 'other.png'" in log

    def test_list_of_images(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        (tmp_path / 'train.txt').write_text('1\n3\n')
        error, log = check(caplog, maps(tmp_path, ann_file='train.txt'))
        assert error is None, error
        assert '2 images with label maps; decoded 2' in log
        (tmp_path / 'train.txt').write_text('1\n7\n')
        error, _ = check(caplog, maps(tmp_path, ann_file='train.txt'))
        assert "'7.jpg'" in error

    def test_corrupt_files(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        (tmp_path / 'images' / 'train' / '1.jpg').write_bytes(b'no image')
        png = tmp_path / 'annotations' / 'train' / '2.png'
        png.write_bytes(png.read_bytes()[:60])
        error, _ = check(caplog, maps(tmp_path))
        assert '2 files cannot be decoded' in error
        assert '1.jpg' in error
        assert '2.png' in error

    def test_values_without_class(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        labels = np.full((71, 97), 3, dtype=np.uint8)
        write_label_map(tmp_path / 'annotations' / 'train' / '2.png', labels)
        error, _ = check(caplog, maps(tmp_path))
        assert '1 label maps hold the value 3, which is no class (there are 3 class names' in error
        # With the zero label as background to be ignored, 1..3 are the three classes.
        assert check(caplog, maps(tmp_path, reduce_zero_label=True))[0] is None

    def test_sixteen_bit_values_do_not_wrap(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        labels = np.full((71, 97), 256 + 1, dtype=np.uint16)
        write_label_map(tmp_path / 'annotations' / 'train' / '2.png', labels)
        assert 'hold the value 257' in check(caplog, maps(tmp_path))[0]

    def test_colour_image_as_label_map(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        write_image(tmp_path / 'annotations' / 'train' / '2.png', (97, 71))
        assert '2.png (3 channels; a label map has one' in check(caplog, maps(tmp_path))[0]

    def test_other_size(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        labels = np.zeros((71, 90), dtype=np.uint8)
        write_label_map(tmp_path / 'annotations' / 'train' / '2.png', labels)
        assert '2.png (90 x 71, image 97 x 71)' in check(caplog, maps(tmp_path))[0]

    def test_absent_classes_and_blank_maps_are_noted(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        labels = np.full((71, 97), 255, dtype=np.uint8)
        write_label_map(tmp_path / 'annotations' / 'train' / '2.png', labels)
        names = dict(classes=(*CLASSES, 'moon'))
        error, log = check(caplog, maps(tmp_path, metainfo=names))
        assert error is None, error
        assert "1 classes are in none of the decoded label maps: 'moon'" in log
        assert "1 label maps hold nothing but the ignored label: '2.png'" in log

    def test_head_with_another_number_of_classes(self, scope, tmp_path, caplog):
        write_maps(tmp_path)
        model = dict(decode_head=dict(num_classes=150))
        error, _ = check(caplog, maps(tmp_path), model=model)
        assert 'model.decode_head.num_classes is 150, but there are 3 class names' in error


def test_options():
    assert HOOKS.build(dict(type='mmlape.CheckDataHook', max_decode=None)).max_decode is None
    for value in (-1, 2.5, 'all'):
        with pytest.raises((ValueError, TypeError), match='max_decode'):
            CheckDataHook(value)


@pytest.mark.parametrize('scope', ['mmseg'], indirect=True)
def test_a_split_is_checked_once(scope, tmp_path, caplog):
    write_maps(tmp_path)
    hook = CheckDataHook()
    runner = runner_of(caplog, **maps(tmp_path))
    hook.before_build(runner, splits=('train',))
    hook.before_build(runner, splits=('train', 'val'))
    assert caplog.text.count('4 images with label maps') == 1


def _check_in_a_process(rank, port, root, outcomes):
    distributed.init_process_group(
        'gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2
    )
    cfg = ConfigDict(train_dataloader=dict(dataset=maps(root)))
    runner = SimpleNamespace(cfg=cfg, logger=logging.getLogger('check-data'))
    try:
        CheckDataHook().before_build(runner, splits=('train',))
    except ValueError as error:
        outcomes.put((rank, str(error)))
    distributed.destroy_process_group()


@pytest.mark.parametrize('scope', ['mmseg'], indirect=True)
def test_all_processes_stop(scope, tmp_path):
    write_maps(tmp_path)
    (tmp_path / 'annotations' / 'train' / '2.png').unlink()
    outcomes = multiprocessing.get_context('fork').SimpleQueue()
    multiprocessing.start_processes(
        _check_in_a_process, (free_port(), tmp_path, outcomes), nprocs=2, start_method='fork'
    )
    messages = dict(outcomes.get() for _ in range(2))
    assert messages[0] == messages[1]
    assert 'no label map' in messages[0]

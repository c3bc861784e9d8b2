"""The digit scenes: what is on disk, that it is the same every time, and what happens when it cannot be."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmlape.research.datasets import DIGIT_CLASSES, SCENE_CLASSES, build_digit_scenes
from mmlape.research.datasets import digits as module
from mmlape.research.datasets.building import load_sources
from mmlape.research.datasets.digits import paint_scene

SMALL = dict(num_train=12, num_val=5, seed=3)


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    return build_digit_scenes(tmp_path_factory.mktemp('data') / 'scenes', **SMALL)


def coco(root: Path, split: str) -> dict:
    return json.loads((root / f'annotations/instances_{split}.json').read_text())


def decode(segmentation: dict) -> np.ndarray:
    """COCO's uncompressed RLE, decoded here without any of the code under test."""
    height, width = segmentation['size']
    values = np.arange(len(segmentation['counts'])) % 2
    flat = np.repeat(values, segmentation['counts'])
    assert flat.size == height * width
    return flat.reshape(width, height).T.astype(bool)


def test_an_image_does_not_depend_on_how_many_there_are(root, tmp_path):
    fewer = build_digit_scenes(tmp_path / 'fewer', **{**SMALL, 'num_train': 4})
    name = 'images/train/000003.jpg'
    assert (fewer / name).read_bytes() == (root / name).read_bytes()


@pytest.mark.parametrize('split', ['train', 'val'])
def test_counts_and_sizes(root, split):
    expected = SMALL[f'num_{split}']
    annotations = coco(root, split)
    assert len(annotations['images']) == expected
    assert [each['name'] for each in annotations['categories']] == list(DIGIT_CLASSES)
    for folder, suffix, mode in (('images', 'jpg', 'RGB'), ('annotations', 'png', 'L')):
        files = sorted((root / folder / split).iterdir())
        assert [each.name for each in files] == [f'{n:06d}.{suffix}' for n in range(expected)]
        for file in files:
            with Image.open(file) as image:
                assert (image.size, image.mode) == ((96, 96), mode)


@pytest.mark.parametrize('split', ['train', 'val'])
def test_masks_boxes_areas_and_label_maps_agree(root, split):
    annotations = coco(root, split)
    assert len(annotations['annotations']) >= len(annotations['images'])
    for image in annotations['images']:
        label_file = root / 'annotations' / split / image['file_name'].replace('.jpg', '.png')
        labels = np.asarray(Image.open(label_file))
        painted = np.zeros_like(labels)
        own = [each for each in annotations['annotations'] if each['image_id'] == image['id']]
        assert 1 <= len(own) <= 4
        for each in own:
            mask = decode(each['segmentation'])
            assert not painted[mask].any(), 'visible parts of two digits overlap'
            painted[mask] = each['category_id']
            assert each['area'] == mask.sum() > 0
            rows, columns = np.nonzero(mask)
            x, y, width, height = each['bbox']
            assert (x, y) == (columns.min(), rows.min())
            assert (x + width - 1, y + height - 1) == (columns.max(), rows.max())
        np.testing.assert_array_equal(painted, labels)
        assert labels.max() < len(SCENE_CLASSES)


@pytest.mark.parametrize('split', ['train', 'val'])
def test_panoptic_maps_are_of_the_same_digits(root, split):
    content = json.loads((root / f'annotations/panoptic_{split}.json').read_text())
    assert [each['isthing'] for each in content['categories']] == [1] * 10 + [0]
    assert [each['name'] for each in content['categories']] == [*DIGIT_CLASSES, 'background']
    labels_of = {each['id']: each['id'] % 11 for each in content['categories']}
    known = {each['id']: each for each in coco(root, split)['annotations']}
    seen = []
    for entry in content['annotations']:
        pixels = np.asarray(Image.open(root / f'annotations/panoptic_{split}/{entry["file_name"]}'))
        ids = pixels.astype(int) @ [1, 256, 65536]
        labels = np.asarray(Image.open(root / 'annotations' / split / entry['file_name']))
        segments = {each['id']: each for each in entry['segments_info']}
        assert sorted(segments) == np.unique(ids).tolist()
        for key, each in segments.items():
            assert each['area'] == (ids == key).sum()
            assert (labels[ids == key] == labels_of[each['category_id']]).all()
            if each['category_id'] <= 10:
                assert each.items() <= known[key].items()
        seen += segments
    assert len(seen) == len(set(seen)), 'ids are of one image'


def test_a_category_is_the_digit_that_scikit_learn_says(root):
    from sklearn.datasets import load_digits

    target = load_digits().target
    for split in ('train', 'val'):
        for each in coco(root, split)['annotations']:
            assert each['category_id'] == target[each['digit_index']] + 1


def test_train_and_val_share_no_digit_and_no_pixel_of_a_photograph(root):
    digits, columns = {}, {}
    for split in ('train', 'val'):
        annotations = coco(root, split)
        digits[split] = {each['digit_index'] for each in annotations['annotations']}
        columns[split] = {
            (image['photo'], column)
            for image in annotations['images']
            for column in range(image['photo_crop'][0], sum(image['photo_crop'][::2]))
        }
        assert digits[split] and columns[split]
    assert not digits['train'] & digits['val']
    assert not columns['train'] & columns['val']
    banks, regions = load_sources(SMALL['seed'])
    assert not set(banks['train'].indices) & set(banks['val'].indices)
    for split, seen in columns.items():
        assert digits[split] <= set(banks[split].indices)
        allowed = {
            each.name: (each.left, each.left + each.pixels.shape[1]) for each in regions[split]
        }
        assert all(allowed[photo][0] <= column < allowed[photo][1] for photo, column in seen)
    for one, other in zip(regions['train'], regions['val'], strict=True):
        assert one.name == other.name and one.left + one.pixels.shape[1] <= other.left


def test_enough_of_a_hidden_digit_stays_visible(monkeypatch):
    options = dict(image_size=64, digits_per_image=(6, 6), digit_size=(32, 40))
    options |= dict(min_visible=0.8, min_contrast=60)
    banks, regions = load_sources(0)
    find, areas = module._find_place, []

    def find_and_note(rng, ink, *args):
        place = find(rng, ink, *args)
        if place is not None:
            areas.append(ink.sum())
        return place

    monkeypatch.setattr(module, '_find_place', find_and_note)
    left_out = partly = 0
    for seed in range(5):
        areas.clear()
        rng = np.random.default_rng(seed)
        scene = paint_scene(rng, banks['train'], regions['train'], options, (96, 128))
        assert 1 <= len(scene.digits) == scene.owner.max() + 1 <= 6
        left_out += 6 - len(scene.digits)
        visible = np.bincount(scene.owner[scene.owner >= 0])
        assert (visible >= 0.8 * np.array(areas)).all()
        partly += (visible < areas).sum()
    assert left_out, 'six large digits never all fit into so small an image'
    assert partly


def test_an_interrupted_build_leaves_nothing_and_is_done_again(tmp_path, monkeypatch):
    painted = []

    def stop(*arguments):
        if len(painted) == 3:
            raise KeyboardInterrupt
        painted.append(1)
        return paint_scene(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, 'paint_scene', stop)
        with pytest.raises(KeyboardInterrupt):
            build_digit_scenes(tmp_path / 'scenes', **SMALL)
    assert not list(tmp_path.iterdir())
    build_digit_scenes(tmp_path / 'scenes', **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ['scenes']


def test_without_scikit_learn_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'sklearn', None)
    monkeypatch.setitem(sys.modules, 'sklearn.datasets', None)
    with pytest.raises(ModuleNotFoundError, match='pip install scikit-learn'):
        build_digit_scenes(tmp_path / 'scenes', **SMALL)
    assert not list(tmp_path.iterdir())

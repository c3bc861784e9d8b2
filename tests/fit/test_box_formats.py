"""What labelling tools write for boxes: CVAT, LabelImg, Label Studio, Roboflow, LabelMe; and what is left of it."""

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from own_data import BOX, SIZE, coco, image, names
from PIL import Image
from pycocotools import mask as run_lengths

from mmlape.apps.fit import find_data
from mmlape.apps.fit.contents import Annotated, coco_of

LINE = '{label} 0.4 0.3333333333 0.3 0.3333333333\n'  # BOX in an image of SIZE
XML = (
    '<annotation><size><width>40</width><height>24</height></size><object><name>{label}</name><bndbox>'
    '<xmin>11</xmin><ymin>5</ymin><xmax>22</xmax><ymax>12</ymax></bndbox></object></annotation>'
)
CORNERS = [[10, 4], [22, 12]]


def content_of(data, part='train'):
    path = getattr(data, part).ann_file
    return json.loads({str(key): text for key, text in data.files.items()}[path])


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def labelme(path, *shapes, name=None, **entries):
    """A file of LabelMe; each shape is a dict, of a rectangle where it does not say more."""
    usual = dict(shape_type='rectangle', points=CORNERS, group_id=None, flags={})
    content = dict(
        version='5.4.1', flags={}, shapes=[usual | shape for shape in shapes],
        imagePath=name or f'{path.stem}.jpg', imageData=None, imageHeight=24, imageWidth=40,
    )  # fmt: skip
    write(path, json.dumps(content | entries))


def cvat(root):
    write(
        root / 'obj.data',
        'classes = 2\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\n',
    )
    write(root / 'obj.names', 'cat\ndog\n')
    for part, folder in (('train', 'obj_train_data'), ('valid', 'obj_valid_data')):
        write(root / f'{part}.txt', ''.join(f'data/{folder}/{n}.jpg\n' for n in range(2)))
        for number in range(2):
            image(root / folder / f'{number}.jpg')
            write(root / folder / f'{number}.txt', LINE.format(label=number))


def label_files(images, labels, classes='classes.txt'):
    def make(root):
        write(root / classes, 'cat\ndog\n')
        for part in ('train', 'valid'):
            for number in range(2):
                image(root / images.format(part) / f'{part}{number}.jpg')
                write(root / labels.format(part) / f'{part}{number}.txt', LINE.format(label=number))

    return make


def xml_files(images, annotations):
    def make(root):
        for part in ('train', 'valid', 'test'):
            for number in range(2):
                image(root / images.format(part) / f'{number}.jpg')
                write(
                    root / annotations.format(part) / f'{number}.xml',
                    XML.format(label=('cat', 'dog')[number]),
                )

    return make  # fmt: skip


def labelme_files(images, files, link):
    def make(root):
        for part in ('train', 'val'):
            for number in range(2):
                image(root / images.format(part) / f'{number}.jpg')
                path = root / files.format(part) / f'{number}.json'
                labelme(path, dict(label=('cat', 'dog')[number]), name=link.format(part, number))

    return make


FOLDERS = {
    'CVAT': ('YOLO 1.1', cvat),
    'LabelImg, YOLO': ('YOLO with classes.txt', label_files('{}', '{}', 'train/classes.txt')),
    'Label Studio': ('YOLO with classes.txt', label_files('images/{}', 'labels/{}')),
    'images/ with labels beside': ('YOLO with classes.txt', label_files('images/{}', 'images/{}')),
    'LabelImg or Roboflow, XML': ('XML files', xml_files('{}', '{}')),
    'XML elsewhere': ('XML files', xml_files('images/{}', 'annotations/{}')),
    'LabelMe': ('LabelMe', labelme_files('{}', '{}', '{1}.jpg')),
    'LabelMe, Windows': ('LabelMe', labelme_files('{}/img', '{}', 'img\\{1}.jpg')),
    'LabelMe, moved': ('LabelMe', labelme_files('images/{}', 'labels/{}', '/home/me/{1}.jpg')),
}


@pytest.mark.parametrize(('kind', 'make'), FOLDERS.values(), ids=FOLDERS)
def test_boxes_classes_and_parts(kind, make, tmp_path):
    make(tmp_path)
    data = find_data(tmp_path, tmp_path / 'out')
    assert (data.format, data.task, data.classes) == (kind, 'detect', ('cat', 'dog'))
    for part in ('train', 'val'):
        content = content_of(data, part)
        files = [tmp_path / each['file_name'] for each in content['images']]
        assert len(files) == 2 and all(path.is_file() for path in files)
        assert all(part in path.relative_to(tmp_path).as_posix() for path in files)
        boxes = {each['image_id']: each for each in content['annotations']}
        for number in (0, 1):
            box = boxes[content['images'][number]['id']]
            assert box['bbox'] == pytest.approx(BOX, abs=1e-6) and box['category_id'] == number + 1
            assert 'segmentation' not in box
    assert data.notes == []


def test_a_format_of_its_own_comes_before_files_beside_images(tmp_path):
    """They are left over from what it was made of."""
    for name in names(3):
        image(tmp_path / name)
        labelme((tmp_path / name).with_suffix('.json'), dict(label='old'))
        write((tmp_path / name).with_suffix('.xml'), XML.format(label='older'))
    with pytest.raises(ValueError, match='several formats: XML files, LabelMe; choose by'):
        find_data(tmp_path, tmp_path / 'out')
    coco(tmp_path / 'train.json', names(3))
    assert find_data(tmp_path, tmp_path / 'out').format == 'COCO'


def png(values):
    file = io.BytesIO()
    Image.fromarray(np.array(values, bool)).save(file, 'PNG')
    return base64.b64encode(file.getvalue()).decode()


def test_shapes_of_labelme(tmp_path):
    image(tmp_path / '0.jpg')
    half = [[1] * 12 + [0]] * 4 + [[1] * 13] * 5
    shapes = dict(
        polygon=dict(points=[[1, 2], [9, 2], [9, 5], [1, 5]], shape_type='polygon'),
        circle=dict(points=[[20, 10], [20, 14]], shape_type='circle'),
        mask=dict(points=CORNERS, shape_type='mask', mask=png(half)),
        cut=dict(points=[[35, 20], [60, 40]], shape_type='mask', mask=png([[1] * 26] * 21)),
        corners=dict(points=[[22, 12], [10, 4]]),
    )
    parts = [
        dict(points=[[x, 2], [x + 4, 2], [x, 8]], shape_type='polygon', group_id=3) for x in (5, 30)
    ]
    left_out = [
        dict(label='a', shape_type=kind, points=CORNERS)
        for kind in ('point', 'points', 'line', 'linestrip')
    ]
    labelme(
        tmp_path / '0.json',
        *(shape | dict(label=name) for name, shape in shapes.items()),
        *(part | dict(label='pair') for part in parts),
        parts[0] | dict(label='other class'),
        *left_out,
    )
    image(tmp_path / '1.jpg')
    data = find_data(tmp_path, tmp_path / 'out', val=0)
    content = content_of(data)
    names_of = {each['id']: each['name'] for each in content['categories']}
    found = {names_of[box['category_id']]: box for box in content['annotations']}
    assert len(found) == len(content['annotations']) == len(shapes) + 2
    boxes = {
        'polygon': [1, 2, 8, 3], 'circle': [16, 6, 8, 8], 'mask': [10, 4, 13, 9], 'cut': [35, 20, 5, 4],
        'corners': BOX, 'pair': [5, 2, 29, 6], 'other class': [5, 2, 4, 6],
    }  # fmt: skip
    areas = {
        'polygon': 24,
        'circle': np.pi * 16,
        'mask': 113,
        'cut': 20,
        'corners': 96,
        'pair': 24,
        'other class': 12,
    }
    for name, box in found.items():
        assert box['bbox'] == pytest.approx(boxes[name], abs=0.01), name
        assert box['area'] == pytest.approx(areas[name], rel=0.01), name
    assert len(found['pair']['segmentation']) == 2 and 'segmentation' not in found['corners']
    pixels = run_lengths.decode(found['mask']['segmentation'])
    assert pixels.shape == SIZE[::-1] and (pixels[4:13, 10:23] == half).all()
    assert data.task == 'detect'  # a rectangle has no mask
    assert data.notes == [
        'left out, shapes without an area: 1 of point, 1 of points, 1 of line, 1 of linestrip',
        'left out, no annotation file: 1.jpg',
        'boxes alone are trained: 1 of 7 boxes have no mask',
    ]


@pytest.mark.parametrize(
    ('shape', 'entries', 'message'),
    [
        (dict(shape_type='blob'), {}, 'shape_type must be polygon, rectangle, circle or mask'),
        (dict(points=[[1, 2]]), {}, 'a rectangle of 1 points'),
        (dict(shape_type='polygon'), {}, 'a polygon of 2 points'),
        (dict(points=[[1, 2], [float('nan'), 3]]), {}, 'a coordinate is not finite'),
        (dict(points='ab'), {}, 'a shape cannot be read'),
        (dict(shape_type='mask', mask='nothing'), {}, 'a shape cannot be read'),
        (dict(label=7), {}, 'has no label'),
        ({}, dict(shapes=7), "its 'shapes' must be a list"),
        (
            {},
            dict(imageHeight=40, imageWidth=24),
            'another size than imageWidth and imageHeight says',
        ),
    ],
)
def test_files_of_labelme_that_cannot_be_read(shape, entries, message, tmp_path):
    image(tmp_path / '0.jpg')
    labelme(tmp_path / '0.json', dict(label='a') | shape, **entries)
    with pytest.raises(ValueError, match=message):
        find_data(tmp_path, tmp_path / 'out', val=0)


@pytest.mark.parametrize('ending', ['xml', 'json'])
def test_an_image_must_be_told_among_those_of_its_name(ending, tmp_path):
    for folder in ('a', 'b'):
        image(tmp_path / folder / '0.jpg')
        image(tmp_path / folder / '1.jpg')
    for number in (0, 1):
        path = tmp_path / 'labels' / f'{number}.{ending}'
        if ending == 'xml':
            write(path, XML.format(label='a'))
        else:
            labelme(path, dict(label='a'))
    (tmp_path / 'b' / '1.jpg').unlink()
    with pytest.raises(ValueError, match=r'(only one|image) of (its|their) name'):
        find_data(tmp_path, tmp_path / 'out', val=0)
    (tmp_path / 'labels').rename(tmp_path / 'more')
    shutil.move(tmp_path / 'more', tmp_path / 'x' / 'a')
    assert find_data(tmp_path, tmp_path / 'out', val=0).train.count == 2


def test_where_label_files_were_looked_for_is_said(tmp_path):
    image(tmp_path / 'images/0.jpg')
    write(tmp_path / 'data.yaml', 'names: [a]\ntrain: images\n')
    with pytest.raises(ValueError, match=r'none of 1 images .*/labels/0\.txt or .*/images/0\.txt$'):
        find_data(tmp_path, tmp_path / 'out')
    (tmp_path / 'data.yaml').unlink()
    with pytest.raises(
        ValueError, match=r'of its 1 images, none has a file such as 0\.txt, 0\.xml or 0\.json'
    ):
        find_data(tmp_path, tmp_path / 'out')


@pytest.mark.parametrize(
    ('prefix', 'folder'),
    [('images\\', 'images/'), ('C:\\me\\images\\', 'images/'), ('/home/me/', '')],
)
def test_names_of_images_from_another_machine(prefix, folder, tmp_path):
    coco(tmp_path / 'train.json', [prefix + name for name in names(3)])
    for name in names(3):
        image(tmp_path / 'images' / name)
    data = find_data(tmp_path, tmp_path / 'out', val=0)
    assert [one['file_name'] for one in content_of(data)['images']] == [
        folder + n for n in names(3)
    ]
    assert data.train.images == str(tmp_path / 'images' if not folder else tmp_path)
    assert 'images are at' in data.notes[0]
    twice = [f'{prefix}{part}/{name}' for part in 'ab' for name in names(2)]
    coco(tmp_path / 'train.json', twice)
    with pytest.raises(ValueError, match='is in no folder of'):
        find_data(tmp_path, tmp_path / 'out', val=0)
    for part in 'ab':  # the same names in two folders
        for name in names(2):
            image(tmp_path / 'images' / part / name)
    data = find_data(tmp_path, tmp_path / 'out', val=0)
    found = [Path(data.train.images, one['file_name']) for one in content_of(data)['images']]
    assert found == [tmp_path / 'images' / part / name for part in 'ab' for name in names(2)]


def test_the_classes_of_all_folders_are_the_same(tmp_path):
    label_files('{}', '{}', 'train/classes.txt')(tmp_path)
    write(tmp_path / 'valid/classes.txt', 'cat\ndog')
    assert find_data(tmp_path, tmp_path / 'out').val.count == 2
    write(tmp_path / 'valid/classes.txt', 'dog\ncat')
    with pytest.raises(ValueError, match=r'train/classes\.txt and .*valid/classes\.txt name other'):
        find_data(tmp_path, tmp_path / 'out')


def test_lists_of_windows(tmp_path):
    label_files('images/{}', 'labels/{}')(tmp_path)
    write(tmp_path / 'data.yaml', 'names: [cat, dog]\ntrain: images\\train\nval: val.txt\n')
    write(tmp_path / 'val.txt', 'images\\valid\\valid0.jpg\n')
    data = find_data(tmp_path, tmp_path / 'out')
    assert (data.train.count, data.val.count) == (2, 1)


def test_a_size_of_an_annotation_file_counts_once(tmp_path):
    """Half of the images may have another one: a note."""
    for name in names(2):
        image(tmp_path / name)
    notes = []
    images = [Annotated(tmp_path / '0.jpg', [], (1, 2)), Annotated(tmp_path / '1.jpg', [], SIZE)]
    coco_of(dict(train=images), tmp_path, 'it', notes)
    assert notes == ['1 images have another size than it says: 0.jpg (40 x 24)']

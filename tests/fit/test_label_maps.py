"""Values of label maps that are no indices of classes, and files that MMSegmentation cannot read as they are."""

import io

import numpy as np
import pytest
from mmseg.datasets import BaseSegDataset
from own_data import image, label_map
from PIL import Image

from mmlape.apps.fit import find_data
from mmlape.apps.fit.data import OwnData
from mmlape.apps.fit.files import check_files, write_files
from mmlape.apps.fit.label_maps import classes_of


def maps(root, values, count=4):
    for number in range(count):
        image(root / 'images' / f'{number}.jpg', (len(values), 2))
        label_map(root / 'masks' / f'{number}.png', [values, values])


def written(data: OwnData):
    """The first label map and image of the training part, as MMSegmentation finds them."""
    write_files(data.files)
    check_files(data.files)
    dataset = BaseSegDataset(
        img_suffix=data.img_suffix,
        seg_map_suffix=data.map_suffix,
        ann_file=data.train.ann_file,
        data_prefix=dict(img_path=data.train.images, seg_map_path=data.train.label_maps),
        metainfo=dict(classes=data.classes),
    )
    assert len(dataset) == data.train.count
    entry = dataset[0]
    Image.open(entry['img_path']).verify()
    return np.array(Image.open(entry['seg_map_path'])).tolist()


@pytest.mark.parametrize(
    ('values', 'names', 'labels'),
    [
        ({0, 1, 2, 255}, ['a', 'b', 'c'], {}),
        ({0, 255}, ['a', 'b'], {0: 0, 255: 1}),
        ({0, 128}, ['a', 'b'], {0: 0, 128: 1}),
        ({0, 128, 255}, ['a', 'b', 'c'], {0: 0, 128: 1, 255: 2}),
        ({0, 128, 255}, ['a', 'b'], {0: 0, 128: 1}),
        ({1, 2}, ['a', 'b'], {1: 0, 2: 1}),
        ({1, 2, 255}, ['a', 'b'], {1: 0, 2: 1}),
        ({0, 1}, [], {}),
        ({0, 2, 255}, [], {}),
    ],
)
def test_values_are_mapped_where_there_is_one_way(values, names, labels, tmp_path):
    classes, found = classes_of(values, names, tmp_path)
    assert found == labels and (not names or classes == tuple(names))


@pytest.mark.parametrize(
    ('values', 'names', 'message'),
    [
        ({0, 255}, [], r'only the values \[0, 255\].* fit .* --classes background,object$'),
        ({0, 128}, [], r'no indices .* --classes background,object$'),
        ({0, 3}, [], r'no indices'),
        ({0, 100, 200, 255}, [], r'--classes name0,name100,name200$'),
        (set(range(0, 255, 3)), [], r'0 to 252, 85 different ones.* name each'),
        ({7}, [], r'only the values \[7\]'),
        ({0, 255}, ['thing'], r'the background is one.* --classes background,thing$'),
        ({0, 1}, ['a', 'b', 'c'], r"never there is c: name those that do, --classes a,b$"),
        # The border of Pascal VOC is not its last class.
        ({0, 1, 255}, ['a', 'b', 'c'], r'never there is c'),
        ({0, 255}, ['a', 'b', 'c'], r'never there is b, c$'),
        ({0, 128}, ['a', 'b', 'c'], r'names for 0 to 2: give a name for each'),
        ({0, 1, 2}, ['a', 'b'], r'names for 0 to 1'),
    ],
)
def test_values_without_a_class_and_classes_without_a_value(values, names, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        classes_of(values, names, tmp_path)


def test_masks_of_0_and_255_with_names(tmp_path):
    maps(tmp_path / 'data', [0, 255, 255])
    data = find_data(tmp_path / 'data', tmp_path / 'out', classes=['ground', 'thing'])
    assert data.notes[0] == f'label maps are copied to {tmp_path}/out/data/maps: 0,255 -> 0,1'
    assert data.classes == ('ground', 'thing')
    assert written(data) == [[0, 1, 1]] * 2
    assert data.train.label_maps == data.val.label_maps == f'{tmp_path}/out/data/maps/train'
    with pytest.raises(ValueError, match='is there already'):
        check_files(dict.fromkeys(data.files, 'other'))


def test_classes_without_a_pixel_are_told_of(tmp_path):
    for part, values in (('train', [0, 2]), ('val', [0, 2])):
        maps(tmp_path / part, values)
    assert find_data(tmp_path, tmp_path / 'out').notes == ['no pixel: class 1']
    maps(tmp_path / 'val', [0, 1])
    assert find_data(tmp_path, tmp_path / 'out').notes == ['no pixel in the training part: class 1']


@pytest.mark.parametrize('form', ['JPEG', 'WEBP'])
def test_lossy_formats_are_refused_by_their_content(form, tmp_path):
    maps(tmp_path, [0, 1])
    file = io.BytesIO()
    Image.new('L', (2, 2)).save(file, form)
    (tmp_path / 'masks/1.png').write_bytes(file.getvalue())
    with pytest.raises(ValueError, match=rf'1\.png is {form}, which changes values'):
        find_data(tmp_path, tmp_path / 'out', classes=['a', 'b'])
    for path in [*tmp_path.glob('masks/*')]:
        path.rename(path.with_suffix('.jpg'))
    maps(tmp_path, [0, 1])
    data = find_data(tmp_path, tmp_path / 'out')
    assert data.map_suffix == '.png', 'the lossless ones of two'


def test_images_and_label_maps_of_several_endings(tmp_path):
    maps(tmp_path / 'data', [0, 1, 1])
    for number, ending in ((1, 'png'), (2, 'JPG')):
        path = tmp_path / f'data/images/{number}.jpg'
        path.rename(path.with_suffix(f'.{ending}'))
    (tmp_path / 'data/masks/3.png').rename(tmp_path / 'data/masks/3.bmp')
    data = find_data(tmp_path / 'data', tmp_path / 'out', val=0)
    assert (data.img_suffix, data.map_suffix, data.train.count) == ('.jpg', '.png', 4)
    assert 'images are linked' in data.notes[0] and '2 .jpg, 1 .png, 1 .JPG' in data.notes[0]
    assert written(data) == [[0, 1, 1]] * 2
    assert sorted(path.name for path in (tmp_path / 'out/data/images/train').iterdir()) == [
        f'{number}.jpg' for number in range(4)
    ]

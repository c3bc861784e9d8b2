"""Label maps as data sets and labelling tools write them: Cityscapes, Pascal VOC, CamVid, CVAT, Roboflow."""

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmseg.datasets import CityscapesDataset
from own_data import image, label_map
from PIL import Image

from mmlape.apps.fit import MODELS, FitOptions, config_text, find_data
from mmlape.apps.fit.files import check_files, write_files
from mmlape.apps.fit.legends import colour_code, read_legend

SIZE = (7, 5)  # width and height
COLOURS = [(0, 0, 0), (128, 64, 0), (0, 64, 128)]  # red and blue exchanged is another class
NAMES = ('ground', 'wet road', 'tree')


def classes_in(number):
    """The class of each pixel of an image; no two images have the same."""
    grid = np.zeros(SIZE[::-1], int)
    grid[1] = 1
    grid[4, number] = 2
    return grid


def pair(image_path, map_path, number, stored=(0, 1, 2), **options):
    """An image whose grey says its number, and its label map; ``stored``: the value or colour of each class."""
    image(image_path, SIZE, grey=20 * number)
    label_map(map_path, np.array(stored)[classes_in(number)], **options)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def rows(form):
    lines = (form.format(*colour, name=name) for name, colour in zip(NAMES, COLOURS, strict=True))
    return '\n'.join(lines) + '\n'


LABELMAP = '# label:color_rgb:parts:actions\n' + rows('{name}:{0},{1},{2}::')


def check(data, out, classes=NAMES):
    """Each image of the config that is written has its label map, as MMSegmentation reads them."""
    assert (data.task, data.format, data.classes) == ('segment', 'label maps', tuple(classes))
    check_files(data.files)
    write_files(data.files)
    text = config_text(data, MODELS['micro-segmenter'], FitOptions(weights='none', batch=1), out)
    cfg = Config.fromstring(text, '.py')
    init_default_scope('mmseg')
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    found = {}
    for part, loader in (('train', cfg.train_dataloader), ('val', cfg.val_dataloader)):
        dataset = DATASETS.build({**loader.dataset, 'pipeline': steps})
        assert len(dataset) == getattr(data, part).count
        for entry in dataset:
            number = round(entry['img'].mean() / 20)
            found.setdefault(part, []).append(number)
            wanted = classes_in(number)
            assert (
                np.where(entry['gt_seg_map'] == 255, wanted, entry['gt_seg_map']) == wanted
            ).all()
            assert (entry['gt_seg_map'] != 255).sum() >= wanted.size // 2
    return {part: sorted(numbers) for part, numbers in found.items()}


def cityscapes(root, tail='labelTrainIds', stored=(0, 1, 2), images='leftImg8bit', maps='gtFine'):
    for number, place in enumerate(['train/aa', 'train/bb', 'train/bb', 'val/aa', 'test/cc']):
        name = f'{place}/{place[-2:]}_{number}'
        target = root / maps / f'{name}_gtFine_{tail}.png'
        pair(root / images / f'{name}_leftImg8bit.png', target, number, stored)
        label_map(root / maps / f'{name}_gtFine_color.png', np.array(COLOURS)[classes_in(number)])
        label_map(root / maps / f'{name}_gtFine_instanceIds.png', classes_in(number))
        write(root / maps / f'{name}_gtFine_polygons.json', '{"objects": []}')


def cityscapes_archives(root):
    folders = 'leftImg8bit_trainvaltest/leftImg8bit', 'gtFine_trainvaltest/gtFine'
    cityscapes(root, 'labelIds', (7, 8, 11), *folders)


def own_cityscapes(root):
    cityscapes(root, 'labelIds')
    write(root / 'classes.txt', '\n'.join(NAMES))


def cvat_cityscapes(root):
    """Ids are those of the legend, not those of Cityscapes."""
    cityscapes(root, 'labelIds', images='imgsFine/leftImg8bit')
    write(root / 'label_colors.txt', rows('{0} {1} {2} {name}'))


def cvat_masks(root, images='JPEGImages', lists=None):
    for number in range(5):
        maps = root / 'SegmentationClass' / f'{number}.png'
        pair(root / images / f'{number}.jpg', maps, number, COLOURS)
        label_map(root / 'SegmentationObject' / f'{number}.png', classes_in(number))
    write(root / 'labelmap.txt', LABELMAP)
    for name, numbers in (lists or dict(train='012', val='3', test='4')).items():
        write(root / f'ImageSets/Segmentation/{name}.txt', '\n'.join(numbers) + '\n')


def voc(root):
    """More images than label maps, borders of 255, and boxes."""
    palette = np.zeros((256, 3), int)
    palette[:3], palette[255] = COLOURS, (224, 224, 192)
    for number in range(4):
        path = root / 'SegmentationClass' / f'{number}.png'
        pair(root / 'JPEGImages' / f'{number}.jpg', path, number)
        label_map(path, np.where(np.eye(*SIZE[::-1]), 255, classes_in(number)), palette)
        write(root / 'Annotations' / f'{number}.xml', '<annotation/>')
    image(root / 'JPEGImages/9.jpg')
    write(root / 'ImageSets/Main/train.txt', '9\n')
    write(root / 'classes.txt', '\n'.join(NAMES))
    for name, numbers in dict(train='012', trainval='0123', val='3').items():
        write(root / f'ImageSets/Segmentation/{name}.txt', '\n'.join(numbers) + '\n')


def siblings(images, maps, legend, text, stored=COLOURS, name='{}.png', map_name='{}_L.png'):
    def make(root):
        for number in range(5):
            part = 'train' if number < 3 else 'val' if number < 4 else 'test'
            path = root / images.format(part) / name.format(number)
            pair(path, root / maps.format(part) / map_name.format(number), number, stored)
        write(root / legend, text)

    return make


def roboflow(root):
    for number, part in enumerate(['train', 'train', 'train', 'valid', 'test']):
        name = f'{part}/{number}_jpg.rf.0a1b'
        pair(root / f'{name}.jpg', root / f'{name}_mask.png', number)
        table = ''.join(f' {value}, {name}\n' for value, name in enumerate(NAMES))
        write(root / part / '_classes.csv', f'Pixel Value, Class\n{table}')


def beside(tail):
    def make(root):
        for number, part in enumerate(['train', 'train', 'train', 'val']):
            name = f'{part}/a/{number}'
            pair(root / f'{name}.png', root / f'{name}{tail}.png', number)
        write(root / 'classes.txt', '\n'.join(NAMES))

    return make


def two_folders(images, maps):
    def make(root):
        for number, part in enumerate(['train', 'train', 'train', 'val']):
            place = root / images / part / f'{number}.jpg', root / maps / part / f'{number}.png'
            pair(*place, number)
        write(root / 'classes.txt', '\n'.join(NAMES))

    return make


def around(make):
    """One more folder around."""
    return lambda root: make(root / 'unpacked')


TAILS = ('_mask', '-masks', '_label', '.labels', '_seg', '_gt', ' Mask')
GREY = [(value, value, value) for value in range(3)]
VOID = 'name,r,g,b\nVoid,9,9,9\n' + rows('{name},{0},{1},{2}')
CAMVID = '9 9 9\t\tVoid\n' + rows('{0} {1} {2}\t{name}')
LAYOUTS = {
    'Cityscapes, train ids': cityscapes,
    'Cityscapes, ids in two archives': cityscapes_archives,
    'own classes like Cityscapes': own_cityscapes,
    'Cityscapes of CVAT': cvat_cityscapes,
    'CVAT segmentation mask': cvat_masks,
    'CVAT in a folder, with images/': around(lambda root: cvat_masks(root, 'images')),
    'Pascal VOC': voc,
    'CamVid of Kaggle': siblings('{}', '{}_labels', 'class_dict.csv', VOID),
    'its columns with spaces': siblings('{}', '{}_labels', 'class_dict_seg.csv', VOID.replace(',', ', ')),
    'CamVid of CVAT': siblings('{}', '{}annot', 'label_colors.txt', rows('{0} {1} {2} {name}'), map_name='{}.png'),
    'folders with one word more': siblings('{}_images', '{}_masks', 'classes.txt', '\n'.join(NAMES), (0, 1, 2)),
    'CamVid, parts inside': siblings('701_StillsRaw_full/{}', 'LabeledApproved_full/{}', 'label_colors.txt', CAMVID),
    'colours with opacity': siblings('{}', '{}_labels', 'class_dict.csv', VOID, [(*each, 255) for each in COLOURS]),
    'indices and colours in the legend': siblings('{}', '{}_labels', 'class_dict.csv', VOID, (1, 2, 3)),
    'three equal channels': siblings('{}', '{}_labels', 'classes.txt', '\n'.join(NAMES), GREY),
    'Roboflow': roboflow,
    'Roboflow in a folder': around(roboflow),
    **{f'{tail} beside images': beside(tail) for tail in TAILS},
    'folders of MMSegmentation': two_folders('img_dir', 'ann_dir'),
}  # fmt: skip


@pytest.mark.parametrize('kind', LAYOUTS)
def test_each_image_has_its_label_map(kind, tmp_path):
    LAYOUTS[kind](tmp_path / 'data')
    data = find_data(tmp_path / 'data', tmp_path / 'out', 'segment')
    classes = CityscapesDataset.METAINFO['classes'] if kind.startswith('Cityscapes,') else NAMES
    assert check(data, tmp_path / 'out', classes) == dict(train=[0, 1, 2], val=[3])


def notes_of(root, **options):
    return find_data(root, root.parent / 'out', **options).notes


def refused(root, **options):
    with pytest.raises(ValueError, match=r'^.+$') as error:
        find_data(root, root.parent / 'out', **options)
    return str(error.value)


def test_classes_of_a_standard_may_be_absent(tmp_path):
    root = tmp_path / 'data'
    cityscapes(root)
    assert notes_of(root) == [
        'no pixel: wall, fence, pole, traffic light, traffic sign, vegetation, terrain, sky, person, rider, car, '
        'truck, bus, train, motorcycle, bicycle'
    ]
    assert 'never there is c' in refused(root, classes=['a', 'b', 'd', 'c'])
    cityscapes(root, 'labelTrainIds', (0, 1, 40))
    assert 'Cityscapes has no class for 1 values of the label maps: 40 in 1 pixels' in refused(root)


def test_other_ids_than_those_of_cityscapes(tmp_path):
    root = tmp_path / 'data'
    cityscapes(root, 'labelIds', (0, 1, 2))
    assert 'no pixel has a class; the label maps hold [0, 1, 2]' in refused(root)
    assert find_data(root, tmp_path / 'out', classes=NAMES).classes == NAMES
    for path in root.rglob('*_labelIds.png'):
        path.unlink()
    assert 'X_leftImg8bit.png needs X_gtFine_labelTrainIds.png or X_gtFine_labelIds.png' in refused(root)  # fmt: skip


def test_images_that_a_tool_wrote_no_label_map_of(tmp_path):
    cvat_masks(tmp_path / 'cvat', lists=dict(default='01234'))
    cityscapes(tmp_path / 'city')
    (tmp_path / 'cvat/SegmentationClass/1.png').unlink()
    next(tmp_path.glob('city/gtFine/train/aa/*TrainIds.png')).unlink()
    data = find_data(tmp_path / 'cvat', tmp_path / 'out')
    assert 'left out, no label map: 1' in data.notes
    assert check(data, tmp_path / 'out').keys() == {'train', 'val'}
    assert 'left out, no label map: train/aa/aa_0' in notes_of(tmp_path / 'city')


def test_lists_of_pascal_voc(tmp_path):
    cvat_masks(tmp_path / 'data', lists=dict(trainval='012', val='2', test='349'))
    assert check(find_data(tmp_path / 'data', tmp_path), tmp_path) == dict(train=[0, 1], val=[2])
    write(tmp_path / 'data/ImageSets/Segmentation/val.txt', '7\n')
    assert "has no image '7', which val.txt lists" in refused(tmp_path / 'data')
    for path in tmp_path.glob('data/JPEGImages/*'):
        path.unlink()
    assert 'no images in JPEGImages or images: export them too' in refused(tmp_path / 'data')


def test_boxes_or_label_maps_of_pascal_voc(tmp_path):
    voc(tmp_path / 'data')
    assert 'Pascal VOC, label maps; choose by --task' in refused(tmp_path / 'data')


def test_rows_that_are_no_classes(tmp_path):
    root = tmp_path / 'data'
    cvat_masks(root)
    write(
        root / 'labelmap.txt', LABELMAP.replace('ground', 'Unlabelled').replace('wet road', 'road')
    )
    data = find_data(root, tmp_path / 'out')
    assert data.classes == ('road', 'tree')
    file = root / 'labelmap.txt'
    assert data.notes == [
        f'ignored, as {file} says: Unlabelled',
        f'label maps are copied to {tmp_path}/out/data/maps: values of {file} -> 0 to 1',
    ]
    write_files(data.files)
    found = np.unique(np.array(Image.open(tmp_path / 'out/data/maps/train/1.png')))
    assert found.tolist() == [0, 1, 255]


def test_a_legend_in_the_folder_around(tmp_path):
    cvat_masks(tmp_path / 'data/unpacked')
    (tmp_path / 'data/unpacked/labelmap.txt').rename(tmp_path / 'data/labelmap.txt')
    assert find_data(tmp_path / 'data', tmp_path / 'out').classes == NAMES


def test_rows_of_a_legend_that_never_occur(tmp_path):
    cvat_masks(tmp_path / 'data')
    write(tmp_path / 'data/labelmap.txt', LABELMAP + 'traffic light:1,2,3:a,b:c\n')
    assert notes_of(tmp_path / 'data')[-1] == 'no pixel: traffic light'


def test_colours_without_a_class(tmp_path):
    root = tmp_path / 'data'
    cvat_masks(root)
    label_map(root / 'SegmentationClass/3.png', np.array([*COLOURS[:2], (1, 2, 3)])[classes_in(3)])
    assert refused(root) == (
        f'{root}/labelmap.txt has no class for 1 values of the label maps: (1, 2, 3) in 1 pixels of '
        f'{root}/SegmentationClass/3.png'
    )
    (root / 'labelmap.txt').unlink()
    for classes in ((), ['a', 'b', 'c', 'd']):
        found = refused(root, classes=classes)
        assert (
            '4 colours, (0, 0, 0), (0, 64, 128), (1, 2, 3), (128, 64, 0), which need a legend'
            in found
        )
        assert f'write {root}/labelmap.txt with a line NAME:RED,GREEN,BLUE for each' in found
    transparent = np.array([(*colour, 99) for colour in COLOURS])[classes_in(3)]
    label_map(root / 'SegmentationClass/3.png', transparent)
    assert '3.png has transparent pixels' in refused(root)


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        ('labelmap.txt', 'a:0,0,0\na b c', "line 2: needs a name and three numbers from 0 to 255, got 'a b c'"),
        ('labelmap.txt', 'a:0,0,0\nb:256,0,0', 'line 2: needs a name and three numbers'),
        ('labelmap.txt', 'a:1,0,0\nb:1,0,0', r"line 2: \(1, 0, 0\) is 'a' already, got 'b'"),
        ('labelmap.txt', 'a:0,0,0\nvoid:1,1,1', 'needs 2 to 255 classes, the background is one, got 1'),
        ('labelmap.txt', ''.join(f'{n}:0,0,{n}\n' for n in range(256)), 'got 256'),
        ('_classes.csv', 'Pixel Value, Class\nx, 1', 'line 2: needs a value from 0 to 255 and a name'),
        ('_classes.csv', '0, a\n256, b', 'line 2: needs a value from 0 to 255 and a name'),
    ],
)  # fmt: skip
def test_legends_that_are_refused(name, text, message, tmp_path):
    write(tmp_path / name, text)
    with pytest.raises(ValueError, match=f'{name}.*{message}'):
        read_legend(tmp_path / name)


@pytest.mark.parametrize(
    ('line', 'name', 'colour'),
    [
        ('class 1:2,3,4::', 'class 1', (2, 3, 4)),
        ('class 1,2,3,4', 'class 1', (2, 3, 4)),
        ('"sky", 2, 3, 4', 'sky', (2, 3, 4)),
        ('2 3 4 traffic light', 'traffic light', (2, 3, 4)),
        ('2 3 4\t\tclass 1', 'class 1', (2, 3, 4)),
        ('car:wheel:2,3,4:a,b:c', 'car:wheel', (2, 3, 4)),
    ],
)
def test_names_in_a_legend(line, name, colour, tmp_path):
    write(tmp_path / 'labelmap.txt', f'background:0,0,0::\n{line}\n')
    legend = read_legend(tmp_path / 'labelmap.txt')
    assert legend.classes == ('background', name) and legend.labels[colour_code(*colour)] == 1


def test_several_legends(tmp_path):
    root = tmp_path / 'data'
    roboflow(root)
    write(root / 'valid/_classes.csv', 'Pixel Value, Class\n0, a\n1, b\n2, c\n')
    assert 'name other classes: leave one legend' in refused(root)


def test_a_palette_in_another_order_than_the_legend(tmp_path):
    """Pillow and others sort the colours of a palette by how often they occur; 255 is a border."""
    palette = np.full((256, 3), 224)
    palette[:3] = COLOURS[2], *COLOURS[:2]
    cvat_masks(tmp_path / 'data')
    for number in range(5):
        values = np.where(np.eye(*SIZE[::-1]), 255, (classes_in(number) + 1) % 3)
        label_map(tmp_path / f'data/SegmentationClass/{number}.png', values, palette)
    found = check(find_data(tmp_path / 'data', tmp_path / 'out'), tmp_path / 'out')
    assert found == dict(train=[0, 1, 2], val=[3])


def test_label_maps_beside_images_are_of_all_images(tmp_path):
    beside('_mask')(tmp_path / 'data')
    for name in ('_mask', 'street_gt', 'street_mask'):
        image(tmp_path / f'data/train/{name}.png', SIZE)
    assert '3 of 6 images' in refused(tmp_path / 'data')
    assert refused(tmp_path / 'data').endswith('train/_mask, train/street_gt, train/street_mask')


def test_lossy_masks_beside_images(tmp_path):
    for number in range(2):
        image(tmp_path / f'data/{number}.jpg')
        image(tmp_path / f'data/{number}_mask.jpg')
    assert '0_mask.jpg is JPEG' in refused(tmp_path / 'data')


def test_a_note_of_three_equal_channels(tmp_path):
    LAYOUTS['three equal channels'](tmp_path / 'data')
    copied = f'label maps are copied to {tmp_path}/out/data/maps: three equal channels -> one'
    assert notes_of(tmp_path / 'data') == [copied]


def test_where_label_maps_are_looked_for(tmp_path):
    image(tmp_path / 'data/images/a.jpg')
    found = refused(tmp_path / 'data')
    assert 'label maps are looked for in annotations, masks,' in found
    assert found.endswith('beside the images, as a_mask.png')

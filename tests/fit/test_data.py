"""What ``mmlape fit`` finds in a folder: formats, parts, classes, and what it refuses."""

import json
import re
import runpy

import numpy as np
import pytest
from docs_pages import REPO
from own_data import BOX, SIZE, coco, image, label_map, names
from PIL import Image
from pycocotools.coco import COCO

from mmlape.apps.fit import find_data
from mmlape.apps.fit.data import FORMATS
from mmlape.apps.fit.parts import Split


def read(data, part='train'):
    """The COCO content of a part, from the disk or from what is to be written."""
    path = getattr(data, part).ann_file
    files = {str(key): text for key, text in data.files.items()}
    written = next((text for key, text in files.items() if path.endswith(key)), None)
    return json.loads(written) if written else json.loads(open(path).read())


class TestCoco:
    @pytest.mark.parametrize(
        ('train', 'val', 'folders'),
        [
            ('annotations/instances_train2017.json', 'annotations/instances_val2017.json', ('train2017', 'val2017')),
            ('train/_annotations.coco.json', 'valid/_annotations.coco.json', ('train', 'valid')),
            ('train.json', 'val.json', ('images', 'images')),
        ],
    )  # fmt: skip
    def test_parts_by_their_names(self, train, val, folders, tmp_path):
        for file, folder, found in zip((train, val), folders, (names(3), names(2, 3)), strict=True):
            coco(tmp_path / file, found, masks=True)
            for name in found:
                image(tmp_path / folder / name)
        coco(tmp_path / 'annotations/person_keypoints_test2017.json', names(1))
        panoptic = json.loads((tmp_path / train).read_text())
        panoptic['annotations'] = [dict(image_id=0, file_name='0.png', segments_info=[])]
        (tmp_path / 'annotations/panoptic_train2017.json').write_text(json.dumps(panoptic))
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.task, data.format, data.classes) == ('instance', 'COCO', ('cat', 'dog'))
        assert (data.train.count, data.val.count, data.files) == (3, 2, {})
        assert data.train.images == str(tmp_path / folders[0])
        assert data.val.ann_file == str(tmp_path / val)
        assert find_data(tmp_path, tmp_path / 'out', task='detect').task == 'detect'

    def test_images_are_not_their_masks(self, tmp_path):
        coco(tmp_path / 'labels.json', names(4))
        for name in names(4):
            for folder in ('depth', 'images', 'original'):
                image(tmp_path / folder / name)
        assert find_data(tmp_path, tmp_path / 'out').train.images == str(tmp_path / 'images')

    def test_a_box_without_a_mask_is_told_of(self, tmp_path):
        coco(tmp_path / 'labels.json', names(4), masks=True)
        for name in names(4):
            image(tmp_path / name)
        assert find_data(tmp_path, tmp_path / 'out', val=0).task == 'instance'
        content = json.loads((tmp_path / 'labels.json').read_text())
        content['annotations'][1]['segmentation'] = []
        (tmp_path / 'labels.json').write_text(json.dumps(content))
        data = find_data(tmp_path, tmp_path / 'out', val=0)
        count = len(content['annotations'])
        assert data.task == 'detect'
        assert f'boxes alone are trained: 1 of {count} boxes have no mask' in data.notes

    def test_two_categories_of_one_name(self, tmp_path):
        """Roboflow adds a category without boxes, which may be named as the only class."""
        coco(tmp_path / 'labels.json', names(4))
        for name in names(4):
            image(tmp_path / name)
        content = json.loads((tmp_path / 'labels.json').read_text())
        first, second = content['categories'][:2]
        content['categories'] = [dict(id=77, name=first['name']), first, second]
        (tmp_path / 'labels.json').write_text(json.dumps(content))
        data = find_data(tmp_path, tmp_path / 'out', val=0)
        assert data.classes == (first['name'], second['name'])
        assert [one['id'] for one in read(data)['categories']] == [first['id'], second['id']]
        second['name'] = first['name']
        (tmp_path / 'labels.json').write_text(json.dumps(content))
        with pytest.raises(ValueError, match='train part has boxes of 2 categories that are named'):
            find_data(tmp_path, tmp_path / 'out', val=0)

    def test_without_a_validation_part_it_is_split_by_seed(self, tmp_path):
        coco(tmp_path / 'all.json', names(10))
        for name in names(10):
            image(tmp_path / 'pictures' / name)
        data = find_data(tmp_path, tmp_path / 'out', val=0.3)
        assert (data.task, data.train.count, data.val.count) == ('detect', 7, 3)
        parts = [
            {entry['file_name'] for entry in read(data, part)['images']}
            for part in ('train', 'val')
        ]
        assert parts[0] | parts[1] == set(names(10))
        assert not parts[0] & parts[1]
        boxes = [
            {box['image_id'] for box in read(data, part)['annotations']}
            for part in ('train', 'val')
        ]
        assert [len(each) for each in boxes] == [7, 3]
        assert find_data(tmp_path, tmp_path / 'out', val=0.3).files == data.files
        assert find_data(tmp_path, tmp_path / 'out', val=0.3, seed=1).files != data.files
        assert '7 and 3 images by seed 0' in data.notes[0]
        assert not (tmp_path / 'out').exists()
        assert find_data(tmp_path, tmp_path / 'out', val=0).val is None

    @pytest.mark.parametrize(
        ('count', 'share', 'drawn'),
        [(2, 0.9, 1), (3, 0.01, 1), (7, 0.2, 1), (8, 0.2, 2), (103, 0.2, 21)],
    )
    def test_sizes_of_a_split(self, count, share, drawn, tmp_path):
        given, draw = names(count), Split(tmp_path, share, 0, []).draw
        assert len(draw(given)) == drawn and draw(given) == draw(given[::-1])

    def test_classes_without_boxes(self, tmp_path):
        coco(tmp_path / 'train.json', names(1), categories=('all', 'dog', 'cow'))
        coco(tmp_path / 'val.json', names(2, 1), categories=('all', 'dog', 'cow'))
        for name in names(3):
            image(tmp_path / 'images' / name)
        data = find_data(tmp_path, tmp_path / 'out')
        assert data.classes == ('all', 'dog')
        assert data.notes == ['left out, no box: cow', 'no box in the training part: dog']

    def test_named_files(self, tmp_path):
        for file in ('a.json', 'b.json'):
            coco(tmp_path / file, names(2))
        for name in names(2):
            image(tmp_path / name)
        with pytest.raises(
            ValueError, match=r'several COCO files may be for train: .*a\.json.*--train-ann'
        ):
            find_data(tmp_path, tmp_path / 'out')
        data = find_data(
            tmp_path, tmp_path / 'out', train_ann='a.json', val_ann=str(tmp_path / 'b.json')
        )
        assert (data.train.ann_file, data.val.ann_file) == tuple(
            str(tmp_path / f) for f in ('a.json', 'b.json')
        )


def test_links_to_folders_and_files_of_macos(tmp_path):
    """MMSegmentation follows links too, also in a circle: then it reads a list."""
    for number in range(4):
        images, maps = (
            tmp_path / ('data' if number < 2 else 'disk') / folder for folder in ('images', 'masks')
        )
        image(images / f'{number}.jpg')
        (images / f'._{number}.jpg').write_bytes(b'Mac OS X')
        label_map(maps / f'{number}.png', np.tile(np.arange(40) // 20, (24, 1)))
    for folder in ('images', 'masks'):
        (tmp_path / 'data' / folder / 'more').symlink_to(tmp_path / 'disk' / folder)
    data = find_data(tmp_path / 'data', tmp_path / 'out', val=0)
    assert (data.train.count, data.train.ann_file) == (4, '')
    assert data.notes == ['left out: 2 files of macOS (._*)']
    (tmp_path / 'disk/images/back').symlink_to(tmp_path / 'data')
    data = find_data(tmp_path / 'data', tmp_path / 'out', val=0)
    assert data.train.count == 4 and data.train.ann_file.endswith('train.txt')


class TestCocoTraps:
    @pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16', 'utf-16-le'])
    def test_files_that_pycocotools_cannot_read_are_written_anew(self, encoding, tmp_path):
        for part in ('train', 'val'):
            coco(tmp_path / f'{part}.json', names(3))
            for name in names(3):
                image(tmp_path / part / name)
        content = json.loads((tmp_path / 'val.json').read_text())
        (tmp_path / 'val.json').write_text(json.dumps(content), encoding=encoding)
        data = find_data(tmp_path, tmp_path / 'out')
        assert (read(data, 'val'), data.train.ann_file) == (content, str(tmp_path / 'train.json'))
        own = data.val.ann_file == str(tmp_path / 'out/data/val.json')
        assert own == (encoding != 'utf-8') == bool(data.notes)

    def test_boxes_that_the_evaluation_cannot_use_are_mended(self, tmp_path):
        for part in ('train', 'val'):
            coco(tmp_path / f'{part}.json', names(3))
            for name in names(3):
                image(tmp_path / part / name)
        content = json.loads((tmp_path / 'val.json').read_text())
        for box in content['annotations']:
            box['id'] -= 1
            del box['iscrowd']
        (tmp_path / 'val.json').write_text(json.dumps(content))
        data = find_data(tmp_path, tmp_path / 'out')
        assert [(box['id'], box['iscrowd']) for box in read(data, 'val')['annotations']] == [
            (1, 0), (2, 0), (3, 0),
        ]  # fmt: skip
        assert data.train.ann_file == str(tmp_path / 'train.json')
        assert len(data.notes) == 2 and data.notes[0].startswith('val part: 3 boxes had no')

    def test_categories_in_another_order_and_fewer(self, tmp_path):
        """MMDetection numbers classes by the order in each file: the validation part takes that of the training."""
        coco(tmp_path / 'train.json', names(4), categories=('cat', 'dog', 'cow'))
        coco(tmp_path / 'val.json', names(2, 4), categories=('dog', 'cat'))
        for name in names(6):
            image(tmp_path / name)
        data = find_data(tmp_path, tmp_path / 'out')
        assert data.classes == ('cat', 'dog') and data.train.ann_file == str(
            tmp_path / 'train.json'
        )
        written = json.loads(data.files[data.val.ann_file])
        assert [one['name'] for one in written['categories']] == ['cat', 'dog', 'cow']
        assert [box['category_id'] for box in written['annotations']] == [2, 1]

    def test_images_of_one_name_in_both_parts(self, tmp_path):
        for part in ('train', 'val'):
            coco(tmp_path / 'annotations' / f'{part}.json', names(2))
            for name in names(2):
                image(tmp_path / part / 'images' / name)
        data = find_data(tmp_path, tmp_path / 'out')
        assert data.val.images == str(tmp_path / 'val/images')

    def test_one_part_is_named_and_the_other_found(self, tmp_path):
        coco(tmp_path / 'a.json', names(2))
        coco(tmp_path / 'val.json', names(2))
        for name in names(2):
            image(tmp_path / name)
        data = find_data(tmp_path, tmp_path / 'out', train_ann='a.json')
        assert data.val.ann_file == str(tmp_path / 'val.json')
        data = find_data(tmp_path, tmp_path / 'out', val_ann='val.json')
        assert data.train.ann_file == str(tmp_path / 'a.json')
        (tmp_path / 'a.json').unlink()
        with pytest.raises(ValueError, match='no COCO file for training'):
            find_data(tmp_path, tmp_path / 'out', val_ann='val.json')

    def test_the_most_boxes_of_an_image(self, tmp_path):
        """Parts may number their images alike."""
        for part, count in (('train', 2), ('val', 3)):
            coco(tmp_path / f'{part}.json', names(count))
            content = json.loads((tmp_path / f'{part}.json').read_text())
            content['annotations'] += count * content['annotations'][:1]
            (tmp_path / f'{part}.json').write_text(json.dumps(content))
        for name in names(3):
            image(tmp_path / name)
        assert find_data(tmp_path, tmp_path / 'out').most == 4

    def test_what_a_fit_has_written_is_no_data(self, tmp_path):
        coco(tmp_path / 'all.json', names(4))
        for name in names(4):
            image(tmp_path / name)
        coco(tmp_path / 'run/data/train.json', names(4))
        (tmp_path / 'run/fit.py').touch()
        assert find_data(tmp_path, tmp_path / 'run').train.count == 3

    def test_entries_that_lack_a_key_and_categories_that_are_not_listed(self, tmp_path):
        coco(tmp_path / 'train.json', names(2), categories=('cat',))
        for name in names(2):
            image(tmp_path / name)
        with pytest.raises(ValueError, match=r'the training part does not list: category_id 2'):
            find_data(tmp_path, tmp_path / 'out')
        content = json.loads((tmp_path / 'train.json').read_text())
        del content['annotations'][1]['image_id']
        (tmp_path / 'train.json').write_text(json.dumps(content))
        with pytest.raises(
            ValueError,
            match=r"train\.json: an entry of 'annotations' lacks one of category_id, image_id",
        ):
            find_data(tmp_path, tmp_path / 'out')


def yolo(root, polygon=False):
    for part, found in (('train', names(3)), ('val', names(2, 3))):
        for number, name in enumerate(found):
            image(root / 'images' / part / name)
            x, y, width, height = BOX
            corners = [x, y, x + width, y, x + width, y + height]
            shares = [value / SIZE[i % 2] for i, value in enumerate(corners)]
            box = [(x + width / 2) / 40, (y + height / 2) / 24, width / 40, height / 24]
            label = root / 'labels' / part / name.replace('.jpg', '.txt')
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text(
                f'{number % 2} ' + ' '.join(map(repr, shares if polygon else box)) + '\n'
            )
    (root / 'data.yaml').write_text(
        'train: ../images/train\nval: images/val\nnames: {0: cat, 1: dog}\n'
    )


class TestYolo:
    @pytest.mark.parametrize('polygon', [False, True])
    def test_boxes_and_polygons(self, polygon, tmp_path):
        yolo(tmp_path, polygon)
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.format, data.task) == ('YOLO', 'instance' if polygon else 'detect')
        assert (data.classes, data.train.count, data.val.count) == (('cat', 'dog'), 3, 2)
        content = read(data)
        box = content['annotations'][1]
        np.testing.assert_allclose(box['bbox'], BOX, atol=1e-9)
        assert (content['images'][1]['width'], content['images'][1]['height']) == SIZE
        assert (box['image_id'], box['category_id']) == (content['images'][1]['id'], 2)
        width, height = BOX[2:]
        assert box['area'] == pytest.approx(width * height / (2 if polygon else 1)), 'a triangle'
        assert (tmp_path / content['images'][1]['file_name']).is_file()
        assert data.train.images == str(tmp_path)

    def test_classes_as_floats_after_a_byte_order_mark_and_a_box_beyond_the_image(self, tmp_path):
        yolo(tmp_path)
        (tmp_path / 'labels/train/1.txt').write_bytes(b'\xef\xbb\xbf1.0 0.5 0.5 1.5 0.1\r\n')
        assert read(find_data(tmp_path, tmp_path / 'out'))['annotations'][1]['category_id'] == 2

    def test_keypoints_are_refused(self, tmp_path):
        yolo(tmp_path)
        with open(tmp_path / 'data.yaml', 'a') as file:
            file.write('kpt_shape: [2, 3]\n')
        with pytest.raises(ValueError, match='is of keypoints'):
            find_data(tmp_path, tmp_path / 'out')

    @pytest.mark.parametrize('orientation', range(1, 9))
    def test_turned_photographs(self, orientation, tmp_path):
        yolo(tmp_path)
        turned = Image.Exif()
        turned[0x0112] = orientation
        Image.new('RGB', SIZE).save(tmp_path / 'images/train/0.jpg', exif=turned)
        entry = read(find_data(tmp_path, tmp_path / 'out'))['images'][0]
        assert (entry['width'], entry['height']) == SIZE[:: -1 if orientation > 4 else 1]

    def test_names_by_number_and_folders_seen_from_inside(self, tmp_path, monkeypatch):
        yolo(tmp_path)
        text = (tmp_path / 'data.yaml').read_text()
        (tmp_path / 'data.yaml').write_text(text.replace('{0: cat, 1: dog}', '{1: dog, 0: cat}'))
        monkeypatch.chdir(tmp_path)
        assert find_data('.', 'out').classes == ('cat', 'dog')
        (tmp_path / 'data.yaml').write_text(text.replace('{0: cat, 1: dog}', '{0: cat, 2: dog}'))
        with pytest.raises(ValueError, match='names must be a list, or numbers from 0'):
            find_data('.', 'out')

    def test_lists_of_images_and_a_validation_part_that_is_none(self, tmp_path):
        yolo(tmp_path)
        for folder, suffix in (('images', 'jpg'), ('labels', 'txt')):
            place = tmp_path / folder / 'train'
            (place / f'0.{suffix}').rename(place / f'a b.{suffix}')
        (tmp_path / 'list.txt').write_text('images/train/a b.jpg\nimages/train/1.jpg\n')
        (tmp_path / 'data.yaml').write_text('train: list.txt\nval: list.txt\nnames: [cat, dog]\n')
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.train.count, data.val.count) == (1, 1)
        assert 'no validation part' in data.notes[-1]

    @pytest.mark.parametrize('there', ['/home/other/project/images', 'C:\\\\project\\\\images'])
    def test_absolute_paths_of_another_machine(self, there, tmp_path):
        """As much of them as is here: another folder has the name of the last one."""
        yolo(tmp_path)
        (tmp_path / 'train').mkdir()
        (tmp_path / 'data.yaml').write_text(
            f'train: "{there}/train"\nval: val.txt\nnames: [cat, dog]\n'
        )
        slash = '/' if there[0] == '/' else '\\'
        lines = [f'{there}{slash}val{slash}{name}'.replace('\\\\', '\\') for name in names(2, 3)]
        (tmp_path / 'val.txt').write_text('\n'.join(lines))
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.train.count, data.val.count) == (3, 2)

    @pytest.mark.parametrize(
        ('line', 'message'),
        [
            ('2 0.5 0.5 0.1 0.1', 'line 1.*there are 2 names'),
            ('0 0.5 0.5 0.1', 'line 1.*a class and 4 numbers'),
            ('cat 0.5 0.5 0.1 0.1', "line 1: 'cat"),
            ('0 0.5 nan 0.1 0.1', 'line 1.*must be shares'),
            ('0 60 40 20 20', 'line 1.*must be shares of the width and height, 0 to 1, not pixels'),
            (
                '0 .5 .5 .1 2.1',
                'line 1.*must be shares of the width and height, 0 to 1, not pixels',
            ),
        ],
    )
    def test_lines_that_cannot_be_read(self, line, message, tmp_path):
        yolo(tmp_path)
        (tmp_path / 'labels/train/1.txt').write_text(line)
        with pytest.raises(ValueError, match=rf'1\.txt, {message}'):
            find_data(tmp_path, tmp_path / 'out')


def voc(root, text='<difficult>0</difficult>', count=4):
    for number in range(count):
        image(root / 'JPEGImages' / f'{number}.jpg')
        name = ('dog', 'cat')[number % 2]
        box = '<xmin>11</xmin><ymin>5</ymin><xmax>22</xmax><ymax>12</ymax>'
        path = root / 'Annotations' / f'{number}.xml'
        path.parent.mkdir(parents=True, exist_ok=True)
        found = f'<object><name>{name}</name>{text}<bndbox>{box}</bndbox></object>'
        path.write_text(f'<annotation><filename>{number}.jpg</filename>{found}</annotation>')


class TestVoc:
    def test_files_of_macos(self, tmp_path):
        voc(tmp_path)
        for name in ('JPEGImages/._0.jpg', 'Annotations/._0.xml', '._data.yaml', '._a.json'):
            (tmp_path / name).write_bytes(b'\0\5\x16\7')
        data = find_data(tmp_path, tmp_path / 'out', val=0)
        assert (data.train.count, data.notes) == (4, ['left out: 4 files of macOS (._*)'])

    def test_size_is_compared_with_the_image(self, tmp_path):
        def say(number, width, height):
            path = tmp_path / 'Annotations' / f'{number}.xml'
            size = f'<size><width>{width}</width><height>{height}</height></size>'
            path.write_text(re.sub('(<size>.*</size>)?</ann', f'{size}</ann', path.read_text()))

        voc(tmp_path)
        say(0, *SIZE)
        say(1, 0, 0)
        say(2, *SIZE)
        assert find_data(tmp_path, tmp_path / 'out', val=0).notes == []
        say(2, 80, 48)
        (note,) = find_data(tmp_path, tmp_path / 'out', val=0).notes
        assert note == (
            '1 images have another size than <size> in Annotations says: 2.jpg (40 x 24)'
        )
        say(3, 80, 48)
        with pytest.raises(ValueError, match='2 of 3 images have another size than <size>'):
            find_data(tmp_path, tmp_path / 'out')
        turned = Image.Exif()
        turned[0x0112] = 8
        Image.new('RGB', SIZE).save(tmp_path / 'JPEGImages/0.jpg', exif=turned)
        with pytest.raises(ValueError, match=r'1 images are turned by their EXIF data.*: 0\.jpg'):
            find_data(tmp_path, tmp_path / 'out')

    def test_names_with_spaces(self, tmp_path):
        voc(tmp_path)
        for place in ('JPEGImages/0.jpg', 'Annotations/0.xml'):
            path = tmp_path / place
            path.rename(path.with_name(f'my {path.name}'))
        path = tmp_path / 'Annotations/my 0.xml'
        path.write_text(path.read_text().replace('0.jpg', 'my 0.jpg'))
        (tmp_path / 'ImageSets/Main').mkdir(parents=True)
        (tmp_path / 'ImageSets/Main/train.txt').write_text('my 0\n1 1\n')
        (tmp_path / 'ImageSets/Main/val.txt').write_text('2  -1\n3 1\n')
        data = find_data(tmp_path, tmp_path / 'out')
        assert {entry['file_name'] for entry in read(data, 'train')['images']} == {
            'my 0.jpg',
            '1.jpg',
        }

    def test_boxes_begin_at_one(self, tmp_path):
        voc(tmp_path)
        sets = tmp_path / 'ImageSets/Main'
        sets.mkdir(parents=True)
        (sets / 'train.txt').write_text('0\n1 1\n')
        (sets / 'val.txt').write_text('2\n3\n')
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.format, data.task, data.classes) == ('Pascal VOC', 'detect', ('cat', 'dog'))
        assert (data.train.count, data.val.count) == (2, 2)
        content = read(data)
        assert content['annotations'][0]['bbox'] == BOX
        assert [box['category_id'] for box in content['annotations']] == [2, 1]
        assert data.train.images == str(tmp_path / 'JPEGImages')

    @pytest.mark.parametrize(
        ('files', 'train', 'val'),
        [
            (dict(trainval='012', test='345'), '012', None),
            (dict(trainval='012', val='2', test='345'), '01', '2'),
            (dict(val='2', test='345'), '01', '2'),
            (dict(train='0', trainval='012', test='345'), '0', None),
        ],
    )
    def test_images_of_the_test_part_are_left_out(self, files, train, val, tmp_path):
        voc(tmp_path, count=6)
        sets = tmp_path / 'ImageSets/Main'
        sets.mkdir(parents=True)
        for part, stems in files.items():
            (sets / f'{part}.txt').write_text('\n'.join(stems))
        data = find_data(tmp_path, tmp_path / 'out', **({} if val else dict(val=0)))
        found = {
            part: ''.join(sorted(one['file_name'][0] for one in read(data, part)['images']))
            for part in ('train', 'val')
            if getattr(data, part)
        }
        assert found == ({'train': train, 'val': val} if val else {'train': train})

    def test_difficult_boxes_are_crowds_and_parts_are_drawn(self, tmp_path):
        voc(tmp_path, '<difficult>1</difficult>')
        data = find_data(tmp_path, tmp_path / 'out', val=0.25)
        assert (data.train.count, data.val.count) == (3, 1)
        assert {box['iscrowd'] for box in read(data)['annotations']} == {1}

    @pytest.mark.parametrize(
        ('text', 'message'),
        [
            ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', 'document type'),
            ('<annotation/>'.encode('utf-16'), 'UTF-16'),
            ('<annotation><object><bndbox/></object></annotation>', r'0\.xml is not an annotation'),
            ('<annotation><object>', r'0\.xml is not an annotation'),
            (
                '<annotation><object><bndbox><xmin>a</xmin></bndbox></object></annotation>',
                r'0\.xml is not',
            ),
        ],
    )
    def test_files_that_cannot_be_read(self, text, message, tmp_path):
        voc(tmp_path)
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / 'Annotations/0.xml').write_bytes(content)
        with pytest.raises(ValueError, match=message):
            find_data(tmp_path, tmp_path / 'out')


LAYOUTS = {
    'images/{part}': 'annotations/{part}',
    '{part}/images': '{part}/masks',
}


class TestLabelMaps:
    def test_a_folder_without_maps_is_none_of_them(self, tmp_path):
        for number in range(4):
            image(tmp_path / 'images' / f'{number}.jpg', (3, 2))
            label_map(tmp_path / 'masks' / f'{number}.png', [[0, 1, 255], [255, 1, 2]])
        (tmp_path / 'annotations').mkdir()
        (tmp_path / 'annotations/labels.txt').write_text('a')
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.task, data.train.label_maps) == ('segment', str(tmp_path / 'masks'))

    @pytest.mark.parametrize(('images', 'maps'), LAYOUTS.items())
    def test_parts_by_their_folders(self, images, maps, tmp_path):
        for part, count in (('train', 3), ('valid', 2)):
            for number in range(count):
                image(tmp_path / images.format(part=part) / f'{number}.jpg', (3, 2))
                path = tmp_path / maps.format(part=part) / f'{number}_mask.png'
                label_map(path, [[0, 1, 255], [255, part == 'valid', 2]])
        data = find_data(tmp_path, tmp_path / 'out')
        assert (data.task, data.format, data.classes) == (
            'segment',
            'label maps',
            ('class 0', 'class 1', 'class 2'),
        )
        assert (data.train.count, data.val.count, data.files) == (3, 2, {})
        assert (data.img_suffix, data.map_suffix) == ('.jpg', '_mask.png')
        assert data.val.label_maps == str(tmp_path / maps.format(part='valid'))
        (tmp_path / 'classes.txt').write_text('sky\nroad\n\ntree\n')
        assert find_data(tmp_path, tmp_path / 'out').classes == ('sky', 'road', 'tree')
        assert find_data(tmp_path, tmp_path / 'out', classes=['a', 'b', 'c']).classes == (
            'a',
            'b',
            'c',
        )

    def test_without_parts_it_is_split(self, tmp_path):
        for number in range(6):
            image(tmp_path / 'images' / f'{number}.png', (3, 2))
            label_map(tmp_path / 'labels' / f'{number}.png', [[0, 1, 1], [0, 0, 0]])
        data = find_data(tmp_path, tmp_path / 'out', val=0.5)
        found = [text.split() for text in data.files.values()]
        assert sorted(found[0] + found[1]) == [str(number) for number in range(6)]
        assert data.train.ann_file.endswith('out/data/train.txt')
        assert data.train.images == data.val.images == str(tmp_path / 'images')

    def test_refused(self, tmp_path):
        for number in range(3):
            image(tmp_path / 'images' / f'{number}.png', (3, 2))
            label_map(tmp_path / 'masks' / f'{number}.png', [[0, 1, 1], [0, 0, 0]])
        image(tmp_path / 'images' / '3.png')
        with pytest.raises(ValueError, match=r'1 of 4 images .* no label map .*: 3$'):
            find_data(tmp_path, tmp_path / 'out')
        label_map(tmp_path / 'masks' / '3.png', [[[0, 1]]])
        with pytest.raises(ValueError, match=r'3\.png has 2 channels'):
            find_data(tmp_path, tmp_path / 'out')
        image(tmp_path / 'images' / '0.jpg')
        with pytest.raises(ValueError, match=r'several images of .*images are named 0, which'):
            find_data(tmp_path, tmp_path / 'out')


def test_masks_of_0_and_255_are_no_label_maps(tmp_path):
    for number in range(3):
        image(tmp_path / 'images' / f'{number}.png', (3, 2))
        label_map(tmp_path / 'masks' / f'{number}.png', [[0, 255, 255], [0, 0, 0]])
    with pytest.raises(ValueError, match=r'hold only the values \[0, 255\], and 255 is ignored'):
        find_data(tmp_path, tmp_path / 'out')


def test_values_of_more_than_8_bits(tmp_path):
    image(tmp_path / 'images' / '0.png', (3, 2))
    values = np.array([[0, 300, 1], [0, 0, 0]], np.uint16)
    (tmp_path / 'masks').mkdir()
    Image.fromarray(values).save(tmp_path / 'masks' / '0.png')
    with pytest.raises(ValueError, match=r'0\.png holds values above 255'):
        find_data(tmp_path, tmp_path / 'out')


def test_images_without_boxes_are_counted(tmp_path):
    coco(tmp_path / 'train.json', names(5))
    content = json.loads((tmp_path / 'train.json').read_text())
    content['annotations'] = content['annotations'][:2]
    (tmp_path / 'train.json').write_text(json.dumps(content))
    coco(tmp_path / 'val.json', names(2))
    for name in names(5):
        image(tmp_path / name)
    found = find_data(tmp_path, tmp_path / 'out')
    assert (found.train.count, found.train.empty, found.val.empty) == (5, 3, 0)
    assert 'no box: 3 images, trained on only with --negatives' in found.notes


def change(path, **changes):
    """Change a COCO file: for each list, a function gets each entry with its number."""
    content = json.loads(path.read_text())
    for section, function in changes.items():
        for number, entry in enumerate(content[section]):
            function(entry, number)
    path.write_text(json.dumps(content))


def own_coco(root, val=False):
    for part in ('train', 'val')[: 1 + val]:
        coco(root / f'{part}.json', names(8))
        for name in names(8):
            image(root / part / name)
    return root / 'train.json'


@pytest.mark.parametrize('val', [False, True])
def test_boxes_of_images_that_are_not_listed_are_left_out_with_a_note(val, tmp_path):
    path = own_coco(tmp_path, val)
    change(path, annotations=lambda box, number: number or box.update(image_id=99))
    data = find_data(tmp_path, tmp_path / 'out')
    told = 'train part: left out, 1 of 8 boxes are of an image that the file does not list: image_id 99, and the id of'
    assert any(note.startswith(told) for note in data.notes)
    change(path, images=lambda image, _: image.update(id=str(image['id'])))
    with pytest.raises(ValueError, match=r"the train part: 8 of 8 boxes .*first image is '"):
        find_data(tmp_path, tmp_path / 'out')


def test_areas_and_sizes_that_are_missing(tmp_path):
    path = own_coco(tmp_path)
    change(
        path,
        images=lambda image, number: number % 2 or image.pop('width'),
        annotations=lambda box, number: number % 2 or box.pop('area'),
    )
    data = find_data(tmp_path, tmp_path / 'out', val=0)
    assert "train part: 4 boxes had no 'area': it is that of the box" in data.notes
    content = read(data)
    assert {(entry['width'], entry['height']) for entry in content['images']} == {SIZE}
    assert {box['area'] for box in content['annotations']} == {BOX[2] * BOX[3]}


def test_what_is_wrong_in_a_coco_file_is_named(tmp_path):
    path = own_coco(tmp_path)
    change(path, annotations=lambda box, number: number or box.update(category_id=99))
    with pytest.raises(ValueError, match=r'does not list: category_id 99$'):
        find_data(tmp_path, tmp_path / 'out')
    change(
        path,
        annotations=lambda box, number: number or box.update(category_id=1, bbox=[1, 2.5, None]),
    )
    with pytest.raises(ValueError, match=r'must be four .* got \[1, 2\.5, None\]; its id is 1$'):
        find_data(tmp_path, tmp_path / 'out')


def test_a_json_that_is_nearly_a_coco_file_is_named(tmp_path):
    path = own_coco(tmp_path)
    content = json.loads(path.read_text())
    for lacking in ({**content, 'categories': []}, {**content, 'images': None}):
        path.write_text(json.dumps(lacking))
        with pytest.raises(
            ValueError, match=r'train\.json is no COCO file: \w+ must be lists that are'
        ):
            find_data(tmp_path, tmp_path / 'out')
    path.write_text('')
    with pytest.raises(ValueError, match=r'train\.json is empty'):
        find_data(tmp_path, tmp_path / 'out')


@pytest.mark.parametrize('kind', ['COCO', 'YOLO', 'label maps'])
def test_validation_images_that_are_trained_on(kind, tmp_path):
    if kind == 'COCO':
        for part, count in (('train', 4), ('val', 2)):
            coco(tmp_path / f'{part}.json', names(count))
        for name in names(4):
            image(tmp_path / 'images' / name)
    elif kind == 'YOLO':
        yolo(tmp_path)
        (tmp_path / 'data.yaml').write_text('train: images\nval: images/val\nnames: [cat, dog]\n')
    else:
        for part, count in (('train', 4), ('val', 2)):
            for name in names(count):
                image(tmp_path / 'all' / name)
                (tmp_path / 'images' / part).mkdir(parents=True, exist_ok=True)
                (tmp_path / 'images' / part / name).symlink_to(tmp_path / 'all' / name)
                label_map(tmp_path / 'masks' / part / name.replace('.jpg', '.png'), [[0, 1]])
    notes = find_data(tmp_path, tmp_path / 'out').notes
    assert '2 of 2 validation images are trained on too: scores say little' in notes


def test_pictures_of_an_earlier_fit_are_no_data(tmp_path, monkeypatch):
    for name in names(4):
        image(tmp_path / name)
        (tmp_path / name).with_suffix('.txt').write_text('0 0.5 0.5 0.2 0.2\n')
    (tmp_path / 'classes.txt').write_text('cat\n')
    for folder in ('fits/own', 'fits/own/pictures'):
        image(tmp_path / folder / 'training_batch.jpg')
    assert find_data(tmp_path, tmp_path / 'out', val=0).train.count == 6
    (tmp_path / 'fits/own/fit.py').touch()
    for root in (tmp_path, '.'):
        monkeypatch.chdir(tmp_path)
        assert find_data(root, tmp_path / 'out', val=0).train.count == 4


def test_images_of_too_many_pixels_are_named(tmp_path, monkeypatch):
    image(tmp_path / 'images' / '0.jpg')
    label_map(tmp_path / 'masks' / '0.png', [[0, 1]] * 9)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 5)
    with pytest.raises(ValueError, match=r'0\.png cannot be read: .*exceeds limit'):
        find_data(tmp_path, tmp_path / 'out')


def test_a_part_that_is_drawn_has_boxes(tmp_path):
    coco(tmp_path / 'train.json', names(5), boxes=False)
    content = json.loads((tmp_path / 'train.json').read_text())
    box = dict(id=1, image_id=0, category_id=1, bbox=BOX, area=96.0, iscrowd=0)
    (tmp_path / 'train.json').write_text(json.dumps({**content, 'annotations': [box]}))
    for name in names(5):
        image(tmp_path / name)
    with pytest.raises(ValueError, match=r'the \w+ part that --seed 0 draws has no box'):
        find_data(tmp_path, tmp_path / 'out')


def test_names_of_categories_are_texts(tmp_path):
    coco(tmp_path / 'train.json', names(2))
    content = json.loads((tmp_path / 'train.json').read_text())
    content['categories'][0]['name'] = 7
    (tmp_path / 'train.json').write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r'the name of a category must be a text.*7'):
        find_data(tmp_path, tmp_path / 'out')


def test_folders_without_data(tmp_path):
    with pytest.raises(ValueError, match='there is no folder'):
        find_data(tmp_path / 'none', tmp_path / 'out')
    image(tmp_path / 'a.jpg')
    with pytest.raises(ValueError, match=r'no data of a known format: COCO.*YOLO.*VOC.*label maps'):
        find_data(tmp_path, tmp_path / 'out')
    voc(tmp_path, count=1)
    with pytest.raises(ValueError, match='1 image: too few'):
        find_data(tmp_path, tmp_path / 'out')
    coco(tmp_path / 'train.json', ['a.jpg'])
    with pytest.raises(
        ValueError, match=r'several formats: COCO, Pascal VOC; choose by --task or --train-ann'
    ):
        find_data(tmp_path, tmp_path / 'out')
    assert find_data(tmp_path, tmp_path / 'out', train_ann='train.json', val=0).format == 'COCO'


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(task='instance'), r'--task instance needs masks, and 2 of 2 boxes'),
        (dict(task='segment'), r'--task segment does not fit the data .*: COCO'),
        (dict(task='segment', train_ann='train.json'), '--train-ann and --val-ann name COCO files'),
        (dict(val=1.0), '--val'),
        (dict(classes=['a']), '--classes is for label maps'),
        (dict(train_ann='other.json'), "--train-ann: 'other.json' is not a COCO file"),
    ],
)
def test_options_that_do_not_fit(options, message, tmp_path):
    coco(tmp_path / 'train.json', names(2))
    for name in names(2):
        image(tmp_path / name)
    with pytest.raises(ValueError, match=message):
        find_data(tmp_path, tmp_path / 'out', **options)


def test_images_that_are_missing(tmp_path):
    coco(tmp_path / 'train.json', names(3))
    with pytest.raises(ValueError, match=r"names '0\.jpg', which is in no folder"):
        find_data(tmp_path, tmp_path / 'out')
    image(tmp_path / '0.jpg')
    with pytest.raises(ValueError, match=r'2 of 3 images .* are not in .*: 1\.jpg, 2\.jpg'):
        find_data(tmp_path, tmp_path / 'out')


def test_pycocotools_reads_what_is_written(tmp_path):
    voc(tmp_path)
    data = find_data(tmp_path, tmp_path / 'out')
    for path, text in data.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert len(COCO(data.train.ann_file).getAnnIds()) == data.train.count


def test_the_page_and_the_help_name_all_formats(capsys, monkeypatch):
    """Both are made from FORMATS."""
    rows = ['| format | recognised by | task |', '|---|---|---|']
    for name, form in FORMATS.items():
        tasks = ', or '.join(f'`{task}`' for task in form.tasks)
        rows.append(f'| {name} | {form.known_by} | {tasks} |')
    assert '\n'.join(rows) in (REPO / 'docs' / 'fit.md').read_text(encoding='utf-8')
    monkeypatch.setattr('sys.argv', ['fit', '--help'])
    with pytest.raises(SystemExit):
        runpy.run_path(str(REPO / 'tools' / 'fit.py'), run_name='__main__')
    text = ' '.join(capsys.readouterr().out.split())
    assert all(name in text for name in FORMATS)

"""Strange data: ``find_data`` ends soon, in one line that names the file, or leaves the file out and says so."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from own_data import BOX, coco, image, label_map, names
from PIL import Image

from mmlape.apps.fit import Part, find_data, truths

pytestmark = pytest.mark.timeout(60)  # what hangs fails
MANY = 70_000  # classes: two seconds; a minute if each is looked for in a list


def refused(root, **options):
    """The message with which the data of a folder are refused."""
    with pytest.raises(ValueError, match=r'\w') as caught:
        find_data(root, root / 'out', **options)
    text = str(caught.value)
    assert type(caught.value) is ValueError and '\n' not in text and len(text) < 1500, text
    text.encode()
    return text


def with_coco(root, change=lambda content: None):
    coco(root / 'train.json', names(3), masks=True)
    for name in names(3):
        image(root / name)
    content = json.loads((root / 'train.json').read_text())
    change(content)
    (root / 'train.json').write_text(json.dumps(content))


def with_yolo(root, labels='0 0.5 0.5 0.1 0.1\n', yaml='train: images\nnames: [cat, dog]\n'):
    for name in names(3):
        image(root / 'images' / name)
        path = root / 'labels' / name.replace('.jpg', '.txt')
        path.parent.mkdir(exist_ok=True)
        path.write_text(labels)
    (root / 'data.yaml').write_bytes(yaml if isinstance(yaml, bytes) else yaml.encode())


def with_voc(root, name='cat', box=(11, 5, 22, 12), head=''):
    corners = zip(('xmin', 'ymin', 'xmax', 'ymax'), box, strict=True)
    found = ''.join(f'<{tag}>{value}</{tag}>' for tag, value in corners)
    for number in range(3):
        image(root / 'JPEGImages' / f'{number}.jpg')
        path = root / 'Annotations' / f'{number}.xml'
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'{head}<annotation><object><name>{name}</name><bndbox>{found}</bndbox></object></annotation>'
        )


def with_maps(root, values=((0, 1), (1, 0))):
    for number in range(3):
        image(root / 'images' / f'{number}.jpg', (2, 2))
        label_map(root / 'masks' / f'{number}.png', values)


def pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def first(section, **values):
    return lambda content: content[section][0].update(values)


def set_bytes(name, content):
    return lambda root: (root / name).write_bytes(content)


def at(kind, change):
    """A folder of a format with one thing that is strange."""

    def make(root):
        kind(root)
        change(root)

    return make


def renamed(name):
    """Label maps, of which the second image has this name."""

    def make(root):
        with_maps(root)
        for folder, suffix in (('images', '.jpg'), ('masks', '.png')):
            (root / folder / f'1{suffix}').rename(root / folder / (name + suffix))

    return make


def folders_as_maps(root):
    with_maps(root)
    for path in (root / 'masks').iterdir():
        path.unlink()
        path.mkdir()


def with_list(root):
    (root / 'ImageSets/Main').mkdir(parents=True)
    (root / 'ImageSets/Main/train.txt').write_bytes(b'\xe9\n')


def fractions(root):
    Image.fromarray(np.full((2, 2), 0.5, np.float32)).save(root / 'masks/1.png', 'TIFF')


def of_coco(change):
    return lambda root: with_coco(root, change)


def of_yolo(**options):
    return lambda root: with_yolo(root, **options)


def bomb(key):
    rows = [f'a0: &a0 [{", ".join(["x"] * 9)}]'] + [
        f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 9)}]' for n in range(1, 20)
    ]
    rest = {'names': 'train: images', 'train': 'names: [cat, dog]'}[key]
    return '\n'.join([*rows, f'{key}: *a19', rest])


MERGED = (
    'a0: &a0 {k: v}\n'
    + ''.join(f'a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n' for n in range(1, 40))
    + 'names: [cat, dog]\ntrain: images\n'
)
REFUSED = {
    'a pipe as the only file of COCO': (
        lambda root: os.mkfifo(root / 'train.json'),
        r'no data of a known format.*train\.json cannot be read: it is a named pipe',
    ),
    'a device as the only file of COCO': (
        lambda root: link(root / 'train.json', '/dev/zero'),
        r'train\.json cannot be read: it is a device, and must be a regular file',
    ),
    'lists that are too deep': (
        set_bytes('train.json', b'{"images": ' + b'[' * 200_000),
        r'train\.json is not an annotation file: its lists are too deep',
    ),
    'JSON that ends early': (set_bytes('a.json', b'{"images": ['), r'a\.json is not JSON: '),
    'JSON in Latin-1': (
        set_bytes('a.json', b'{"images": "\xe9"}'),
        r'a\.json is not JSON: it is not UTF-8',
    ),
    'a number as the first box': (
        of_coco(lambda c: c['annotations'].insert(0, 7)),
        r"train\.json: an entry of 'annotations' lacks one of category_id, image_id: it has 7",
    ),
    'a list as an id': (
        of_coco(first('images', id=[1])),
        r"'id' of an entry of 'images' must be an integer or a text",
    ),
    'True as an id': (
        of_coco(first('categories', id=True)),
        r"'id' of an entry of 'categories' must .* got True",
    ),
    'a dict as the category of a box': (
        of_coco(first('annotations', category_id={})),
        r"'category_id' of an entry of 'annotations' must be an integer",
    ),
    'an infinite id': (of_coco(first('annotations', image_id=1e999)), r"'image_id' .* got inf"),
    'an id of 400 digits': (
        of_coco(first('annotations', image_id=10**400)),
        'got an integer of 1329 bits',
    ),
    'a coordinate of 400 digits': (
        of_coco(first('annotations', bbox=[10**400, 0, 1, 1])),
        r"train\.json: 'bbox' of an entry of 'annotations' must be four finite numbers",
    ),
    'an infinite box': (
        of_coco(first('annotations', bbox=[0, 0, 1e999, 1])),
        "'bbox' .* four finite numbers",
    ),
    'a list as the name of an image': (
        of_coco(first('images', file_name=['0.jpg'])),
        "'file_name' .* must be a text",
    ),
    'an image without a name': (
        of_coco(first('images', file_name='')),
        "'file_name' .* must be a text, got ''",
    ),
    'the name of an image that is too long': (
        of_coco(first('images', file_name='x' * 5000)),
        r"train\.json names 'x{80}'\.\.\., which is in no folder",
    ),
    'an image without pixels': (
        of_coco(first('images', width=0)),
        "'width' of .* an integer above 0, got 0",
    ),
    'a surrogate in a name': (
        of_coco(first('categories', name='\ud800')),
        r"must have no control.*got '\\ud800'",
    ),
    'a line break in a name': (
        of_coco(first('categories', name='a\nb')),
        r"no control character, line break",
    ),
    'an empty name': (
        of_coco(first('categories', name=' ')),
        r"must have 1 to 1000 characters, got ' '",
    ),
    'a huge name': (
        of_coco(first('categories', name='x' * 10**6)),
        r"must have 1 to 1000 characters, got 'x{80}'\.\.\.",
    ),
    'aliases in names': (
        of_yolo(yaml=bomb('names')),
        r'data\.yaml cannot be read: more than 50 levels .*aliases',
    ),
    'aliases in train': (
        of_yolo(yaml=bomb('train')),
        r'data\.yaml cannot be read: more than 50 levels .*aliases',
    ),
    'merged aliases': (
        of_yolo(yaml=MERGED),
        r'data\.yaml cannot be read: more than 50 levels .*aliases',
    ),
    'a list inside of itself': (
        of_yolo(yaml='names: &a [*a]\ntrain: images\n'),
        'values with those of aliases',
    ),
    'YAML that is too deep': (
        of_yolo(yaml='names: [cat]\ntrain: ' + '[' * 5000 + ']' * 5000),
        r'data\.yaml cannot be read: more than 50 levels',
    ),
    'YAML in Latin-1': (
        of_yolo(yaml='train: images\nnames: [café]\n'.encode('latin-1')),
        r'data\.yaml is not UTF-8 \(byte 25\)',
    ),
    'a date that is none': (
        of_yolo(yaml='train: images\nnames: [2001-99-99]\n'),
        r'data\.yaml cannot be read: month must',
    ),
    'lists as names': (
        of_yolo(yaml='train: images\nnames: [cat, [dog]]\n'),
        r"must be a text, got <class 'list'>",
    ),
    'a name that is none': (
        of_yolo(yaml='train: images\nnames: [cat, null]\n'),
        r'must be a text, got None',
    ),
    'a number for train': (
        of_yolo(yaml='train: 7\nnames: [cat]\n'),
        r'path must be a folder, train a folder or file',
    ),
    'the whole disk for train': (
        of_yolo(yaml='train: /\nnames: [cat]\n'),
        "names '/', which is not below the folder",
    ),
    'a place that is too long': (
        of_yolo(yaml=f'train: {"x" * 300}\nnames: [cat]\n'),
        r"there is no 'x{80}'\.\.\.",
    ),
    'a pipe as data.yaml': (
        at(with_yolo, lambda root: pipe(root / 'data.yaml')),
        r'data\.yaml cannot be read: it is a named pipe',
    ),
    'a pipe as a label file': (
        at(with_yolo, lambda root: pipe(root / 'labels/1.txt')),
        r'1\.txt cannot be read: it is a named pipe',
    ),
    'a pipe as an image': (
        at(with_yolo, lambda root: pipe(root / 'images/1.jpg')),
        r'1\.jpg cannot be read: it is a named pipe',
    ),
    'a device as a list of images': (
        at(
            of_yolo(yaml='train: list.txt\nnames: [cat, dog]\n'),
            lambda root: link(root / 'list.txt', '/dev/zero'),
        ),
        r'list\.txt cannot be read: it is a device',
    ),
    'a label file in UTF-16': (
        at(with_yolo, set_bytes('labels/1.txt', '0 0.5 0.5 0.1 0.1'.encode('utf-16'))),
        r'1\.txt is not UTF-8 .*UTF-16',
    ),
    'a huge share': (
        of_yolo(labels='0 1e307 0.5 0.1 0.1\n'),
        r'line 1: .* must be shares of the width and height, 0 to 1, not pixels',
    ),
    'an unknown encoding': (
        lambda root: with_voc(root, head='<?xml version="1.0" encoding="x-unknown"?>'),
        r'\.xml is not an annotation of Pascal VOC',
    ),
    'huge corners': (lambda root: with_voc(root, box=(1, 1, '1e300', 9)), 'four finite numbers'),
    'a control character in XML': (
        lambda root: with_voc(root, name='a&#133;b'),
        r"\.xml: the name of a class must have no control",
    ),
    'a pipe as XML': (
        at(with_voc, lambda root: pipe(root / 'Annotations/1.xml')),
        r'1\.xml cannot be read: it is a named pipe',
    ),
    'a list of a part in Latin-1': (
        at(with_voc, with_list),
        r'train\.txt is not UTF-8',
    ),
    'a device as classes.txt': (
        at(with_maps, lambda root: link(root / 'classes.txt', '/dev/zero')),
        r'classes\.txt cannot be read: it is a device',
    ),
    'a pipe as classes.txt': (
        at(with_maps, lambda root: pipe(root / 'classes.txt')),
        r'classes\.txt cannot be read: it is a named',
    ),
    'classes.txt in UTF-16': (
        at(with_maps, set_bytes('classes.txt', 'sky\nroad'.encode('utf-16'))),
        r'classes\.txt is not UTF-8 .*looks like UTF-16: save it as',
    ),
    'classes.txt in Latin-1': (
        at(with_maps, set_bytes('classes.txt', b'sky\ncaf\xe9')),
        r'classes\.txt is not UTF-8 \(byte 7\)',
    ),
    'classes.txt with zero bytes': (
        at(with_maps, set_bytes('classes.txt', b'a\0b\nc')),
        'must have no control character',
    ),
    'a pipe as an image of label maps': (
        at(with_maps, lambda root: pipe(root / 'images/1.jpg')),
        r'1\.jpg cannot be read: it is a named',
    ),
    'folders that are images': (
        folders_as_maps,
        'no data of a known format',
    ),
    'a label map of fractions': (
        at(with_maps, fractions),
        r'1\.png holds values that are not an index',
    ),
    'a line break in the name of an image': (
        renamed('a\nb'),
        r'without line breaks and spaces around them: rename a\\nb',
    ),
    'the name of an image that is not UTF-8': (
        renamed('\udcff'),
        r'names of images in lists must be UTF-8.*rename \\udcff',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_refused_in_one_line(case, tmp_path):
    make, message = REFUSED[case]
    make(tmp_path)
    assert re.search(message, text := refused(tmp_path)), text


LEFT_OUT = {
    'a pipe beside the data': (lambda root: os.mkfifo(root / 'notes.json'), 'notes.json cannot be read'),
    'a link to nothing': (lambda root: link(root / 'notes.yaml', 'nothing'), 'notes.yaml cannot be read: it is a link'),
    'folders in a circle': (lambda root: link(root / 'deeper', '.'), None),
    'a link to itself': (lambda root: link(root / 'x.json', 'x.json'), 'x.json cannot be read: Too many levels'),
    'YAML of aliases': (lambda root: (root / 'b.yaml').write_text(bomb('names')), 'b.yaml cannot be read: more than'),
}  # fmt: skip


@pytest.mark.parametrize('case', LEFT_OUT)
def test_left_out_and_named(case, tmp_path):
    make, note = LEFT_OUT[case]
    with_coco(tmp_path)
    make(tmp_path)
    data = find_data(tmp_path, tmp_path / 'out')
    left = [text for text in data.notes if text.startswith('left out: ')]
    assert data.format == 'COCO' and len(left) == (note is not None)
    assert not note or note in left[0]


def test_named_annotations_that_are_strange(tmp_path):
    with_coco(tmp_path)
    pipe(tmp_path / 'a.json')
    assert 'a.json cannot be read: it is a named pipe' in refused(tmp_path, train_ann='a.json')
    assert 'is not a COCO file' in refused(tmp_path, train_ann='x' * 300)
    assert "'a\\x00b'" in refused(tmp_path, train_ann='a\0b')
    assert 'there is no folder' in refused(tmp_path / ('x' * 300))
    assert '--classes: the name of a class must have' in _classes_refused(tmp_path / 'maps')


def _classes_refused(root):
    with_maps(root)
    return refused(root, classes=['a', 'b\nc'])


def test_text_encodings_that_are_read(tmp_path):
    with_maps(tmp_path)
    (tmp_path / 'classes.txt').write_bytes('\ufeffciel\r\nforêt\r\n'.encode())
    assert find_data(tmp_path, tmp_path / 'out').classes == ('ciel', 'forêt')
    (tmp_path / 'classes.txt').write_text('zero\u200dwidth\nnon\u00a0breaking')
    assert find_data(tmp_path, tmp_path / 'out').classes == ('zero\u200dwidth', 'non\u00a0breaking')


def test_aliases_of_real_data_are_read(tmp_path):
    with_yolo(tmp_path, yaml='train: &t [images]\nval: *t\nnames: {0: &n cat, 1: no, 2: 7}\n')
    data = find_data(tmp_path, tmp_path / 'out')
    assert (data.classes, data.train.count) == (('cat',), 2)


def test_integral_floats_and_texts_are_ids(tmp_path):
    with_coco(tmp_path, lambda c: (first('images', id='a')(c), first('categories', id=1.0)(c)))
    assert find_data(tmp_path, tmp_path / 'out', val=0).train.count == 3


@pytest.mark.timeout(25)
@pytest.mark.parametrize('kind', ['COCO', 'YOLO', 'Pascal VOC', 'label maps'])
def test_many_classes(kind, tmp_path):
    all_names = [f'class {number:05}' for number in range(MANY)]
    if kind == 'COCO':
        with_coco(tmp_path)
        content = json.loads((tmp_path / 'train.json').read_text())
        content['categories'] = [dict(id=n, name=name) for n, name in enumerate(all_names)]
        box = content['annotations'][0]
        content['annotations'] = [dict(box, id=n, category_id=n) for n in range(MANY)]
        (tmp_path / 'train.json').write_text(json.dumps(content))
    elif kind == 'YOLO':
        yaml = 'train: images\nnames:\n' + ''.join(f'- {name}\n' for name in all_names)
        with_yolo(tmp_path, yaml=yaml)
        lines = ''.join(f'{number} 0.5 0.5 0.1 0.1\n' for number in range(MANY))
        (tmp_path / 'labels/1.txt').write_text(lines)
    elif kind == 'Pascal VOC':
        with_voc(tmp_path)
        path = tmp_path / 'Annotations/1.xml'
        whole = path.read_text().removeprefix('<annotation>').removesuffix('</annotation>')
        found = ''.join(whole.replace('cat', name) for name in all_names)
        path.write_text(f'<annotation>{found}</annotation>')
    else:
        with_maps(tmp_path)
        (tmp_path / 'classes.txt').write_text('\n'.join(all_names))
        assert 'values [0, 1]: never there is class 00002, ' in refused(tmp_path)
        return
    data = find_data(tmp_path, tmp_path / 'out', val=0)
    assert data.format == kind and set(all_names) <= set(data.classes)


def test_truth_of_many_classes(tmp_path):
    """The report's ground truth; pycocotools would go through all categories for each class."""
    with_coco(tmp_path)
    content = json.loads((tmp_path / 'train.json').read_text())
    content['categories'] = [dict(id=n, name=f'class {n}') for n in range(MANY)]
    content['annotations'] = [dict(content['annotations'][0], category_id=MANY - 1, bbox=BOX)]
    (tmp_path / 'train.json').write_text(json.dumps(content))
    classes = tuple(f'class {n}' for n in range(MANY))
    model, part = (
        SimpleNamespace(classes=classes, palette=None),
        Part(str(tmp_path), str(tmp_path / 'train.json'), 3),
    )
    found = list(truths(model, SimpleNamespace(task='detect'), part))
    assert [each.labels.tolist() for each in found] == [[MANY - 1], [], []]


def test_a_dry_run_ends_in_one_line(commands, tmp_path):
    pipe(tmp_path / 'train.json')
    end = commands.refused('fit.py', str(tmp_path), '--dry-run')
    assert end.startswith('error: ') and '\n' not in end and 'train.json cannot be read' in end
    assert not Path('fits').exists()

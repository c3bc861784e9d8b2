"""Strange images and sources: each ends soon, in one line that names it, or is predicted."""

import csv
import io
import json
import os
import struct
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from frozen.work_dirs import restore

import mmlape
from mmlape.apps.inference import Result, read_image
from mmlape.apps.inference.output import PredictionWriter
from mmlape.apps.inference.sources import Source, find_sources
from mmlape.apps.inference.tiles import input_side

pytestmark = pytest.mark.timeout(60)  # what hangs fails


@pytest.fixture(scope='module')
def checkpoints(tmp_path_factory):
    return {name: restore(name, tmp_path_factory.mktemp(name))[1] for name in ('mmseg', 'demo')}


@pytest.fixture(scope='module')
def models(checkpoints):
    return {name: mmlape.load(checkpoint) for name, checkpoint in checkpoints.items()}


def write(path, height=40, width=64):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode('.png', np.full((height, width, 3), 90, np.uint8))[1].tobytes())


def png(width, height):
    """The header of an image, with few pixels behind it."""
    head = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
    parts = ((b'IHDR', head), (b'IDAT', zlib.compress(bytes(100))), (b'IEND', b''))
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        for kind, data in parts
    )


UNREADABLE = {
    'a pipe': (os.mkfifo, 'it is a named pipe, and must be a regular file'),
    'a device': (
        lambda path: path.symlink_to('/dev/zero'),
        'it is a device, and must be a regular',
    ),
    'a link to nothing': (lambda path: path.symlink_to('nothing'), 'it is a link to nothing'),
    'a link to itself': (lambda path: path.symlink_to(path), 'Too many levels of symbolic links'),
    'a folder': (Path.mkdir, 'it is a folder, and must be a regular file'),
    'nothing': (Path.touch, 'it is empty'),
    'too many pixels': (
        lambda path: path.write_bytes(png(60000, 60000)),
        'it has more pixels than OpenCV decodes',
    ),
    'more bytes than memory': (lambda path: os.truncate(path, 2**43), 'GB of memory are free'),
}


def make(case, path):
    if 'bytes' in case:
        path.touch()
    UNREADABLE[case][0](path)


@pytest.mark.parametrize('case', UNREADABLE)
def test_files_that_are_no_images(case, models, tmp_path):
    path = tmp_path / 'x\ny.png'
    make(case, path)
    for read in (read_image, lambda path: next(models['demo'].predict(path))):
        with pytest.raises(ValueError, match='cannot be read') as caught:
            read(path)
        text = str(caught.value)
        assert text.startswith(f'{tmp_path}/x\\ny.png cannot be read: ') and '\n' not in text
        assert UNREADABLE[case][1] in text


def test_names_that_no_file_can_have():
    for name, message in (
        ('x' * 5000, 'File name too long'),
        ('a\0b', 'embedded null '),
        ('\ud800', 'codec'),
    ):
        with pytest.raises(ValueError, match=f'cannot be read: .*{message}') as caught:
            read_image(name)
        str(caught.value).encode()


def test_all_bad_sources_of_a_folder_are_named(commands, checkpoints, tmp_path):
    shots = tmp_path / 'shots'
    write(shots / '1.png')
    cases = [case for case in UNREADABLE if case != 'a folder']
    for number, case in enumerate(cases, 2):
        make(case, shots / f'{number}.png')
    os.mkfifo(shots / 'x.mp4')
    (shots / 'folder.png').mkdir()
    (shots / 'deeper').symlink_to(shots)
    write(shots / 'last.png')
    end = commands.refused('predict.py', checkpoints['demo'], 'shots', '--json', '--no-pictures')
    count = len(cases) + 1
    assert (
        end.startswith(f'error: {count} of the sources could not be predicted: ')
        and '\n' not in end
    )
    assert end.count(' cannot be read: ') == count and 'shots/x.mp4 cannot be read: it is' in end
    content = json.loads((tmp_path / 'predictions/predictions.json').read_text())
    found = [entry['file_name'] for entry in content['images']]
    assert found == ['shots/1.png', 'shots/last.png']


@pytest.mark.parametrize('source', ['/dev/zero', 'x.png'])
def test_a_source_that_has_no_end(source, commands, checkpoints, tmp_path):
    os.mkfifo(tmp_path / 'x.png')
    end = commands.refused('predict.py', checkpoints['demo'], source)
    assert end.startswith(
        f'error: 1 of the sources could not be predicted: {source} cannot be read'
    )


def test_sources_that_nobody_has(tmp_path, monkeypatch):
    for name in ('x' * 5000, 'a\0b'):
        with pytest.raises(ValueError, match='neither a file nor a folder') as caught:
            find_sources([name])
        assert len(str(caught.value)) < 200
    for text, message in (('x' * 10**6, 'must hold a name per line'), ('\0\n', 'neither a file')):
        monkeypatch.setattr(sys, 'stdin', io.StringIO(text))
        with pytest.raises(ValueError, match=message):
            find_sources(['-'])
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(b'\xff.png\n'), 'utf-8'))
    with pytest.raises(ValueError, match='names in the standard input must be UTF-8'):
        find_sources(['-'])


@pytest.mark.parametrize('name', ['demo', 'mmseg'])
@pytest.mark.parametrize('shape', [(2, 30000), (30000, 2), (1, 3000)])
def test_strips(name, shape, models, tmp_path):
    model, strip = models[name], np.full((*shape, 3), 90, np.uint8)
    height, width = shape
    for options in ({}, dict(tile=30000)):
        with pytest.raises(ValueError, match='cannot be resized by the test pipeline') as caught:
            list(model.predict([('a\nb', strip)], **options))
        text = str(caught.value)
        assert '\n' not in text and f'{width} x {height} pixels' in text and '--tile SIDE' in text
        assert options or text.startswith('a\\nb: ')
    (found,) = model.predict(strip[:300, :300], tile=64, score=0.0)
    found.save(tmp_path / 'x.jpg')
    assert (tmp_path / 'x.jpg').stat().st_size


def test_a_strip_is_named_at_the_end_and_others_are_predicted(commands, checkpoints, tmp_path):
    write(tmp_path / 'shots/1.png')
    write(tmp_path / 'shots/2.png', 2, 30000)
    write(tmp_path / 'shots/3.png')
    end = commands.refused('predict.py', checkpoints['mmseg'], 'shots', '--batch', 3)
    words = (
        'error: 1 of the sources could not be predicted: shots/2.png: 30000 x 2 pixels cannot be'
    )
    assert end.startswith(words) and '\n' not in end
    found = sorted(path.name for path in (tmp_path / 'predictions/label_maps').iterdir())
    assert found == ['1.png', '3.png']


@pytest.mark.parametrize('name', ['demo', 'mmseg'])
def test_images_of_one_pixel_and_of_none(name, models, tmp_path):
    for tile in (None, 32):
        (found,) = models[name].predict(np.zeros((1, 1, 3), np.uint8), score=0.0, tile=tile)
        found.save(tmp_path / 'x.png')
        assert found.image.shape == (1, 1, 3)
    for shape in ((0, 5, 3), (5, 0, 3)):
        with pytest.raises(TypeError, match='not empty, got uint8'):
            list(models[name].predict(np.zeros(shape, np.uint8)))


@pytest.mark.parametrize('mode', ['whole', 'slide'])
def test_scores_that_do_not_fit_into_memory(mode, models, monkeypatch):
    """Refused before the pass; images that the pipeline shrinks too, as their scores are enlarged again."""
    model, image = models['mmseg'], np.full((100, 110, 3), 90, np.uint8)
    test_cfg = model._inferencer.cfg.model.test_cfg | dict(mode=mode)
    monkeypatch.setitem(model._inferencer.cfg.model, 'test_cfg', test_cfg)
    monkeypatch.setattr('mmlape.apps.inference.model._MANY_PIXELS', 1000)
    need = 4 * 100 * 110 * len(model.classes)
    monkeypatch.setattr('mmlape.apps.inference.model.available_memory', lambda: 2 * need - 1)
    monkeypatch.setattr(model._inferencer, 'forward', None)
    with pytest.raises(ValueError, match='GB are free') as caught:
        list(model.predict([('a.png', image)] * 2, batch=2))
    text = f"a.png: 110 x 100 pixels are computed at once (model.test_cfg.mode='{mode}'), which"
    tiles = f'use tiles (--tile {input_side(model.cfg)}'
    assert str(caught.value).startswith(text) and tiles in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr('mmlape.apps.inference.model._MANY_PIXELS', 1000)
    monkeypatch.setattr('mmlape.apps.inference.model.available_memory', lambda: need)
    (found,) = model.predict(image)
    assert found.label_map.shape == (100, 110)


@pytest.mark.parametrize('suffix', ['.png', '.mp4'])
def test_long_names_of_output(suffix, tmp_path, monkeypatch):
    """Names of files may have 255 bytes; pictures, frames and drafts of atomic writes append to them."""
    monkeypatch.chdir(tmp_path)
    names = ['é' * 125, 'é' * 124 + 'x', 'x' * 251, 'short']
    for name in names:
        write(tmp_path / 'shots' / ('deep' * 50) / (name + suffix))
    sources = find_sources(['shots'])
    writer = PredictionWriter(Path('out'), ('a',), True, True, True)
    for source in sources:
        # Not a video: the name of a frame is what is tried.
        result = Result(np.zeros((8, 8, 3), np.uint8), 'x', ('a',), label_map=np.zeros((8, 8), int))
        writer.pictures = not source.is_video
        writer.add(source, 7, result)
    writer.close()
    written = [path.name for path in Path('out/label_maps').rglob('*.png')]
    assert len({*written}) == len(names) and any(name.startswith('short') for name in written)
    assert len({source.name for source in sources}) == len(names)


def test_names_that_are_not_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ['a\nb.png', '\udcff.png', 'a,"b.png']
    for name in names:
        write(tmp_path / 'shots' / name)
    sources = find_sources(['shots'])
    writer = PredictionWriter(Path('out'), ('a',), True, True, True)
    for source in sources:
        result = Result(next(source.frames()), 'x', ('a',))
        result.boxes, result.scores, result.labels = np.ones((1, 4)), np.ones(1), np.zeros(1, int)
        writer.add(source, 0, result)
    writer.close()
    with open(
        'out/predictions.csv', encoding='utf-8', errors='surrogateescape', newline=''
    ) as file:
        rows = [row['file'] for row in csv.DictReader(file)]
    content = json.loads(Path('out/predictions.json').read_text())
    found = [entry['file_name'] for entry in content['images']]
    assert sorted(rows) == sorted(found) == sorted(f'shots/{name}' for name in names)
    assert len([*Path('out/pictures').iterdir()]) == 3
    for name in names:
        (tmp_path / 'shots' / name).write_text('no image')
        with pytest.raises(ValueError, match='cannot be decoded') as caught:
            list(Source(tmp_path / 'shots' / name, Path('x')).frames())
        str(caught.value).encode()
        assert '\n' not in str(caught.value)

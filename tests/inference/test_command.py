"""``mmlape predict``: what it finds to predict, what it writes, and how it ends."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
from frozen.work_dirs import restore

from mmlape.apps.inference import Result
from mmlape.apps.inference.output import PredictionWriter
from mmlape.apps.inference.sources import Source, find_sources


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    return restore('demo', tmp_path_factory.mktemp('demo'))[1]


def write(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(seed).integers(0, 256, (40, 64, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), image)


def test_folders_patterns_and_names_from_the_standard_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('a/1.jpg', 'a/1.png', 'b/1.jpg', 'b/c/2.PNG', 'b/notes.txt', 'd/clip.mp4'):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    monkeypatch.setattr(sys, 'stdin', io.StringIO(' d/clip.mp4 \n\na/1.jpg\n'))
    found = find_sources(['a', 'b', '*/1.jpg', '-'])
    assert [str(source.path) for source in found] == [
        'a/1.jpg', 'a/1.png', 'b/1.jpg', 'b/c/2.PNG', 'd/clip.mp4',
    ]  # fmt: skip
    # Files of one name have different places in the output.
    names = [str(source.name) for source in found]
    assert names == ['a/1', '1', 'b/1', 'c/2', 'clip']
    assert [source.is_video for source in found] == [False] * 4 + [True]
    assert [str(source.path) for source in find_sources(['b/*'])] == ['b/1.jpg', 'b/notes.txt']
    (only,) = find_sources(['b/1.jpg'])
    assert str(only.name) == '1'
    # Nothing is written outside of the output, nothing predicted twice, nor what was predicted before.
    monkeypatch.chdir(tmp_path / 'b' / 'c')
    found = find_sources(['2.PNG', '../1.jpg', '..', '../../a'], outs=[Path('../../a')])
    assert [str(source.name) for source in found] == ['2', 'b/1', 'a/1', '1']
    found = find_sources(['2.PNG', str(tmp_path / 'a'), '../1.jpg'])
    assert [str(source.name) for source in found] == ['2', 'a/1', '1', 'b/1']
    assert len(find_sources(['..'], outs=[Path('.')])) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'empty').mkdir()
    for arguments, message in (
        (['empty'], 'has no image and no video'),
        (['x/*.jpg'], 'neither a file nor a folder'),
        (['-'], 'nothing to predict in -'),
    ):
        monkeypatch.setattr(sys, 'stdin', io.StringIO(''))
        with pytest.raises(ValueError, match=message):
            find_sources(arguments)


def test_links_to_folders_are_followed_once_and_files_of_macos_left_out(tmp_path, monkeypatch):
    for name in ('shots/1.jpg', 'shots/._1.jpg', 'shots/in/2.jpg', 'disk/3.jpg', 'disk/a/4.jpg'):
        write(tmp_path / name)
    shots = tmp_path / 'shots'
    for name, place in dict(
        disk='disk', again='disk/a', home='shots', up='', inner='shots/in'
    ).items():
        (shots / name).symlink_to(tmp_path / place)
    (tmp_path / 'disk/round').symlink_to(shots)
    (tmp_path / 'disk/itself').symlink_to('itself')
    said = []
    monkeypatch.setattr(
        'mmlape.apps.inference.sources.print_log', lambda text, **_: said.append(text)
    )
    found = find_sources([str(shots)])
    assert sorted(source.path.name for source in found) == ['1.jpg', '2.jpg', '3.jpg', '4.jpg']
    assert said == [f'{shots}: 1 files of macOS (._*) are left out']


def test_images_of_a_folder_and_one_that_cannot_be_read(commands, checkpoint, tmp_path):
    for number, name in enumerate(('shots/a/1.jpg', 'shots/b/1.jpg', 'shots/b/2.png')):
        write(tmp_path / name, number)
    (tmp_path / 'shots' / 'b' / '0.jpg').write_text('no image')
    cv2.imwrite(str(tmp_path / 'shots/b/10.png'), np.zeros((2, 3000, 3), np.uint8))
    end = commands.refused(
        'predict.py', checkpoint, 'shots', '--conf', 0, '--json', '--csv', '--batch', 2
    )
    said = commands.capsys.readouterr().out.splitlines()
    lines = [line for line in said if ' ms, ' in line]
    assert re.fullmatch(r'1/5  shots/a/1.jpg: \d+ \w+.*; \d+ ms, about \d:\d\d left', lines[0])
    assert [line[:4] for line in lines] == ['1/5 ', '3/5 ', '5/5 ']
    assert re.fullmatch(r'3 images, \d+ boxes \(.*\): see predictions', said[-1])
    assert (
        'error: 2 of the sources could not be predicted: shots/b/0.jpg cannot be decoded as an image; '
        'shots/b/10.png: 3000 x 2 pixels cannot be resized by the test pipeline'
    ) in end
    out = tmp_path / 'predictions'
    drawn = sorted(str(path.relative_to(out)) for path in out.rglob('*.jpg'))
    assert drawn == ['pictures/a/1.jpg', 'pictures/b/1.jpg', 'pictures/b/2.jpg']
    content = json.loads((out / 'predictions.json').read_text())
    assert [entry['file_name'] for entry in content['images']] == [
        'shots/a/1.jpg',
        'shots/b/1.jpg',
        'shots/b/2.png',
    ]
    assert {(entry['width'], entry['height']) for entry in content['images']} == {(64, 40)}
    assert [entry['name'] for entry in content['categories']] == (
        out / 'classes.txt'
    ).read_text().split()
    rows = list(csv.DictReader((out / 'predictions.csv').open()))
    boxes = content['annotations']
    assert [entry['id'] for entry in content['categories']] == [*range(1, 11)]
    assert [entry['id'] for entry in boxes] == [*range(1, len(boxes) + 1)]
    assert len(rows) == len(boxes) > 3 and {entry['image_id'] for entry in boxes} == {1, 2, 3}
    for row, entry in zip(rows, boxes, strict=True):
        assert row['file'] == content['images'][entry['image_id'] - 1]['file_name']
        assert row['class'] == content['categories'][entry['category_id'] - 1]['name']
        x, y, width, height = entry['bbox']
        expected = [x, y, x + width, y + height]
        assert [float(row[side]) for side in ('x1', 'y1', 'x2', 'y2')] == pytest.approx(
            expected, abs=0.01
        )


def test_names_of_sources_differ_and_folders_are_none(tmp_path):
    for name in ('a.jpg', 'a.png', 'a.jpg.png'):
        write(tmp_path / name)
    (tmp_path / 'folder.png').mkdir()
    found = [str(source.name) for source in find_sources([str(tmp_path)])]
    assert sorted(found) == ['a.jpg', 'a.jpg.png', 'a.png']
    (tmp_path / 'a.jpg.png').rename(tmp_path / 'b.png')
    found = [str(source.name) for source in find_sources([str(tmp_path)])]
    assert sorted(found) == ['a.jpg', 'a.png', 'b']


def test_frames_that_are_missing_are_left_out(monkeypatch):
    source = Source(Path('clip.mp4'), Path('clip'))
    monkeypatch.setattr(Source, 'video', lambda self: ['first', None])
    assert [*source.frames()] == ['first']


def test_pictures_too_long_for_a_jpeg_file_are_png(tmp_path):
    result = Result(np.zeros((60_001, 3, 3), np.uint8), 'a', ('a',))
    writer = PredictionWriter(tmp_path, ('a',), pictures=True, as_json=False, as_csv=False)
    writer.add(Source(Path('long.tif'), Path('long')), 0, result)
    assert (tmp_path / 'pictures/long.png').exists()


def test_what_was_found_before_an_interruption_is_written(
    commands, checkpoint, tmp_path, monkeypatch
):
    for number in range(3):
        write(tmp_path / f'shots/{number}.jpg', number)
    add, calls = PredictionWriter.add, []

    def interrupted(*args):
        if calls:
            raise KeyboardInterrupt
        calls.append(add(*args))

    monkeypatch.setattr(PredictionWriter, 'add', interrupted)
    with pytest.raises(SystemExit, match='130'):
        commands('predict.py', checkpoint, 'shots', '--json')
    content = json.loads((tmp_path / 'predictions' / 'predictions.json').read_text())
    assert [entry['file_name'] for entry in content['images']] == ['shots/0.jpg']


def test_a_video_is_drawn_frame_by_frame(commands, checkpoint, tmp_path):
    writer = cv2.VideoWriter(
        str(tmp_path / 'clip.mp4'), cv2.VideoWriter.fourcc(*'mp4v'), 5, (64, 40)
    )
    for number in range(4):
        writer.write(np.full((40, 64, 3), 60 * number, np.uint8))
    writer.release()
    write(tmp_path / 'one.5.png')
    (tmp_path / 'found').mkdir()
    said = commands(
        'predict.py', checkpoint, 'clip.mp4', 'one.5.png', '--json', '--out', 'found', '--score', 0
    )
    lines = said.splitlines()
    assert lines[-1].startswith('5 images, ')
    assert [line.partition(': ')[0] for line in lines if ' ms' in line] == [
        '1/5  clip.mp4 at 0:00 of 0:01', '5/5  one.5.png',
    ]  # fmt: skip
    video = mmcv.VideoReader(str(tmp_path / 'found/pictures/clip.mp4'))
    assert (
        len(video) == 4 and video.fps == 5 and video.resolution == (12 * 64, 12 * 40 + 22)
    )  # a legend
    images = json.loads((tmp_path / 'found/predictions.json').read_text())['images']
    assert [entry.get('frame') for entry in images] == [0, 1, 2, 3, None]
    assert (tmp_path / 'found/pictures/one.5.jpg').exists()
    # A second run keeps its files apart.
    end = commands.refused('predict.py', checkpoint, 'one.5.png', '--out', 'found')
    assert end.startswith('error: --out: found holds an earlier run (classes.txt, pictures,')
    shutil.rmtree(tmp_path / 'found')
    shutil.copy(tmp_path / 'clip.mp4', tmp_path / 'clip2.mp4')
    for folder in ('predictions', 'predictions-2'):
        assert f'see {folder}\n' in commands('predict.py', checkpoint, '.', '--score', 0)
        assert len([*(tmp_path / folder).rglob('*.*')]) == 4
        drawn = (tmp_path / folder / 'pictures').glob('*.mp4')
        assert [len(mmcv.VideoReader(str(each))) for each in drawn] == [4, 4]


def test_refusals_in_one_line(commands, checkpoint, tmp_path):
    write(tmp_path / 'a.png')
    (tmp_path / 'clip.mp4').write_text('no video')
    (tmp_path / 'file').touch()
    for arguments, message in (
        (['none.pth', 'a.png'], "error: argument model: there is no checkpoint 'none.pth'"),
        (
            [checkpoint, 'none.png'],
            "error: argument source: 'none.png' is neither a file nor a folder",
        ),
        ([checkpoint, 'a.png', '--tile', 8], 'error: argument --tile: must be at least 32, got 8'),
        ([checkpoint, 'a.png', '--global'], 'error: --global goes with --tile'),
        ([checkpoint, 'a.png', '--out', 'file/x'], "error: argument --out: 'file' is not a folder"),
        ([checkpoint, 'clip.mp4'], 'error: 1 of the sources could not be predicted: clip.mp4'),
    ):
        end = commands.refused('predict.py', *arguments)
        assert end.startswith(message) and '\n' not in end.rstrip('\n'), end
    assert not (tmp_path / 'predictions/pictures').exists()


def test_a_run_without_a_picture_points_to_none(tmp_path):
    assert PredictionWriter(tmp_path / 'out', ('a',), True, False, False).summary() == '0 images'

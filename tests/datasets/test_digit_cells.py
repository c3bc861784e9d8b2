"""The digit cells: what is on disk, that the label follows from digit and place, and that the pixels hide the place."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmlape.research.datasets import build_digit_cells, cell_classes
from mmlape.research.datasets.building import DigitBank, load_sources
from mmlape.research.datasets.digits import KINDS, kind_of_cell, paint_board

SMALL = dict(num_train=10, num_val=4, seed=3)


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    return build_digit_cells(tmp_path_factory.mktemp('data') / 'cells', **SMALL)


def label_maps(root: Path, split: str) -> list[np.ndarray]:
    return [np.asarray(Image.open(p)) for p in sorted((root / 'annotations' / split).iterdir())]


@pytest.mark.parametrize('split', ['train', 'val'])
def test_images_and_label_maps(root, split):
    for folder, mode in (('images', 'RGB'), ('annotations', 'L')):
        files = sorted((root / folder / split).iterdir())
        assert [each.name for each in files] == [
            f'{n:06d}.png' for n in range(SMALL[f'num_{split}'])
        ]
        for file in files:
            with Image.open(file) as image:
                assert (image.size, image.mode) == ((32, 32), mode)
    for labels in label_maps(root, split):
        squares = labels.reshape(4, 8, 4, 8)
        assert (squares == squares[:, :1, :, :1]).all(), 'a square has one label'
        for row, column in np.ndindex(4, 4):
            label = int(squares[row, 0, column, 0])
            assert label < len(cell_classes())
            if label:
                assert cell_classes()[label].endswith(f'kind {(row + 2 * column) % 4}')


@pytest.mark.parametrize('cells', [2, 4, 6, 8])
def test_mirror_images_of_a_square_are_of_four_different_kinds(cells):
    kinds = np.array([[kind_of_cell(r, c) for c in range(cells)] for r in range(cells)])
    mirrored = np.stack([kinds, kinds[::-1], kinds[:, ::-1], kinds[::-1, ::-1]])
    assert (np.sort(mirrored, axis=0) == np.arange(KINDS)[:, None, None]).all()


def test_the_digit_that_is_painted_is_the_one_that_the_label_names():
    """Each digit's images are replaced by a flat grey, so that what was painted can be read off the pixels."""
    _, regions = load_sources(0)
    options = dict(cells=4, cell_size=8, digit_size=[8, 8], occupied=0.5)
    inks = (0.3, 0.45, 1.0)  # of opacity 0, 0.6, 1
    groups = [DigitBank(np.full((1, 8, 8), ink), np.array([0]), np.array([0])) for ink in inks]
    seen = {1: [], 2: []}
    for seed in range(20):
        image, labels = paint_board(np.random.default_rng(seed), groups, regions['train'], options)
        for number in seen:
            digit = (labels > 0) & ((labels - 1) // KINDS == number)
            seen[number].extend(image[digit].mean(-1))
    assert min(seen[2]) >= 180
    assert np.mean(seen[1]) < 180 < np.mean(seen[2])


def test_every_kind_and_digit_is_equally_frequent(tmp_path):
    root = build_digit_cells(tmp_path / 'cells', num_train=150, num_val=1)
    counts = np.bincount(np.stack(label_maps(root, 'train')).ravel(), minlength=13) / 64
    assert counts.sum() == 150 * 16
    assert abs(counts[0] / counts.sum() - 0.5) < 0.04
    expected = 150 * 8 / 12
    assert (abs(counts[1:] - expected) < 5 * np.sqrt(expected)).all()


def test_backgrounds_do_not_give_the_place_away(tmp_path):
    """Without digits, the mean brightness of the four kinds of squares is the same up to chance."""
    root = build_digit_cells(tmp_path / 'cells', num_train=150, num_val=1, occupied=0)
    images = [np.asarray(Image.open(p)).mean(-1) for p in sorted((root / 'images/train').iterdir())]
    squares = np.stack(images).reshape(-1, 4, 8, 4, 8).mean((2, 4))
    squares -= squares.mean((1, 2), keepdims=True)
    kinds = np.array([[kind_of_cell(r, c) for c in range(4)] for r in range(4)])
    means = np.stack([squares[:, kinds == kind].mean(-1) for kind in range(KINDS)], axis=1)
    errors = means.std(0) / np.sqrt(len(means))
    assert (abs(means.mean(0)) < 4 * errors).all(), (means.mean(0), errors)

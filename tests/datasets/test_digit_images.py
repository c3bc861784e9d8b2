"""Digits as small colour images: how many there are, what they hold, and that they stay the same."""

import numpy as np
import pytest

from mmlape.research.datasets import DigitImages, classification
from mmlape.research.datasets.building import DigitBank, PhotoRegion, load_sources


@pytest.fixture(scope='module')
def val():
    return DigitImages('val')


def test_what_is_there(val):
    banks, _ = load_sources(0)
    assert [len(banks['train'].targets), len(val)] == [1438, 359]
    labels = [val.get_data_info(index)['gt_label'] for index in range(len(val))]
    assert set(labels) == set(range(10)) and min(map(labels.count, range(10))) > 20
    image = val[3]['img']
    assert image.shape == (32, 32, 3) and image.dtype == np.uint8
    assert np.ptp(image, axis=2).max() > 10, 'no colour'
    assert val.metainfo['classes'] == tuple('0123456789')


def test_it_is_the_same_every_time(val):
    again, other = DigitImages('val', indices=5), DigitImages('val', seed=1, indices=5)
    for index in range(5):
        image = val[index]['img']
        assert np.array_equal(again[index]['img'], image)
        assert not np.array_equal(other[index]['img'], image)


def test_without_photographs(val):
    dark = DigitImages('val', photographs=False, indices=20)
    for index in range(20):
        image = dark[index]['img']
        assert np.median(image) == 0 and image.max() > 100
    labels = [dark.get_data_info(index)['gt_label'] for index in range(20)]
    assert labels == [val.get_data_info(index)['gt_label'] for index in range(20)]


def test_whole_digits():
    """As scanned, 8 x 8, but larger: all sides of 32 pixels, where the ink reaches the same of them."""
    whole = DigitImages('val', photographs=False, whole=True, indices=20)
    bank = load_sources(0)[0]['val']
    for index in range(20):
        ink = whole[index]['img'].astype(float).mean(-1)
        shrunk = ink.reshape(8, 4, 8, 4).mean((1, 3))
        assert np.corrcoef(shrunk.ravel(), bank.images[index].ravel())[0, 1] > 0.95


def test_what_is_drawn_of_a_split_and_a_seed(monkeypatch):
    """Photographs of its own behind coloured digits."""
    seeds, banks = [], load_sources(0)[0]
    few = {split: DigitBank(*(part[:3] for part in bank)) for split, bank in banks.items()}
    grey = {'train': 0, 'val': 240}
    regions = {
        split: [PhotoRegion('a', np.full((200, 200, 3), level, np.uint8), 0)]
        for split, level in grey.items()
    }
    monkeypatch.setattr(
        classification, 'load_sources', lambda seed: (seeds.append(seed), (few, regions))[1]
    )
    first, second, train = (
        [each['img'] for each in DigitImages(split, seed=seed)]
        for split, seed in (('val', 7), ('val', 8), ('train', 7))
    )
    assert seeds == [7, 8, 7] and len(first) == 3
    assert not np.array_equal(first, second)
    assert min(np.median(image) for image in first) > 40 and not np.median(train)
    assert all(np.ptp(image, axis=2).max() > 10 for image in first)


def test_mistakes():
    with pytest.raises(TypeError, match="split must be 'train' or 'val', got 'test'"):
        DigitImages('test')
    with pytest.raises(TypeError, match='whole must be'):
        DigitImages('val', whole='yes')

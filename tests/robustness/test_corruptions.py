"""Corrupted images: the published parameters, and the same pixels for the same seed."""

import io
import sys

import numpy as np
import pytest
from mmengine.registry import TRANSFORMS
from PIL import Image

from mmlape.research.robustness import CORRUPTIONS, EXTRA, GROUPS, CorruptImage, corrupt, image_seed

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
# Which do not depend on the seed.
FIXED = {'defocus_blur', 'zoom_blur', 'brightness', 'contrast', 'pixelate', 'jpeg_compression'}


def test_the_benchmark_has_fifteen_in_its_order():
    assert [len(names) for names in GROUPS.values()] == [3, 4, 4, 4]
    assert len({*CORRUPTIONS, *EXTRA}) == 19


@pytest.mark.parametrize('name', CORRUPTIONS + EXTRA)
def test_the_seed_alone_decides(name):
    np.random.seed(5)
    state = np.random.get_state()
    first = corrupt(IMAGE, name, 3, seed=1)
    np.random.seed(6)
    assert first.shape == IMAGE.shape and first.dtype == np.uint8
    np.testing.assert_array_equal(corrupt(IMAGE, name, 3, seed=1), first)
    if name in CORRUPTIONS:
        assert np.array_equal(corrupt(IMAGE, name, 3, seed=2), first) == (name in FIXED)
    assert not np.array_equal(first, IMAGE)
    np.random.set_state(state)
    drawn = np.random.rand()
    np.random.seed(5)
    corrupt(IMAGE, name, 3, seed=1)
    assert np.random.rand() == drawn, 'the global generator goes on as if nothing had been drawn'


def noisy(scale):
    noise = np.random.RandomState(0).normal(size=IMAGE.shape, scale=scale)
    return np.uint8(np.clip(IMAGE / 255 + noise, 0, 1) * 255).astype(float)


def compressed(quality):
    file = io.BytesIO()
    Image.fromarray(IMAGE).save(file, 'JPEG', quality=quality)
    return np.asarray(Image.open(file)).astype(float)


def faded(factor):
    mean = (IMAGE / 255).mean((0, 1))
    return 255 * ((IMAGE / 255 - mean) * factor + mean)


# What it does, how far it may round, and how strongly it does it by severity.
PUBLISHED = {
    'gaussian_noise': (noisy, 0, (0.08, 0.12, 0.18, 0.26, 0.38)),
    'jpeg_compression': (compressed, 0, (25, 18, 15, 10, 7)),
    'contrast': (faded, 1.001, (0.4, 0.3, 0.2, 0.1, 0.05)),
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_strengths_are_the_published_ones(name):
    make, rounding, strengths = PUBLISHED[name]
    for severity, strength in enumerate(strengths, start=1):
        found = corrupt(IMAGE, name, severity, seed=0)
        assert abs(found - make(strength)).max() <= rounding, severity


def test_each_image_corruption_and_severity_draws_its_own():
    seeds = {
        image_seed(seed, name, severity, index)
        for seed in (0, 1)
        for name in CORRUPTIONS
        for severity in (1, 2)
        for index in range(5)
    }
    assert len(seeds) == 2 * 15 * 2 * 5
    assert image_seed(0, 'fog', 1, 0) == image_seed(0, 'fog', 1, 0)


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (dict(corruption='fogg'), "did you mean 'fog'"),
        (dict(severity=6), 'severity must be 1 to 5, got 6'),
        (dict(severity=0), 'severity must be 1 to 5, got 0'),
        (dict(image=IMAGE[:20]), 'at least 32 x 32 pixels, got 20 x 48'),
        (dict(image=IMAGE.astype(np.float32)), 'float32'),
        (dict(image=IMAGE[..., 0]), r'\(40, 48\)'),
    ],
)
def test_what_cannot_be_corrupted_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        corrupt(**{**dict(image=IMAGE, corruption='fog', severity=1, seed=0), **change})


def test_the_step_knows_the_order_of_channels():
    """Frost and JPEG see red as red, whatever the order in the array."""
    options = dict(type='mmlape.CorruptImage', corruption='jpeg_compression', severity=3)
    bgr, rgb = (TRANSFORMS.build({**options, 'channel_order': o}) for o in ('bgr', 'rgb'))
    assert isinstance(bgr, CorruptImage) and 'severity=3' in repr(bgr)
    swapped = bgr(dict(img=IMAGE[..., ::-1].copy(), sample_idx=2))['img']
    straight = rgb(dict(img=IMAGE.copy(), sample_idx=2))
    assert set(straight) == {'img', 'sample_idx'}
    np.testing.assert_array_equal(swapped[..., ::-1], straight['img'])


def test_the_step_goes_by_place_or_name():
    step = CorruptImage('gaussian_noise', 1)

    def run(**where):
        return step(dict(img=IMAGE.copy(), **where))['img']

    np.testing.assert_array_equal(run(sample_idx=1), run(sample_idx=1, img_path='b.jpg'))
    assert not np.array_equal(run(sample_idx=1), run(sample_idx=2))
    np.testing.assert_array_equal(run(img_path='/a/c.jpg'), run(img_path='/b/c.jpg'))
    assert not np.array_equal(run(img_path='c.jpg'), run(img_path='d.jpg'))


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (dict(corruption='snoww'), "did you mean 'snow'"),
        (dict(severity=9), 'severity'),
        (dict(seed=-1), 'seed'),
        (dict(channel_order='gbr'), 'channel_order'),
    ],
)
def test_wrong_options_of_the_step(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        CorruptImage(**{**dict(corruption='snow', severity=1), **options})


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'imagecorruptions', None)
    with pytest.raises(ModuleNotFoundError, match=r'mmlape\[robustness\]'):
        CorruptImage('snow', 1)


def test_the_abandoned_package_is_refused(monkeypatch):
    import imagecorruptions

    monkeypatch.setattr(imagecorruptions, 'corrupt', lambda image, severity=1, name=None: image)
    with pytest.raises(ModuleNotFoundError, match='no longer maintained'):
        CorruptImage('snow', 1)

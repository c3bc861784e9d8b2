"""Images of other channels and bits are read as they are, wherever MMCV would make them 8-bit BGR."""

import sys

import cv2
import numpy as np
import pytest
import tifffile
from mmcv.transforms import LoadImageFromFile

from mmlape.pixels import is_plain, picture_of, read_pixels, statistics_of
from mmlape.registry import TRANSFORMS


def made(channels, dtype):
    numbers = np.random.default_rng(0).random((7, 9, channels))
    return (numbers * (60000 if dtype == np.uint16 else 200)).astype(dtype)


@pytest.mark.parametrize('dtype', [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize('channels', [1, 2, 3, 4, 6])
@pytest.mark.parametrize('form', ['npy', 'samples', 'planes', 'pages'])
def test_every_number_of_channels_and_type(form, channels, dtype, tmp_path):
    pixels, path = made(channels, dtype), tmp_path / ('image.npy' if form == 'npy' else 'image.tif')
    if form == 'npy':
        np.save(path, pixels)
    elif form == 'samples':
        kind = dict(planarconfig='contig') if channels > 1 else {}
        plain = pixels if channels > 1 else pixels[..., 0]
        tifffile.imwrite(path, plain, photometric='minisblack', **kind)
    elif form == 'planes':
        kind = dict(photometric='minisblack', planarconfig='separate')
        planes = pixels.transpose(2, 0, 1)
        tifffile.imwrite(
            path, planes if channels > 1 else planes[0], **(kind if channels > 1 else {})
        )
    else:
        with tifffile.TiffWriter(path) as file:
            for plane in pixels.transpose(2, 0, 1):
                file.write(plane, photometric='minisblack')
    np.testing.assert_array_equal(read_pixels(path), pixels)


@pytest.mark.parametrize('dtype', [np.uint8, np.uint16])
@pytest.mark.parametrize('channels', [1, 3, 4])
def test_png_in_the_order_of_the_file(channels, dtype, tmp_path):
    pixels, path = made(channels, dtype), tmp_path / 'image.png'
    order = [2, 1, 0, 3][:channels] if channels > 1 else [0]
    cv2.imwrite(str(path), pixels[..., order])
    np.testing.assert_array_equal(read_pixels(path), pixels)


def test_tiffs_without_tifffile(tmp_path, monkeypatch):
    kinds = dict(samples=dict(planarconfig='contig'), pages={})
    for name, kind in kinds.items():
        tifffile.imwrite(
            tmp_path / f'{name}.tif', made(6, np.uint8), photometric='minisblack', **kind
        )
    pixels, path = made(3, np.uint16), tmp_path / 'image.tif'
    cv2.imwrite(str(path), pixels[..., ::-1])
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    np.testing.assert_array_equal(read_pixels(path), pixels)
    for name in kinds:
        with pytest.raises(
            ValueError, match=rf'{name}.tif.* cannot be read as an image: .*tifffile'
        ):
            read_pixels(tmp_path / f'{name}.tif')


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (np.zeros((2, 3, 4, 5)), r'is no image \(H, W, C\): float64 \(2, 3, 4, 5\)'),
        (np.zeros((2, 0, 3)), 'is no image'),
        (np.zeros((2, 3), complex), 'is no image .*complex128'),
        (np.array([{}], object), 'cannot be read as an image'),
        (None, 'there is no image'),
        (b'nothing', 'cannot be read as an image'),
    ],
)
def test_what_is_no_image(content, said, tmp_path):
    path = tmp_path / 'image.npy'
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(ValueError, match=f'image.npy.*{said}' if content is not None else said):
        read_pixels(path)


def test_a_stack_of_volumes_is_no_image(tmp_path):
    path = tmp_path / 'volume.tif'
    tifffile.imwrite(path, np.zeros((3, 4, 7, 9), np.uint16), photometric='minisblack')
    with pytest.raises(
        ValueError, match=r'has the axes .* and must have height, width and channels'
    ):
        read_pixels(path)


def test_statistics_normalise_what_is_finite(tmp_path):
    images = [made(5, np.float32), 3 * made(5, np.float32) + 1]
    images[0][0, :, 2] = np.nan
    images[1][1, 1, 4] = np.inf
    paths = [tmp_path / f'{number}.npy' for number in range(2)]
    for path, image in zip(paths, images, strict=True):
        np.save(path, image)
    channels, mean, std = statistics_of(paths)
    loader = TRANSFORMS.build(dict(type='mmlape.LoadImage', channels=channels, mean=mean, std=std))
    found = [loader(dict(img_path=path)) for path in paths]
    whole = np.concatenate([each['img'].reshape(-1, 5) for each in found])
    assert found[0]['img'].dtype == np.float32
    assert found[0]['img_shape'] == found[0]['ori_shape'] == (7, 9)
    assert not found[0]['img'][0, :, 2].any() and not found[1]['img'][1, 1, 4]
    raw = np.concatenate([image.reshape(-1, 5) for image in images])
    finite = np.where(np.isfinite(raw), raw, np.nan)
    expected = (raw - np.nanmean(finite, 0)) / np.nanstd(finite, 0)
    np.testing.assert_allclose(whole[np.isfinite(raw)], expected[np.isfinite(raw)], atol=1e-4)
    np.save(paths[1], made(4, np.float32))
    with pytest.raises(ValueError, match=r'1.npy.* has 4 channels, others have 5'):
        statistics_of(paths)
    with pytest.raises(ValueError, match=r"1.npy' must be an image \(H, W, 5\), got \(7, 9, 4\)"):
        loader.read(paths[1])
    np.save(paths[1], np.ones((3, 3, 2)))
    with pytest.raises(ValueError, match=r'channels \[0, 1\] have one value'):
        statistics_of(paths[1:])


def test_wrong_options():
    for options, said in (
        (dict(channels=0), 'channels must be at least 1'),
        (dict(channels=2, mean=[1.0]), 'mean must have 2 values'),
        (dict(channels=2, std=[1.0, 0.0]), 'std must be positive'),
    ):
        with pytest.raises(ValueError, match=said):
            TRANSFORMS.build(dict(type='mmlape.LoadImage', **options))


@pytest.mark.parametrize('dtype', [np.uint8, np.int32, np.float64])
def test_networks_get_float32(dtype):
    loader = TRANSFORMS.build(dict(type='mmlape.LoadImage', channels=2, mean=[1, 2], std=[2, 4]))
    found = loader(dict(img=made(2, dtype)))['img']
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (made(2, float).astype(dtype) - [1.0, 2]) / [2, 4], rtol=1e-6)


@pytest.mark.parametrize(
    ('value', 'options', 'expected'),
    [
        ((10, 20, 60), {}, 30), ((250, 200, 150), {}, 55), ((97, 97, 97), {}, 158), ((96, 96, 96), {}, 96),
        ((96, 96, 96), dict(brightest=95), 159), ((200, 201, 201), dict(brightest=255), 201),
    ],
)  # fmt: skip
def test_backgrounds_are_dark(value, options, expected):
    """Whatever the colour of a few cells."""
    step = TRANSFORMS.build(dict(type='mmlape.DarkBackground', **options))
    image = np.full((8, 9, 3), value, np.uint8)
    found = step(dict(img=image.copy(), img_shape=(8, 9)))
    assert found['img'].dtype == np.uint8 and found['img_shape'] == (8, 9)
    assert (found['img'] == expected).all() and found['img'].shape == (8, 9, 3)
    inverted = step(dict(img=255 - found['img']))['img']
    assert options or (inverted == found['img']).all()


def test_which_images_have_a_background():
    for brightest in (-1, 256):
        with pytest.raises(ValueError, match='brightest must be'):
            TRANSFORMS.build(dict(type='mmlape.DarkBackground', brightest=brightest))
    step = TRANSFORMS.build(dict(type='mmlape.DarkBackground'))
    for image in (np.zeros((8, 9, 3), np.float32), np.zeros((8, 9), np.uint8), made(4, np.uint8)):
        with pytest.raises(ValueError, match=r'takes images \(H, W, 3\) of uint8, got'):
            step(dict(img=image))


def test_plain_images_are_those_that_mmcv_keeps(tmp_path):
    for channels, dtype in ((1, np.uint8), (3, np.uint8), (3, np.uint16)):
        pixels, path = made(channels, dtype), tmp_path / 'image.tif'
        tifffile.imwrite(path, pixels if channels > 1 else pixels[..., 0])
        theirs = LoadImageFromFile()(dict(img_path=str(path)))['img']
        kept = theirs.dtype == dtype and (theirs[..., ::-1] == pixels).all()
        assert is_plain(read_pixels(path)) == kept, (channels, dtype)


@pytest.mark.parametrize('channels', [1, 2, 3, 6])
def test_pictures_are_stretched(channels):
    pixels = made(channels, np.float32)
    pixels[0, 0] = np.nan
    picture = picture_of(pixels)
    assert picture.shape == (7, 9, 3) and picture.dtype == np.uint8
    assert picture.min() == 0 and picture.max() == 255
    shown = pixels[..., 0 if channels < 3 else 2]  # the last of RGB is the first of BGR
    order = np.argsort(shown[1:].ravel())
    assert (np.diff(picture[1:, :, 0].ravel()[order].astype(int)) >= 0).all()

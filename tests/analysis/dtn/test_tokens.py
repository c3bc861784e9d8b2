"""Images, tokens before and after a norm, their lengths and principal components."""

import backbone_variants as variants
import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from sklearn.decomposition import PCA

from mmlape.analysis import (
    draw_magnitudes,
    draw_projections,
    find_images,
    find_stages,
    magnitude_maps,
    norm_tokens,
    project,
    project_versions,
    read_images,
    token_magnitudes,
)
from mmlape.norm import DTN, LN, TokenIN

IMAGE = torch.randn(1, 3, 33, 50, generator=torch.Generator().manual_seed(0))
PREPROCESSOR = dict(
    type='DetDataPreprocessor', mean=[1, 2, 3], std=[4, 5, 6], bgr_to_rgb=True, pad_size_divisor=32
)


@pytest.fixture
def folder(tmp_path):
    """Two images and a text."""
    generator = np.random.default_rng(0)
    for name, shape in (('b.png', (20, 30, 3)), ('a.png', (9, 12, 3))):
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / 'text.txt').write_text('no image')
    return tmp_path


def test_images_of_files_and_folders(folder):
    names = [path.name for path in find_images([folder, folder / 'b.png'])]
    assert names == ['a.png', 'b.png', 'b.png']
    assert [path.name for path in find_images([folder], maximum=1)] == ['a.png']


def test_images_are_read_as_the_config_has_them(folder):
    config = Config(dict(model=dict(data_preprocessor=PREPROCESSOR)))
    pixels = np.asarray(Image.open(folder / 'b.png')).astype(np.float32)
    (image,) = read_images(config, [folder / 'b.png'])
    expected = (pixels - [1, 2, 3]) / [4, 5, 6]
    assert image.shape == (1, 3, 20, 30)
    assert np.allclose(image[0].permute(1, 2, 0), expected, atol=1e-5)
    (plain,) = read_images(Config(dict()), [folder / 'b.png'])
    assert np.array_equal(plain[0].permute(1, 2, 0), pixels[..., ::-1])
    resized = [image.shape[2:] for image in read_images(config, find_images([folder]), (7, 15))]
    assert resized == [(7, 15)] * 2


def test_images_that_are_not_there(folder):
    with pytest.raises(FileNotFoundError, match=r"no image or folder '.*c\.png'"):
        find_images([folder / 'c.png'])
    (folder / 'empty').mkdir()
    with pytest.raises(ValueError, match=r'no image \(\.bmp, .*\) in the folder'):
        find_images([folder / 'empty'])
    with pytest.raises(ValueError, match='number of images must be at least 1, got 0'):
        find_images([folder], 0)
    with pytest.raises(ValueError, match=r"text\.txt' cannot be read as an image"):
        list(read_images(Config(dict()), [folder / 'text.txt']))
    with pytest.raises(ValueError, match='size must be at least 1'):
        list(read_images(Config(dict()), [folder / 'a.png'], (0, 4)))
    assert mmcv.imread(str(folder / 'a.png')) is not None


def test_versions_are_what_the_norms_make_of_the_same_tokens():
    model = variants.randomise(
        variants.build_pvt(norm_cfg=dict(type='mmlape.DTN'), num_heads=[4, 4, 5, 8])
    )
    stage = find_stages(model, 'block2')[0]
    seen = []
    stage.blocks[1].norm2.register_forward_hook(lambda *call: seen.append(call))
    (tokens,) = norm_tokens(model, IMAGE, stage, [1], 'norm2')
    _, (before, layout), after = seen[0]
    assert tokens.name == 'layer 1 norm2' and tokens.grid == layout.grid == (5, 7)
    assert tokens.num_prefix == 0 and tokens.num_heads == 4
    assert list(tokens.versions) == ['before', 'after DTN', 'LN, initial', 'IN, initial']
    expected = [before, after, LN(16)(before), TokenIN(16)(before)]
    for rows, other in zip(tokens.versions.values(), expected, strict=True):
        assert np.allclose(rows, other[0].detach(), atol=1e-6)
    assert not any(
        module._forward_hooks for module in model.modules() if module is not stage.blocks[1].norm2
    )


def test_heads_and_prefix_of_a_network_with_layer_norm():
    model = variants.randomise(variants.build_vit(with_dist_token=True))
    state = torch.random.get_rng_state()
    both = [norm_tokens(model, IMAGE, *find_stages(model), [0, 3]) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    for first, second in zip(*both, strict=True):
        assert list(first.versions) == ['before', 'after LN', 'IN, initial', 'DTN, initial']
        assert first.num_heads == 3 and first.num_prefix == 2 and first.grid == (3, 4)
        for name in first.versions:
            assert first.versions[name].shape == (14, 24)
            assert np.array_equal(first.versions[name], second.versions[name])
    (without,) = norm_tokens(model, IMAGE, *find_stages(model), [0], compared=[])
    assert list(without.versions) == ['before', 'after LN']
    with pytest.raises(ValueError, match=r"compared norm must be one of \['DTN', 'IN', 'LN'\]"):
        norm_tokens(model, IMAGE, *find_stages(model), compared=['BN'])


def test_lengths_per_head():
    assert token_magnitudes(np.array([[3.0, 4, 5, 12], [0, 1, 0, 0]]), 2).tolist() == [
        [5, 1],
        [13, 0],
    ]


def test_layer_norm_levels_lengths_and_instance_norm_does_not():
    """Figure 1: after LN all tokens have the length sqrt(C); IN and DTN keep differences."""
    model = variants.build_vit(with_cls_token=False).eval()
    stage = find_stages(model)[0]
    (tokens,) = norm_tokens(
        model, torch.rand(1, 3, 128, 128) * torch.linspace(0, 9, 128), stage, [0]
    )
    spread = {}
    for name, rows in tokens.versions.items():
        lengths = np.linalg.norm(rows, axis=1)
        spread[name] = lengths.std() / lengths.mean()
        maps = magnitude_maps(tokens)[name]
        assert maps.shape == (3, 8, 8)
        assert np.allclose(np.square(maps).sum(axis=0).ravel(), lengths**2, rtol=1e-4)
    assert spread['after LN'] < 0.02
    assert spread['IN, initial'] > 0.2


def test_principal_components_of_a_known_cloud():
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.normal(size=(5, 5)))[0]
    plane = generator.normal(size=(400, 2)) * [3, 1]
    plane -= plane.mean(axis=0)
    plane = plane @ np.linalg.svd(plane, full_matrices=False)[2].T  # along its own components
    found = project((plane @ axes[:2] + 7).astype(np.float32))
    assert np.allclose(np.abs(found.points), np.abs(plane), atol=1e-4)
    variance = plane.var(axis=0)
    assert np.allclose(found.explained, variance / variance.sum(), atol=1e-5)
    assert found.spread == pytest.approx(np.sqrt(variance.sum()), rel=1e-5)


def test_components_against_scikit_learn_and_of_directions():
    tokens = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32) + 1
    units = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    for directions, values in ((False, tokens), (True, units)):
        found = project(tokens, directions)
        values = values.astype(np.float64)  # in float32, theirs is only exact to 3e-5
        theirs = PCA(2).fit(values)
        assert np.allclose(np.abs(found.points), np.abs(theirs.transform(values)), atol=1e-5)
        assert np.allclose(found.explained, theirs.explained_variance_ratio_, atol=1e-5)


def test_equal_tokens_have_no_components():
    found = project(np.ones((6, 4), dtype=np.float32))
    assert np.allclose(found.points, 0) and found.spread == 0
    assert np.array_equal(found.explained, [0, 0])


def test_pictures_show_what_was_found():
    model = variants.randomise(variants.build_vit())
    layers = norm_tokens(model, IMAGE, *find_stages(model), [0, 1])
    maps = magnitude_maps(layers[0])
    panels = [axes for axes in draw_magnitudes(maps).axes if axes.images]
    assert len(panels) == 4 * 3
    shown = panels[4].images[0].get_array()
    assert np.allclose(shown, maps['after LN'][1] / maps['after LN'][1].mean())
    assert panels[4].get_title() == f'{shown.std():.2f}'

    for with_prefix in (False, True):
        found = {tokens.name: project_versions(tokens, with_prefix) for tokens in layers}
        figure = draw_projections(found, layers[0].grid)
        assert [axes.get_ylabel() for axes in figure.axes[::4]] == [
            'layer 0 norm1',
            'layer 1 norm1',
        ]
        cells, prefix = (dots.get_offsets() for dots in figure.axes[5].collections)
        points = found['layer 1 norm1']['after LN'].points
        assert len(prefix) == with_prefix
        assert np.allclose(np.concatenate([prefix, cells]), points)


def test_dtn_has_the_heads_of_the_norm():
    model = variants.build_vit(norm_cfg=dict(type='mmlape.DTN', num_heads=4), with_cls_token=False)
    (tokens,) = norm_tokens(model.eval(), IMAGE, *find_stages(model), [0])
    assert isinstance(model.blocks[0].norm1, DTN) and tokens.num_heads == 4

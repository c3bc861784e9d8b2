"""What DTN learned, and what norms do to tokens: against the definitions of the paper."""

import backbone_variants as variants
import numpy as np
import pytest
import torch
from config_utils import write_image
from mmengine.config import Config
from PIL import Image
from torch import nn

from mmlape.layout import Layout
from mmlape.norm import DTN, LN, ScaleNorm, TokenGN, TokenIN
from mmlape.research.analysis import (
    draw_dtn_maps,
    draw_magnitudes,
    draw_projections,
    draw_variation,
    dtn_maps,
    dtn_places,
    dtn_stages,
    find_images,
    find_stages,
    magnitude_maps,
    norm_places,
    norm_tokens,
    position_stages,
    project,
    project_versions,
    read_images,
    token_variation,
    variation_coefficients,
)
from mmlape.research.analysis.dtn import mean_of

HEADS = dict(norm_cfg=dict(type='mmlape.DTN'), num_heads=[4, 4, 5, 8])


@pytest.fixture
def pvt():
    return variants.randomise(variants.build_pvt(**HEADS))


def softmax_map(norm, grid, token):
    """Eq. 6 as it stands, over all pairs of cells: row ``token`` of P_h as a map, ``(G, H, W)``."""
    height, width = grid
    cells = torch.tensor([[y, x] for y in range(height) for x in range(width)]).double()
    offset = cells.new_tensor(token) - cells
    dy, dx = offset.unbind(dim=1)
    a_x, a_y, a_2 = norm.positions.weight.double().unbind(dim=1)
    exponent = a_x[:, None] * dx + a_y[:, None] * dy + a_2[:, None] * (dx**2 + dy**2)
    return exponent.softmax(dim=1).unflatten(1, grid).detach().numpy()


def test_stages_of_every_backbone():
    for build, names in (
        (variants.build_vit, ['blocks']),
        (variants.build_adapter, ['vit.blocks']),
        (variants.build_pvt, ['block1', 'block2', 'block3', 'block4']),
    ):
        model = build()
        stages = find_stages(model)
        assert [stage.name for stage in stages] == names
        assert all(stage.blocks is model.get_submodule(stage.name) for stage in stages)
        for stage in position_stages(model):
            assert stage.position is model.get_submodule(stage.position_name)
        assert [stage.name for stage in find_stages(model, names[-1])] == names[-1:]
    assert {stage.position for stage in find_stages(variants.build_pvt('V2'))} == {None}


@pytest.mark.parametrize(('grid', 'token'), [((5, 7), (1, 6)), ((4, 4), None), ((1, 9), (0, 3))])
def test_maps_are_the_softmax_of_eq_6(pvt, grid, token):
    stage = dtn_stages(pvt, 'block3')[0]
    found = dtn_maps(stage, grid, token)
    assert found.token == (token or (2, 2)) and found.grid == grid
    for layer, place in zip(found.layers, dtn_places(stage), strict=True):
        assert layer.name == place.name and layer.cell == found.token and layer.pool == 1
        expected = softmax_map(place.norm, grid, found.token)
        assert layer.maps.shape == (5, *grid)
        assert np.allclose(layer.maps, expected, atol=1e-6)
        assert np.allclose(layer.maps.sum(axis=(1, 2)), 1, atol=1e-5)


def test_maps_of_pooled_statistics_are_of_cells(pvt):
    stage = dtn_stages(pvt, 'block1')[0]
    found = dtn_maps(stage, (9, 14), (8, 5))
    place = dtn_places(stage)[0]
    assert place.norm.pool == 4
    assert found.layers[0].cell == (2, 1)
    expected = softmax_map(place.norm, (3, 4), (2, 1))
    assert np.allclose(found.layers[0].maps, expected, atol=1e-6)


def test_uniform_maps_and_the_default_grid():
    norm_cfg = [dict(type='mmlape.DTN', positions='uniform', pool=1)] * 4
    (stage, *_) = dtn_stages(variants.build_pvt('V2', norm_cfg=norm_cfg))
    found = dtn_maps(stage)
    assert found.grid == (14, 14) and found.token == (7, 7)
    assert np.allclose(found.layers[0].maps, np.full((1, 14, 14), 1 / 196))
    stage = dtn_stages(variants.build_pvt(**HEADS, img_size=(64, 96)))[1]
    assert dtn_maps(stage).grid == (8, 12)  # of its position embedding


def test_the_picture_shows_the_maps_and_marks_the_token(pvt):
    stage = dtn_stages(pvt, 'block3')[0]
    states = {'before': dtn_maps(stage, (5, 7), (1, 6)), 'after': dtn_maps(stage, (5, 7), (1, 6))}
    figure = draw_dtn_maps(states)
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 2 * 2 * 5
    norms = states['before'].layers  # those after are the same
    shown = np.concatenate([norm.maps for norm in norms for _ in states])
    for axes, expected in zip(panels, shown, strict=True):
        assert np.array_equal(axes.images[0].get_array(), expected)
        assert axes.patches[0].get_xy() == (5.5, 0.5)
    # the scale's words end inside the picture
    figure.draw_without_rendering()
    extents = [axes.get_tightbbox() for axes in figure.axes]
    assert max(extent.x1 for extent in extents) < figure.bbox.width
    labels = [axes.get_ylabel() for axes in panels[::5]]
    assert labels == [f'layer 0 {n}\n{s}' for n in ('norm1', 'norm2') for s in ('before', 'after')]


def test_mistakes_list_what_is_accepted(pvt):
    stage = dtn_stages(pvt, 'block2')[0]
    for ask, text in (
        (lambda: find_stages(pvt, 'b'), r"part must be one of \['block1', .*'block4'\], got 'b'"),
        (lambda: dtn_stages(pvt, 'block4'), r"part with DTN must be one of .*'block3'\], got"),
        (lambda: dtn_stages(variants.build_vit()), 'no layer of this VisionTransformer has DTN'),
        (lambda: find_stages(nn.Linear(2, 2)), 'Linear has no transformer layers of the kind of'),
        (lambda: dtn_maps(stage, layers=[2]), 'layers must be 0 to 1, got 2'),
        (lambda: norm_places(stage, norms=['n']), r"norm must be one of \['norm1', 'norm2'\], got"),
        (lambda: dtn_maps(stage, (4, 4), (0, 4)), 'column of the token must be 0 to 3, got 4'),
    ):
        with pytest.raises(ValueError, match=text):
            ask()
    stage.blocks[1].norm1 = LN(16)
    with pytest.raises(ValueError, match=r"\[1\] of 'block2' have none, \[0, 1\] have it"):
        dtn_maps(stage, layers=[0, 1], norms=['norm1'])
    assert [layer.name for layer in dtn_maps(stage, norms=['norm1']).layers] == ['layer 0 norm1']


IMAGE = torch.randn(1, 3, 33, 50, generator=torch.Generator().manual_seed(0))
PREPROCESSOR = dict(
    type='DetDataPreprocessor', mean=[1, 2, 3], std=[4, 5, 6], bgr_to_rgb=True, pad_size_divisor=32
)


@pytest.fixture
def folder(tmp_path):
    """Two images and a text."""
    write_image(tmp_path / 'b.png', (30, 20))
    write_image(tmp_path / 'a.png', (12, 9))
    (tmp_path / 'text.txt').write_text('no image')
    return tmp_path


def test_images_of_files_and_folders(folder):
    (folder / 'of.png').mkdir()
    (folder / 'a.png').rename(folder / 'a.PNG')
    names = [path.name for path in find_images([folder, folder / 'b.png'])]
    assert names == ['a.PNG', 'b.png', 'b.png']
    assert [path.name for path in find_images([folder], maximum=1)] == ['a.PNG']


def test_images_are_read_as_the_config_has_them(folder):
    config = Config(dict(model=dict(data_preprocessor=PREPROCESSOR)))
    pixels = np.asarray(Image.open(folder / 'b.png')).astype(np.float32)
    (image,) = read_images(config, [folder / 'b.png'])
    expected = (pixels - [1, 2, 3]) / [4, 5, 6]
    assert image.shape == (1, 3, 20, 30)
    assert np.allclose(image[0].permute(1, 2, 0), expected, atol=1e-5)
    (plain,) = read_images(Config(dict()), [folder / 'b.png'])
    assert np.array_equal(plain[0].permute(1, 2, 0), pixels[..., ::-1])
    for name in ('bgr_to_rgb', 'rgb_to_bgr', 'to_rgb'):
        (turned,) = read_images(Config(dict(data_preprocessor={name: True})), [folder / 'b.png'])
        assert np.array_equal(turned[0].permute(1, 2, 0), pixels)
    resized = [image.shape[2:] for image in read_images(config, find_images([folder]), (7, 15))]
    assert resized == [(7, 15)] * 2


def test_images_of_a_classifier(folder):
    """MMPretrain's preprocessor stands beside the model, and says it in its own words."""
    config = Config(
        dict(model=dict(), data_preprocessor=dict(mean=[1, 2, 3], std=[4, 5, 6], to_rgb=True))
    )
    pixels = np.asarray(Image.open(folder / 'b.png')).astype(np.float32)
    (image,) = read_images(config, [folder / 'b.png'])
    assert np.allclose(image[0].permute(1, 2, 0), (pixels - [1, 2, 3]) / [4, 5, 6], atol=1e-5)


def test_a_norm_that_no_layer_has():
    (stage,) = find_stages(variants.build_vit(block=dict(type='mmlape.ParallelBlock')))
    assert len(norm_places(stage)) == len(stage.blocks)
    with pytest.raises(ValueError, match="no layer of 'blocks' has norm2"):
        norm_places(stage, norms=['norm2'])


def test_images_that_are_not_there(folder):
    with pytest.raises(FileNotFoundError, match=r"no image or folder '.*c\.png'"):
        find_images([folder / 'c.png'])
    (folder / 'empty').mkdir()
    with pytest.raises(ValueError, match=r'no image \(\.jpg, .*\) in the folder'):
        find_images([folder / 'empty'])
    with pytest.raises(ValueError, match='number of images must be at least 1, got 0'):
        find_images([folder], 0)
    for name, size, text in (('text.txt', None, 'cannot be read'), ('a.png', (0, 4), 'at least 1')):
        with pytest.raises(ValueError, match=text):
            list(read_images(Config(dict()), [folder / name], size))


def test_versions_are_what_the_norms_make_of_the_same_tokens():
    model = variants.randomise(variants.build_pvt(**HEADS))
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
    both = []
    for seed in (1, 2):
        state = torch.manual_seed(seed).get_state()
        both.append(norm_tokens(model, IMAGE, *find_stages(model), [0, 3]))
        assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(0)
    expected = DTN(24, 3)(torch.from_numpy(both[0][0].versions['before'])[None], (3, 4))
    assert np.allclose(both[0][0].versions['DTN, initial'], expected[0].detach(), atol=1e-6)
    for first, second in zip(*both, strict=True):
        assert list(first.versions) == ['before', 'after LN', 'IN, initial', 'DTN, initial']
        assert first.num_heads == 3 and first.num_prefix == 2 and first.grid == (3, 4)
        for name in first.versions:
            assert first.versions[name].shape == (14, 24)
            assert np.array_equal(first.versions[name], second.versions[name])
    own = variants.build_vit(norm_cfg=dict(type='mmlape.DTN', num_heads=4)).eval()
    assert norm_tokens(own, IMAGE, *find_stages(own), [0])[0].num_heads == 4
    (without,) = norm_tokens(model, IMAGE, *find_stages(model), [0], compared=[])
    assert list(without.versions) == ['before', 'after LN']
    with pytest.raises(ValueError, match=r"compared norm must be one of \['DTN', 'IN', 'LN'\]"):
        norm_tokens(model, IMAGE, *find_stages(model), compared=['BN'])


def test_heads_that_do_not_divide_the_channels_count_as_one():
    model = variants.build_levit(arch='levit-128s').eval()
    found = [norm_tokens(model, IMAGE, stage, [0])[0] for stage in find_stages(model)]
    # It has 4, 6 and 8 for 128, 256 and 384 channels.
    assert [each.num_heads for each in found] == [4, 1, 8]
    assert all('DTN, initial' in each.versions for each in found)


def test_layer_norm_levels_lengths_and_instance_norm_does_not():
    """Figure 1: after LN all tokens have the length sqrt(C); IN and DTN keep differences."""
    model = variants.build_vit().eval()
    stage = find_stages(model)[0]
    (tokens,) = norm_tokens(
        model, torch.rand(1, 3, 128, 128) * torch.linspace(0, 9, 128), stage, [0]
    )
    spread = {}
    for name, rows in tokens.versions.items():
        lengths = np.linalg.norm(rows[1:], axis=1)
        spread[name] = lengths.std() / lengths.mean()
        maps = magnitude_maps(tokens)[name]
        assert maps.shape == (3, 8, 8)
        assert np.allclose(np.square(maps).sum(axis=0).ravel(), lengths**2, rtol=1e-4)
    assert spread['after LN'] < 0.02
    assert spread['IN, initial'] > 0.2


def test_components_against_scikit_learn_and_of_directions():
    from sklearn.decomposition import PCA  # takes seconds where tests are collected

    tokens = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32) + 1
    units = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    for directions, values in ((False, tokens), (True, units)):
        found = project(tokens, directions)
        values = values.astype(np.float64)  # in float32, theirs is only exact to 3e-5
        theirs = PCA(2).fit(values)
        largest = np.abs(theirs.components_).argmax(axis=1)
        signs = np.sign(theirs.components_[[0, 1], largest])
        assert np.allclose(found.points, theirs.transform(values) * signs, atol=1e-5)
        assert np.allclose(found.explained, theirs.explained_variance_ratio_, atol=1e-5)
        assert found.spread == pytest.approx(np.sqrt(values.var(axis=0).sum()))
    equal = project(np.ones((6, 4), dtype=np.float32))
    assert not equal.points.any() and equal.spread == 0 and not equal.explained.any()


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
        assert [axes.get_ylabel() for axes in figure.axes[:8:4]] == [
            'layer 0 norm1\nsecond component',
            'layer 1 norm1\nsecond component',
        ]
        cells, prefix = (dots.get_offsets() for dots in figure.axes[5].collections)
        points = found['layer 1 norm1']['after LN'].points
        assert len(prefix) == with_prefix
        assert np.allclose(np.concatenate([prefix, cells]), points)
    (first, _) = layers
    assert first.num_prefix == 1
    for name, found in project_versions(first, directions=True).items():
        assert np.array_equal(found.points, project(first.versions[name][1:], True).points)


IMAGES = [
    torch.randn(1, 3, 64, 48, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
]
LAYOUT = Layout((3, 4), 1)


def test_variation_by_hand():
    """LN's mean of (1, 3) is 2, so (1 - 2) / 1 and (3 - 2) / 3; IN's means of the channels are 2 and 3."""
    tokens = torch.tensor([[[1.0, 3.0], [3.0, 3.0]]])
    layout = Layout((1, 2))
    found = variation_coefficients(tokens, mean_of(LN(2), tokens, layout))
    assert found[0].tolist() == pytest.approx([np.hypot(-1, 1 / 3), 0])
    found = variation_coefficients(tokens, mean_of(TokenIN(2), tokens, layout))
    assert found[0].tolist() == pytest.approx([1, 1 / 3])
    zero = torch.tensor([[[0.0, 4.0]]])
    assert variation_coefficients(zero, torch.tensor(1.0))[0].tolist() == [0.75]


def dtn(pool=1, stabilize=True):
    torch.manual_seed(pool)
    norm = variants.randomise(DTN(8, 4, pool=pool, stabilize=stabilize)).double()
    with torch.no_grad():
        norm.weight.fill_(1)
        norm.bias.zero_()
    return norm


@pytest.mark.parametrize('norm', [LN(8), TokenIN(8), TokenGN(8, 4)], ids=lambda n: type(n).__name__)
def test_norms_have_the_sign_of_what_is_left(norm):
    """Of a token less the mean."""
    tokens, norm = torch.randn(1, 13, 8).double(), norm.double()
    mean = mean_of(norm, tokens, LAYOUT).expand(-1, 12, -1)
    standardised = norm(tokens, LAYOUT)[:, 1:]
    sign = (tokens[:, 1:] - mean).sign()
    assert torch.equal(standardised.sign(), sign)


@pytest.mark.parametrize('stabilize', [True, False])
@pytest.mark.parametrize('pool', [1, 2, 3])
def test_the_mean_of_dtn_is_the_one_that_it_subtracts(pool, stabilize):
    """What is left of the tokens is the result times one positive number for each head of each token and channel."""
    norm, tokens = dtn(pool, stabilize), torch.randn(1, 13, 8).double()
    with torch.no_grad():
        left = tokens[:, 1:] - mean_of(norm, tokens, LAYOUT)
        assert torch.equal(norm(tokens, LAYOUT)[:, 1:].sign(), left.sign())
        # With the same shares of own statistics alone it is the mean of LN, of stabilised heads.
        norm.ratio_mean.omega.fill_(50)
        own = tokens[:, 1:].unflatten(2, (4, 2))
        rms = (
            (own.square().mean(-1, keepdim=True) + norm.eps).sqrt() if stabilize else torch.ones(())
        )
        expected = ((own / rms).mean((2, 3), keepdim=True) * rms).expand_as(own).flatten(2)
        torch.testing.assert_close(mean_of(norm, tokens, LAYOUT), expected)


def test_the_mean_of_a_uniform_dtn_without_own_statistics_is_that_of_in():
    norm = DTN(8, 4, positions='uniform', ratio_mean=0, stabilize=False).double()
    tokens = torch.randn(2, 12, 8).double()
    found = mean_of(norm, tokens, Layout((3, 4)))
    torch.testing.assert_close(found, tokens.mean(1, keepdim=True).expand_as(found))


def test_variation_of_a_backbone():
    model = variants.randomise(variants.build_vit(norm_cfg=dict(type='mmlape.DTN'))).eval()
    (found,) = token_variation(model, IMAGES, find_stages(model))
    assert found.names == ('DTN', 'LN', 'IN') and found.layers.tolist() == [0, 1, 2, 3]
    assert found.coefficients.shape == (3, 4, 2 * 4 * 3)
    kinds = [type(block.norm1).__name__ for block in model.blocks]
    nothing = np.isnan(found.coefficients[0]).all(axis=1).tolist()
    assert nothing == [kind != 'DTN' for kind in kinds] and not all(nothing) and any(nothing)
    assert not np.isnan(found.coefficients[1:]).any()
    seen = []
    model.blocks[0].norm1.register_forward_hook(lambda module, args, output: seen.append(args))
    with torch.no_grad():
        model(IMAGES[1])
    tokens, layout = seen[0][:2]
    expected = variation_coefficients(
        layout.split(tokens)[1], mean_of(model.blocks[0].norm1, tokens, layout)
    )
    assert np.allclose(found.coefficients[0, 0, 12:], expected[0].detach())
    quarters = np.quantile(found.coefficients[1, 2], [0.25, 0.5, 0.75])
    assert np.allclose(found.quartiles[1, 2], quarters) and len({*quarters}) == 3
    figure = draw_variation([found])
    assert [line.get_label() for line in figure.axes[0].lines] == ['DTN', 'LN', 'IN']
    assert figure.axes[0].get_yscale() == 'log'


def test_variation_of_a_pyramid_and_some_layers():
    """A norm has one colour in all stages, also where the last stage has another norm, and fewer."""
    model = variants.build_pvt(**HEADS).eval()
    calls = []
    block = find_stages(model)[0].blocks[0]
    block.norm2.register_forward_hook(lambda module, args, output: calls.append(args))
    found = token_variation(model, IMAGES[:1], find_stages(model), [0], 'norm2', ['LN'])
    tokens, layout = calls[0][:2]
    wanted = variation_coefficients(tokens, mean_of(block.norm2, tokens, layout))
    assert np.allclose(found[0].coefficients[0, 0], wanted[0].detach())
    assert [stage.names for stage in found] == [('DTN', 'LN')] * 3 + [('LN',)]
    assert [stage.coefficients.shape[2] for stage in found] == [16 * 12, 8 * 6, 4 * 3, 2 * 2]
    assert set(found[0].arrays()) > {'coefficients', 'quartiles', 'names'}
    figure = draw_variation(found)
    assert figure.axes[0].get_xticks().tolist() == [0]
    lines = [{line.get_label(): line.get_color() for line in axes.lines} for axes in figure.axes]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ['DTN', 'LN']
    assert [each['LN'] for each in lines] == ['C1'] * 4


def test_norms_without_a_mean():
    with pytest.raises(ValueError, match='a ScaleNorm subtracts no mean'):
        mean_of(ScaleNorm(4), torch.zeros(1, 4, 4), Layout((2, 2)))
    model = variants.build_vit().eval()
    with pytest.raises(ValueError, match='at least one image'):
        token_variation(model, [], find_stages(model))
    with pytest.raises(ValueError, match=r"compared norm must be one of .*, got 'BN'"):
        token_variation(model, IMAGES, find_stages(model), compared=['BN'])

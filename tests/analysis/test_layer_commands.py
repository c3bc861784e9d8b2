"""The command lines about DTN, tokens and attention: any config, checkpoint and images to PNG and npz."""

import json

import numpy as np
import pytest
from backbone_variants import ADAPTER, PYRAMID_ARCH, randomise
from config_utils import REPO
from PIL import Image
from tool_runs import check_png, write_checkpoint, write_config

from mmlape.analysis import dtn_maps, dtn_stages
from mmlape.registry import MODELS

PVT = dict(
    type='mmlape.PyramidVisionTransformer',
    arch=PYRAMID_ARCH,
    num_heads=[4, 4, 5, 8],
    img_size=64,
    norm_cfg=dict(type='mmlape.DTN'),
)
VIT = dict(
    type='mmlape.VisionTransformer',
    arch=dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2),
    img_size=64,
)
IMAGE = REPO / 'docs/images/robustness-cells.png'
PREPROCESSOR = dict(mean=[100.0] * 3, std=[50.0] * 3, bgr_to_rgb=True)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / 'images'
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name, shape in (('first.jpg', (40, 70, 3)), ('second.png', (33, 33, 3))):
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path, PVT, data_preprocessor=PREPROCESSOR)


def written(said):
    """Names of the files that a command says it has written."""
    return [line.rpartition('/')[2] for line in said.split()]


def test_maps_before_and_after_training(run, tmp_path, config):
    trained = randomise(MODELS.build(PVT))
    checkpoint, script = write_checkpoint(tmp_path, trained), 'analysis_tools/dtn_maps.py'
    said = run(script, config, checkpoint, '--out', tmp_path, '--grid', 5, 7, '--token', 4, 0)
    names = [f'dtn_maps_block{stage}' for stage in (1, 2, 3)]
    assert written(said) == [name + suffix for name in names for suffix in ('.png', '.npz')]
    check_png(tmp_path / 'dtn_maps_block3.png')
    maps = dtn_maps(dtn_stages(trained, 'block3')[0], (5, 7), (4, 0))
    with np.load(tmp_path / 'dtn_maps_block3.npz') as arrays:
        assert arrays['grid'].tolist() == [5, 7] and arrays['token'].tolist() == [4, 0]
        for layer, norm in zip(maps.layers, ('norm1', 'norm2'), strict=True):
            assert np.allclose(arrays[f'maps_layer0_{norm}_after'], layer.maps)
        before = arrays['maps_layer0_norm1_before']
        # eq. 7 gives four of five heads a place to look at; the fifth looks everywhere
        assert before[:4].max(axis=(1, 2)).min() > 0.15 and before[4].max() < 0.15
        assert np.allclose(before.sum(axis=(1, 2)), 1)


def test_maps_of_one_state_and_of_two_checkpoints(run, tmp_path, config):
    script = 'analysis_tools/dtn_maps.py'
    run(script, config, '--part', 'block2', '--layers', 1, '--norm', 'norm2')
    with np.load(tmp_path / 'work_dirs/pictures/config/dtn_maps_block2.npz') as arrays:
        initial = arrays['maps_layer1_norm2']
        assert initial.shape == (4, 4, 4)  # 8 x 8 tokens of the position, in cells of 2 x 2
    checkpoint = write_checkpoint(tmp_path, randomise(MODELS.build(PVT)))
    run(script, config, checkpoint, '--before', checkpoint, '--part', 'block2')
    with np.load(tmp_path / 'work_dirs/pictures/config/dtn_maps_block2.npz') as arrays:
        for name in ('layer0_norm1', 'layer1_norm2'):
            assert np.array_equal(arrays[f'maps_{name}_before'], arrays[f'maps_{name}_after'])
        assert not np.allclose(arrays['maps_layer1_norm2_after'], initial)


def test_course_of_ratios(run, tmp_path):
    folder = tmp_path / 'my_run/20260101_000000/vis_data'
    folder.mkdir(parents=True)
    names = [f'dtn_ratio/backbone.block1.0.norm1/{kind}/0' for kind in ('mean', 'var')]
    lines = [
        {'loss': 1.0, 'step': 1},
        *(dict.fromkeys(names, s / 10) | {'step': s} for s in (1, 5)),
    ]
    (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)))
    said = run('analysis_tools/dtn_ratios.py', 'my_run')
    assert said.split() == [
        f'work_dirs/pictures/my_run/dtn_ratios.{kind}' for kind in ('png', 'npz')
    ]
    check_png(tmp_path / 'work_dirs/pictures/my_run/dtn_ratios.png')
    with np.load(tmp_path / 'work_dirs/pictures/my_run/dtn_ratios.npz') as arrays:
        assert arrays['steps'].tolist() == [1, 5]
        assert arrays['backbone.block1.0.norm1/var'].tolist() == [[0.1], [0.5]]
    assert 'error: there is no file or folder' in run.refused(
        'analysis_tools/dtn_ratios.py', 'none'
    )


@pytest.mark.parametrize('backbone', [PVT, VIT, ADAPTER], ids=lambda config: config['type'])
def test_attention_distance(backbone, run, tmp_path, images):
    config = write_config(tmp_path, backbone, data_preprocessor=PREPROCESSOR)
    script = 'analysis_tools/attention_distance.py'
    said = run(script, config, '--images', images, '--out', tmp_path)
    picture, *arrays = written(said)
    assert picture == 'attention_distance.png'
    check_png(tmp_path / picture)
    expected = {
        PVT['type']: [f'block{stage}' for stage in (1, 2, 3, 4)],
        VIT['type']: ['blocks'],
        ADAPTER['type']: ['vit_blocks'],
    }[backbone['type']]
    assert arrays == [f'attention_distance_{name}.npz' for name in expected]
    with np.load(tmp_path / arrays[0]) as found:
        assert found['distances'].shape[0] == 2
        assert np.allclose(found['mean'], found['distances'].mean(axis=0))
    alone = tmp_path / 'alone'
    run(script, config, '--images', images / 'first.jpg', '--out', alone, '--layers', 0)
    with np.load(tmp_path / arrays[0]) as both, np.load(alone / arrays[0]) as one:
        assert np.array_equal(one['distances'][0, 0], both['distances'][0, 0])


def test_class_attention(run, tmp_path, images):
    config = write_config(tmp_path, VIT, data_preprocessor=PREPROCESSOR)
    said = run('analysis_tools/class_attention.py', config, '--images', images, '--out', tmp_path)
    names = [f'class_attention_{image}' for image in ('first', 'second')]
    assert written(said) == [name + suffix for name in names for suffix in ('.png', '.npz')]
    check_png(tmp_path / f'{names[0]}.png')
    with np.load(tmp_path / f'{names[0]}.npz') as arrays:
        assert arrays['maps'].shape == (1, 3, 3, 5) and arrays['prefix'].shape == (1, 3, 1)


def test_token_magnitude(run, tmp_path, config, images):
    arguments = ('--images', images, '--part', 'block2', '--layers', 0, 1, '--out', tmp_path)
    said = run('analysis_tools/token_magnitude.py', config, *arguments, '--norm', 'norm2')
    names = [
        f'magnitude_block2_layer{layer}_norm2_{image}'
        for image in ('first', 'second')
        for layer in (0, 1)
    ]
    assert written(said) == [name + suffix for name in names for suffix in ('.png', '.npz')]
    check_png(tmp_path / f'{names[0]}.png')
    with np.load(tmp_path / f'{names[0]}.npz') as arrays:
        assert set(arrays) == {'before', 'after_DTN', 'LN_initial', 'IN_initial'}
        assert all(values.shape == (4, 5, 9) for values in arrays.values())


def test_token_pca_with_prefix_and_a_size(run, tmp_path, images):
    config = write_config(tmp_path, VIT, data_preprocessor=PREPROCESSOR)
    picked = (images / 'first.jpg', images / 'first.jpg')
    arguments = ('--images', *picked, '--out', tmp_path, '--size', 48, 64, '--compare')
    said = run('analysis_tools/token_pca.py', config, *arguments, '--prefix', '--layers', 0, 1)
    names = [f'pca_blocks_norm1_first_{index}' for index in (0, 1)]
    assert written(said) == [name + suffix for name in names for suffix in ('.png', '.npz')]
    check_png(tmp_path / f'{names[1]}.png')
    with np.load(tmp_path / f'{names[0]}.npz') as arrays:
        assert arrays['points_layer1_norm1_after_LN'].shape == (1 + 12, 2)
        assert arrays['num_prefix_layer0_norm1_before'] == 1
        assert not any('DTN' in name for name in arrays)


def test_variation_of_all_parts(run, tmp_path, config, images):
    arguments = ['--images', images, '--norm', 'norm2', '--size', 64, 64, '--out', tmp_path]
    said = run('analysis_tools/token_variation.py', config, *arguments, '--compare', 'LN')
    parts = [f'variation_block{stage}_norm2.npz' for stage in (1, 2, 3, 4)]
    assert written(said) == ['variation_norm2.png', *parts]
    check_png(tmp_path / 'variation_norm2.png')
    with np.load(tmp_path / parts[0]) as arrays:
        assert arrays['names'].tolist() == ['DTN', 'LN']
        assert arrays['coefficients'].shape == (2, 1, 2 * 16 * 16)


def test_flow_of_a_layer(run, tmp_path, config, images):
    script = 'analysis_tools/position_flow.py'
    arguments = ['--images', images / 'first.jpg', '--part', 'position2', '--layer', 1]
    said = run(script, config, *arguments, '--out', tmp_path, '--channels', 3, 5)
    pictures = [f'flow_{kind}position2_first.png' for kind in ('', 'alone_', 'layers_')]
    assert written(said) == [*pictures, 'flow_position2_first.npz']
    for picture in pictures:
        check_png(tmp_path / picture)
    with np.load(tmp_path / 'flow_position2_first.npz') as arrays:
        assert arrays['layer'] == 1 and arrays['likeness_query'].shape == (16,)
        assert arrays['layers'].shape == (3, 16, 5, 9)


@pytest.mark.parametrize(
    ('script', 'arguments', 'text'),
    [
        ('position_flow', ['--images', '.', '--part', 'x'], 'error: there is no image (.bmp'),
        ('token_variation', ['--images', 'no.jpg'], "error: there is no image or folder 'no.jpg'"),
        ('dtn_maps', ['--layers', 2, '--part', 'block2'], 'error: layers must be 0 to 1, got 2'),
        (
            'dtn_maps',
            ['--part', 'block4'],
            "error: part with DTN must be one of ['block1', 'block2', 'block3'], got 'block4'",
        ),
        ('dtn_maps', ['--token', 99, 0], 'error: row of the token must be 0 to 15, got 99'),
        ('dtn_maps', ['--before', 'x.pth'], 'error: --before x.pth is compared with a CHECKPOINT'),
        (
            'dtn_maps',
            ['--cfg-options', 'model.backbone.norm_cfg.type=mmlape.LN'],
            'error: no layer of this PyramidVisionTransformer has DTN as its norm',
        ),
        ('attention_distance', [], 'the following arguments are required: --images'),
        (
            'attention_distance',
            ['--images', 'no.jpg'],
            "error: there is no image or folder 'no.jpg'",
        ),
        (
            'attention_distance',
            ['--images', '.', '--part', 'block9'],
            "error: part must be one of ['block1', 'block2', 'block3', 'block4'], got 'block9'",
        ),
        ('attention_distance', ['--images', 'config.py'], "'config.py' cannot be read as an image"),
        ('class_attention', ['--images', IMAGE], 'error: PyramidVisionTransformer has no class'),
        (
            'token_magnitude',
            ['--images', 'config.py', '--max-images', 0],
            'error: number of images must be at least 1, got 0',
        ),
        ('token_magnitude', ['--images', '.'], 'error: there is no image (.bmp, .jpeg, .jpg'),
        ('token_pca', ['--images', 'x', '--compare', 'BN'], "choose from 'LN', 'IN', 'DTN'"),
        ('token_pca', ['--images', 'x', '--norm', 'norm3'], "choose from 'norm1', 'norm2'"),
    ],
)
def test_mistakes_end_with_one_message(script, arguments, text, run, config):
    said = run.refused(f'analysis_tools/{script}.py', config, *arguments)
    assert text in said.replace('choose from LN, IN, DTN', "choose from 'LN', 'IN', 'DTN'").replace(
        'choose from norm1, norm2', "choose from 'norm1', 'norm2'"
    )

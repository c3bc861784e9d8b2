"""The command lines: any config, checkpoint and images to PNG and npz, and one line for a user's mistake."""

import json
import re

import numpy as np
import pytest
import torch
from backbone_variants import PYRAMID_ARCH, randomise
from config_utils import write_image
from tool_runs import check_png, write_checkpoint, write_config

import mmlape.research.analysis
from mmlape.checkpoints.matching import find_tables, replace_table, table_grid
from mmlape.registry import MODELS
from mmlape.research.analysis import dtn_maps, dtn_stages, load_backbone
from mmlape.research.analysis import gabor as gabor_module

ARCH = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2)
VIT = dict(
    type='mmlape.VisionTransformer', arch=ARCH, img_size=128, joining=dict(type='mmlape.LaPE')
)
ADAPTER = dict(
    type='mmlape.ViTAdapter',
    vit=dict(VIT, with_cls_token=False, final_norm=False),
    conv_inplanes=8,
    interaction_indexes=[[0, 0], [1, 1]],
)
ONES = [1, 1, 1, 1]
LEVELS = dict(
    embed_dims=[8, 16, 24, 32], depths=ONES, num_heads=ONES, mlp_ratios=ONES, sr_ratios=[8, 4, 2, 1]
)
PYRAMID = dict(type='mmlape.PyramidVisionTransformer', arch=LEVELS, img_size=64)


@pytest.mark.parametrize('backbone', [VIT, ADAPTER, PYRAMID], ids=lambda config: config['type'])
def test_a_checkpoint_of_the_whole_model_gives_the_backbone(backbone, tmp_path):
    trained = MODELS.build(backbone)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.normal_()
    checkpoint = write_checkpoint(tmp_path, trained)
    loaded = load_backbone(write_config(tmp_path, backbone), checkpoint)
    assert not loaded.training
    ours, theirs = loaded.state_dict(), trained.state_dict()
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_checkpoint_that_does_not_fit_is_refused_with_what_does_not(tmp_path):
    checkpoint = write_checkpoint(tmp_path, MODELS.build(VIT))
    smaller = dict(VIT, joining=dict(type='mmlape.DefaultJoining'), img_size=96)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_backbone(write_config(tmp_path, smaller), checkpoint)
    text = str(error.value)
    assert re.search(r'\d+ are unknown to the model \(position\.joining\.norms\.0\.weight, ', text)
    assert 'have another shape (' in text
    assert 'pos_embed' in text and '(1, 65, 24) in the source, (1, 37, 24) in the model' in text
    with pytest.raises(ValueError, match=r'entries are missing \(.* and .* more\)'):
        load_backbone(write_config(tmp_path, ADAPTER), checkpoint)


def test_initial_values_depend_on_the_seed_alone(tmp_path):
    config = write_config(tmp_path, VIT)
    torch.manual_seed(5)
    first = load_backbone(config, seed=1).state_dict()['pos_embed']
    assert torch.equal(first, load_backbone(config, seed=1).state_dict()['pos_embed'])
    assert not torch.equal(first, load_backbone(config, seed=2).state_dict()['pos_embed'])


@pytest.mark.parametrize(
    'backbone', [VIT, dict(PYRAMID, arch=dict(LEVELS, embed_dims=[4] * 4))], ids=['vit', 'pyramid']
)
def test_fit_command_gives_a_checkpoint_of_the_gabor_config(
    backbone, commands, tmp_path, monkeypatch
):
    monkeypatch.setattr(gabor_module, 'COARSE', (4, 8))
    monkeypatch.setattr(gabor_module, 'EVALUATIONS', 5)
    source = MODELS.build(backbone)
    checkpoint, out = write_checkpoint(tmp_path, source), tmp_path / 'gabor.pth'
    said = commands('model_converters/fit_gabor.py', checkpoint, out, '--report', tmp_path)
    assert 'R2 of all values' in said and 'on noise of that size' in said
    config = write_config(tmp_path, dict(backbone, position=dict(type='mmlape.GaborPosition')))
    fitted = load_backbone(config, out)
    stage = 'position' if backbone is VIT else 'position1'
    table, gabor = (getattr(model, stage).embedding for model in (source, fitted))
    with torch.no_grad():
        prefix = table.num_prefix_tokens
        assert torch.equal(gabor(table.grid)[:, :prefix], table(table.grid)[:, :prefix])
        error = (gabor(table.grid) - table(table.grid))[:, prefix:].square().mean()
    name = 'backbone_pos_embed' if backbone is VIT else 'backbone_pos_embed1'
    with np.load(tmp_path / f'gabor_{name}.npz') as arrays:
        assert set(arrays['kinds']) <= {'chaos', 'raster', 'striped', 'box'}
        assert np.isclose(error, np.square(arrays['maps'] - arrays['fitted']).mean(), rtol=1e-3)
    check_png(tmp_path / f'gabor_{name}.png')


def test_fit_command_refuses_what_it_cannot_fit(commands, tmp_path):
    torch.save({'pos_embed': torch.zeros(1, 13, 4)}, tmp_path / 'table.pth')
    script, files = 'model_converters/fit_gabor.py', (tmp_path / 'table.pth', tmp_path / 'out.pth')
    assert 'a table of 13 rows is not a square' in commands.refused(script, *files)
    assert "--key must be one of ['pos_embed'], got 'pos'" in commands.refused(
        script, *files, '--key', 'pos'
    )
    assert not (tmp_path / 'out.pth').exists()


def test_tables_of_a_state_dict():
    table = torch.zeros(1, 5, 2)
    state = {'backbone.vit.pos_embed': table, 'backbone.vit.patch_embed.proj.bias': table[0, 0]}
    assert list(find_tables(state)) == ['backbone.vit.pos_embed']
    replaced = replace_table(state, 'backbone.vit.pos_embed', {'bias': table})
    assert 'backbone.vit.position.embedding.bias' in replaced and len(replaced) == 2
    assert list(replace_table({'pos_embed3': table}, 'pos_embed3', {'bias': table})) == [
        'position3.embedding.bias'
    ]
    with pytest.raises(ValueError, match='no learned position table'):
        find_tables({'weight': table})
    assert table_grid(197) == (1, (14, 14)) and table_grid(64) == (0, (8, 8))
    assert table_grid(26, (4, 6)) == (2, (4, 6))
    with pytest.raises(ValueError, match='more cells'):
        table_grid(10, (4, 6))


PVT = dict(
    type='mmlape.PyramidVisionTransformer',
    arch=PYRAMID_ARCH,
    num_heads=[4, 4, 5, 8],
    img_size=64,
    norm_cfg=dict(type='mmlape.DTN'),
)
SMALL_VIT = dict(type='mmlape.VisionTransformer', arch=ARCH, img_size=64)
WARM = dict(VIT, joining=dict(type='mmlape.LaPEWarmStart'))
GABOR = dict(VIT, attention_position=dict(type='mmlape.GaborAttention', layers=1))
RELATIVE = dict(
    VIT,
    position=dict(type='mmlape.NoPosition'),
    attention_position=dict(type='mmlape.RelativePositionBias'),
    window_size=[4, None],
)
IMAGES, CHANGE = ['--images', 'images'], ['--cfg-options']
PREPROCESSOR = dict(mean=[100.0] * 3, std=[50.0] * 3, bgr_to_rgb=True)


@pytest.fixture
def images(tmp_path):
    write_image(tmp_path / 'images/first.jpg', (70, 40))
    write_image(tmp_path / 'images/second.png', (33, 33))


# Command and backbone; what is asked for; files with some of their arrays' shapes (of values: a list).
WRITTEN = [
    ('position_correlation', ADAPTER, ['--token', 1, 2, '--grid', 4, 6], {
        'correlation_vit_position': dict(
            matrices=(3, 24, 24), maps=(3, 4, 6), token=[1, 2], names=['embedding', 'layer 0', 'layer 1']
        ),
    }),
    ('position_correlation', WARM, ['--token', 0, '--prefix', '--layers', 1], {
        'correlation_position_attention': dict(matrices=(2, 65, 65), names=['embedding', 'layer 1']),
        'correlation_position_stream': dict(matrices=(2, 65, 65), token=0),
    }),
    ('position_correlation', GABOR, ['--grid', 4, 5], {
        'correlation_position': {},
        'scores_blocks': dict(matrices=(1, 20, 20), maps=(1, 4, 5)),
    }),
    ('position_correlation', RELATIVE, ['--head', 1], {'scores_blocks_4x4': {}, 'scores_blocks_8x8': {}}),
    ('position_embedding', PYRAMID, ['--channels', 0], {
        f'embedding_position{n}': dict(tables=(1, 1024 >> 2 * n, 8 * n)) for n in (1, 2, 3, 4)
    } | {f'channels_position{n}': None for n in (1, 2, 3, 4)}),
    ('position_embedding', RELATIVE, [], {
        f'{kind}_blocks_bias_{size}': None if kind == 'channels' else {}
        for kind in ('channels', 'embedding') for size in ('7x7', '15x15')
    }),
    ('position_grids', VIT, [
        *('--cfg-options', 'model.backbone.position.type=mmlape.GaborPosition'),
        *('--grids', '4x4', '5x9', '--prefix', '--channels', 3),
    ], {'grids_position': dict(tables_5x9=(1, 46, 24), correlation_4x4=(4, 4))}),
    ('position_grids', VIT, [], {
        'grids_position': dict(correlation_4x4=(4, 4), correlation_8x8=(8, 8), correlation_16x16=(16, 16)),
    }),
    ('position_flow', PVT, [
        *(*IMAGES, '--max-images', 1, '--part', 'position2', '--layer', 1, '--channels', 3, 5, '--count', 1),
    ], {
        'flow_position2_first': dict(layer=1, likeness_query=(16,), layers=(3, 16, 5, 9)),
        'flow_alone_position2_first': None, 'flow_layers_position2_first': None,
        'flow_sum_position2_first': None,
    }),
    ('dtn_maps', PVT, ['--part', 'block2', '--layers', 1, '--norm', 'norm2'], {
        'dtn_maps_block2': dict(maps_layer1_norm2=(4, 4, 4)),  # 8 x 8 tokens in cells of 2 x 2
    }),
    ('attention_distance', PVT, IMAGES, {'attention_distance': None} | {
        f'attention_distance_block{n}': dict(distances=(2, 1 + (n == 2), h), mean=(1 + (n == 2), h))
        for n, h in zip((1, 2, 3, 4), (4, 4, 5, 8), strict=True)
    }),
    ('class_attention', SMALL_VIT, IMAGES, {
        'class_attention_first': dict(maps=(1, 3, 3, 5), prefix=(1, 3, 1)), 'class_attention_second': {},
    }),
    ('token_magnitude', PVT, [
        *(*IMAGES, '--max-images', 1, '--part', 'block2', '--layers', 0, 1, '--norm', 'norm2', '--compare', 'LN'),
    ], {
        f'magnitude_block2_layer{layer}_norm2_first': dict.fromkeys(
            ('before', 'after_DTN', 'LN_initial'), (4, 5, 9)
        )
        for layer in (0, 1)
    }),
    ('token_pca', SMALL_VIT, [
        *('--images', 'images/first.jpg', 'images/first.jpg', '--size', 48, 64),
        *('--compare', '--prefix', '--layers', 0, 1),
    ], {
        f'pca_blocks_norm1_first_{number}': dict(
            points_layer1_norm1_after_LN=(13, 2), num_prefix_layer0_norm1_before=1
        )
        for number in (0, 1)
    }),
    ('token_variation', PVT, [*IMAGES, '--norm', 'norm2', '--size', 64, 64, '--compare', 'LN'], {
        'variation_norm2': None,
        'variation_block1_norm2': dict(names=['DTN', 'LN'], coefficients=(2, 1, 512)),
        **{f'variation_block{n}_norm2': {} for n in (2, 3, 4)},
    }),
]  # fmt: skip


@pytest.mark.parametrize(('script', 'backbone', 'arguments', 'expected'), WRITTEN)
def test_what_a_command_writes(script, backbone, arguments, expected, commands, tmp_path, images):
    """None: a picture alone. Of several parts some have pictures, and others arrays."""
    config = write_config(tmp_path, backbone, data_preprocessor=PREPROCESSOR)
    said = commands(f'analysis_tools/{script}.py', config, *arguments)
    (folder,) = (tmp_path / 'work_dirs/pictures').iterdir()
    assert (folder.name == 'config') == ('--cfg-options' not in arguments)
    files = [path.relative_to(tmp_path).as_posix() for path in folder.iterdir()]
    assert sorted(files) == sorted(said.split())
    assert {path.stem for path in folder.glob('*.png')} >= {
        n for n in expected if expected[n] is None
    }
    for path in folder.glob('*.png'):
        check_png(path)
    for path in folder.glob('*.npz'):
        if expected.get(path.stem):
            with np.load(path) as arrays:
                for name, value in expected[path.stem].items():
                    found = arrays[name]
                    assert value == (found.shape if isinstance(value, tuple) else found.tolist())
    written = {path.stem for path in folder.iterdir()}
    assert written == set(expected)


# Command and backbone, what is asked for, and what it answers.
REFUSED = [
    ('position_correlation', VIT, ['--token', 1, 2, 3], 'token must be a pair (row, column)'),
    ('position_correlation', VIT, ['--part', 'vit'], "must be one of ['position'], got 'vit'"),
    ('position_correlation', VIT, ['--where', 'stream'], "source must be one of ['attention']"),
    ('position_correlation', VIT, ['--where', 'scores'], '--where scores: no position here'),
    ('position_correlation', VIT, ['--grid', 0, 4], '--grid: must be at least 1, got 0'),
    ('position_correlation', VIT, ['nothing.pth'], "there is no checkpoint 'nothing.pth'"),
    ('position_correlation', VIT, ['--format', 'timm'], '--format goes with a checkpoint'),
    ('position_correlation', VIT, [*CHANGE, 'model.backbone.type=mmlape.ViT'], 'is not registered as a model of'),
    ('position_correlation', VIT, [*CHANGE, 'model.backbone=None'], 'has no model.backbone'),
    ('position_correlation', RELATIVE, ['--part', 'x'], "one of ['blocks', 'position'], got"),
    ('position_correlation', RELATIVE, ['--where', 'stream', '--part', 'blocks'], "'blocks' has scores"),
    ('position_grids', VIT, ['--grids', '4by4'], 'a grid is <height>x<width>'),
    ('position_flow', PVT, ['--images', '.', '--part', 'x'], 'there is no image (.jpg'),
    ('dtn_maps', PVT, ['--before', 'x.pth'], '--before x.pth is compared with a CHECKPOINT'),
    ('attention_distance', PVT, [], 'the following arguments are required: --images'),
    ('class_attention', PVT, IMAGES, 'PyramidVisionTransformer has no class'),
    ('token_pca', PVT, ['--images', '.', '--compare', 'BN'], "invalid choice: 'BN'"),
    ('position_grids', VIT, ['--out', 'images/first.jpg/x'], 'first.jpg'),
]  # fmt: skip


@pytest.mark.parametrize(('script', 'backbone', 'arguments', 'text'), REFUSED)
def test_mistakes_end_with_one_message(
    script, backbone, arguments, text, commands, tmp_path, images
):
    config = write_config(tmp_path, backbone)
    said = commands.refused(f'analysis_tools/{script}.py', config, *arguments)
    assert text in said and said.startswith(('error: ', 'usage: '))


def test_maps_before_and_after_training(commands, tmp_path):
    config = write_config(tmp_path, PVT)
    trained = randomise(MODELS.build(PVT))
    checkpoint, script = write_checkpoint(tmp_path, trained), 'analysis_tools/dtn_maps.py'
    options = ('--part', 'block3', '--grid', 5, 7, '--token', 4, 0)
    said = commands(script, config, checkpoint, '--out', tmp_path, *options)
    assert said.split() == [f'{tmp_path}/dtn_maps_block3.{suffix}' for suffix in ('png', 'npz')]
    maps = dtn_maps(dtn_stages(trained, 'block3')[0], (5, 7), (4, 0))
    with np.load(tmp_path / 'dtn_maps_block3.npz') as arrays:
        assert arrays['grid'].tolist() == [5, 7] and arrays['token'].tolist() == [4, 0]
        for layer, norm in zip(maps.layers, ('norm1', 'norm2'), strict=True):
            assert np.allclose(arrays[f'maps_layer0_{norm}_after'], layer.maps)
        before = arrays['maps_layer0_norm1_before']
        # eq. 7 gives four of five heads a place to look at; the fifth looks everywhere
        assert before[:4].max(axis=(1, 2)).min() > 0.15 and before[4].max() < 0.15
        assert np.allclose(before.sum(axis=(1, 2)), 1)


def test_course_of_ratios(commands, tmp_path):
    folder = tmp_path / 'my_run/20260101_000000/vis_data'
    folder.mkdir(parents=True)
    names = [f'dtn_ratio/backbone.block1.0.norm1/{kind}/0' for kind in ('mean', 'var')]
    lines = [
        {'loss': 1.0, 'step': 1},
        *(dict.fromkeys(names, s / 10) | {'step': s} for s in (1, 5)),
    ]
    (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, lines)))
    said = commands('analysis_tools/dtn_ratios.py', 'my_run')
    assert said.split() == [
        f'work_dirs/pictures/my_run/dtn_ratios.{kind}' for kind in ('png', 'npz')
    ]
    check_png(tmp_path / 'work_dirs/pictures/my_run/dtn_ratios.png')
    with np.load(tmp_path / 'work_dirs/pictures/my_run/dtn_ratios.npz') as arrays:
        assert arrays['steps'].tolist() == [1, 5]
        assert arrays['backbone.block1.0.norm1/var'].tolist() == [[0.1], [0.5]]
    for mistake, text in (
        ('none', 'no file and no folder'),
        (tmp_path / 'empty', 'no ratios are logged in'),
    ):
        (tmp_path / 'empty').mkdir(exist_ok=True)
        assert text in commands.refused('analysis_tools/dtn_ratios.py', mistake)


def test_every_public_name_is_there():
    assert all(
        getattr(mmlape.research.analysis, name) is not None
        for name in mmlape.research.analysis.__all__
    )

"""The command lines: any config and checkpoint to PNG and npz, and one line for a user's mistake."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from tool_runs import REPO, check_png, write_checkpoint, write_config

from mmlape.analysis import load_backbone
from mmlape.checkpoints.position_tables import find_tables, replace_table, table_grid
from mmlape.registry import MODELS

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
PYRAMID = dict(
    type='mmlape.PyramidVisionTransformer',
    arch=dict(
        embed_dims=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 1, 1],
        mlp_ratios=[1, 1, 1, 1],
        sr_ratios=[8, 4, 2, 1],
    ),
    img_size=64,
)


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


def test_wrong_files_are_named(tmp_path):
    config = write_config(tmp_path, VIT)
    with pytest.raises(FileNotFoundError, match='no config'):
        load_backbone(tmp_path / 'nothing.py')
    with pytest.raises(FileNotFoundError, match='no checkpoint'):
        load_backbone(config, tmp_path / 'nothing.pth')
    (tmp_path / 'broken.pth').write_bytes(b'not a checkpoint')
    with pytest.raises(ValueError, match=r'broken\.pth.*cannot be read as a checkpoint'):
        load_backbone(config, tmp_path / 'broken.pth')
    torch.save(dict(state_dict={}, code=os.getcwd), tmp_path / 'code.pth')
    with pytest.raises(ValueError, match='cannot be read'):
        load_backbone(config, tmp_path / 'code.pth')
    with pytest.raises(ValueError, match=r'no model\.backbone'):
        load_backbone(Config(dict(model=dict())))
    with pytest.raises(ValueError, match='none is given'):
        load_backbone(config, source='timm')


def test_initial_values_depend_on_the_seed_alone(tmp_path):
    config = write_config(tmp_path, VIT)
    torch.manual_seed(5)
    first = load_backbone(config, seed=1).state_dict()['pos_embed']
    assert torch.equal(first, load_backbone(config, seed=1).state_dict()['pos_embed'])
    assert not torch.equal(first, load_backbone(config, seed=2).state_dict()['pos_embed'])


def test_correlation_command(run, tmp_path):
    config = write_config(tmp_path, ADAPTER)
    checkpoint = write_checkpoint(tmp_path, MODELS.build(ADAPTER))
    script, out = 'analysis_tools/position_correlation.py', tmp_path / 'pictures'
    said = run(script, config, checkpoint, '--token', 1, 2, '--grid', 4, 6, '--out', out)
    name = out / 'correlation_vit_position'
    assert said.split() == [f'{name}.png', f'{name}.npz']
    check_png(Path(f'{name}.png'))
    with np.load(f'{name}.npz') as arrays:
        assert arrays['matrices'].shape == (3, 24, 24) and arrays['maps'].shape == (3, 4, 6)
        assert arrays['token'].tolist() == [1, 2] and np.allclose(arrays['maps'][:, 1, 2], 1)
        assert arrays['names'].tolist() == ['embedding', 'layer 0', 'layer 1']


def test_correlation_command_of_a_prefix_token_and_a_warm_start(run, tmp_path):
    config = write_config(tmp_path, dict(VIT, joining=dict(type='mmlape.LaPEWarmStart')))
    run('analysis_tools/position_correlation.py', config, '--token', 0, '--prefix', '--layers', 1)
    for source in ('attention', 'stream'):
        name = tmp_path / f'work_dirs/pictures/config/correlation_position_{source}'
        with np.load(f'{name}.npz') as arrays:
            assert arrays['matrices'].shape == (2, 65, 65) and arrays['token'] == 0
            assert arrays['names'].tolist() == ['embedding', 'layer 1']


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (['--token', 9, 9], 'error: row of the token must be 0 to 7, got 9'),
        (['--token', 1, 2, 3], 'error: token must be a pair (row, column)'),
        (['--part', 'vit'], "error: the position must be one of ['position'], got 'vit'"),
        (['--layers', 2], 'error: layers must be 0 to 1, got 2'),
        (['--where', 'stream'], "error: source must be one of ['attention'] for this joining"),
        (['--grid', 0, 4], 'error: grid must be at least 1, got 0'),
        (['nothing.pth'], "error: there is no checkpoint 'nothing.pth'"),
        (['--format', 'timm'], "error: source='timm' is the format of a checkpoint"),
        (
            ['--cfg-options', 'model.backbone.type=mmlape.ViT'],
            "error: 'mmlape.ViT' is not registered as a model of mmlape",
        ),
        (['--grid', 4], 'expected 2 arguments'),
    ],
)
def test_mistakes_end_with_one_message(arguments, text, run, tmp_path):
    config = write_config(tmp_path, VIT)
    assert text in run.refused('analysis_tools/position_correlation.py', config, *arguments)


def test_position_inside_the_attention(run, tmp_path):
    """Drawn beside the embedding; alone where there is none."""
    gabor = dict(VIT, attention_position=dict(type='mmlape.GaborAttention', layers=1))
    script, config = 'analysis_tools/position_correlation.py', write_config(tmp_path, gabor)
    out = tmp_path / 'pictures'
    run(script, config, '--out', out, '--grid', 4, 5)
    names = {path.name for path in out.iterdir()}
    assert names == {
        f'{name}.{kind}'
        for name in ('correlation_position', 'scores_blocks')
        for kind in ('png', 'npz')
    }
    check_png(out / 'scores_blocks.png')
    with np.load(out / 'scores_blocks.npz') as arrays:
        assert arrays['matrices'].shape == (1, 20, 20) and arrays['maps'].shape == (1, 4, 5)
    relative = dict(
        VIT,
        position=dict(type='mmlape.NoPosition'),
        attention_position=dict(type='mmlape.RelativePositionBias'),
        window_size=[4, None],
    )
    config, out = write_config(tmp_path, relative), tmp_path / 'relative'
    run(script, config, '--out', out, '--head', 1)
    run('analysis_tools/position_embedding.py', config, '--out', out)
    assert {path.name for path in out.iterdir() if path.suffix == '.png'} == {
        'scores_blocks_4x4.png',
        'scores_blocks_8x8.png',
        'channels_blocks_bias_7x7.png',
        'channels_blocks_bias_15x15.png',
    }
    for arguments, text in (
        (['--head', 3], 'error: head must be 0 to 2, got 3'),
        (
            ['--part', 'layers'],
            "error: the position must be one of ['blocks', 'position'], got 'layers'",
        ),
        (['--where', 'stream', '--part', 'blocks'], "error: --where stream: 'blocks' has scores"),
    ):
        assert text in run.refused(script, config, *arguments)
    config = write_config(tmp_path, VIT)
    assert 'error: --where scores: no position here' in run.refused(
        script, config, '--where', 'scores'
    )


def test_embedding_command_on_a_pyramid(run, tmp_path):
    run('analysis_tools/position_embedding.py', write_config(tmp_path, PYRAMID))
    folder = tmp_path / 'work_dirs/pictures/config'
    for stage, side in enumerate((16, 8, 4, 2), start=1):
        check_png(folder / f'channels_position{stage}.png')
        check_png(folder / f'embedding_position{stage}.png')
        with np.load(folder / f'embedding_position{stage}.npz') as arrays:
            assert arrays['tables'].shape == (1, side * side, 8 * stage)


def test_grids_command_with_another_embedding(run, tmp_path):
    config, script = write_config(tmp_path, VIT), 'analysis_tools/position_grids.py'
    arguments = ['--cfg-options', 'model.backbone.position.type=mmlape.GaborPosition']
    arguments += ['--grids', '4x4', '5x9', '--out', tmp_path, '--prefix', '--channels', '3']
    run(script, config, *arguments)
    check_png(tmp_path / 'grids_position.png')
    with np.load(tmp_path / 'grids_position.npz') as arrays:
        assert arrays['tables_5x9'].shape == (1, 1 + 45, 24)
        assert arrays['correlation_4x4'].shape == (4, 4)
    run(script, config, '--out', tmp_path / 'default')
    with np.load(tmp_path / 'default/grids_position.npz') as arrays:
        assert {'tables_4x4', 'tables_8x8', 'tables_16x16'} < set(arrays)
    assert 'a grid is <height>x<width>' in run.refused(script, config, '--grids', '4by4')


@pytest.mark.parametrize(
    'backbone',
    [
        pytest.param(VIT, id='vit'),
        pytest.param(
            dict(PYRAMID, arch=dict(PYRAMID['arch'], embed_dims=[4] * 4)),
            id='pyramid',
            marks=pytest.mark.slow,
        ),
    ],
)
def test_fit_command_gives_a_checkpoint_of_the_gabor_config(backbone, run, tmp_path):
    source = MODELS.build(backbone)
    checkpoint, out = write_checkpoint(tmp_path, source), tmp_path / 'gabor.pth'
    said = run('model_converters/fit_gabor.py', checkpoint, out, '--report', tmp_path)
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


def test_fit_command_refuses_what_it_cannot_fit(run, tmp_path):
    torch.save({'pos_embed': torch.zeros(1, 13, 4)}, tmp_path / 'table.pth')
    script, files = 'model_converters/fit_gabor.py', (tmp_path / 'table.pth', tmp_path / 'out.pth')
    assert 'a table of 13 rows is no square' in run.refused(script, *files)
    assert "--key must be one of ['pos_embed'], got 'pos'" in run.refused(
        script, *files, '--key', 'pos'
    )
    assert not (tmp_path / 'out.pth').exists()


@pytest.mark.slow
def test_a_command_of_its_own_process(tmp_path):
    """As a user runs it: no display, another folder, a mistake without a traceback."""
    config = write_config(tmp_path, VIT)
    path = os.pathsep.join([str(REPO), os.environ.get('PYTHONPATH', '')])
    script = REPO / 'tools/analysis_tools/position_correlation.py'
    for arguments, status in (((), 0), (('--token', '9', '9'), 1)):
        done = subprocess.run(
            [sys.executable, str(script), str(config), *arguments],
            cwd=tmp_path,
            env={**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1'},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status and 'Traceback' not in done.stderr
    assert done.stderr.splitlines()[-1] == 'error: row of the token must be 0 to 7, got 9'


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

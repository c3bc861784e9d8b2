"""Options from environment variables: typed, and never ignored."""

import pytest

from mmlape.shipped import read_config
from mmlape.training import check_config, environment_options, vit_arch, vit_weights
from mmlape.training.environment import DEIT_WEIGHTS

DEFAULTS = dict(
    data_root=str,
    classes=tuple,
    val_img='val',
    max_epochs=12,
    lr=1e-4,
    img_scale=(1333, 800),
    reduce_zero_label=False,
)
GIVEN = {'LAPE_DATA_ROOT': '/data/my set', 'LAPE_CLASSES': "red cell, crow's foot ,\\d"}


def read(**environ):
    return environment_options('LAPE_', DEFAULTS, {**GIVEN, **environ})


def test_defaults_and_names_with_spaces_quotes_and_backslashes():
    assert read(PATH='elsewhere') == dict(
        data_root='/data/my set',
        classes=('red cell', "crow's foot", '\\d'),
        val_img='val',
        max_epochs=12,
        lr=1e-4,
        img_scale=(1333, 800),
        reduce_zero_label=False,
    )


def test_types():
    read_as = dict(max_epochs=('3', 3), lr=('5e-4', 5e-4), img_scale=('640x480', (640, 480)))
    read_as |= dict(reduce_zero_label=('Yes', True))
    options = read(**{f'LAPE_{name.upper()}': text for name, (text, _) in read_as.items()})
    assert {name: options[name] for name in read_as} == {n: v for n, (_, v) in read_as.items()}
    assert read(LAPE_MAX_EPOCHS=' ')['max_epochs'] == 12, 'an empty variable is one not set'


@pytest.mark.parametrize(
    ('name', 'value', 'expected'),
    [
        ('LAPE_MAX_EPOCHS', 'many', 'integer'),
        ('LAPE_MAX_EPOCHS', '-1', 'integer of at least 0'),
        ('LAPE_LR', 'inf', 'number'),
        ('LAPE_IMG_SCALE', '640', '1333x800'),
        ('LAPE_IMG_SCALE', '640x0', '1333x800'),
        ('LAPE_CLASSES', 'a,,b', 'names separated by commas'),
        ('LAPE_REDUCE_ZERO_LABEL', 'maybe', 'yes or no'),
    ],
)
def test_unreadable_values(name, value, expected):
    with pytest.raises(ValueError, match=f'^{name}={value!r}: expected .*{expected}'):
        read(**{name: value})


def test_unknown_and_missing_variables(monkeypatch):
    with pytest.raises(ValueError, match=r'LAPE_MAX_EPOCH: no such option.*LAPE_MAX_EPOCHS'):
        read(LAPE_MAX_EPOCH='3')
    with pytest.raises(ValueError, match='set the environment variable LAPE_CLASSES'):
        environment_options('LAPE_', DEFAULTS, {'LAPE_DATA_ROOT': '/data'})
    monkeypatch.setenv('LAPE_DEPTH', '7')
    assert environment_options('LAPE_', dict(depth=1)) == dict(depth=7)


def test_vit_arch():
    assert vit_arch('deit-small')['embed_dims'] == 384
    assert vit_arch('96x8x3') == dict(embed_dims=96, depth=8, num_heads=3, mlp_ratio=4)
    for text in ('deit', '96x8', '96x8xthree'):
        with pytest.raises(ValueError, match='is not a ViT'):
            vit_arch(text)


def test_vit_weights():
    assert vit_weights('none', '96x8x3') is None
    for text, expected in {
        'deit': dict(source='deit', checkpoint=DEIT_WEIGHTS['deit-tiny']),
        'timm:deit_tiny_patch16_224': dict(source='timm', model='deit_tiny_patch16_224'),
        'lape:runs/vit.pth': dict(source='lape', checkpoint='runs/vit.pth'),
    }.items():
        assert vit_weights(text, 'deit-tiny') == dict(type='mmlape.Pretrained', **expected)
    with pytest.raises(ValueError, match='no DeiT weights for'):
        vit_weights('deit', '96x8x3')
    for text in ('vit.pth', 'deit:'):
        with pytest.raises(ValueError, match='names no weights'):
            vit_weights(text, 'deit-tiny')


@pytest.mark.parametrize(
    'name',
    ['mask-rcnn_deit-t-adapter-lape_fpn_coco-format', 'segmenter_deit-t-lape_mask_image-folders'],
)
def test_variables_that_reach_nothing(name, monkeypatch):
    """The network of a config was replaced, and what the user sets for the old one is not ignored."""
    variables = dict(VIT='96x4x3', WEIGHTS='lape:vit.pth', DATA_ROOT='data', CLASSES='a,b')
    for variable, value in variables.items():
        monkeypatch.setenv(f'LAPE_{variable}', value)
    config = f'custom/{name}'
    check_config(read_config(config))
    replaced = read_config(config)
    replaced.model.backbone = dict(type='mmlape.SwinTransformer', arch='tiny')
    with pytest.raises(ValueError, match=r'LAPE_VIT=96x4x3 reaches nothing.*Unset LAPE_VIT'):
        check_config(replaced)
    monkeypatch.delenv('LAPE_VIT')
    with pytest.raises(ValueError, match=r'LAPE_WEIGHTS=lape:vit\.pth reaches nothing'):
        check_config(replaced)
    monkeypatch.setenv('LAPE_WEIGHTS', 'none')
    check_config(replaced)  # read with other variables

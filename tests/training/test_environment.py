"""Options from environment variables: typed, and never ignored."""

import pytest

from mmlape.training import environment_options, vit_arch, vit_weights
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
    options = read(
        LAPE_MAX_EPOCHS='3', LAPE_LR='5e-4', LAPE_IMG_SCALE='640x480', LAPE_REDUCE_ZERO_LABEL='Yes'
    )
    assert options['max_epochs'] == 3
    assert options['lr'] == 5e-4
    assert options['img_scale'] == (640, 480)
    assert options['reduce_zero_label'] is True
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


def test_a_typing_error_is_not_ignored():
    with pytest.raises(ValueError, match=r'LAPE_MAX_EPOCH: no such option.*LAPE_MAX_EPOCHS'):
        read(LAPE_MAX_EPOCH='3')


def test_a_required_option_is_missing():
    with pytest.raises(ValueError, match='set the environment variable LAPE_CLASSES'):
        environment_options('LAPE_', DEFAULTS, {'LAPE_DATA_ROOT': '/data'})


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv('LAPE_DEPTH', '7')
    assert environment_options('LAPE_', dict(depth=1)) == dict(depth=7)


def test_vit_arch():
    assert vit_arch('deit-small')['embed_dims'] == 384
    assert vit_arch('96x8x3') == dict(embed_dims=96, depth=8, num_heads=3, mlp_ratio=4)
    for text in ('deit', '96x8', '96x8xthree'):
        with pytest.raises(ValueError, match='is no ViT'):
            vit_arch(text)


def test_vit_weights():
    assert vit_weights('none', '96x8x3') is None
    loader = dict(type='mmlape.Pretrained')
    deit = DEIT_WEIGHTS['deit-tiny']
    assert vit_weights('deit', 'deit-tiny') == {**loader, 'source': 'deit', 'checkpoint': deit}
    assert vit_weights('timm:deit_tiny_patch16_224', 'deit-tiny') == {
        **loader,
        'source': 'timm',
        'model': 'deit_tiny_patch16_224',
    }
    assert vit_weights('lape:runs/vit.pth', '96x8x3') == {
        **loader,
        'source': 'lape',
        'checkpoint': 'runs/vit.pth',
    }
    with pytest.raises(ValueError, match='no DeiT weights for'):
        vit_weights('deit', '96x8x3')
    for text in ('vit.pth', 'deit:'):
        with pytest.raises(ValueError, match='names no weights'):
            vit_weights(text, 'deit-tiny')

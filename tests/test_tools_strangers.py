"""Checkpoints of strangers given to the commands: each ends with one line, and nothing in them is run."""

import pytest
import torch
from crafted import BROKEN, CODE, CONFIGS, FINE, NO_TRAINING, UNFIT, Maker
from mmengine.runner import Runner
from tiny_training import VIT, tiny_config

from mmlape.checkpoints.reading import read_checkpoint

# Of each kind one or a few are for the fast tests.
SOME = (
    'in_meta', 'in_the_old_format', 'through_attributes', 'a_value', 'nothing', 'one_bit_of_0', 'a_page',
    'not_a_number', 'another_architecture', 'one_missing', 'safetensors_alone', 'as_saved',
)  # fmt: skip
FILES = [
    pytest.param(kind, name, id=name, marks=() if name in SOME else pytest.mark.slow)
    for kind in (CODE, CONFIGS, BROKEN, UNFIT, NO_TRAINING, FINE)
    for name in kind
]


@pytest.fixture(scope='module')
def maker(tmp_path_factory):
    folder = tmp_path_factory.mktemp('strangers')
    Runner.from_cfg(tiny_config(folder / 'run', experiment_name='strangers')).train()
    return Maker(folder, read_checkpoint(folder / 'run' / 'epoch_1.pth'))


@pytest.fixture
def commands(commands, tmp_path):
    config = tiny_config(tmp_path / 'work')
    config.default_hooks = None  # the commands add the check
    config.dump(tmp_path / 'config.py')
    config.model.backbone = VIT
    config.dump(tmp_path / 'config_of_convert.py')
    return commands


def ways(commands, path):
    """What each command says at its end: the message of an error, or None."""
    options = ('--cfg-options', f'load_from={path}')
    convert = ('mmlape', path, 'out.pth', '--force', '--config', 'config_of_convert.py')
    return {
        'test': said(commands, 'test.py', 'config.py', path),
        'load_from': said(commands, 'train.py', 'config.py', '--work-dir', 'new', *options),
        'resume': said(commands, 'train.py', 'config.py', '--work-dir', 'old', '--resume', path),
        'convert': said(commands, 'model_converters/convert.py', *convert),
    }


def said(commands, script, *arguments):
    try:
        commands(script, *arguments)
    except SystemExit as end:
        return commands.capsys.readouterr().err.strip() if end.code == 2 else str(end.code)
    return None


@pytest.mark.parametrize(('kind', 'name'), FILES)
def test_every_command_runs_nothing_and_ends_with_one_line(maker, commands, kind, name):
    path = maker.make(kind, name)
    found = ways(commands, path)
    ran = list(maker.folder.glob('*.canary'))
    assert not ran, f'{ran[0].stem} was run'
    for way, message in found.items():
        # an account of a conversion has more lines
        lines = 1 if way != 'convert' or kind in (CODE, BROKEN) else 99
        assert message is None or message.startswith('error: '), (way, message)
        assert message is None or len(message.splitlines()) <= lines, (way, message)
    refused = {way for way, message in found.items() if message}
    if kind in (CODE, BROKEN):
        assert refused == set(found), found
    elif kind in (CONFIGS, FINE):
        assert not refused, found
    elif kind is NO_TRAINING:
        assert refused == {'resume'}, found
    else:
        assert {'test', 'resume'} <= refused, found


def test_parts_are_taken_when_asked_for(maker, commands):
    path = maker.make(UNFIT, 'a_wrong_shape')
    assert '1 have another shape (head.weight: it has the shape (7, 24) in the source, (3, 24)' in (
        commands.refused('test.py', 'config.py', path)
    )
    # Runs of one name and one second share a logger, and its place on the screen.
    partly = (path, '--allow-partial', '--cfg-options')
    log = commands('test.py', 'config.py', *partly, 'experiment_name=tested')
    assert (
        'stays random: head.weight: it has the shape (7, 24)' in log and 'measured:\n  mean ' in log
    )
    log = commands('train.py', 'config.py', '--resume', *partly, 'experiment_name=resumed')
    assert 'stays random: head.weight' in log and 'resumed epoch: 1' in log
    broken = maker.make(UNFIT, 'one_infinite_value')
    for asked in ((), ('--allow-partial',)):
        message = commands.refused('test.py', 'config.py', broken, *asked)
        assert message.endswith('head.weight is NaN or infinite')


def test_weights_of_other_tools_say_what_is_wrong(maker, commands):
    message = commands.refused('test.py', 'config.py', maker.make(UNFIT, 'the_backbone_alone'))
    assert 'it is only a backbone: name it in init_cfg of model.backbone' in message
    message = commands.refused('test.py', 'config.py', maker.make(UNFIT, 'under_another_name'))
    assert message.endswith("its weights are under 'model' instead of 'state_dict'")


def test_weights_of_a_config_that_cannot_be_had(commands, tmp_path, monkeypatch):
    """What fails while the model is initialised, inside of the runner, ends with one line too."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    config = tiny_config(tmp_path / 'work')
    address = 'http://127.0.0.1:9/weights.pth'
    for kind in (dict(type='mmlape.Pretrained', source='mmlape'), dict(type='Pretrained')):
        config.model.init_cfg = dict(kind, checkpoint=address)
        config.dump(tmp_path / 'config.py')
        message = commands.refused('train.py', 'config.py', '--work-dir', kind['type'])
        assert message.startswith(f'error: {address} cannot be downloaded')
        assert len(message.splitlines()) == 1
    assert torch.hub.get_dir() == str(tmp_path / 'hub')

"""Configs by name, and the command `mmlape`."""

import re
from argparse import ArgumentTypeError
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config
from tool_runs import REPO

from mmlape import __main__ as command
from mmlape import shipped
from mmlape.cli.arguments import FOLDER, NEW_FILE, NEW_FOLDER, NEW_PATH, SOURCE
from mmlape.failures import missing_package
from mmlape.shipped import find_config, read_config, shipped_configs

MASK_RCNN = 'mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco'


@pytest.mark.parametrize(
    'name', [MASK_RCNN, f'{MASK_RCNN}.py', f'lape/{MASK_RCNN}', f'configs/lape/{MASK_RCNN}.py']
)
def test_a_shipped_config_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config(name) == REPO / 'configs' / 'lape' / f'{MASK_RCNN}.py'


def test_a_file_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f'{MASK_RCNN}.py').write_text('')
    assert find_config(f'{MASK_RCNN}.py').resolve() == tmp_path / f'{MASK_RCNN}.py'


def test_nearest_names_of_an_unknown_config():
    with pytest.raises(ValueError, match='neither a file nor a shipped config') as error:
        find_config('maskrcnn_deit-s-adapter_lape_coco')
    names = shipped_configs()
    assert len(names) > 30 and not [name for name in names if '_base_' in name]
    nearest = str(error.value).partition('the nearest are ')[2].split(', ')
    assert len(nearest) == 3
    assert 'lape/mask-rcnn_deit-s-adapter-lape_fpn_1x_coco' in nearest
    assert all(name in names for name in nearest)
    with pytest.raises(ValueError, match=r'nor a shipped config$'):
        find_config('tests')


def test_folders_that_are_empty_or_read_only_are_refused_at_once(tmp_path, monkeypatch):
    for kind in (FOLDER, SOURCE):
        with pytest.raises(ArgumentTypeError, match=r'is empty$'):
            kind(str(tmp_path))
    monkeypatch.setattr('os.access', lambda path, mode: path != tmp_path)
    for kind in (NEW_FOLDER, NEW_FILE, NEW_PATH):
        with pytest.raises(ArgumentTypeError, match=f"into '{tmp_path}': permission denied"):
            kind(str(tmp_path / 'inner' / 'x'))


def test_a_name_in_two_folders_is_ambiguous(tmp_path, monkeypatch):
    for folder in ('lape', 'dtn', '_base_'):
        (tmp_path / '.mim' / 'configs' / folder).mkdir(parents=True)
        (tmp_path / '.mim' / 'configs' / folder / 'a.py').write_text('')
    monkeypatch.setattr(shipped, 'PACKAGE', tmp_path)
    with pytest.raises(ValueError, match='several configs: dtn/a, lape/a'):
        find_config('a')
    assert find_config('dtn/a') == tmp_path / '.mim' / 'configs' / 'dtn' / 'a.py'


def test_outputs_of_a_wheel_are_in_the_current_folder(tmp_path, monkeypatch):
    assert shipped.output_folder() == REPO
    (tmp_path / 'mmlape/.mim/tools').mkdir(parents=True)
    monkeypatch.setattr(shipped, 'PACKAGE', tmp_path / 'mmlape')
    monkeypatch.chdir(tmp_path)
    assert shipped.output_folder() == tmp_path


@pytest.mark.parametrize(
    ('base', 'scope'),
    [
        ('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco', 'mmdet'),
        ('mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512', 'mmseg'),
        (f'mmlape::lape/{MASK_RCNN}', 'mmdet'),
    ],
)
def test_a_base_of_a_package(base, scope, tmp_path):
    """With either family of packages, also in a base of a base; types have no scope that is not needed or wrong."""
    package, _, path = base.partition('::')
    folder = Path(find_spec(package).origin).parent / '.mim' / 'configs'
    (tmp_path / 'base.py').write_text(f"_base_ = '{base}.py'\n")
    (tmp_path / 'mine.py').write_text("_base_ = './base.py'\nmodel = dict(mine=1)\n")
    found, wanted = read_config(tmp_path / 'mine.py'), Config.fromfile(folder / f'{path}.py')
    wanted.model.mine = 1
    assert found.to_dict() == wanted.to_dict() and found.default_scope == scope


def test_a_base_of_an_unknown_package(tmp_path):
    (tmp_path / 'mine.py').write_text("_base_ = 'mmlap::a/b.py'\n")
    with pytest.raises(ValueError, match=r'mine\.py: .*mmlap'):
        read_config(tmp_path / 'mine.py')


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('a = 1\nb = nowhere', r"base\.py, line 2: NameError: name 'nowhere' is not defined"),
        ('a = dict(', 'is no Python'),
        ("_base_ = './none.py'", r"none\.py: .*No such file"),
        ("_base_ = './base.py'", r'base\.py: RecursionError'),
        ("a = __import__('mmpose')", r'base\.py, line 1: ModuleNotFoundError: .*mmpose'),
        ('\xff', r'mine\.py is not UTF-8'),
    ],
)
def test_a_config_that_fails_is_named_with_its_line(text, said, tmp_path):
    mine, base = tmp_path / 'mine.py', tmp_path / 'base.py'
    base.write_text(text, encoding='latin-1')
    mine.write_text("_base_ = './base.py'\n" if text != '\xff' else text, encoding='latin-1')
    with pytest.raises(ValueError, match=said):
        read_config(mine)


def test_what_is_missing_for_one_command():
    wrapped = ImportError('Failed to import custom modules')
    wrapped.__cause__ = ModuleNotFoundError(name='mmpretrain')
    assert 'which is not installed: `pip install' in missing_package(wrapped)
    ours = ModuleNotFoundError('pip install scikit-learn (or mmlape[demo])', name='sklearn')
    assert missing_package(ours) == str(ours)
    assert missing_package(ModuleNotFoundError(name='mmpretrain.models.none')) is None
    assert missing_package(ImportError('libGL.so.1: cannot open', name='cv2')) is None


def test_the_list_of_commands_has_an_entry_for_each(monkeypatch):
    found = command.commands()
    assert {'train', 'test', 'dist_train', 'dist_test', 'slurm_train', 'slurm_test'} <= set(found)
    assert {'demo', 'picture position_correlation', 'fit_gabor', 'build digit_scenes'} <= set(found)
    # parts of tools, and the set-up of a clone
    assert not {'common', 'console', 'workers', 'setup_env', '__init__', '__main__'} & set(found)
    monkeypatch.setenv('COLUMNS', '80')
    lines = command.listing().splitlines()
    entries = [line for line in lines if re.match(r'  \w', line)]
    names = {name.split()[0] for name, path in found.items() if path.suffix == '.py'}
    assert sorted(line.split()[0] for line in entries) == sorted(names)  # each in one group
    assert all(len(line.split()) > 3 for line in entries) and max(map(len, lines)) <= 80


def test_a_command_gets_its_arguments(tmp_path, monkeypatch):
    tools = tmp_path / 'tools'
    (tools / 'model_converters').mkdir(parents=True)
    # next to it is a module of its own, as with a script
    (tools / 'model_converters' / 'helper.py').write_text('"""Helps."""\nvalue = 3\n')
    (tools / 'model_converters' / 'show.py').write_text(
        '"""Shows. More."""\nimport sys\nfrom pathlib import Path\nfrom helper import value\n'
        "Path('said').write_text(repr((sys.argv[1:], value, __name__)))\n"
    )
    monkeypatch.setattr(command, 'shipped_folder', lambda name: tools)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('sys.path', list(command.sys.path))
    monkeypatch.setattr('sys.argv', ['mmlape', 'show', MASK_RCNN, '--out', MASK_RCNN])
    command.main()
    expected = ([MASK_RCNN, '--out', MASK_RCNN], 3, '__main__')
    assert (tmp_path / 'said').read_text() == repr(expected)


def test_a_script_runs_with_this_interpreter(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(command.os, 'execvpe', lambda *arguments: ran.append(arguments))
    monkeypatch.setattr(command.runpy, 'run_path', lambda *_, **__: None)
    monkeypatch.delenv('PYTHON', raising=False)
    monkeypatch.setattr('sys.path', list(command.sys.path))
    monkeypatch.setattr('sys.argv', ['mmlape', 'dist_train', 'my.py', '2'])
    command.main()
    (program, arguments, environment) = ran[0]
    assert (program, arguments[2:]) == ('bash', ['my.py', '2'])
    assert arguments[1] == str(REPO / 'tools' / 'dist_train.sh')
    assert environment['PYTHON'] == command.sys.executable

"""What is imported when: rooms on first use, modules that follow others, and what MMEngine and timm are told."""

import ast
import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import torch
from site_copies import run_python

import mmlape
from mmlape.imports import follow, on_first_use

ROOT = Path(mmlape.__file__).resolve().parent.parent
SITE = Path(torch.__file__).resolve().parent.parent
# Rooms whose components need MMPretrain: a config names them in its custom_imports.
OPTIONAL = 'pretraining'


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write modules into a folder of ``sys.path``; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, 'meta_path', list(sys.meta_path))
    before = set(sys.modules)

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f'{name.replace("_of_", "/")}.py'
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


LAZY = """
from mmlape.imports import on_first_use
__getattr__, __dir__, __all__ = on_first_use(__name__, {'one': ('first', 'other')})
"""


def test_a_module_is_imported_when_a_name_of_it_is_used(modules):
    modules(lazy_of___init__=LAZY, lazy_of_one='first, other, third = 1, 2, 3', lazy_of_two='')
    lazy = importlib.import_module('lazy')
    assert lazy.__all__ == ['first', 'other'] and {'first', '__name__'} < set(dir(lazy))
    assert 'lazy.one' not in sys.modules
    assert lazy.first == 1 and vars(lazy)['first'] == 1
    assert 'lazy.one' in sys.modules and 'lazy.two' not in sys.modules
    assert lazy.two.__name__ == 'lazy.two'
    assert importlib.import_module('lazy').other == 2
    for name in ('third', 'three', '_one', '__wrapped__'):
        with pytest.raises(AttributeError, match=f"'lazy' has no attribute '{name}'"):
            getattr(lazy, name)


def test_an_error_in_a_module_is_not_a_missing_name(modules):
    modules(lazy_of___init__=LAZY, lazy_of_one='import a_module_that_is_not_there')
    with pytest.raises(ModuleNotFoundError, match='a_module_that_is_not_there'):
        _ = importlib.import_module('lazy').first


def test_no_public_name_is_that_of_a_module():
    """It would be the one or the other, whichever was imported last."""
    for path in sorted(Path(mmlape.__file__).parent.rglob('__init__.py')):
        tree = ast.parse(path.read_text(encoding='utf-8'))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if any(getattr(call.func, 'id', '') == on_first_use.__name__ for call in calls):
            room = '.'.join(path.parent.relative_to(ROOT).parts)
            there = {p.stem for p in path.parent.iterdir()} - {'timm_models'}
            assert not there & set(importlib.import_module(room).__all__) or room == 'mmlape'


def test_a_module_follows_another(modules):
    modules(followed='value = 1', follower='from followed import value')
    follow({'followed': ['follower']})
    # Whoever only asks where it is does not import it.
    assert importlib.util.find_spec('followed').loader.get_filename('followed').endswith('.py')
    assert importlib.util.find_spec('followed').origin.endswith('followed.py')
    assert not {'followed', 'follower'} & set(sys.modules)
    followed = importlib.import_module('followed')
    assert sys.modules['follower'].value == 1
    assert type(followed.__loader__) is type(followed.__spec__.loader) is SourceFileLoader


def test_a_module_follows_one_that_is_there(modules):
    modules(followed='', follower='')
    importlib.import_module('followed')
    finders = list(sys.meta_path)
    follow({'followed': ['follower']})
    assert 'follower' in sys.modules and sys.meta_path == finders


def test_a_module_that_imports_the_one_it_follows(modules):
    modules(followed='value = 1', follower='import followed\nvalue = followed.value + 1')
    follow({'followed': ['follower']})
    assert importlib.import_module('follower').value == 2


def test_parts_of_a_package_are_followed_and_what_fails_is_tried_again(modules, tmp_path):
    modules(package_of___init__='', package_of_part='raise ImportError("not yet")', follower='')
    follow({'package.part': ['follower'], 'no_such_module': ['follower']})
    for name in ('package.part', 'no_such_module'):
        with pytest.raises(ImportError):
            importlib.import_module(name)
    assert 'follower' not in sys.modules
    modules(package_of_part='value = "works"')
    assert importlib.import_module('package.part').value == 'works'
    assert 'follower' in sys.modules


FRESH = """
import json, sys
heavy = ('torch', 'numpy', 'mmengine', 'mmcv', 'timm')
import mmlape
assert not set(heavy) & set(sys.modules), 'import mmlape'

import mmengine.registry
before = set(sys.modules)
loaded = [name for name in before if name.startswith('mmlape.')]
assert 'mmlape' in mmengine.registry.MODELS.children and len(loaded) < 20, loaded
late = ('timm', 'torchvision', 'torch._dynamo', 'mmcv', 'mmengine.runner', 'matplotlib', 'scipy')
assert not set(late) & before, 'import mmengine'
from mmengine.fileio import get_file_backend
get_file_backend(backend_args=dict(backend='mmlape_whole_files'))

import mmlape.layers  # imports timm, before it is there itself
import timm
from mmengine.runner.checkpoint import CheckpointLoader
assert timm.is_model('lape_deit_tiny_patch16_224')
assert timm.get_pretrained_cfg('lape_deit_tiny_patch16_224').first_conv == 'backbone.patch_embed.proj'
assert CheckpointLoader._schemes[''].__module__ == 'mmlape.checkpoints.loader'
assert not [name for name in sys.modules if name.startswith('mmlape.backbones')]
"""
FILLED = """
import json
import mmengine.registry
import mmlape
names = {}
for registry in vars(mmengine.registry).values():
    if isinstance(registry, mmengine.registry.Registry) and 'mmlape' in registry.children:
        ours = registry.children['mmlape']
        assert len(ours) == len(ours.module_dict) and all(name in repr(ours) for name in ours.module_dict)
        names |= {name: made.__module__ for name, made in ours.module_dict.items()}
print('names: ' + json.dumps(names))
"""


def test_what_a_fresh_process_imports_and_what_it_then_knows(tmp_path):
    """``import mmlape`` alone takes no time; MMEngine and timm know of mmlape as soon as both are there."""
    done = run_python(FRESH, SITE, ROOT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_registries_have_every_component_when_they_are_asked(tmp_path):
    done = run_python(FILLED, SITE, ROOT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1].removeprefix('names: '))
    assert found == {name: module for name, (_, module) in registered_in_files().items()}


def test_registries_know_where_their_components_are():
    for name, (registry, module) in registered_in_files().items():
        ours = getattr(mmlape.registry, registry)
        assert any(f'{module}.'.startswith(f'{place}.') for place in ours._locations), name
        assert ours.module_dict[name].__module__ == module


def test_a_name_of_ours_is_not_taken_again(monkeypatch):
    """Whether ours was imported already or not."""
    ours = mmlape.registry.HOOKS
    monkeypatch.setattr(ours, '_module_dict', {})
    monkeypatch.setattr(ours, '_imported', False)
    monkeypatch.setattr(
        ours, 'import_from_location', lambda: ours._module_dict.update(CheckDataHook=object)
    )
    with pytest.raises(KeyError, match='CheckDataHook is already registered'):
        ours.register_module('CheckDataHook', module=type('Mine', (), {}))


def registered_in_files() -> dict[str, tuple[str, str]]:
    """Every component's registry and module, as the decorators in the files of mmlape say."""
    found = {}
    for path in sorted((ROOT / 'mmlape').rglob('*.py')):
        if OPTIONAL in path.parts:
            continue
        for node in ast.parse(path.read_text(encoding='utf-8')).body:
            for decorator in map(ast.unparse, getattr(node, 'decorator_list', [])):
                if '.register_module' in decorator:
                    module = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
                    found[node.name] = decorator.partition('.')[0], module
    return found

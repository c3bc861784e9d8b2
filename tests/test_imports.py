"""What is imported when, and that an import changes nothing of any other package."""

import ast
import importlib
from pathlib import Path

import pytest
import torch
from site_copies import run_python

import mmlape

ROOT = Path(mmlape.__file__).resolve().parent.parent
SITE = Path(torch.__file__).resolve().parent.parent
# Subpackages whose components need MMPretrain: a config names them in its custom_imports.
OPTIONAL = 'pretraining'


def test_no_public_name_is_that_of_a_module():
    """It would be the one or the other, whichever was imported last."""
    lazy = [
        path.parent
        for path in (ROOT / 'mmlape').rglob('__init__.py')
        if 'lazy_names' in path.read_text()
    ]
    assert len(lazy) > 4
    for folder in lazy:
        package = importlib.import_module('.'.join(folder.relative_to(ROOT).parts))
        assert not {path.stem for path in folder.iterdir()} & set(package.__all__)
        assert all(hasattr(package, name) for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
            package.no_such_name  # noqa: B018


FRESH = """
import os, sys

def traces():
    '''What an import could change elsewhere: finders, loaders, classes, the environment.'''
    import mmengine, timm, torch
    from mmengine.fileio.backends.registry_utils import backends
    from mmengine.runner import CheckpointLoader, checkpoint
    return dict(
        finders=[type(finder).__name__ for finder in sys.meta_path],
        loaders={name: made.__module__ for name, made in CheckpointLoader._schemes.items()},
        backends=sorted(backends),
        models=timm.list_models(),
        globals=torch.serialization.get_safe_globals(),
        environment=dict(os.environ),
        children=sorted(mmengine.registry.MODELS.children),
    )

import mmlape
assert not {'torch', 'numpy', 'mmengine', 'mmcv', 'timm', 'safetensors'} & set(sys.modules), 'import mmlape'
known = traces()
import importlib
importlib.reload(mmlape)
assert traces() == known

from mmengine.registry import MODELS
MODELS.get('mmlape.VisionTransformer')
import mmlape.backbones, mmlape.heads, mmlape.training
assert not {'mmdet', 'mmseg'} & set(sys.modules), 'a component'
now = traces()
ours = {name: now.pop(name) for name in ('children', 'backends')}
assert now == {name: known[name] for name in now}, 'a component'
assert {*ours['children']} - {*known['children']} == {'mmlape'}
assert {*ours['backends']} - {*known['backends']} <= {'mmlape_whole_files'}

import mmlape.timm_models, timm
assert timm.is_model('lape_deit_tiny_patch16_224')
assert timm.get_pretrained_cfg('lape_deit_tiny_patch16_224').first_conv == 'backbone.patch_embed.proj'
mmlape.safe_loading()
assert traces()['loaders'][''] == 'mmlape.checkpoints.loaders'
"""


def test_what_a_fresh_process_imports_and_what_it_then_knows(tmp_path):
    """``import mmlape`` imports nothing else; neither it nor its components change anything of other packages."""
    done = run_python(FRESH, SITE, ROOT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_registries_know_where_their_components_are():
    for name, (registry, module) in registered_in_files().items():
        ours = getattr(mmlape.registry, registry)
        places = [ours.by_name[name]] if name in ours.by_name else ours._locations
        assert any(f'{module}.'.startswith(f'{place}.') for place in places), name
        assert ours.get(name).__module__ == module


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

"""The Python of the pages: all of it parses, and what is a config builds a model."""

import ast
from pathlib import Path

import mmdet
import mmseg
import pytest
import torch
from config_utils import REPO
from docs_pages import PAGES, python_fences
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import DefaultScope

FENCES = {
    f'{path.relative_to(REPO).as_posix()}:{fence.line}': fence.code
    for path in PAGES
    for fence in python_fences(path)
}
OWN_TESTS = ('README.md:', 'docs/extending.md:')
CONFIGS = [
    name for name, code in FENCES.items() if '_base_ =' in code and not name.startswith(OWN_TESTS)
]


@pytest.mark.parametrize('name', FENCES)
def test_it_parses(name):
    ast.parse(FENCES[name])


def write_config(folder: Path, code: str) -> Path:
    """The config with its base files beside it: ours under ``configs/``, upstream's as ``./name.py``."""
    (folder / 'configs').symlink_to(REPO / 'configs')
    (base,) = [
        ast.literal_eval(line.value)
        for line in ast.parse(code).body
        if isinstance(line, ast.Assign) and line.targets[0].id == '_base_'
    ]
    if base.startswith('./'):
        upstream = [Path(box.__file__).parent / '.mim' / 'configs' for box in (mmdet, mmseg)]
        (found,) = [path for place in upstream for path in place.glob(f'*/{base[2:]}')]
        code = code.replace(base, str(found))
    path = folder / 'page_config.py'
    path.write_text(code)
    return path


def without_weights(options):
    """The same model, from random values: a test downloads nothing."""
    if isinstance(options, dict):
        rest = {key: without_weights(value) for key, value in options.items() if key != 'init_cfg'}
        return rest
    return [without_weights(entry) for entry in options] if isinstance(options, list) else options


@pytest.mark.parametrize('name', CONFIGS)
def test_a_config_builds(name, tmp_path):
    config = Config.fromfile(write_config(tmp_path, FENCES[name]))
    scope = config.get('default_scope', 'mmdet')
    with DefaultScope.overwrite_default_scope(scope):
        __import__(f'{scope}.utils', fromlist=['']).register_all_modules(init_default_scope=False)
        options = ConfigDict(without_weights(config.model.to_dict()))
        model = ROOT_MODELS.build(options).eval()
    with torch.no_grad():
        features = model.extract_feat(torch.randn(1, 3, 97, 131))
    assert len(features) >= 4
    assert sum(value.numel() for value in model.parameters()) > 1e7


def test_there_are_configs_to_build():
    assert len(CONFIGS) >= 4

"""The Python of the pages: all of it parses, configs build a model, and worked examples are run as they stand there."""

import ast
import importlib
from pathlib import Path

import mmdet
import mmseg
import pytest
import torch
from backbone_variants import build_adapter, build_vit
from docs_pages import PAGES, REPO, python_fences
from mmengine.config import Config, ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

FENCES = {
    f'{path.relative_to(REPO).as_posix()}:{fence.line}': fence.code
    for path in PAGES
    for fence in python_fences(path)
}
# docs/extending.md has a test of its own.
CONFIGS = [
    name
    for name, code in FENCES.items()
    if '_base_ =' in code and not name.startswith('docs/extending.md:')
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
        return {key: without_weights(value) for key, value in options.items() if key != 'init_cfg'}
    return [without_weights(entry) for entry in options] if isinstance(options, list) else options


@pytest.mark.parametrize('name', CONFIGS)
def test_a_config_builds(name, tmp_path):
    config = Config.fromfile(write_config(tmp_path, FENCES[name]))
    scope = config.get('default_scope', 'mmdet')
    with DefaultScope.overwrite_default_scope(scope):
        importlib.import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
        model = MODELS.build(ConfigDict(without_weights(config.model.to_dict()))).eval()
    with torch.no_grad():
        features = model.extract_feat(torch.randn(1, 3, 97, 131))
    assert len(features) >= 4
    assert sum(value.numel() for value in model.parameters()) > 1e7
    if name.startswith('README.md'):  # swapping the backbone takes at most 15 lines
        assert len(FENCES[name].strip().splitlines()) <= 15
        assert config.model.backbone.vit.init_cfg.model == 'deit_small_patch16_224'
        sizes = [tuple(maps.shape[-2:]) for maps in features]
        assert sizes == [(25, 33), (13, 17), (7, 9), (4, 5), (2, 3)]
        optimizer = build_optim_wrapper(model.train(), config.optim_wrapper).optimizer
        rates = sorted({group['lr'] for group in optimizer.param_groups})
        assert type(optimizer).__name__ == 'AdamW'
        assert len(rates) == 14 and rates[-1] == 1e-4


def test_there_are_configs_to_build():
    assert len(CONFIGS) >= 5 and any(name.startswith('README.md') for name in CONFIGS)


def test_an_embedding_of_your_own():
    (example,) = [
        code
        for name, code in FENCES.items()
        if name.startswith('docs/position.md') and 'class ' in code
    ]
    exec(compile(example, 'position.md', 'exec'), {})
    for joining in ('LaPE', 'UnsharedJoining'):
        model = build_adapter(
            dict(position=dict(type='mmlape.RowPosition'), joining=dict(type=f'mmlape.{joining}'))
        )
        sum(out.mean() for out in model(torch.randn(1, 3, 40, 70))).backward()
        assert model.vit.position.embedding.slope.grad.abs().sum() > 0


def test_counts_of_the_relative_bias():
    """The page's: offsets of 14 x 14 patches for heads and layers of DeiT-Ti, and LaPE's LayerNorms over the keys."""
    counts = []
    for options in (dict(), dict(layer_norm=True)):
        with torch.device('meta'):
            model = build_vit(
                arch='deit-tiny',
                img_size=224,
                attention_position=dict(options, type='mmlape.RelativePositionBias'),
            )
        positions = (block.attn.position for block in model.blocks)
        counts.append(sum(p.numel() for each in positions for p in each.parameters()))
    assert counts == [26_244, 30_948]
    text = (REPO / 'docs' / 'position.md').read_text()
    assert all(f'{count / 1e3:.1f} K' in text for count in counts)

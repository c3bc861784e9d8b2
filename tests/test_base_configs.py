"""Every value of the base configs is its source's: a file of MMDetection, MMSegmentation or MMPretrain as installed, or
another base of ours, but for the differences that tests/data/base_configs.yaml lists with a reason each.

Rows are compared with what they are based on in the same way."""

import ast
import copy
import hashlib
import json
import re
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from config_utils import CONFIGS, REPO, foundation_configs
from mmengine.config import Config

from mmlape.cli.options import use_tta

BASES = CONFIGS / '_base_'
TABLE = yaml.safe_load((REPO / 'tests/data/base_configs.yaml').read_text())
SOURCES, ROWS = TABLE['bases'], TABLE['rows']
# What configs call their parts while they put them together: seen where they end up.
HELPERS = set(TABLE['helpers'])
METHODS = ('lape', 'dtn', 'bn', 'in', 'gn', 'sn')
# Of a whole config, what a file of ours in this folder says.
_LOADERS = {f'{split}_dataloader' for split in ('train', 'val', 'test')}
_LOOPS = {f'{split}_cfg' for split in ('train', 'val', 'test')}
_EVALUATORS = {'val_evaluator', 'test_evaluator'}
_TESTS = _LOADERS - {'train_dataloader'}
SHORT = dict(loaders=_LOADERS, tests=_TESTS, evaluators=_EVALUATORS)
PARTS = {
    'datasets': _LOADERS | _EVALUATORS | {'data_preprocessor', 'tta_pipeline'},
    'models': {'model'},
    'schedules': _LOOPS | {'optim_wrapper', 'param_scheduler', 'auto_scale_lr', 'custom_hooks'},
}
PARTS['foundation'] = set().union(*PARTS.values())


def leaves(part, at=''):
    """Every value by its place; an empty dictionary or list is one."""
    if isinstance(part, (dict, list, tuple)) and part:
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from leaves(value, f'{at}.{key}' if at else str(key))
    else:
        yield at, list(part) if isinstance(part, tuple) else part


@cache
def read(source: str) -> dict:
    """A config: ``LIBRARY:PATH`` of those that come with a toolbox, else one of our bases."""
    library, _, path = source.rpartition(':')
    if library:
        path = Path(find_spec(library).origin).parent / '.mim' / 'configs' / path
    else:
        path = BASES / f'{path}.py'
    return {k: v for k, v in Config.fromfile(path).to_dict().items() if k not in HELPERS}


def expected(name: str) -> dict:
    """What a base is to say, by place."""
    parts, found = PARTS.get(name.partition('/')[0]), {}
    for source in SOURCES[name].get('from', []):
        for key, value in read(source).items():
            if ':' not in source or (key in parts if parts else key not in PARTS['foundation']):
                found[key] = value
    differences = [values for reason, values in SOURCES[name].items() if reason != 'from']
    return changed(dict(leaves(found)) if found else {}, differences)


def spelt_out(differences: dict, values: dict):
    """Places in full: for several dataloaders or evaluators, or for every entry that a star stands for."""
    for short, value in differences.items():
        head, dot, rest = short.partition('.')
        for place in (f'{name}{dot}{rest}' for name in SHORT.get(head, [head])):
            start, star, end = place.partition('*')
            below = {key[len(start) :].partition('.')[0] for key in values if key.startswith(start)}
            yield from ((f'{start}{key}{end}', value) for key in (sorted(below) if star else ['']))


def changed(values: dict, groups: list) -> dict:
    """Values by place with groups of differences: `absent`, `=PLACE` as there, else the value."""
    for differences in groups:
        for place, value in spelt_out(differences, values):
            if isinstance(value, str) and value.startswith('='):
                source = value[1:] + '.'
                new = {
                    k.replace(source, f'{place}.', 1): v
                    for k, v in values.items()
                    if k.startswith(source)
                }
            else:
                new = dict(leaves(value, place)) if value != 'absent' else {}
            kept = {k: v for k, v in values.items() if not f'{k}.'.startswith(f'{place}.')}
            values = kept | new
    return values


BASE_NAMES = sorted(path.relative_to(BASES).as_posix()[:-3] for path in BASES.rglob('*.py'))
# The demo's are ours; other files have the rows of foundation models and of ViT-Adapter's zoo.
ROW_NAMES = sorted(
    f'{path.parent.name}/{path.stem}'
    for path in CONFIGS.glob('*/*.py')
    if path.parent.name not in ('_base_', 'demo', 'experiments', 'foundation', 'vit_adapter')
    and 'micro' not in path.stem
)
FOUNDATION = [f'foundation/{p.stem}' for p in foundation_configs() if 'dinov2-s' in p.stem]
COMPARED = [*ROW_NAMES, *FOUNDATION]


def test_every_base_has_a_source():
    assert sorted(SOURCES) == BASE_NAMES
    assert all(len(source) > ('from' in source) or source['from'] for source in SOURCES.values())
    named = {source for entry in SOURCES.values() for source in entry.get('from', [])}
    assert {source for source in named if ':' not in source} <= set(SOURCES)


@pytest.mark.parametrize('name', BASE_NAMES)
def test_a_base_says_what_its_source_says(name):
    assert dict(leaves(read(name))) == expected(name)


@cache
def row(name: str) -> Config:
    return Config.fromfile(CONFIGS / f'{name}.py')


def bases_of(name: str) -> list[Path]:
    """The files that a row is based on."""
    path = CONFIGS / f'{name}.py'
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    (bases,) = (
        ast.literal_eval(node.value)
        for node in assigned
        if getattr(node.targets[0], 'id', '') == '_base_'
    )
    bases = [bases] if isinstance(bases, str) else bases
    return [(path.parent / base).resolve() for base in bases]


@cache
def under(*paths: Path) -> dict:
    """What configs say together that have no name in common."""
    found = {}
    for path in paths:
        found.update(Config.fromfile(path).to_dict())
    return found


@pytest.mark.parametrize('name', COMPARED)
def test_a_row_is_based_on_what_it_says_and_changes_nothing_else(name):
    bases = bases_of(name)
    found = [path.relative_to(CONFIGS).as_posix().removeprefix('_base_/')[:-3] for path in bases]
    if name in TABLE['based_on']:
        assert found in (TABLE['based_on'][name], [TABLE['based_on'][name]])
    else:
        plain = {re.sub(rf'-{method}(?=[_-]|$)', '', name) for method in METHODS}
        assert len(found) == 1 and found[0] in plain - {name}
    before, after = (
        dict(leaves({k: v for k, v in config.items() if k not in HELPERS}))
        for config in (under(*bases), row(name).to_dict())
    )
    changes = [entry['but'] for entry in ROWS if any(fnmatch(name, row) for row in entry['rows'])]
    assert len(changes) <= 1 and after == changed(before, changes)


def test_every_change_is_of_some_row():
    patterns = [pattern for entry in ROWS for pattern in entry['rows']]
    assert [p for p in patterns if not any(fnmatch(name, p) for name in COMPARED)] == []
    assert set(TABLE['based_on']) <= set(COMPARED)


def steps(cfg: Config, kind: str) -> list:
    """Every step of this type in the pipeline for training, inside of choices too."""
    found, waiting = [], [cfg.train_dataloader.dataset.pipeline]
    while waiting:
        node = waiting.pop()
        waiting += node if isinstance(node, (list, tuple)) else list(node.get('transforms', []))
        found += [node] if isinstance(node, dict) and node['type'] == kind else []
    return found


@pytest.mark.parametrize('name', [*ROW_NAMES, *FOUNDATION])
def test_sizes_and_batches_agree(name):
    """Of crops, padding, tests and position tables; images per step are those of the file's name."""
    cfg = row(name)
    splits = ('train', 'test') if cfg.test_dataloader else ('train',)  # own images have no labels
    for split in splits:
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        assert cfg.get(f'{split}_pipeline', pipeline) == pipeline
    model, sizes = cfg.model, set()
    crops = {tuple(step.crop_size) for step in steps(cfg, 'RandomCrop')}
    if cfg.default_scope == 'mmseg':
        padded = model.data_preprocessor.size
        sizes = crops | {tuple(padded), tuple(model.test_cfg.get('crop_size', padded))}
    for pad in model.get('data_preprocessor', {}).get('batch_augments', []):
        (jitter,) = steps(cfg, 'RandomResize')
        sizes = crops | {tuple(pad.size), tuple(jitter.scale)}
    if cfg.default_scope == 'mmpretrain' and 'img_size' in model.backbone:
        tested = cfg[f'{splits[-1]}_dataloader'].dataset.pipeline
        local = {96, 64}  # crops of DINO
        sizes = {step.scale for step in steps(cfg, 'RandomResizedCrop')} - local
        sizes |= {model.backbone.img_size, *(s.crop_size for s in tested if s.type == 'CenterCrop')}
    assert len(sizes) <= 1, sizes
    per_gpu = re.search(r'_(\d+)xb(\d+)[-_]', name)
    gpus, images = map(int, per_gpu.groups()) if per_gpu else (8, cfg.train_dataloader.batch_size)
    assert images == cfg.train_dataloader.batch_size
    assert cfg.auto_scale_lr.base_batch_size == gpus * images or name.startswith('listops')


def test_augmentation_at_test_time_is_upstreams():
    """The option `--tta`: of MMDetection at the one scale of the config, of MMSegmentation at all six."""
    theirs = read('mmdet:retinanet/retinanet_tta.py')
    cfg = copy.deepcopy(row('dtn/retinanet_pvt-t_fpn_1x_coco'))
    use_tta(cfg)
    ours = cfg.model.to_dict()
    ours.pop('module')
    assert ours == theirs['tta_model']
    load, augment = theirs['tta_pipeline']
    scales, *rest = augment['transforms']
    load_2, resize, boxes, flips = cfg.test_dataloader.dataset.pipeline
    assert (load_2, [resize], [boxes]) == (load, scales[:1], rest[1])
    # The view that is not flipped comes first: its boxes are the truth of metrics that read it from samples.
    assert flips == dict(augment, transforms=[rest[0][::-1], rest[2]])
    cfg = copy.deepcopy(row('swin/upernet_swin-t_8xb2-160k_ade20k-512x512'))
    theirs, shipped = read('mmseg:_base_/datasets/ade20k.py')['tta_pipeline'], cfg.tta_pipeline
    assert cfg.tta_model == read('mmseg:_base_/default_runtime.py')['tta_model']
    cfg.pop('tta_pipeline'), cfg.pop('tta_model')
    use_tta(cfg)
    (load, augment), (load_2, augment_2) = theirs, cfg.test_dataloader.dataset.pipeline
    assert (load['type'], augment_2) == (load_2['type'], augment)
    assert shipped == cfg.test_dataloader.dataset.pipeline and cfg.model.type == 'SegTTAModel'


# Recipes of our own, whose figures the pages have: there is no source to compare them with, so they are as they were.
OWN = sorted(
    f'{path.parent.name}/{path.stem}'
    for path in CONFIGS.glob('*/*.py')
    if path.parent.name in ('demo', 'experiments') or 'micro' in path.stem
)


@pytest.mark.parametrize('name', OWN)
def test_an_own_recipe_is_the_one_that_was_measured(name):
    said = sorted((place, str(value)) for place, value in leaves(row.__wrapped__(name).to_dict()))
    digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]
    assert digest == TABLE['own'].get(name), f'{name} is now {digest}'

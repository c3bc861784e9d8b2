"""The model index and its metafiles: their form, one entry per config, and published figures that agree everywhere."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from config_utils import CONFIGS, REPO, marked, multiply_adds, use_scope
from mmengine.config import Config
from mmengine.registry import MODELS as CLASSIFIERS
from mmpretrain.utils import register_all_modules
from modelindex import load_model_index

pytestmark = pytest.mark.usefixtures('cheap_values')

# An experiment of many variants is not a model of a table.
WITHOUT_METAFILE = {'_base_', 'experiments'}
INDEX = yaml.safe_load((REPO / 'model-index.yml').read_text())
METAFILES = {Path(name).parent.name: REPO / name for name in INDEX['Import']}
BOXES, MASKS = (
    {f'{kind} AP{part}' for part in ('', 50, 75, 'S', 'M', 'L')} for kind in ('box', 'mask')
)
METRICS = {
    'Object Detection': BOXES,
    'Instance Segmentation': MASKS,
    'Object Detection and Instance Segmentation': BOXES | MASKS,
    'Semantic Segmentation': {'mIoU', 'mDice'},
    'Panoptic Segmentation': {'PQ'},
    'Sequence Classification': {'Top 1 Accuracy'},
    'Image Classification': {
        'Top 1 Accuracy',
        'Top 1 Accuracy (epoch 100)',
        'Top 5 Accuracy',
        # after as many epochs of pre-training without labels
        *(f'Top 1 Accuracy ({epochs} epochs)' for epochs in (20, 40, 60, 80)),
    },
}
# What docstrings and READMEs say too.
HEADLINES = ('box AP', 'mask AP', 'PQ', 'mIoU', 'mDice', 'Top 1 Accuracy')
# Their figures are our own.
MEASURED = {'demo'}


@cache
def read(folder: str) -> dict:
    return yaml.load(METAFILES[folder].read_text(), yaml.CSafeLoader)


ENTRIES = {
    entry['Name']: (folder, entry) for folder in METAFILES for entry in read(folder)['Models']
}


def test_the_index_names_every_folder():
    assert set(INDEX) == {'Import'}
    folders = {path.name for path in CONFIGS.iterdir() if any(path.glob('*.py'))}
    assert set(METAFILES) == folders - WITHOUT_METAFILE
    assert all(path.is_file() for path in METAFILES.values())


@pytest.mark.parametrize('folder', METAFILES)
def test_every_config_has_one_entry_in_a_collection(folder):
    content = read(folder)
    assert set(content) == {'Collections', 'Models'}
    for collection in content['Collections']:
        assert (REPO / collection['README']).is_file()
        for values in collection['Metadata'].values():  # MIM joins lists, and fails on empty ones
            assert values and isinstance(values, (str, list))
    names = {collection['Name'] for collection in content['Collections']}
    assert {entry['In Collection'] for entry in content['Models']} == names
    configs = [entry['Config'] for entry in content['Models']]
    assert sorted(configs) == sorted(
        f'configs/{folder}/{p.name}' for p in CONFIGS.glob(f'{folder}/*.py')
    )


def test_names_are_of_one_entry():
    """MIM and `mmlape train` know configs by names."""
    assert len(ENTRIES) == sum(len(read(folder)['Models']) for folder in METAFILES)


@pytest.mark.parametrize('name', ENTRIES)
def test_entries(name):
    folder, entry = ENTRIES[name]
    assert set(entry) == {'Name', 'In Collection', 'Config', 'Metadata', 'Results'}
    assert Path(entry['Config']).stem == name
    metadata = entry['Metadata']
    assert ('Epochs' in metadata) != ('Iterations' in metadata)
    for key in {'Epochs', 'Iterations', 'Batch Size', 'Parameters', 'FLOPs'} & set(metadata):
        assert isinstance(metadata[key], int) and metadata[key] > 0, key
    needed = {'Training Data', 'Parameters', 'FLOPs'} if folder not in MEASURED else set()
    assert needed | {'Batch Size'} <= set(metadata)
    assert isinstance(metadata.get('Training Data', ''), str)
    for result in entry['Results']:
        printed = {key: result[key] for key in ('Parameters', 'FLOPs') if key in result}
        assert set(result) - set(printed) - {'Published'} == {'Task', 'Dataset', 'Metrics'}
        assert all(re.fullmatch(r'\d+(\.\d+)?[MG]', value) for value in printed.values())
        assert isinstance(result['Dataset'], str)
        assert set(result['Metrics']) <= METRICS[result['Task']]
        assert all(isinstance(value, (int, float)) for value in result['Metrics'].values())
        if 'Published' in result:
            assert isinstance(result['Published'], str) and result['Metrics']
        else:  # ours: none yet, but for the demo's
            assert not printed and bool(result['Metrics']) == (folder in MEASURED)
    own = [result['Task'] for result in entry['Results'] if 'Published' not in result]
    assert len(own) == len(set(own)) > 0


# Rows of configs/foundation differ in their bases alone (tests/test_configs_foundation.py): some speak for all.
SPEAKING = ('dinov3-s', 'dinov2-reg4-l')


SCHEDULED = [
    name
    for name, (folder, _) in ENTRIES.items()
    if folder != 'imagenet' and (folder != 'foundation' or any(s in name for s in SPEAKING))
]


@pytest.mark.parametrize('name', SCHEDULED)
def test_schedule_and_batch_are_the_configs(name):
    _, entry = ENTRIES[name]
    cfg = Config.fromfile(REPO / entry['Config'])
    metadata = entry['Metadata']
    length = (cfg.train_cfg.get('max_epochs'), cfg.train_cfg.get('max_iters'))
    assert length == (metadata.get('Epochs'), metadata.get('Iterations'))
    base = cfg.get('auto_scale_lr', {}).get('base_batch_size', cfg.train_dataloader.batch_size)
    assert base == metadata['Batch Size']


@pytest.mark.parametrize(
    'name', [name for name, (folder, _) in ENTRIES.items() if folder not in ('imagenet', 'demo')]
)
def test_published_figures_agree(name):
    """Metafile, docstring of the config and the table in the README say the same, with the same source."""
    folder, entry = ENTRIES[name]
    doc = ast.get_docstring(ast.parse((REPO / entry['Config']).read_text())).replace('\n', ' ')
    said = re.search(r'Published \((.+?)\): (.+?)\.(?= |$)', doc)
    published = [result for result in entry['Results'] if 'Published' in result]
    (row,) = [
        line for line in (CONFIGS / folder / 'README.md').read_text().splitlines()
        if line.startswith(f'| [{name}]({name}.py)')
    ]  # fmt: skip
    cells = [cell.strip() for cell in row.strip('|').split('|')]
    assert cells[-1] == '', 'ours: none yet'
    in_readme = [
        [float(value) for value in cell.split(' / ')]
        for cell in cells
        if re.fullmatch(r'[\d.]+( / [\d.]+)*', cell)
    ]
    if not published:
        assert said is None and 'There is no published figure for this row' in doc
        assert not in_readme and '-' in cells
        return
    said_there = [pair for result in published for pair in result['Metrics'].items()]
    figures = {key: value for key, value in said_there if key in HEADLINES}
    assert {result['Published'] for result in published} == {said[1]}
    assert figures == {
        metric: float(value)
        for metric, value in re.findall(rf'({"|".join(HEADLINES)}) ([\d.]+)', said[2])
    }
    assert in_readme == [list(figures.values())]


def counted(name: str) -> tuple:
    """A classifier without memory, what of it is counted, and its input."""
    folder, entry = ENTRIES[name]
    cfg = Config.fromfile(REPO / entry['Config'])
    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')
    backbone = cfg.model.get('backbone', {})
    if cfg.model.get('teacher'):  # not to be downloaded
        cfg.model.teacher = dict(type='TimmClassifier', model_name='pvt_v2_b0')
    if name.startswith('linear_'):
        backbone.init_cfg = None
    with torch.device('meta'):
        model = CLASSIFIERS.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    if cfg.model.type == 'mmlape.DINO':  # one backbone and one head
        student = model.student
        student['backbone'].register_forward_hook(lambda *call: call[2][0])
        model = torch.nn.Sequential(student['backbone'], student['head'])
    small = folder == 'cifar' or 'digit-images' in name
    if folder != 'listops':
        side = 32 if small else 128 if 'own-images' in name else 224
        return model, (1, 3, side, side), torch.float32
    return model, (1, 1, 1, 200 if 'short' in name else 2000), torch.long


CLASSIFIED = [n for n, (f, _) in ENTRIES.items() if f in ('imagenet', 'cifar', 'listops', 'dino')]
# One of each network and of each kind of recipe; the others differ in sizes and norms.
QUICK = r'listops_.*-dtn|(dino|linear_dino)_vit-s-star_|.*-lape_.*cifar100|cvt-micro|(deit-t-lape|pvt-t-dtn)_8xb'


@pytest.mark.parametrize('name', marked(CLASSIFIED, [n for n in CLASSIFIED if re.match(QUICK, n)]))
def test_parameters_and_flops_are_those_of_what_is_built(name):
    model, shape, dtype = counted(name)
    metadata = ENTRIES[name][1]['Metadata']
    assert sum(p.numel() for p in model.parameters()) == metadata['Parameters']
    found = multiply_adds(model.eval(), *shape, dtype=dtype)
    assert found == pytest.approx(metadata['FLOPs'], rel=1e-3)


def test_mims_reader_takes_the_index():
    """With the library that MIM reads model indexes with; all other tests here do without it."""
    index = load_model_index.load(str(REPO / 'model-index.yml'))
    # OpenMMLab's metafiles name READMEs from the root, where the reader expects them beside the metafile.
    assert [error for error in index.check(silent=True) if 'README' not in error] == []
    assert {model.name for model in index.models} == set(ENTRIES)
    assert {c.name for c in index.collections} == {
        collection['Name'] for folder in METAFILES for collection in read(folder)['Collections']
    }

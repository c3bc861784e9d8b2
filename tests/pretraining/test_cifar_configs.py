"""Every CIFAR config parses, reads the standard files, trains a step, and says what it is; the stand-in is learned."""

import copy
import hashlib
import pickle
from types import SimpleNamespace

import mmpretrain.datasets
import numpy as np
import pytest
import torch
import yaml
from config_utils import CONFIGS, cifar_configs, multiply_adds, use_scope
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from mmpretrain.utils import register_all_modules

CIFAR = CONFIGS / 'cifar'
DIGITS = 'cvt-micro-lape_1xb64_digit-images'
META = {e['Name']: e for e in yaml.safe_load((CIFAR / 'metafile.yml').read_text())['Models']}
COUNT = 4  # images of each file
each_config = pytest.mark.parametrize('path', cifar_configs(), ids=lambda path: path.stem)


def load(path):
    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')
    cfg = Config.fromfile(path)
    cfg.model.data_preprocessor = cfg.data_preprocessor
    return cfg


def write_files(root, cls):
    """The files of CIFAR in their format, with images of noise; returns them with their digests."""
    root.mkdir(parents=True)
    draw = np.random.default_rng(0)
    labels = 'labels' if cls is mmpretrain.datasets.CIFAR10 else 'fine_labels'
    digests = {}
    for name, _ in (*cls.train_list, *cls.test_list):
        data = draw.integers(0, 256, (COUNT, 3 * 32 * 32), dtype=np.uint8)
        content = pickle.dumps({'data': data, labels: list(range(COUNT))})
        (root / name).write_bytes(content)
        digests[name] = hashlib.md5(content).hexdigest()
    return digests


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """Folders with the files of both, by the name of the class; the class expects their digests."""
    with pytest.MonkeyPatch.context() as patch:
        folders = {}
        for cls in (mmpretrain.datasets.CIFAR10, mmpretrain.datasets.CIFAR100):
            root = folders[cls.__name__] = tmp_path_factory.mktemp(cls.__name__)
            digests = write_files(root / cls.base_folder, cls)
            for part in ('train_list', 'test_list'):
                names = [name for name, _ in getattr(cls, part)]
                patch.setattr(cls, part, [[name, digests[name]] for name in names])
        yield folders


@pytest.mark.parametrize('name', ['cifar10', 'cifar100'])
def test_the_standard_files_are_read(name, files):
    cfg = load(CIFAR / f'cct-7-3x1_1xb128_{name}.py')
    for split, count in (('train', 5 * COUNT if name == 'cifar10' else COUNT), ('test', COUNT)):
        config = cfg[f'{split}_dataloader'].dataset
        config.data_root = str(files[name.upper()])
        dataset = DATASETS.build(config)
        assert len(dataset) == count and len(dataset.CLASSES) == cfg.model.head.num_classes
        item = dataset[1]
        assert item['inputs'].shape == (3, 32, 32) and item['data_samples'].gt_label.item() == 1
    assert cfg.val_dataloader.dataset == {
        **cfg.test_dataloader.dataset,
        'data_root': f'data/{name}',
    }


@pytest.mark.parametrize(
    'path',
    [  # those of CIFAR-10 have fewer classes, and nothing else
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem.endswith('cifar10') else [])
        for p in cifar_configs()
    ],
)
def test_a_step_trains_everything(path):
    cfg = load(path)
    model = MODELS.build(cfg.model)
    model.init_weights()
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    labels = [0, cfg.model.head.num_classes - 1]
    batch = dict(
        inputs=[torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8) for _ in labels],
        data_samples=[DataSample().set_gt_label(label) for label in labels],
    )
    losses = model.train().train_step(copy.deepcopy(batch), optimizer)
    assert torch.isfinite(losses['loss'])
    parameters = dict(model.named_parameters())
    unmoved = {name for name in before if torch.equal(before[name], parameters[name])}
    assert unmoved <= {'backbone.pool.score.bias'}  # it cancels in the softmax
    decay = {
        id(p): g['weight_decay'] for g in optimizer.optimizer.param_groups for p in g['params']
    }
    for name, parameter in parameters.items():
        assert decay[id(parameter)] == (0 if parameter.ndim == 1 else 0.06), name
    model.eval()
    with torch.no_grad():
        assert len(model.test_step(batch)) == 2


@each_config
def test_the_table_counts_what_is_built(path):
    with torch.device('meta'):
        model = MODELS.build(load(path).model).eval()
    metadata = META[path.stem]['Metadata']
    assert sum(p.numel() for p in model.parameters()) == metadata['Parameters']
    assert multiply_adds(model, 1, 3, 32, 32) == pytest.approx(metadata['FLOPs'], rel=1e-3)


def test_images_are_mixed_until_epoch_175():
    cfg = load(CIFAR / 'vit-lite-7-4_1xb128_cifar10.py')
    model = MODELS.build(cfg.model)
    runner = SimpleNamespace(model=model, epoch=0, logger=SimpleNamespace(info=print))
    hook = HOOKS.build(cfg.custom_hooks[0])
    for epoch in range(310):
        runner.epoch = epoch
        hook.before_train_epoch(runner)
        assert (model.data_preprocessor.batch_augments is not None) == (epoch < 175)


def run(epochs, work_dir):
    """Top-1 accuracy on the digits after some epochs of their config."""
    cfg = Config.fromfile(CIFAR / f'{DIGITS}.py')
    cfg.work_dir, cfg.experiment_name = str(work_dir), f'{DIGITS}-{work_dir.name}'
    cfg.env_cfg.dist_cfg = None
    cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
    cfg.param_scheduler[1].end = epochs
    for split in ('train', 'val', 'test'):
        cfg[f'{split}_dataloader'].update(num_workers=0, persistent_workers=False)
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner.message_hub.log_scalars['val/accuracy/top1'].current()


@pytest.mark.slow
def test_digits_are_learned(tmp_path):
    """Half of the config's epochs: chance is 10 %, the whole config's 20 lead to 91 %."""
    assert run(10, tmp_path) > 50

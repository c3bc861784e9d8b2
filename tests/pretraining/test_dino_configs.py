"""The DINO configs are the published recipe; the micro one trains with MMPretrain's runner, and its teacher starts
a detector."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from config_utils import CONFIGS, REPO, dino_configs, read_classifier, use_scope
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmpretrain.utils import register_all_modules
from ports import free_port

DINO = CONFIGS / 'dino'
MICRO = DINO / 'dino_vit-micro-dtn_1xb64_digit-images.py'
PRE_TRAINING = [path for path in dino_configs() if path.stem.startswith('dino_')]
IN1K = [path for path in PRE_TRAINING if path != MICRO]
LINEAR = [path for path in dino_configs() if path.stem.startswith('linear_')]


@pytest.fixture(autouse=True)
def scope():
    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')


def build(path, **changes):
    cfg = read_classifier(path)
    cfg.merge_from_dict(changes)
    return MODELS.build(cfg.model)


@pytest.mark.slow
def test_a_linear_classifier_trains_its_layer_alone(tmp_path):
    dino = build(IN1K[-1], **{'model.head.out_channels': 8})
    checkpoint = tmp_path / 'epoch_100.pth'
    torch.save(dict(state_dict=dino.state_dict()), checkpoint)
    (path,) = (path for path in LINEAR if 'vit-s_' in path.name)
    model = build(path, **{'model.backbone.init_cfg.checkpoint': str(checkpoint)})
    model.init_weights()
    theirs = dino.backbone.state_dict()
    assert all(
        torch.equal(value, theirs[key]) for key, value in model.backbone.state_dict().items()
    )
    learning = [name for name, p in model.train().named_parameters() if p.requires_grad]
    assert learning == ['head.fc.weight', 'head.fc.bias']
    frozen = (part for child in model.backbone.children() for part in child.modules())
    assert not any(part.training for part in frozen)


def micro(work_dir, epochs, images=48, **changes):
    """The micro config with few images, for a few epochs."""
    cfg = Config.fromfile(MICRO)
    cfg.work_dir, cfg.experiment_name = str(work_dir), f'{MICRO.stem}-{work_dir.name}-{epochs}'
    cfg.env_cfg.dist_cfg = None
    cfg.train_dataloader.batch_size = 16
    loaders = [cfg[f'{split}_dataloader'] for split in ('train', 'val', 'test')]
    for loader in (*loaders, cfg.custom_hooks[1].dataloader):
        loader.dataset.indices = images
    cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
    for scheduler in cfg.param_scheduler:
        scheduler.update(
            begin=min(scheduler.begin, 1),
            end=1 if scheduler.begin == 0 and scheduler.type == 'LinearLR' else epochs,
        )
    cfg.default_hooks.checkpoint.interval = 1
    cfg.merge_from_dict(changes)
    return cfg


class _Course(Hook):
    """Weight decays and last layers, step by step."""

    priority = 'VERY_HIGH'

    def __init__(self):
        self.decays, self.last = [], []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        groups = runner.optim_wrapper.optimizer.param_groups
        self.decays.append(
            {group['weight_decay'] for group in groups if group['params'][0].requires_grad}
        )
        head = runner.model.student['head']
        self.last.append(head.last_layer.parametrizations.weight.original1.detach().clone())


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A training of two epochs of three steps: its runner and what it went through."""
    register_all_modules(init_default_scope=False)
    runner = Runner.from_cfg(micro(tmp_path_factory.mktemp('dino'), 2))
    course = _Course()
    runner.register_hook(course)
    runner.train()
    return runner, course


def test_a_training(trained):
    """Weight decay grows along a cosine where there is any; the last layer waits for an epoch; neighbours classify."""
    runner, course = trained
    assert all(0 in decays and len(decays) == 2 for decays in course.decays)
    found = [max(decays) for decays in course.decays]
    end = runner.cfg.param_scheduler[2].eta_min
    steps = [(1 - np.cos(np.pi * step / 6)) / 2 for step in range(6)]
    assert found == pytest.approx([0.04 + (end - 0.04) * share for share in steps], rel=1e-3)
    first, *later = course.last
    assert all(torch.equal(first, layer) for layer in later[:3]) and not torch.equal(
        first, later[3]
    )
    scalars = runner.message_hub.log_scalars
    assert 0 <= scalars['val/accuracy/top1'].current() <= 100
    assert scalars['train/teacher_entropy'].current() > 0
    assert runner.model.neighbours is None


@pytest.mark.slow
def test_the_checkpoint_is_tested_and_resumed(trained, tmp_path):
    runner, _ = trained
    checkpoint = f'{runner.work_dir}/epoch_2.pth'
    cfg = micro(tmp_path, 2)
    cfg.load_from = checkpoint
    metrics = Runner.from_cfg(cfg).test()
    expected = runner.message_hub.log_scalars['val/accuracy/top1'].current()
    assert metrics['accuracy/top1'] == pytest.approx(expected)
    cfg = micro(tmp_path, 3)
    cfg.load_from, cfg.resume = checkpoint, True
    resumed = Runner.from_cfg(cfg)
    resumed.train()
    assert resumed.iter == 9


def test_the_teacher_goes_into_a_detector(trained):
    """Every weight of its backbone, and none of the student's."""
    runner, _ = trained
    vit = dict(runner.cfg.model.backbone, final_norm=True)
    for name in ('type', 'out_type', 'drop_path_rate'):
        vit.pop(name)
    start = dict(type='mmlape.Pretrained', source='mmlape', min_matched=1.0)
    start['checkpoint'] = f'{runner.work_dir}/epoch_2.pth'
    model = MODELS.build(
        dict(vit, type='mmlape.VisionTransformer', out_type='featmap', init_cfg=start)
    )
    model.init_weights()
    teacher, student = (
        part.state_dict() for part in (runner.model.backbone, runner.model.student['backbone'])
    )
    ours = model.state_dict()
    # No token where its output is not seen.
    assert teacher.keys() - ours.keys() <= {'cls_token'} and len(ours) > 40
    assert all(torch.equal(value, teacher[name]) for name, value in ours.items())
    assert not all(torch.equal(value, student[name]) for name, value in ours.items())


FEATURES = """
import sys, torch, torch.distributed as dist
from mmpretrain.utils import register_all_modules
register_all_modules()
dist.init_process_group('gloo')
from mmlape.research.pretraining.dino.hooks import _features
from types import SimpleNamespace
from mmengine.dataset import DefaultSampler
from torch.utils.data import DataLoader
class Images(torch.utils.data.Dataset):
    def __len__(self): return 7
    def __getitem__(self, i): return i
def collate(numbers):
    samples = [SimpleNamespace(gt_label=torch.tensor([i])) for i in numbers]
    return dict(inputs=torch.tensor(numbers, dtype=torch.float)[:, None], data_samples=samples)
images = Images()
loader = DataLoader(images, 3, sampler=DefaultSampler(images, shuffle=False), collate_fn=collate)
model = SimpleNamespace(training=False, eval=lambda: None, train=lambda mode: None,
    data_preprocessor=lambda batch, training: batch, extract_feat=lambda inputs: (inputs,))
features, labels = _features(model, loader)
assert features.flatten().tolist() == labels.tolist() == list(range(7)), (features, labels)
dist.destroy_process_group()  # a thread of gloo's that outlives it would abort the process
"""


def in_two_processes(code: str, folder) -> str:
    (folder / 'two.py').write_text(code)
    environment = dict(os.environ, PYTHONPATH=str(REPO), OMP_NUM_THREADS='1')
    command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node=2']
    result = subprocess.run(
        [*command, f'--master_port={free_port()}', 'two.py'],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
def test_two_processes_share_features(tmp_path):
    in_two_processes(FEATURES, tmp_path)


TRAINING = """
import torch
from mmengine.config import Config
from mmengine.dist import all_gather
from mmengine.runner import Runner
from mmlape.training.processes import joined
cfg = Config.fromfile('micro.py')
with joined(cfg):
    runner = Runner.from_cfg(cfg)
    runner.train()
    for name, value in runner.model.module.state_dict().items():
        one, two = all_gather(value)
        assert torch.equal(one, two), name
    print('top1', runner.message_hub.get_scalar('val/accuracy/top1').current())
"""


@pytest.mark.slow
def test_two_processes_train(tmp_path):
    """DDP waits for no gradient; both have the same teacher, centre and neighbours' votes."""
    cfg = micro(tmp_path, 2)
    cfg.launcher = 'pytorch'
    cfg.env_cfg.dist_cfg = dict()
    cfg.dump(tmp_path / 'micro.py')
    assert 'top1' in in_two_processes(TRAINING, tmp_path)

"""Every CIFAR config parses, reads the standard files, trains a step, and says what it is; the stand-in is learned."""

import pytest
import torch
from config_utils import CONFIGS, cifar_configs, read_classifier, train_a_step
from mmengine.config import Config
from mmengine.runner import Runner
from mmpretrain.structures import DataSample

CIFAR = CONFIGS / 'cifar'
DIGITS = 'cvt-micro-lape_1xb64_digit-images'


@pytest.mark.usefixtures('cheap_values')
@pytest.mark.parametrize(
    'path',
    [  # those of CIFAR-10 have fewer classes, and nothing else
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem.endswith('cifar10') else [])
        for p in cifar_configs()
    ],
)
def test_a_step_trains_everything(path):
    cfg = read_classifier(path)
    labels = [0, cfg.model.head.num_classes - 1]
    batch = dict(
        inputs=[torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8) for _ in labels],
        data_samples=[DataSample().set_gt_label(label) for label in labels],
    )
    model, unmoved, decay = train_a_step(cfg, batch)
    assert unmoved <= {'backbone.pool.score.bias'}  # it cancels in the softmax
    for name, parameter in model.named_parameters():
        assert decay[name] == (0 if parameter.ndim == 1 else 0.06), name
    with torch.no_grad():
        assert len(model.test_step(batch)) == 2


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

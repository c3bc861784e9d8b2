"""What hooks add to a training step, by counters: what runs on a GPU, and what waits for it."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
import torch
from config_utils import CONFIGS
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner
from operator_modes import Work
from test_devices import to_fake
from tiny_training import tiny_config
from torch import nn

from mmlape.research.analysis import random_batch
from mmlape.runtime.private import FakeTensorMode
from mmlape.training import StopAtNonFiniteHook


def check_of(**wrapper):
    """The hook at work, without gradients that are made by autograd, which needs a driver for GPUs."""
    norms = nn.Sequential(*[nn.BatchNorm2d(8) for _ in range(40)])
    to_fake(norms)
    for parameter in norms.parameters():
        parameter.grad = torch.empty_like(parameter)
    wrapper = SimpleNamespace(
        backward=lambda loss: None,
        should_update=lambda: True,
        param_groups=[dict(params=list(norms.parameters()))],
        **wrapper,
    )
    hook, runner = StopAtNonFiniteHook(), SimpleNamespace(model=norms, optim_wrapper=wrapper)
    hook.before_train(runner)
    batch = dict(inputs=[torch.empty(3, 8, 8, dtype=torch.uint8)], data_samples=[None])
    loss = torch.empty((), device='cuda')
    with Work(fake=True) as work:
        hook.before_train_iter(runner, 0, batch)
        wrapper.backward(loss)
    return work


def test_a_check_runs_few_operators_and_waits_once():
    """Of 80 gradients and 120 buffers; nothing looks at images of integers."""
    scaler = SimpleNamespace(is_enabled=lambda: True)
    with FakeTensorMode():  # of a GPU
        work, scaled = check_of(), check_of(loss_scaler=scaler)
    assert work.waits == scaled.waits == {'_local_scalar_dense': 1}
    saved = dict(cat=2)  # floats and counters
    assert work.runs == dict(saved, _foreach_norm=1, stack=1, mul=2, sum=1, add=1)
    assert scaled.runs == dict(saved, mul=1)


@DATASETS.register_module(force=True)
class OneBatch(torch.utils.data.Dataset):
    """A random image with objects, or with classes in squares, without a pipeline."""

    def __init__(self, config):
        batch = random_batch(config, (64, 96), objects=3)
        self.item = {name: values[0] for name, values in batch.items()}

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.item


@HOOKS.register_module(force=True)
class Listen(Hook):
    """Counts what waits in each step and its hooks."""

    def before_train(self, runner):
        run, self.steps = runner.train_loop.run_iter, []

        def counted(*args):
            with Work('mmlape/training') as work:
                run(*args)
            self.steps.append(work)

        runner.train_loop.run_iter = counted


def waits_of_hooks(config, folder):
    """Of ours, in a step and in one with a checkpoint, and of all that runs in the first step."""
    listen = dict(work_dir=str(folder), custom_hooks=[dict(type='Listen')])
    config.merge_from_dict(dict(listen, train_cfg=dict(max_iters=2), experiment_name=uuid4().hex))
    runner = Runner.from_cfg(config)
    runner.train()
    first, last = next(hook for hook in runner.hooks if isinstance(hook, Listen)).steps
    return first.waits_in, last.waits_in, first.waits


ONCE, TWICE = ({'_local_scalar_dense': count} for count in (1, 2))


def test_our_hooks_wait_once_a_step_and_once_a_checkpoint(tmp_path):
    runtime = Config.fromfile(CONFIGS / '_base_/demo_runtime.py')
    config = tiny_config(tmp_path, default_hooks=runtime.default_hooks)
    config.train_cfg = dict(type='IterBasedTrainLoop')
    for part in ('cfg', 'dataloader', 'evaluator'):
        config.pop(f'test_{part}')
    in_a_step, at_a_checkpoint, _ = waits_of_hooks(config, tmp_path)
    assert (in_a_step, at_a_checkpoint) == (ONCE, TWICE)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    [
        'mask-rcnn_vit-micro-dinov3_sfp_digit-scenes',
        'retinanet_pvt-micro-dtn_fpn_digit-scenes',
        'segmenter_vit-micro-adapter-lape_mask_digit-scenes',
    ],
)
def test_whole_models(name, tmp_path):
    config = Config.fromfile(CONFIGS / f'demo/{name}.py')
    config.train_dataloader = dict(
        dataset=dict(type='OneBatch', config=config),
        batch_size=1,
        sampler=dict(type='InfiniteSampler'),
        collate_fn=dict(type='pseudo_collate'),
    )
    for part in ('val', 'test'):
        for what in ('cfg', 'dataloader', 'evaluator'):
            config.pop(f'{part}_{what}')
    in_a_step, at_a_checkpoint, waits = waits_of_hooks(config, tmp_path)
    assert (in_a_step, at_a_checkpoint) == (ONCE, TWICE)
    assert (
        waits.total() > 10
    )  # upstream's, for the log, in its heads and losses, and to clip gradients

"""A training stops at NaN or infinity before it learns from it."""

import math
import re
from types import SimpleNamespace
from uuid import uuid4

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS, MODELS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

from mmlape.norm import PowerNorm, TokenBN
from mmlape.training import NonFiniteError, StopAtNonFiniteHook
from mmlape.training.stop_hooks import all_finite, image_paths

FAULTY = 3  # the iteration with the fault, from 1


@MODELS.register_module(force=True)
class Noisy(BaseModel):
    """Statistics of three kinds, dropout, and a square root whose gradient at zero is infinite."""

    def __init__(self, **options):
        super().__init__(**options)
        self.conv = nn.Conv2d(3, 4, 3)
        self.batch = nn.BatchNorm2d(4)
        self.tokens = TokenBN(4)
        self.power = PowerNorm(4, num_groups=2)
        self.drop = nn.Dropout(0.3)
        self.root = nn.Linear(4, 1)

    def forward(self, inputs, data_samples=None, mode='loss'):
        x = self.batch(self.conv(torch.stack(list(inputs)).float())).flatten(2).transpose(1, 2)
        x = self.drop(self.power(self.tokens(x)))
        zero = self.root(x).mean() * 0
        return {
            'loss_a': x.square().mean() + torch.rand(()),
            'loss_root': zero.sqrt() if self.harm() else zero,
        }

    def harm(self):
        return bool(self.conv.bias.detach()[0] == 0)  # set by the hook below


@HOOKS.register_module(force=True)
class Harm(Hook):
    """Makes one iteration go wrong."""

    def __init__(self, kind, times=1):
        self.kind, self.times = kind, times

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if not FAULTY <= runner.iter + 1 < FAULTY + self.times:
            return
        model = runner.model
        self.before = {name: value.clone() for name, value in model.state_dict().items()}
        if self.kind == 'input':
            data_batch['inputs'][1] = data_batch['inputs'][1].clone()
            data_batch['inputs'][1][2, 1, 3] = math.nan
        elif self.kind == 'loss':
            with torch.no_grad():
                model.power.weight[1] = math.inf
            self.before['power.weight'] = model.power.weight.detach().clone()
        elif self.kind == 'gradients':
            with torch.no_grad():
                model.conv.bias[0] = 0
            self.before['conv.bias'] = model.conv.bias.detach().clone()


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {'inputs': torch.randn(3, 6, 7, generator=torch.Generator().manual_seed(index))}


def runner_of(folder, kind, hooked=True, harm=None, **options):
    default = dict(checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False))
    hook = dict(type='mmlape.StopAtNonFiniteHook', **options.pop('hook', {}))
    if hooked:
        default['finite'] = hook
    model = options.pop('model', dict(type='Noisy'))
    cfg = dict(
        model=model,
        work_dir=str(folder),
        train_dataloader=dict(
            dataset=Images(), batch_size=2, sampler=dict(type='InfiniteSampler', shuffle=True),
            collate_fn=dict(type='pseudo_collate'),
        ),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.01)),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=5),
        default_hooks=default,
        custom_hooks=[dict(type='Harm', kind=kind, **(harm or {}))],
        default_scope='mmengine',
        randomness=dict(seed=3),
        experiment_name=uuid4().hex,
    ) | options  # fmt: skip
    from mmengine.config import Config

    return Runner(**cfg, cfg=Config(dict(model=model, default_scope='mmengine')))


def test_images_of_a_batch_are_named():
    samples = [BaseDataElement(metainfo=dict(img_path=f'/data/{n}.jpg')) for n in (1, 2, 1)]
    batch = dict(inputs=torch.zeros(3), data_samples=[*samples, BaseDataElement(), None])
    assert image_paths([batch, dict(unsup=samples[1:])]) == ['/data/1.jpg', '/data/2.jpg']
    hook = StopAtNonFiniteHook()
    hook._model, hook._batch = nn.Linear(1, 1), dict(data_samples=6 * samples)
    hook._save_buffers()
    wrapper = SimpleNamespace(optim_context=None)
    text = hook._describe(wrapper, 1, torch.tensor(math.nan))
    assert text.endswith('; images of the batch: /data/1.jpg, /data/2.jpg')
    assert '(loss = nan)' in text


def harm_of(runner):
    return next(hook for hook in runner.hooks if isinstance(hook, Harm))


@pytest.mark.parametrize(
    ('kind', 'words'),
    [
        ('input', r'an input is not finite \(loss = nan\); first in data_preprocessor \(Base'),
        ('loss', r'the loss is not finite \(loss = nan\); first in power \(PowerNorm\)'),
        ('gradients', r'a gradient is not finite \(loss = [\d.]+\); first in the gradient of conv'),
    ],
)
def test_the_run_stops_and_nothing_is_learned(kind, words, tmp_path):
    runner = runner_of(tmp_path, kind)
    with pytest.raises(NonFiniteError) as error:
        runner.train()
    message = str(error.value)
    assert re.match(f'iteration {FAULTY}, process 0 of 1: {words}', message), message
    assert f'The last checkpoint is {tmp_path}/iter_{FAULTY - 1}.pth' in message
    assert '\n' not in message
    (log,) = tmp_path.glob('*/*.log')
    assert log.read_text().count(message.partition(';')[0]) == 1
    before = harm_of(runner).before
    for name, value in runner.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    # Those that a forward pass counts have counted the iterations before alone.
    assert runner.model.power.num_calls == FAULTY - 1
    assert runner.model.batch.num_batches_tracked == FAULTY - 1
    assert not (tmp_path / f'iter_{FAULTY}.pth').exists()
    assert not any(part._forward_hooks for part in runner.model.modules())


@pytest.mark.parametrize(
    ('accumulated', 'steps'),
    [(1, 3), (2, 2)],  # in groups of two: iterations 1 and 2; 3 and 4 are skipped; 5 is the last
)
def test_batches_are_left_out(accumulated, steps, tmp_path):
    wrapper = dict(optimizer=dict(type='AdamW', lr=0.01), accumulative_counts=accumulated)
    skipping = dict(harm=dict(times=2), hook=dict(max_skipped=2), optim_wrapper=wrapper)
    runner = runner_of(tmp_path, 'input', **skipping)
    runner.train()
    assert runner.iter == 5
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())
    assert runner.model.batch.num_batches_tracked == 3
    states = runner.optim_wrapper.optimizer.state.values()
    assert {int(state['step']) for state in states} == {steps}


def test_a_batch_counts_once_whatever_other_optimizers_find():
    model, hook = torch.nn.Linear(1, 1), StopAtNonFiniteHook(max_skipped=1)
    wrappers = OptimWrapperDict(
        **{name: OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1)) for name in 'ab'}
    )
    hub = MessageHub.get_instance(uuid4().hex)
    logger = SimpleNamespace(warning=lambda text: None)
    runner = SimpleNamespace(
        model=model, optim_wrapper=wrappers, message_hub=hub, logger=logger, iter=0
    )
    hook.before_train(runner)

    def step(*factors):
        hook.before_train_iter(runner, 0, torch.zeros(1))
        for name, factor in zip('ab', factors, strict=True):
            wrappers[name].backward(model.weight.sum() * factor)

    for factors in ((math.nan, math.nan), (1, 1), (math.nan, 1), (1, 1), (math.nan, 1)):
        step(*factors)
    with pytest.raises(NonFiniteError):
        step(math.nan, 1)


@OPTIM_WRAPPERS.register_module(force=True)
class ScaledWrapper(OptimWrapper):
    """MMEngine's wrapper with a loss scale, which it has for GPUs alone; the first scale overflows."""

    def __init__(self, **options):
        super().__init__(**options)
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=2.0**127, growth_interval=1000)

    def backward(self, loss, **options):
        self.loss_scaler.scale(loss).backward(**options)
        self._inner_count += 1

    def step(self, **options):
        self.loss_scaler.step(self.optimizer, **options)
        self.loss_scaler.update()


def test_gradients_that_overflow_under_a_loss_scale_stop_nothing(tmp_path):
    scaled = dict(type='ScaledWrapper', optimizer=dict(type='AdamW', lr=0.01))
    runner = runner_of(tmp_path, 'nothing', optim_wrapper=scaled)
    runner.train()
    assert runner.optim_wrapper.loss_scaler.get_scale() < 2.0**127  # it did overflow
    runner = runner_of(tmp_path / 'b', 'loss', optim_wrapper=scaled)
    with pytest.raises(NonFiniteError, match='the loss is not finite'):
        runner.train()
    runner = runner_of(tmp_path / 'c', 'input', optim_wrapper=scaled, hook=dict(max_skipped=1))
    runner.train()
    assert runner.iter == 5, 'the batch is skipped'


@OPTIM_WRAPPERS.register_module(force=True)
class HugeWrapper(OptimWrapper):
    """Gradients whose squares overflow."""

    def backward(self, loss, **options):
        super().backward(loss * 1e25, **options)


def test_gradients_that_are_huge_but_finite_stop_nothing(tmp_path):
    huge = dict(type='HugeWrapper', optimizer=dict(type='SGD', lr=1e-30))
    runner = runner_of(tmp_path, 'nothing', optim_wrapper=huge)
    runner.train()
    assert runner.iter == 5
    with pytest.raises(NonFiniteError, match='a gradient is not finite'):
        runner_of(tmp_path / 'b', 'gradients', optim_wrapper=huge).train()


def test_the_hook_changes_no_result(tmp_path):
    """Bit for bit the same weights, with and without."""
    states = []
    for hooked in (True, False):
        runner = runner_of(tmp_path / str(hooked), 'nothing', hooked=hooked)
        runner.train()
        states.append(runner.model.state_dict())
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())


def test_buffers_of_all_kinds_are_restored():
    model, hook = nn.Module(), StopAtNonFiniteHook()
    sparse = torch.sparse_coo_tensor([[1, 3]], [2.0, 3.0], (5,), check_invariants=True)
    kinds = dict(
        map=torch.randn(2, 3, 4).transpose(0, 2), none=torch.empty(0, 3), one=torch.tensor(2.5),
        count=torch.tensor(7), mask=torch.tensor([True, False]), half=torch.randn(3).half(),
        eighth=torch.randn(3).to(torch.float8_e5m2), sparse=sparse.coalesce(), last=torch.randn(2),
    )  # fmt: skip
    kinds = {f'its_{kind}': value for kind, value in kinds.items()}
    for name, value in kinds.items():
        model.register_buffer(name, value.clone())
    hook._model = model
    hook._save_buffers()
    for buffer in model.buffers():
        (buffer.values() if buffer.is_sparse else buffer).fill_(1)
    hook._restore_buffers()
    for name, value in model.named_buffers():
        assert value.dtype == kinds[name].dtype
        assert torch.equal(value.to_dense().float(), kinds[name].to_dense().float()), name


def test_what_is_finite():
    huge = torch.full((3,), 3e38)
    sparse = torch.sparse_coo_tensor([[1]], [math.nan], (3,), check_invariants=True)
    fine = [huge, -huge, torch.tensor([2], dtype=torch.uint8), torch.empty(0, 4), None, 'text']
    assert all_finite(dict(a=fine, b=(huge.double() * 1e60,)))
    assert all_finite([torch.empty(2, device='meta'), torch.ones(2).to(torch.float8_e5m2)])
    for value in (math.nan, math.inf, -math.inf):
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2):
            assert not all_finite([fine, dict(b=torch.tensor([[0, value, 1]], dtype=dtype))])
    assert not all_finite((sparse,))

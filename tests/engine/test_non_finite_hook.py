"""A training stops at NaN or infinity before it learns from it, and the step can be run again."""

import math
import re
from uuid import uuid4

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, MODELS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import nn

from mmlape.engine import NonFiniteError, StopAtNonFiniteHook
from mmlape.engine.capture import read_capture
from mmlape.engine.first_non_finite import FirstNonFinite
from mmlape.engine.replay import build_captured_model, replay
from mmlape.norm import PowerNorm, TokenBN

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


def harm_of(runner):
    return next(hook for hook in runner.hooks if isinstance(hook, Harm))


@pytest.mark.parametrize('norm', ['batch', 'tokens', 'power'])
def test_without_the_hook_a_pixel_poisons_statistics_for_ever(norm, tmp_path):
    """What the hook is for: the run ends without an error, and the statistics are not a number."""
    runner = runner_of(tmp_path, 'input', hooked=False)
    runner.train()
    running = [b for name, b in getattr(runner.model, norm).named_buffers() if 'running' in name]
    assert runner.iter == 5
    assert any(b.isnan().any() for b in running)


@pytest.mark.parametrize(
    ('kind', 'words'),
    [
        ('input', 'the input holds NaN or infinity'),
        ('loss', r'the loss is not finite \(loss = nan, loss_a = nan, loss_root = nan\)'),
        ('gradients', 'the loss is finite, but its gradients are not'),
    ],
)
def test_the_run_stops_and_nothing_is_learned(kind, words, tmp_path):
    runner = runner_of(tmp_path, kind)
    with pytest.raises(NonFiniteError) as error:
        runner.train()
    message = str(error.value)
    assert re.match(f'iteration {FAULTY}: {words}', message), message
    assert f'the last checkpoint is {tmp_path}/iter_{FAULTY - 1}.pth' in message
    assert f'mmlape replay {tmp_path}/nan_{FAULTY}.pth' in message
    assert '\n' not in message
    (log,) = tmp_path.glob('*/*.log')
    assert log.read_text().count(message) == 1
    before = harm_of(runner).before
    for name, value in runner.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
    # Those that a forward pass counts have counted the iterations before alone.
    assert runner.model.power.num_calls == FAULTY - 1
    assert runner.model.batch.num_batches_tracked == FAULTY - 1
    assert [path.name for path in tmp_path.glob('nan_*')] == [f'nan_{FAULTY}.pth']
    assert not (tmp_path / f'iter_{FAULTY}.pth').exists()


@pytest.mark.parametrize(
    ('kind', 'place'),
    [
        (
            'input',
            r'in the input, before any module: inputs\[1\]: nan at \(2, 1, 3\), 1 of 126 values',
        ),
        (
            'loss',
            r'in the weights or buffers, before the step: power.weight: inf at \(1,\), 1 of 4',
        ),
        (
            'gradients',
            r'in the backward pass \(the loss is finite\), in what is computed from root \(Linear\)',
        ),
    ],
)
def test_the_step_runs_again(kind, place, tmp_path):
    """To the same losses bit for bit, random numbers and statistics included, and names where it begins."""
    with pytest.raises(NonFiniteError):
        runner_of(tmp_path, kind).train()
    capture = read_capture(tmp_path / f'nan_{FAULTY}.pth')
    torch.manual_seed(99)  # of no effect
    found = replay(capture, build_captured_model(capture))
    assert re.match(place, found.origin), found.origin
    assert set(found.losses) == {'loss', 'loss_a', 'loss_root'}
    assert found.is_same == (kind != 'input')
    assert bool(found.gradients) == (kind == 'gradients')
    # Not the same with other random numbers, so it is no accident.
    capture['random']['torch'] = torch.get_rng_state()
    if kind == 'gradients':
        assert not replay(capture, build_captured_model(capture)).is_same


def test_batches_are_left_out_but_not_for_ever(tmp_path):
    """Two faulty batches in a row are skipped, a third stops the run; one file is written."""
    runner = runner_of(tmp_path / 'a', 'input', harm=dict(times=2), hook=dict(max_skipped=2))
    runner.train()
    assert runner.iter == 5
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())
    assert runner.model.batch.num_batches_tracked == 3
    assert len(list((tmp_path / 'a').glob('nan_*.pth'))) == 1
    steps = {int(state['step']) for state in runner.optim_wrapper.optimizer.state.values()}
    assert steps == {3}
    runner = runner_of(
        tmp_path / 'b', 'input', harm=dict(times=3), hook=dict(max_skipped=2, max_files=0)
    )
    with pytest.raises(NonFiniteError, match=f'iteration {FAULTY + 2}'):
        runner.train()
    assert not list((tmp_path / 'b').glob('nan_*.pth'))


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
    with pytest.raises(NonFiniteError, match='its gradients are not'):
        runner_of(tmp_path / 'b', 'gradients', optim_wrapper=huge).train()


def test_two_trainings_in_a_row_and_accumulation(tmp_path):
    accumulated = dict(optimizer=dict(type='SGD', lr=0.01), accumulative_counts=2)
    runner = runner_of(tmp_path, 'loss', optim_wrapper=accumulated)
    with pytest.raises(NonFiniteError, match='iteration 3'):
        runner.train()
    whole = runner_of(tmp_path / 'b', 'nothing')
    whole.train()
    assert 'backward' not in vars(whole.optim_wrapper)


def test_the_hook_changes_no_result(tmp_path):
    """Bit for bit the same weights, with and without."""
    states = []
    for hooked in (True, False):
        runner = runner_of(tmp_path / str(hooked), 'nothing', hooked=hooked)
        runner.train()
        states.append(runner.model.state_dict())
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())


def test_a_full_disk_does_not_hide_why(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('mmlape.whole_files.os.fsync', full)
    with pytest.raises(NonFiniteError, match=r'could not be written to .*No space left'):
        runner_of(tmp_path, 'loss').train()
    assert not list(tmp_path.glob('*nan_*'))


@pytest.mark.parametrize(
    ('options', 'error'),
    [
        (dict(gradients='yes'), 'gradients must be True or False'),
        (dict(max_skipped=-1), 'max_skipped must be at least 0'),
        (dict(max_files=1.5), 'max_files must be an integer'),
    ],
)
def test_wrong_options_are_refused(options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        StopAtNonFiniteHook(**options)


def test_where_the_first_value_appears():
    """In a module, in the code between two, after the modules in one; a mask may hold infinity."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.fault = ''

        def forward(self, x, attn_mask=None):
            y = self.a(x)
            y = y / 0 if self.fault == 'between' else y
            y = self.b(y)
            return (-1 - y.square()).log() if self.fault == 'after' else y

    model = nn.ModuleDict(dict(part=Part()))
    model.forward = lambda x: model['part'](x, attn_mask=torch.full((2,), -math.inf))
    for fault, words in (
        ('', None),
        ('between', r'in the code of part \(Part\), before part.b \(Linear\) was called with it'),
        ('after', r'in part \(Part\), after the modules in it \(output: nan at'),
    ):
        model['part'].fault = fault
        with FirstNonFinite(model) as watch:
            model(-torch.ones(3, 2))
        assert watch.forward is None if words is None else re.match(words, watch.forward), (
            watch.forward
        )
    with torch.no_grad():
        model['part'].a.weight.fill_(3e38)
    with FirstNonFinite(model) as watch:
        model(torch.ones(3, 2))
    assert re.match(r'in part.a \(Linear\) \(output: inf at \(0, 0\), 6 of 6', watch.forward)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())

"""Checkpoints that stay when the next one cannot be written."""

import errno
import itertools
import re
import shutil
from pathlib import Path

import pytest
import torch
from crafted.maker import run
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner
from toy_training import seen_by, toy_config, toy_run

from mmlape import atomic
from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.files import fault_of
from mmlape.registry import HOOKS
from mmlape.training import CheckpointHook, NonFiniteError, UnsavedError
from mmlape.training.checkpoint_hooks import AtomicBackend
from mmlape.training.last_checkpoint import last_complete_checkpoint
from mmlape.training.stop_hooks import all_finite


def checkpoints(folder):
    return sorted(path.name for path in folder.glob('*.pth'))


@pytest.fixture
def full_disk(monkeypatch):
    """Names of files that the disk is full for."""
    names, draft = set(), atomic._draft
    codes = itertools.cycle((errno.EDQUOT, errno.ENOSPC))  # a quota too

    def write(path, data):
        if any(path.name.startswith(name) for name in names):
            raise OSError(next(codes), 'No space left on device', str(path))
        return draft(path, data)

    monkeypatch.setattr(atomic, '_draft', write)
    return names


def test_names_digests_and_what_is_kept(tmp_path):
    (tmp_path / '.iter_9.pth.mmlape-draft').write_bytes(b'half')
    toy_run(toy_config(tmp_path, checkpoint=dict(max_keep_ckpts=1)))
    assert [name for name in checkpoints(tmp_path) if 'best' not in name] == ['iter_12.pth']
    assert len([name for name in checkpoints(tmp_path) if 'best' in name]) == 1
    for path in tmp_path.glob('*.pth'):
        assert path.with_name(path.name + '.sha256').is_file() and fault_of(path) is None
    assert len(list(tmp_path.glob('*.sha256'))) == 2 and not list(tmp_path.glob('.*'))
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_12.pth')
    saved = torch.load(tmp_path / 'iter_12.pth', weights_only=False)
    assert {type(value) for value in saved['meta']['exact_resume'].values()} == {int, bool}


def test_the_old_one_is_there_until_the_new_one_is(tmp_path, monkeypatch):
    draft, there = atomic._draft, []

    def write(path, data):
        there.append((path.name, checkpoints(tmp_path)))
        return draft(path, data)

    monkeypatch.setattr(atomic, '_draft', write)
    toy_run(toy_config(tmp_path, checkpoint=dict(max_keep_ckpts=1, interval=4, rule='less')))
    during = dict(reversed(there))  # a best one is followed by the same checkpoint again
    assert 'iter_4.pth' in during['iter_8.pth'] and 'iter_8.pth' in during['iter_12.pth']
    bests = [names for name, names in there if name.startswith('best') and 'sha' not in name]
    assert bests[1:]
    for names in bests[1:]:
        assert any(other.startswith('best') for other in names)


@pytest.mark.parametrize('hooks', [[], [dict(type='mmlape.ResumeCheckHook')]])
@pytest.mark.parametrize('save_best', ['mIoU', ['mIoU', 'aAcc']])
def test_an_earlier_best_goes_where_a_kill_came_before_its_end(
    save_best, hooks, tmp_path, monkeypatch
):
    """The folder is copied before the run goes on; the original stays as it is."""

    def bests(folder):
        return [name for name in checkpoints(folder) if 'best' in name]

    whole, killed, copied = (tmp_path / name for name in ('whole', 'killed', 'copied'))
    options = dict(checkpoint=dict(save_best=save_best, rule='less'))  # the last of three
    toy_run(toy_config(whole, **options))
    remove = AtomicBackend.remove

    def kill(self, path):
        if Path(path).name.startswith('best'):
            raise KeyboardInterrupt
        remove(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(AtomicBackend, 'remove', kill)
        assert toy_run(toy_config(killed, **options)).iter < 12
    shutil.copytree(killed, copied)
    assert len(bests(copied)) == 2 * len(bests(whole))
    cfg = toy_config(copied, **options)
    cfg.custom_hooks += hooks
    runner = toy_run(cfg, copied / 'iter_8.pth')
    assert runner.iter == 12 and bests(copied) == bests(whole)
    assert len(bests(killed)) == 2 * len(bests(whole))


def test_a_full_disk_costs_one_checkpoint(tmp_path, full_disk):
    full_disk.add('iter_6')
    runner = toy_run(toy_config(tmp_path, checkpoint=dict(save_best=None, max_keep_ckpts=3)))
    assert runner.iter == 12 and len(seen_by(runner)) == 12
    assert checkpoints(tmp_path) == ['iter_10.pth', 'iter_12.pth', 'iter_8.pth']
    assert not list(tmp_path.glob('.*'))
    (log,) = tmp_path.glob('*/*.log')
    said = r'ERROR - .*iter_6\.pth could not be written.* the newest is .*iter_4\.pth'
    assert len(re.findall(said, log.read_text())) == 1


def test_a_full_disk_leaves_the_older_checkpoints(tmp_path, full_disk):
    full_disk.update(['iter_6', 'iter_8', 'iter_10', 'iter_12'])
    cfg = toy_config(tmp_path, checkpoint=dict(save_best=None))
    with pytest.raises(UnsavedError, match=r'iter_12\.pth could not be written: No space') as end:
        toy_run(cfg)
    assert str(tmp_path / 'iter_4.pth') in str(end.value)
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth']
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_4.pth')
    full_disk.clear()
    whole = toy_run(toy_config(tmp_path / 'whole', checkpoint=dict(save_best=None)))
    again = toy_run(toy_config(tmp_path, checkpoint=dict(save_best=None)), tmp_path / 'iter_4.pth')
    assert seen_by(again).items() <= seen_by(whole).items()
    assert checkpoints(tmp_path) == checkpoints(tmp_path / 'whole')


def test_a_full_disk_forgets_no_best_checkpoint(tmp_path, full_disk):
    def infos(folder):
        found = toy_run(toy_config(tmp_path / folder)).message_hub.runtime_info
        return {name: found[name] for name in found.keys() - {'cfg', 'experiment_name'}}

    expected = infos('run')
    shutil.rmtree(tmp_path / 'run')
    full_disk.add('iter_6')
    assert 'best_score' in expected and infos('run') == expected


def test_a_best_checkpoint_that_cannot_be_written_is_not_the_best(tmp_path, full_disk):
    full_disk.add('best')
    with pytest.raises(UnsavedError, match='best'):
        toy_run(toy_config(tmp_path, checkpoint=dict(interval=100, save_last=False)))
    assert not [name for name in checkpoints(tmp_path) if 'best' in name]


def test_a_best_checkpoint_does_not_make_up_for_the_last_one(tmp_path, full_disk):
    full_disk.add('iter_12')
    with pytest.raises(UnsavedError, match=r'iter_12\.pth could not be written'):
        toy_run(toy_config(tmp_path))
    assert any('best' in name for name in checkpoints(tmp_path))


def test_another_error_stops_the_run(tmp_path, monkeypatch):
    def broken(path, data):
        raise OSError(errno.EROFS, 'Read-only file system')

    monkeypatch.setattr(atomic, '_draft', broken)
    with pytest.raises(OSError, match='Read-only'):
        toy_run(toy_config(tmp_path))


def test_upstreams_way_where_the_place_is_not_the_local_disk(tmp_path):
    out = dict(out_dir=str(tmp_path / 'out'), backend_args=dict(backend='local'), save_best=None)
    runner = toy_run(toy_config(tmp_path / 'run', checkpoint=out))
    assert checkpoints(tmp_path / 'out' / 'run') == ['iter_10.pth', 'iter_12.pth']
    assert not list((tmp_path / 'out').rglob('*.sha256'))
    assert runner.iter == 12


@HOOKS.register_module(force=True)
class Poison(Hook):
    """NaN in one state of a training, after its eighth step: no loss shows it before the next checkpoint is due."""

    def __init__(self, place):
        self.place = place

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == 8:
            model = runner.model
            average = next((h.ema_model for h in runner.hooks if hasattr(h, 'ema_model')), None)
            state = runner.optim_wrapper.optimizer.state.setdefault(model.layer.weight, {})
            tensors = dict(weight=model.layer.weight, mean=model.mean)
            tensors |= dict(average=average and average.module.layer.weight)
            tensors |= dict(optimizer=state.setdefault('momentum_buffer', torch.zeros(1, 4)))
            tensors[self.place].data.fill_(float('nan'))


@pytest.mark.parametrize('place', ['weight', 'mean', 'average', 'optimizer'])
def test_nothing_that_is_not_finite_is_saved(place, tmp_path):
    config = toy_config(tmp_path, checkpoint=dict(max_keep_ckpts=1, interval=4))
    config.custom_hooks.append(dict(type='mmlape.Poison', place=place, priority='VERY_HIGH'))
    with pytest.raises(NonFiniteError, match=r'is NaN or infinite\. Nothing is saved.*iter_4.pth'):
        toy_run(config)
    assert [name for name in checkpoints(tmp_path) if 'best' not in name] == ['iter_4.pth']
    for path in tmp_path.glob('best*.pth'):
        assert all_finite(torch.load(path, weights_only=False))
    assert last_complete_checkpoint(str(tmp_path)) == (str(tmp_path / 'iter_4.pth'), [])


def test_a_best_checkpoint_is_checked_too(tmp_path):
    """Between checkpoints that are due, a validation may find the best one so far."""
    config = toy_config(tmp_path, checkpoint=dict(interval=100))
    config.custom_hooks.append(dict(type='mmlape.Poison', place='optimizer', priority='VERY_HIGH'))
    with pytest.raises(NonFiniteError, match='is NaN or infinite'):
        toy_run(config)


def test_what_mmengine_refuses_by_assertion():
    assert CheckpointHook(save_best=('a', 'b'), rule=('less', 'greater')).save_best == ['a', 'b']
    for options in (
        dict(save_best=['a', 'b'], rule=['less'] * 3),
        dict(save_best=['a', 'a']),
        dict(save_best=['auto', 'a']),
    ):
        with pytest.raises(ValueError, match=r'rule|save_best'):
            CheckpointHook(**options)


def test_a_flexible_runner_executes_nothing_of_a_checkpoint(tmp_path):
    """It loads before the first call of a hook."""
    canary = tmp_path / 'ran'
    torch.save(dict(state_dict=run(canary)), tmp_path / 'bad.pth')
    cfg = toy_config(tmp_path / 'work', load_from=str(tmp_path / 'bad.pth'))
    cfg.default_hooks.safe_loading = dict(type='mmlape.SafeLoadingHook')
    cfg.update(strategy=dict(type='SingleDeviceStrategy'), env_cfg={}, launcher='none')
    runner = FlexibleRunner.from_cfg(cfg)
    with pytest.raises(CheckpointError):
        runner.train()
    assert not canary.exists()

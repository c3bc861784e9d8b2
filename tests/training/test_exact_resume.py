"""A run is a function of its seed and of the step, and a resumed run equals an uninterrupted one."""

from pathlib import Path

import pytest
import torch
from checkpoint_difference import difference
from mmengine.registry import RUNNERS
from toy_training import seen_by, toy_config, toy_run

from mmlape.training import exact_resume


def last(work_dir):
    path = Path((work_dir / 'last_checkpoint').read_text())
    return torch.load(path, weights_only=False)


def checked(cfg):
    """The config with the hook by which ``mmlape train`` checks what is resumed."""
    cfg.custom_hooks.append(dict(type='mmlape.ResumeCheckHook'))
    return cfg


def stopped_and_resumed(tmp_path, stop_at, seen=None, then=None, **options):
    """What an uninterrupted run, one that stops and its resumption were trained on."""
    whole = toy_run(checked(toy_config(tmp_path / 'whole', **options)))
    work_dir = tmp_path / 'stopped'
    seen = dict(stop_at=stop_at, **(seen or {}))
    first = toy_run(checked(toy_config(work_dir, seen=seen, **options)))
    checkpoint = (work_dir / 'last_checkpoint').read_text()
    second = toy_run(checked(toy_config(work_dir, **{**options, **(then or {})})), checkpoint)
    return seen_by(whole), seen_by(first), seen_by(second)


CASES = {
    'iterations': dict(),
    'epochs': dict(by_epoch=True),
    'epochs, grouped': dict(
        by_epoch=True, loader=dict(batch_sampler=dict(type='mmdet.AspectRatioBatchSampler'))
    ),
    'iterations, finite sampler': dict(loader=dict(sampler=dict(type='DefaultSampler'))),
    'iterations, grouped': dict(
        loader=dict(batch_sampler=dict(type='mmdet.AspectRatioBatchSampler'))
    ),
    'repeated augmentation': dict(
        by_epoch=True, loader=dict(sampler=dict(type='mmpretrain.RepeatAugSampler'))
    ),
    'saved by epochs': dict(by_epoch=True, checkpoint=dict(by_epoch=True, interval=1)),
    'left over': dict(by_epoch=True, loader=dict(drop_last=True)),
}


@pytest.mark.parametrize(
    ('case', 'stop_at'),
    [
        *[(case, 7) for case in CASES],
        pytest.param('iterations', 9, marks=pytest.mark.slow),
        pytest.param('epochs', 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_goes_on_is_the_same_run(tmp_path, case, stop_at):
    whole, first, second = stopped_and_resumed(tmp_path, stop_at, **CASES[case])
    assert {**first, **second} == whole
    assert min(second) == (
        4 if case == 'saved by epochs' else stop_at // 2 * 2
    )  # the place, not the start of the epoch
    assert difference(last(tmp_path / 'whole'), last(tmp_path / 'stopped')) is None
    names = [sorted(p.name for p in (tmp_path / n).glob('*.pth*')) for n in ('whole', 'stopped')]
    assert names[0] == names[1]


def test_epochs_and_images_are_drawn_differently(tmp_path):
    """MMEngine's workers draw the same in every epoch; here every image of every epoch has its own numbers."""
    seen = seen_by(toy_run(toy_config(tmp_path, by_epoch=True)))
    draws = {tuple(row[1:]) for _, rows, _ in seen.values() for row in rows}
    assert len(draws) == 30
    assert {row[0] for _, rows, _ in list(seen.values())[:4] for row in rows} == set(range(10))


@pytest.mark.slow
@pytest.mark.parametrize('by_epoch', [False, True])
def test_workers_change_nothing(tmp_path, by_epoch):
    none = seen_by(toy_run(toy_config(tmp_path / 'none', by_epoch)))
    for persistent in (False, True):
        loader = dict(num_workers=2, persistent_workers=persistent)
        folder = tmp_path / str(persistent)
        assert seen_by(toy_run(toy_config(folder, by_epoch, loader=loader))) == none
    work_dir = tmp_path / 'stopped'
    loader = dict(num_workers=1, persistent_workers=True)
    first = toy_run(toy_config(work_dir, by_epoch, loader=loader, seen=dict(stop_at=7)))
    second = toy_run(toy_config(work_dir, by_epoch, loader=loader), work_dir / 'iter_6.pth')
    assert {**seen_by(first), **seen_by(second)} == none


@pytest.mark.slow
def test_a_seed_that_nobody_gave_is_kept(tmp_path):
    none = dict(randomness=dict(seed=None))
    first = toy_run(toy_config(tmp_path, seen=dict(stop_at=5), **none))
    saved = torch.load(tmp_path / 'iter_4.pth', weights_only=False)
    assert saved['meta']['exact_resume'] == dict(seed=first.seed, place=4, images=3, validated=True)
    del saved['meta']['seed']  # which MMEngine's FlexibleRunner does not read
    torch.save(saved, tmp_path / 'changed.pth')
    second = toy_run(toy_config(tmp_path, **none), tmp_path / 'changed.pth')
    assert second.seed != first.seed
    again = toy_run(toy_config(tmp_path / 'again', randomness=dict(seed=first.seed)))
    assert {**seen_by(first), **seen_by(second)} == seen_by(again)
    assert seen_by(toy_run(toy_config(tmp_path / 'other', **none))) != seen_by(again)


def test_a_validation_that_was_interrupted_is_made_up_for(tmp_path):
    whole, first, second = stopped_and_resumed(
        tmp_path, 4, seen=dict(stop_in_val=True), then=dict(seen=None)
    )
    assert min(second) == 4 and {**first, **second} == whole
    best = [
        torch.load(tmp_path / name / 'best_mIoU_iter_4.pth', weights_only=False)
        for name in ('whole', 'stopped')
    ]
    assert difference(*best) is None  # saved by the validation that was made up for
    assert difference(last(tmp_path / 'whole'), last(tmp_path / 'stopped')) is None


def test_no_validation_is_made_up_for_before_the_first(tmp_path):
    later = dict(
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=12, val_interval=4, val_begin=8)
    )
    toy_run(toy_config(tmp_path, seen=dict(stop_at=5), **later))
    second = toy_run(toy_config(tmp_path, **later), tmp_path / 'iter_4.pth')
    scores = second.message_hub.log_scalars['val/mIoU']
    assert min(seen_by(second)) == 4 and len(scores._log_history) == 2  # after 8 and 12


def test_processes_with_seeds_of_their_own(tmp_path, monkeypatch):
    """With ``diff_rank_seed``: the data are those of the first process's seed, other random numbers are not."""
    first = seen_by(toy_run(toy_config(tmp_path / 'first', randomness=dict(seed=3))))
    monkeypatch.setattr(exact_resume, 'broadcast_object_list', lambda seeds: seeds.insert(0, 3))
    second = seen_by(toy_run(toy_config(tmp_path / 'second', randomness=dict(seed=4))))
    for ours, others in zip(first.values(), second.values(), strict=True):
        assert ours[:2] == others[:2] and ours[2] != others[2]


@pytest.mark.slow
@pytest.mark.parametrize('by_epoch', [False, True])
def test_the_last_validation_as_well(tmp_path, by_epoch):
    """It is due at the end, whatever the interval."""
    kind, length = ('Epoch', dict(max_epochs=3)) if by_epoch else ('Iter', dict(max_iters=10))
    loop = dict(length, type=f'{kind}BasedTrainLoop', val_interval=2 if by_epoch else 4)
    options = dict(by_epoch=by_epoch, train_cfg=loop)
    whole = toy_run(toy_config(tmp_path / 'whole', **options))
    end, stopped = whole.iter, tmp_path / 'stopped'
    toy_run(toy_config(stopped, seen=dict(stop_at=end, stop_in_val=True), **options))
    second = toy_run(toy_config(stopped, **options), stopped / f'iter_{end}.pth')
    assert not seen_by(second)
    scores = [run.message_hub.log_scalars['val/mIoU']._log_history for run in (whole, second)]
    assert scores[0].tolist() == scores[1].tolist() and len(scores[0]) == (2 if by_epoch else 3)
    assert difference(last(tmp_path / 'whole'), last(tmp_path / 'stopped')) is None


@pytest.mark.slow
def test_another_batch_goes_on_behind_the_images_that_were_seen(tmp_path):
    """As with another number of processes: 6 steps of 3 images are 9 of 2."""
    toy_run(toy_config(tmp_path, seen=dict(stop_at=7)))
    twos = seen_by(toy_run(toy_config(tmp_path / 'twos', loader=dict(batch_size=2))))
    cfg = toy_config(tmp_path, loader=dict(batch_size=2))
    after = seen_by(toy_run(cfg, tmp_path / 'iter_6.pth'))
    assert [after[6 + step][1] for step in range(3)] == [twos[9 + step][1] for step in range(3)]


def test_a_checkpoint_without_a_record(tmp_path):
    """Of a run without the hook: the place is made out from the iteration."""
    toy_run(toy_config(tmp_path, by_epoch=True, seen=dict(stop_at=7)))
    path = tmp_path / 'iter_6.pth'
    saved = torch.load(path, weights_only=False)
    del saved['meta']['exact_resume']
    torch.save(saved, path)
    path.with_name(f'{path.name}.sha256').unlink()
    after = seen_by(toy_run(toy_config(tmp_path / 'after', by_epoch=True), path))
    assert after[6][0] == 2
    whole = seen_by(toy_run(toy_config(tmp_path / 'whole', True)))
    assert after == {step: batch for step, batch in whole.items() if step >= 6}
    # With smaller batches, iteration 6 would lie before epoch 1.
    ones = toy_run(toy_config(tmp_path / 'ones', True, loader=dict(batch_size=1)), path)
    assert seen_by(ones)[6][0] == 0


def test_weights_alone_do_not_bring_a_place_along(tmp_path):
    toy_run(toy_config(tmp_path, seen=dict(stop_at=7)))
    runner = RUNNERS.build(toy_config(tmp_path / 'new', load_from=str(tmp_path / 'iter_6.pth')))
    runner.train()
    fresh = seen_by(toy_run(toy_config(tmp_path / 'fresh')))
    assert [batch[1] for batch in seen_by(runner).values()] == [b[1] for b in fresh.values()]

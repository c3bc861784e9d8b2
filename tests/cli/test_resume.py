"""Which checkpoint a run resumes from, and the warning when it is not the same run."""

import logging
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from toy_training import toy_config, toy_run

from mmlape.cli import build_runner, set_resume
from mmlape.training import ResumeCheckHook, processes
from mmlape.training.last_checkpoint import last_complete_checkpoint


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ('SLURM_RESTART_COUNT', 'TORCHELASTIC_RESTART_COUNT'):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path):
    """A work dir with three checkpoints."""
    for epoch in (8, 9, 10):
        torch.save(dict(state_dict=dict(w=torch.randn(500))), tmp_path / f'epoch_{epoch}.pth')
    torch.save(dict(w=1), tmp_path / 'best_coco_bbox_mAP_epoch_9.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_10.pth'))
    return tmp_path


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def sharded(path, files=1):
    path.unlink()
    path.mkdir()
    for number in range(files):
        (path / f'rank{number}.pth').write_bytes(b'1')


def diverged(path):
    torch.save(dict(state_dict=dict(w=torch.full((500,), float('nan')))), path)


def other_digest(path):
    """Also of a whole archive: of another training, say, or changed on purpose."""
    path.with_name(f'{path.name}.sha256').write_text('0' * 64 + f'  {path.name}\n')


# What happened to the newest checkpoints (10, 9, 8), which is the last complete one, and what is said of the others.
HAPPENED = {
    'nothing': ([], 10, []),
    'cut': ([cut], 9, ['is not complete']),
    'diverged': ([diverged], 9, ['holds NaN or infinite values']),
    'cut twice': ([cut, cut], 8, ['is not complete'] * 2),
    'cut all': ([cut] * 3, None, ['is not complete'] * 3),
    'empty': ([lambda path: path.write_bytes(b'')], 9, ['is not complete']),
    'a byte': ([flip_a_byte], 9, ['']),
    'zeros': ([lambda path: path.write_bytes(bytes(path.stat().st_size))], 9, ['is not complete']),
    'gone': ([lambda path: path.unlink()], 9, ['does not exist']),
    'digest': ([other_digest], 9, ['is damaged (sha256']),
    'sharded': ([sharded], 10, []),
    'sharded, empty': ([lambda path: sharded(path, 0)], 9, ['does not exist']),
}


@pytest.mark.parametrize(('damages', 'last', 'words'), HAPPENED.values(), ids=HAPPENED)
def test_the_last_complete_checkpoint(run, damages, last, words):
    for number, damage in enumerate(damages):
        damage(run / f'epoch_{10 - number}.pth')
    checkpoint, notes = last_complete_checkpoint(run)
    assert checkpoint == (last and str(run / f'epoch_{last}.pth'))
    for number, (note, word) in enumerate(zip(notes, words, strict=True)):
        assert note.startswith(str(run / f'epoch_{10 - number}.pth {word}'))
        assert 'falling back' in note


def test_a_later_file_than_the_last_checkpoint_is_left_alone(run):
    torch.save(dict(w=1), run / 'epoch_11.pth')
    assert last_complete_checkpoint(run)[0].endswith('epoch_10.pth')
    cut(run / 'epoch_10.pth')
    assert last_complete_checkpoint(run)[0].endswith('epoch_9.pth')
    (run / 'last_checkpoint').unlink()
    assert last_complete_checkpoint(run)[0].endswith('epoch_11.pth')
    assert last_complete_checkpoint(run / 'new') == (None, [])


def test_checkpoints_kept_elsewhere(run, tmp_path):
    work_dir = tmp_path / 'work'
    work_dir.mkdir()
    (work_dir / 'last_checkpoint').write_text(str(run / 'epoch_10.pth'))
    cut(run / 'epoch_10.pth')
    assert last_complete_checkpoint(work_dir)[0] == str(run / 'epoch_9.pth')
    torch.save(dict(w=1), work_dir / 'epoch_10.pth')  # of a work dir that was copied
    assert last_complete_checkpoint(work_dir) == (str(work_dir / 'epoch_10.pth'), [])
    (work_dir / 'last_checkpoint').write_text('s3://bucket/epoch_10.pth')
    assert last_complete_checkpoint(work_dir) == ('s3://bucket/epoch_10.pth', [])


def config(work_dir, **options):
    return Config(dict(work_dir=str(work_dir), load_from=None, **options))


def test_resume_options(run, tmp_path):
    cfg = config(run)
    assert set_resume(cfg, 'auto') == [f'resuming from {run / "epoch_10.pth"}']
    assert (cfg.resume, cfg.load_from) == (True, str(run / 'epoch_10.pth'))
    cfg = config(run)
    set_resume(cfg, str(run / 'epoch_8.pth'))
    assert (cfg.resume, cfg.load_from) == (True, str(run / 'epoch_8.pth'))
    cfg = config(run)
    assert set_resume(cfg, None) == [] and not cfg.get('resume') and cfg.load_from is None
    cfg = config(run, resume=True)  # as a config may say it
    set_resume(cfg, None)
    assert cfg.load_from == str(run / 'epoch_10.pth')
    cfg = config(run, resume=True)
    cfg.load_from = str(run / 'epoch_9.pth')
    set_resume(cfg, None)
    assert cfg.load_from == str(run / 'epoch_9.pth')
    cfg = config(tmp_path / 'new')  # nothing to resume: the weights of the config stay
    cfg.load_from = str(run / 'epoch_8.pth')
    (note,) = set_resume(cfg, 'auto')
    assert 'starting from the beginning' in note
    assert (cfg.resume, cfg.load_from) == (False, str(run / 'epoch_8.pth'))


@pytest.mark.parametrize(('resume', 'weights'), [(True, None), (False, 'epoch_8.pth')])
def test_a_run_has_the_weights_of_a_first_start_and_a_lock(resume, weights, run, monkeypatch):
    monkeypatch.setattr(processes, 'lock_work_dir', lambda work_dir: [f'{work_dir} is locked'])
    cfg = config(run, resume=resume)
    cfg.load_from = str(run / 'epoch_8.pth')
    found, notes = processes.start_run(cfg, 'auto')
    assert found == (weights and str(run / weights))
    assert notes == [f'resuming from {run / "epoch_10.pth"}', f'{run} is locked']


def test_checkpoints_that_other_processes_do_not_see(run, monkeypatch):
    monkeypatch.setattr(processes, 'all_gather_object', lambda mine: [mine, False])
    with pytest.raises(ValueError, match=r'process 1 of 2: .*epoch_10\.pth is not visible there'):
        set_resume(config(run), 'auto')
    monkeypatch.undo()
    (run / 'last_checkpoint').write_text('s3://bucket/epoch_10.pth')
    cfg = config(run)
    set_resume(cfg, 'auto')
    assert cfg.load_from == 's3://bucket/epoch_10.pth'


@pytest.mark.parametrize('name', ['SLURM_RESTART_COUNT', 'TORCHELASTIC_RESTART_COUNT'])
def test_a_restarted_run_resumes(run, monkeypatch, name):
    monkeypatch.setenv(name, '0')
    cfg = config(run)
    set_resume(cfg, None)
    assert not cfg.get('resume')
    monkeypatch.setenv(name, '1')
    cut(run / 'epoch_10.pth')
    notes = set_resume(cfg, None)
    assert cfg.load_from == str(run / 'epoch_9.pth')
    assert 'restarted' in notes[0] and 'epoch_10.pth is not complete' in notes[1]


def test_a_restarted_job_that_names_a_checkpoint_resumes_from_the_last_one(
    run, tmp_path, monkeypatch
):
    named = str(run / 'epoch_8.pth')
    cfg = config(run)
    set_resume(cfg, named)
    assert cfg.load_from == named
    monkeypatch.setenv('SLURM_RESTART_COUNT', '2')
    cfg = config(run)
    set_resume(cfg, named)
    assert cfg.load_from == str(run / 'epoch_10.pth')
    # killed before it saved anything
    cfg = config(tmp_path / 'new')
    set_resume(cfg, named)
    assert cfg.load_from == named


def test_mistakes(run):
    with pytest.raises(ValueError, match='there is no checkpoint'):
        set_resume(config(run), str(run / 'epoch_7.pth'))
    for damage, name, words in (
        (cut, 'epoch_8', 'not complete'),
        (other_digest, 'epoch_9', 'damaged'),
    ):
        damage(run / f'{name}.pth')
        with pytest.raises(ValueError, match=rf'{name}\.pth is {words}'):
            set_resume(config(run), str(run / f'{name}.pth'))
    cfg = config(run)
    cfg.load_from = 'pretrained.pth'
    with pytest.raises(ValueError, match=r"no checkpoint 'pretrained\.pth'"):
        set_resume(cfg, None)


def test_the_hook_is_added_once(run):
    cfg = config(run, custom_hooks=[dict(type='mmlape.ResumeCheckHook'), dict(type='X')])
    set_resume(cfg, None)
    assert [hook['type'] for hook in cfg.custom_hooks] == ['mmlape.ResumeCheckHook', 'X']
    cfg = config(run)
    set_resume(cfg, None)
    assert [hook['type'] for hook in cfg.custom_hooks] == ['mmlape.ResumeCheckHook']


def runner(processes, images, accumulated=1, resume=True, loop=IterBasedTrainLoop):
    cfg = Config(
        dict(
            train_dataloader=dict(batch_size=images),
            optim_wrapper=dict(accumulative_counts=accumulated),
        )
    )
    said = []
    logger = SimpleNamespace(
        info=lambda text: said.append((logging.INFO, text)),
        warning=lambda text: said.append((logging.WARNING, text)),
    )
    return SimpleNamespace(
        cfg=cfg, world_size=processes, logger=logger, said=said, train_loop=object.__new__(loop),
        _resume=resume, param_schedulers=None,
    )  # fmt: skip


def resumed(before, after):
    checkpoint = dict(meta=dict(epoch=1))
    ResumeCheckHook().before_save_checkpoint(before, checkpoint)
    ResumeCheckHook().after_load_checkpoint(after, checkpoint)
    return after.said


def test_another_number_of_gpus_is_noticed():
    ((level, text),) = resumed(runner(8, 2), runner(4, 2))
    assert level == logging.WARNING
    assert '4 processes x 2 images = 8 per step' in text
    assert '8 processes x 2 images = 16 per step' in text
    assert '--cfg-options train_dataloader.batch_size=4' in text
    assert 'Epochs' not in text
    ((_, text),) = resumed(runner(8, 2), runner(3, 2, loop=EpochBasedTrainLoop))
    assert 'batch_size=' not in text and 'Epochs' in text
    ((level, text),) = resumed(runner(8, 2), runner(4, 2, accumulated=2))
    assert level == logging.INFO and 'x 2 accumulated = 16' in text


def test_what_is_equal_or_unknown_is_not_reported():
    assert resumed(runner(8, 2), runner(8, 2)) == []
    assert resumed(runner(8, 2), runner(4, 2, resume=False)) == []
    after = runner(4, 2)
    ResumeCheckHook().after_load_checkpoint(after, dict(meta=dict()))
    assert after.said == []


def started(tmp_path, wanted=None, **options):
    """Train as tools/train.py does; the runner."""
    cfg = toy_config(tmp_path, checkpoint=dict(interval=6), **options)
    first_weights = None if cfg.get('resume') else cfg.get('load_from')
    set_resume(cfg, wanted)
    runner = build_runner(cfg, first_weights)
    runner.train()
    return runner


def test_the_config_in_the_work_dir_is_that_of_a_first_start(tmp_path):
    """It may be trained from, into another folder, without going on with this training."""
    started(tmp_path / 'run')
    written = dict(train_cfg=dict(type='IterBasedTrainLoop', max_iters=14))
    weights = str(tmp_path / 'run' / 'iter_6.pth')
    for options in (dict(), dict(load_from=weights), dict(resume=True, load_from=weights)):
        runner = started(tmp_path / 'run', 'auto', **written, **options)
        assert runner.iter == 14
        kept = Config.fromfile(
            max((tmp_path / 'run').glob('*.py'), key=lambda p: p.stat().st_mtime_ns)
        )
        saved = torch.load(tmp_path / 'run' / 'iter_14.pth', weights_only=False)
        for cfg in (runner.cfg, kept, Config.fromstring(saved['meta']['cfg'], '.py')):
            assert cfg.resume is False
            assert cfg.load_from == (None if options.get('resume') else options.get('load_from'))
        (tmp_path / 'run' / 'iter_14.pth').unlink()
        (tmp_path / 'run' / 'last_checkpoint').write_text(str(tmp_path / 'run' / 'iter_12.pth'))


@pytest.mark.parametrize('by_epoch', [False, True])
def test_a_finished_training_says_so(tmp_path, monkeypatch, by_epoch):
    said = []
    started(tmp_path, by_epoch=by_epoch)
    monkeypatch.setattr('mmengine.logging.MMLogger.warning', lambda self, text: said.append(text))
    runner = started(tmp_path, 'auto', by_epoch=by_epoch)
    assert runner.iter == 12
    (text,) = [text for text in said if 'finished' in text]
    assert ('3 of 3 epochs' if by_epoch else '12 of 12 iterations') in text


def test_a_file_without_optimizer_or_schedules_is_said_to_be(tmp_path):
    config = toy_config(tmp_path, checkpoint=dict(save_best=None), log_level='WARNING')
    config.default_hooks.check_weights = dict(type='mmlape.CheckWeightsHook')
    toy_run(config)
    checkpoint = torch.load(tmp_path / 'iter_10.pth', weights_only=False)
    del checkpoint['optimizer'], checkpoint['param_schedulers']
    torch.save(checkpoint, tmp_path / 'part.pth')
    config.update(work_dir=str(tmp_path / 'again'), experiment_name=f'again-{tmp_path.name}')
    toy_run(config, tmp_path / 'part.pth')
    (log,) = (tmp_path / 'again').glob('*/*.log')
    assert 'holds no optimizer and no param_schedulers: these start anew' in log.read_text()

"""The report's hook: two processes add up, and a report that fails ends no training."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmlape.apps.report import ReportHook


def runner(folder, **more):
    dataset = SimpleNamespace(metainfo=dict(classes=('a', 'b')))
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=dataset))
    cfg = Config(dict(default_scope='mmseg'))
    return SimpleNamespace(val_loop=loop, cfg=cfg, work_dir=str(folder), **more)


def sample(path, truth, found):
    made = SegDataSample(metainfo=dict(img_path=path))
    made.gt_sem_seg = PixelData(data=torch.tensor([[truth]]))
    made.pred_sem_seg = PixelData(data=torch.tensor([[found]]))
    return made


def test_samples_of_other_toolboxes_are_not_counted(tmp_path):
    """Such as those of poses, which have other labels; their trainings go on."""
    for scope in ('mmpose', None):
        hook, run = ReportHook(), runner(tmp_path)
        run.cfg.default_scope = scope
        hook.before_val_epoch(run)
        hook.after_val_iter(run, 0, outputs=[sample('a', [0], [0])])
        hook.after_val_epoch(run)
        assert hook.tally is None


@pytest.mark.parametrize(('rule', 'step'), [('less', 2), ('greater', 4)])
def test_the_best_is_that_of_the_checkpoints(rule, step, tmp_path):
    folder = tmp_path / '2026' / 'vis_data'
    folder.mkdir(parents=True)
    rows = [
        row
        for n, rmse in enumerate((3, 1, 2, 4), 1)
        for row in (dict(loss=1, step=n), dict(rmse=rmse, step=n))
    ]
    (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)))
    hooks = [CheckpointHook(save_best='rmse', rule=rule)]
    ReportHook().after_train(runner(tmp_path, logger=logging.getLogger('best'), hooks=hooks))
    assert f'best (step {step})' in (tmp_path / 'report.html').read_text()


def of_one_process(rank, folder):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2
    )
    hook, run = ReportHook(examples=1), runner(folder)
    hook.before_val_epoch(run)
    hook.after_val_iter(run, 0, outputs=[sample(str(rank), [0, 1, 1], [0, rank, 1])])
    hook.after_val_epoch(run)
    assert hook.tally.confusion.tolist() == [[2, 0], [1, 3]]
    assert (hook.tally.best[0].path, hook.tally.worst[0].path) == ('1', '0')
    torch.distributed.destroy_process_group()


def test_two_processes_add_up(tmp_path):
    torch.multiprocessing.start_processes(
        of_one_process, (tmp_path,), nprocs=2, start_method='fork'
    )


def test_a_report_that_fails_is_logged(tmp_path, caplog):
    folder = tmp_path / '2026' / 'vis_data'
    folder.mkdir(parents=True)
    (folder / 'scalars.json').mkdir()
    logger = logging.getLogger('report test')
    ReportHook().after_train(runner(tmp_path, logger=logger))
    assert 'no report.html: IsADirectoryError' in caplog.text
    (folder / 'scalars.json').rmdir()
    (folder / 'scalars.json').write_text('{"loss": ')  # a line that a kill has cut
    ReportHook().after_train(runner(tmp_path, logger=logger))  # nothing was logged: no report
    assert not (tmp_path / 'report.html').exists()

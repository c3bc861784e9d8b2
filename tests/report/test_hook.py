"""The report's hook: two processes add up, checkpoints know the score of their best F1, the training data are drawn and
not changed by it, and a report that fails ends no training."""

import json
import logging
import random
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import Compose
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image
from toy_training import toy_config, toy_run

from mmlape.apps.report import ReportHook
from mmlape.apps.report.batch import draw_batch
from mmlape.apps.report.curves import draw_curves
from mmlape.registry import DATASETS, METRICS, MODELS


class Images(list):
    metainfo = dict(classes=('a', 'b'))


def runner(folder, images=1, **more):
    dataset = Images(range(images))
    loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=dataset))
    cfg = Config(dict(default_scope='mmseg'))
    hub, model = MessageHub(str(folder)), torch.nn.Linear(2, 1)
    parts = dict(val_loop=loop, cfg=cfg, message_hub=hub, model=model, experiment_name='test')
    return SimpleNamespace(work_dir=str(folder), **parts, **more)


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
    page = (tmp_path / 'report.html').read_text()
    assert f'best (iteration {step})' in page and '<div class="wide"><img ' in page


def test_one_logged_step_is_a_point(tmp_path, recwarn):
    draw_curves([dict(loss=1.0, step=1)], None, tmp_path / 'curves.png')
    pixels = np.asarray(Image.open(tmp_path / 'curves.png').convert('RGB')).astype(int)
    assert (abs(pixels - (31, 119, 180)).max(axis=2) < 20).sum() > 20 and not recwarn.list


def of_one_process(rank, folder):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2
    )
    hook, run = ReportHook(examples=1), runner(folder, images=3)
    hook.before_val_epoch(run)
    hook.after_val_iter(run, 0, outputs=[sample(str(rank), [0, 1, 1], [0, rank, 1])])
    # The third image, and the first one again, so that both processes have two.
    again = sample('again', [1, 1, 1], [0, 0, 0])
    hook.after_val_iter(
        run, 1, outputs=[again if rank else sample('2', [0, 1, 1, 1], [0, 0, 1, 1])]
    )
    hook.after_val_epoch(run)
    assert hook.tally.confusion.tolist() == [[3, 0], [2, 5]] and hook.tally.total == 3
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


BOXES = [[0.0, 0.0, 9.0, 9.0], [20.0, 20.0, 29.0, 29.0]]


@DATASETS.register_module(force=True)
class OneBox(BaseDataset):
    """An image with a box."""

    METAINFO = dict(classes=('a', 'b'))

    def load_data_list(self):
        return [{}]

    def prepare_data(self, index):
        truth = InstanceData(
            bboxes=torch.tensor(BOXES[:1]), labels=torch.zeros(1, dtype=torch.long)
        )
        sample = DetDataSample(gt_instances=truth)
        return dict(inputs=torch.zeros(3, 30, 30, dtype=torch.uint8), data_samples=sample)


@MODELS.register_module(force=True)
class Sinking(BaseModel):
    """Finds the box, and a wrong one with half of its score, which sinks by 0.1 in each step."""

    def __init__(self):
        super().__init__()
        self.score = torch.nn.Parameter(torch.tensor(0.9))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        if mode == 'loss':
            return dict(loss=self.score)
        scores = self.score.detach() * torch.tensor([1, 0.5])
        labels = torch.zeros(2, dtype=torch.long)
        found = InstanceData(bboxes=torch.tensor(BOXES), labels=labels, scores=scores)
        data_samples[0].pred_instances = found
        return data_samples


@METRICS.register_module(force=True)
class BestAt2(BaseMetric):
    epoch = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        self.epoch += 1
        return dict(mIoU=-abs(self.epoch - 2.0))


def test_checkpoints_know_the_score_of_the_best_f1_of_their_own_weights(tmp_path):
    """With averaged weights, which the validation sees; those that were not validated know none."""
    cfg = toy_config(
        tmp_path, by_epoch=True, default_scope='mmdet', model=dict(type='mmlape.Sinking'),
        train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=3), param_scheduler=None,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)), log_level='WARNING',
        val_evaluator=dict(type='mmlape.BestAt2'), checkpoint=dict(by_epoch=True, interval=1),
    )  # fmt: skip
    for name in ('train_dataloader', 'val_dataloader'):
        sampler = dict(type='DefaultSampler', shuffle=False)
        cfg[name] = dict(
            batch_size=1, num_workers=0, sampler=sampler, dataset=dict(type='mmlape.OneBox')
        )
    cfg.custom_hooks = [dict(type='EMAHook', momentum=0.5)]
    cfg.default_hooks.update(
        report=dict(type='mmlape.ReportHook'), logger=dict(type='LoggerHook', interval=1)
    )
    run = toy_run(cfg)
    stored = {}
    for path in tmp_path.glob('*.pth'):
        content = torch.load(path, weights_only=False)
        stored[path.name] = content['meta'].get('score_threshold')
        if stored[path.name]:  # between the wrong box and the right one
            expected = 0.75 * content['state_dict']['score'].item()
            assert stored[path.name] == pytest.approx(expected, abs=2e-3)
    assert stored.keys() == {'best_mIoU_epoch_2.pth', 'epoch_2.pth', 'epoch_3.pth'}
    assert stored['best_mIoU_epoch_2.pth'] == stored['epoch_2.pth'] > 0
    assert stored['epoch_3.pth'] is None
    report = (tmp_path / 'report.html').read_text()
    assert f'at a minimum score of {stored["epoch_2.pth"]:g},' in report
    assert '<td>F1 of boxes</td><td>1</td>' in report and 'Sinking</td>' in report
    logged = run.message_hub.get_scalar('val/boxes/score')
    assert len(logged._log_history) == 3 and logged._log_history[1] == stored['epoch_2.pth']
    assert 'augmented images with labels' in report and (tmp_path / 'training_batch.jpg').is_file()


def test_drawing_the_training_data_does_not_change_the_training(tmp_path, caplog):
    """Nor does drawing that fails, after random numbers were drawn: it is logged."""
    states = []
    for name, hook in (('without', None), ('with', dict(type='mmlape.ReportHook'))):
        cfg = toy_config(tmp_path / name, default_scope='mmdet')
        del cfg.default_hooks['exact_resume']  # which would set the random state of each step
        cfg.default_hooks.update({'report': hook} if hook else {})
        cfg.log_level = 'WARNING'
        states.append(toy_run(cfg).model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    log = ''.join(path.read_text() for path in (tmp_path / 'with').glob('*/*.log'))
    assert 'no picture of the training data: ' in log


class Drawn:
    """A transform that holds images and draws random numbers."""

    def __init__(self):
        self.held = []

    def __call__(self, item):
        self.held.append(item)
        random.random(), np.random.rand(), torch.rand(())
        return item


def items_of(kind, dtype, channels):
    """Items of a data set: three kinds of labels, of an image of 40 x 20."""
    inputs = (torch.arange(40 * 20 * channels).reshape(channels, 40, 20) % 200).to(dtype)
    if kind == 'maps':
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.ones(1, 40, 20, dtype=torch.long)))
        return dict(inputs=inputs, data_samples=sample)
    truth = InstanceData(bboxes=HorizontalBoxes(torch.tensor([[2.0, 4, 12, 24]])))
    truth.labels = torch.tensor([1])
    if kind == 'masks':
        mask = np.zeros((1, 40, 20), np.uint8)
        mask[0, 4:24, 2:12] = 1
        truth.masks = BitmapMasks(mask, 40, 20)
    return dict(inputs=inputs, data_samples=DetDataSample(gt_instances=truth))


@pytest.mark.parametrize(
    ('kind', 'dtype', 'channels'),
    [('boxes', torch.uint8, 3), ('masks', torch.float32, 3), ('maps', torch.float32, 5)],
)
def test_training_images_are_drawn_with_their_labels(kind, dtype, channels, tmp_path):
    step = Drawn()

    class Data(BaseDataset):
        METAINFO = dict(classes=('a', 'b'), palette=[(255, 0, 0), (0, 255, 0)])

        def load_data_list(self):
            return [{}] * 3

        def prepare_data(self, index):
            return self.pipeline(items_of(kind, dtype, channels))

    data = Data(serialize_data=False)
    data.pipeline = Compose([step])
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    wrapped = ConcatDataset([data] * 2) if kind == 'maps' else RepeatDataset(data, 2)
    path = draw_batch(Config(dict()), tmp_path / 'a.jpg', wrapped)
    assert states == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )
    assert step.held == []
    picture = cv2.imread(str(path)).astype(int)
    assert picture.shape[0] > 3 * 560 + 2 * 8 and picture.shape[1] == 2 * 280 + 8  # with legends
    edge = picture[
        14 * 15 : 14 * 20, 14 * 2 - 4 : 14 * 2 + 4
    ]  # of the box, in green; the image is grey
    assert (edge[..., 1] - edge[..., 2]).max() > 60
    inside = picture[14 * 15 : 14 * 20, 14 * 5 : 14 * 8]
    assert ((inside[..., 1] - inside[..., 2]).mean() > 60) == (kind != 'boxes')

"""`train` and `test` in this process: a micro Segmenter and a micro Mask R-CNN from one folder, without options."""

import pickle
import subprocess
import sys

import pytest
import torch
from config_utils import CONFIGS, write_image
from tool_runs import MASK_RCNN, SEGMENTER

SHORT = (
    'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=1',
    'train_dataloader.batch_size=2',
)  # fmt: skip


@pytest.mark.slow
def test_a_segmentor_is_trained_resumed_and_tested(digit_commands, tmp_path):
    logged = ('--log', 'tensorboard')
    log = digit_commands('train.py', SEGMENTER, '--seed', 5, *logged, '--cfg-options', *SHORT)
    assert 'mIoU ' in log and 'Iter(train)' not in log  # an entry every 50 iterations
    run = tmp_path / 'work_dirs' / SEGMENTER
    assert list(run.rglob('events.out.tfevents.*'))
    page = (run / 'report.html').read_text()
    assert page.count('<figure>') == 4 and 'Confusion matrix' in page and 'mIoU' in page
    saved = torch.load(run / 'iter_2.pth', weights_only=False)
    assert saved['meta']['seed'] == 5
    assert saved['meta']['images_per_step'] == dict(processes=1, images=2, accumulated=1)

    (run / 'iter_2.pth').write_bytes(b'')
    longer = ('train_cfg.max_iters=3', 'train_cfg.val_interval=9', 'train_dataloader.batch_size=1')
    log = digit_commands('train.py', SEGMENTER, '--resume', '--cfg-options', *longer, *SHORT[2:3])
    assert 'iter_2.pth is damaged' in log and 'iter_1.pth' in log
    assert 'resumed epoch: 0, iter: 1' in log
    assert 'resumed with 1 processes x 1 images = 1 per step' in log
    assert (run / 'iter_3.pth').is_file()

    options = ('--out', 'maps', '--show-dir', 'pictures', '--work-dir', 'test', '--tta')
    log = digit_commands('test.py', SEGMENTER, run / 'iter_3.pth', *options)
    assert 'mIoU ' in log
    assert len(list((tmp_path / 'maps').glob('*.png'))) == 2
    assert len(list((tmp_path / 'pictures').rglob('*.jpg'))) == 2


def test_a_detector_is_trained_and_tested(digit_commands, tmp_path):
    scaled = ('--auto-scale-lr', '--cfg-options', *SHORT, 'auto_scale_lr.base_batch_size=8')
    log = digit_commands('train.py', MASK_RCNN, '--work-dir', 'run', *scaled)
    assert 'Scaling the original LR by 0.25' in log
    (file,) = (tmp_path / 'run').glob('*/*.log')
    for long in ('Config:\n', 'paramwise_options -- '):
        assert long not in log and long in file.read_text()
    assert 'mask AP ' in log
    options = ('--out', 'found.pkl', '--show-dir', 'pictures', '--work-dir', 'test')
    log = digit_commands('test.py', MASK_RCNN, 'run/iter_2.pth', *options)
    assert 'mask AP ' in log
    with open(tmp_path / 'found.pkl', 'rb') as file:
        found = pickle.load(file)
    assert len(found) == 2 and 'masks' in found[0]['pred_instances']
    assert len(list((tmp_path / 'pictures').rglob('*.jpg'))) == 2
    options = ('--images', '1', '--out', 'first.pkl', '--tta', '--work-dir', 'first')
    log = digit_commands('test.py', MASK_RCNN, 'run/iter_2.pth', *options)
    assert 'box AP ' in log and 'mask AP' not in log
    with open(tmp_path / 'first.pkl', 'rb') as file:
        assert [each['img_id'] for each in pickle.load(file)] == [found[0]['img_id']]


CLASSIFIER = """
_base_ = {base!r}
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=48, depth=2, num_heads=3), img_size=64, patch_size=16),
    head=dict(in_channels=48))
loader = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = dict(
    sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True), **loader,
    dataset=dict(data_root='images', metainfo=dict(classes=['a', 'b'])))
val_dataloader = dict(dataset=dict(data_root='images', metainfo=dict(classes=['a', 'b'])), **loader)
test_dataloader = val_dataloader
param_scheduler = []
"""


def test_a_classifier_is_trained_and_tested(digit_commands, tmp_path):
    for split in ('train', 'val'):
        for index, label in enumerate('ab'):
            write_image(tmp_path / 'images' / split / label / f'{index}.JPEG', (80, 70))
    base = str(CONFIGS / 'imagenet' / 'deit-t-lape_8xb128_in1k.py')
    (tmp_path / 'config.py').write_text(CLASSIFIER.format(base=base))
    steps = ('train_dataloader.dataset.pipeline.1.scale=64',)
    sizes = [
        f'{split}_dataloader.dataset.pipeline.{option}'
        for split in ('val', 'test')
        for option in ('1.scale=73', '2.crop_size=64')
    ]
    short = ('--cfg-options', 'train_cfg.max_epochs=1', *steps, *sizes)
    log = digit_commands('train.py', 'config.py', '--work-dir', 'run', *short)
    assert 'top-1 accuracy ' in log
    options = ('--out', 'found.pkl', '--show-dir', 'pictures', '--work-dir', 'test')
    log = digit_commands(
        'test.py', 'config.py', 'run/epoch_1.pth', *options, '--cfg-options', *sizes
    )
    assert 'top-1 accuracy ' in log
    with open(tmp_path / 'found.pkl', 'rb') as file:
        assert len(pickle.load(file)) == 2
    assert len(list((tmp_path / 'pictures').rglob('*'))) == 2


def test_a_second_training_in_one_work_dir_is_refused(digit_commands, tmp_path):
    """By a lock of another process, which imports nothing that takes time; ours: tests/cli/test_processes.py."""
    (tmp_path / 'run').mkdir()
    hold = (
        'import fcntl; file = open("run/.lock", "w"); print("process 1 on this machine", file=file, flush=True)\n'
        'fcntl.lockf(file, fcntl.LOCK_EX); print("locked", flush=True); input()'
    )
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, '-c', hold], cwd=tmp_path, **pipes) as first:
        assert first.stdout.readline() == b'locked\n'
        message = digit_commands.refused('train.py', MASK_RCNN, '--work-dir', 'run')
        first.communicate(b'\n')
    assert message.startswith('error: another training (process 1 on this machine) uses run: ')
    assert not list(tmp_path.glob('run/*.pth'))


def test_a_config_without_a_model(digit_commands, tmp_path):
    (tmp_path / 'x.py').write_text('a = 1\n')
    for tool in (['train.py', 'x.py'], ['test.py', 'x.py', 'http://x.y/z.pth']):
        assert digit_commands.refused(*tool).startswith('error: x.py has no model')


def test_a_checkpoint_that_is_not_there(digit_commands):
    message = digit_commands.refused('test.py', SEGMENTER, 'run/iter_9.pth')
    assert "there is no checkpoint 'run/iter_9.pth'" in message
    assert not (digit_commands.folder / 'work_dirs').exists()

"""Trainings by `mmlape train`, by several processes, the memory of a step beside our estimate, and the benchmarks."""

import copy
import itertools
import json
import math
import subprocess
import sys

import pytest
import torch
from config_utils import CONFIGS, REPO, foundation_configs, shipped_configs
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from tool_runs import dist_train

from benchmarks.cases import CASES
from benchmarks.measuring import measure
from benchmarks.side_by_side import CLOCKS, interleaved, peak_bytes
from mmlape.research.analysis import (
    measure_step_memory,
    random_batch,
    training_model,
    training_size,
)
from mmlape.research.datasets import build_digit_scenes
from mmlape.training.stop_hooks import all_finite

DEMO = [
    'mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes',
    'segmenter_vit-micro-adapter-lape_mask_digit-scenes',
    'retinanet_pvt-micro-dtn_fpn_digit-scenes',
]
STEPS = 30
# One of each family and of each kind of head; --all-rows measures all.
ROWS = [
    'lape/mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco',
    'lape/segmenter_deit-s-lape_mask_8xb1-160k_ade20k-512x512',
    'lape/upernet_deit-s-adapter-lape_8xb2-160k_ade20k-512x512',
    'dtn/retinanet_pvt-s-dtn_fpn_1x_coco',
    'detectors/gfl_deit-s-adapter-lape_fpn_ms-3x_coco',
    'detr/dino-4scale_deit-s-adapter-lape_8xb2-12e_coco',
    'foundation/mask2former_dinov3-s_sfp_lsj-1x_coco',
    'eomt/eomt_deit-s-lape_8xb2-40k_ade20k-512x512',
]
ZOO = json.loads((REPO / 'benchmarks/records/model_zoo.json').read_text())['models']
# What a CPU can do in seconds.
MICRO = [f'demo/{DEMO[1]}']
SHORT_CASES = ['dtn 14 x 14, C 320']


def pytest_generate_tests(metafunc):
    options = metafunc.config.option
    if 'row' in metafunc.fixturenames:
        every = [
            f'{path.parent.name}/{path.stem}'
            for path in (*shipped_configs(), *foundation_configs())
        ]
        rows = MICRO if options.device == 'cpu' else every if options.all_rows else ROWS
        metafunc.parametrize('row', rows)
    if 'case' in metafunc.fixturenames:
        metafunc.parametrize('case', CASES if options.device == 'cuda' else SHORT_CASES)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('training')
    build_digit_scenes(folder / 'data/digit_scenes', num_train=16, num_val=4)
    return folder


def config_in(folder, name, changes=''):
    path = folder / f'{name}.py'
    path.write_text(
        f"_base_ = '{CONFIGS / 'demo' / name}.py'\n"
        f"train_cfg = dict(max_iters={STEPS}, val_interval={STEPS})\n"
        "default_hooks = dict(logger=dict(interval=1))\n" + changes
    )  # fmt: skip
    return path


def losses_in(run):
    """Of every step."""
    (path,) = run.glob('*/vis_data/scalars.json')
    lines = map(json.loads, path.read_text().splitlines())
    return torch.tensor([line['loss'] for line in lines if 'loss' in line])


@pytest.mark.parametrize('name', DEMO)
def test_demo_models(name, scenes, device, record_property):
    """30 steps of the demo's models by mmlape train, with --amp on a GPU."""
    # One of them with AdamW as most configs have it: it counts its steps on the CPU.
    plain = 'optim_wrapper = dict(optimizer=dict(fused=False))\n' if name == DEMO[0] else ''
    command = [sys.executable, str(REPO / 'tools/train.py'), str(config_in(scenes, name, plain))]
    flags = ['--amp'] if device.type == 'cuda' else []
    run = scenes / f'run-{name}'
    done = subprocess.run(
        [*command, '--work-dir', str(run), *flags], cwd=scenes, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    losses = losses_in(run)
    record_property('first loss', losses[:5].mean().item())
    record_property('last loss', losses[-5:].mean().item())
    assert len(losses) == STEPS and losses[-5:].mean() < losses[:5].mean()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_what_is_finite(dtype, device):
    """NaN and infinity in one of many gradients are found; the largest numbers are finite."""
    largest, sizes = torch.finfo(dtype).max, (1, 64, 70_000, 3) * 300
    gradients = [torch.full((size,), largest, dtype=dtype, device=device) for size in sizes]
    assert all_finite(gradients)
    for value in (math.nan, math.inf, -math.inf):
        for number, place in ((0, 0), (1, 63), (2, 69_999), (600, 0), (1199, 1)):
            before = gradients[number].clone()
            gradients[number][place] = value
            assert not all_finite(gradients), (value, number)
            gradients[number] = before


def test_two_processes(scenes, device, record_property):
    """DDP and FSDP with two processes: the same losses."""
    if device.type == 'cuda' and torch.cuda.device_count() < 2:
        pytest.skip('needs two GPUs')
    still = 'model = dict(backbone=dict(vit=dict(drop_path_rate=0.0)))\n'
    sharded = "runner_type = 'FlexibleRunner'\nstrategy = dict(type='mmlape.FSDPStrategy')\n"
    losses = []
    for changes in ('', sharded):
        path = config_in(scenes, DEMO[1], still + changes)
        run = f'run-{len(losses)}'
        code, log = dist_train(scenes, path, '--work-dir', run, gpus=device.type == 'cuda')
        assert code == 0, log[-6000:]
        losses.append(losses_in(scenes / run))
    ddp, fsdp = losses
    difference = ((ddp - fsdp).abs().max() / ddp.abs().max()).item()
    record_property('largest difference', difference)
    assert len(ddp) == STEPS and difference < 0.01


def test_memory_of_a_step(row, device, record_property):
    """A training step at the config's batch: GB beside what mmlape estimate says, and images per second."""
    cfg = Config.fromfile(CONFIGS / f'{row}.py')
    size, number = training_size(cfg), cfg.train_dataloader.batch_size
    known = ZOO.get(row.partition('/')[2])
    estimated = known['step']['bytes'] if known else measure_step_memory(cfg).total
    images = [random_batch(cfg, size, seed=seed) for seed in range(number)]
    batch = {key: [image[key][0] for image in images] for key in images[0]}
    model = training_model(cfg).to(device)
    optimizer = build_optim_wrapper(model, dict(type='OptimWrapper', optimizer=dict(type='AdamW')))

    def steps():
        for _ in range(2):  # states of the optimizer are there in the second
            model.train_step(copy.deepcopy(batch), optimizer)

    values = itertools.chain(model.parameters(), model.buffers())
    measured = sum(each.nbytes for each in values) + peak_bytes(steps)
    for key, value in (('estimated', estimated), ('measured', measured)):
        record_property(f'{key}, GB', round(value / 1e9, 3))
    record_property('ratio', round(measured / estimated, 3))
    taken = interleaved({'steps': steps}, repeats=1 if device.type == 'cpu' else 3, warm_up=0)
    record_property('images per second', 2e3 * number / taken['steps']['median_ms'])
    # On a CPU 0.9 to 1.1; a GPU's libraries may want more.
    assert 0.6 < measured / estimated < 1.5


def test_benchmarks(case, device, record_property):
    """Our networks and norms beside upstream's and published maths, milliseconds of a training step (make bench)."""
    found = measure(CASES[case](), repeats=3 if device.type == 'cuda' else 1, clock=CLOCKS['wall'])
    for key, times in found['train_step'].items():
        record_property(f'{key}, ms', times['median_ms'])

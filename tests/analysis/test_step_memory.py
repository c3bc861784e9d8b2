"""Memory of a training step: by hand for two layers, and what is extrapolated beside what is counted at that size."""

from functools import partial

import pytest
import torch
from config_utils import CONFIGS, marked
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import nn

from benchmarks.side_by_side import peak_bytes
from mmlape.research.analysis import measure_step_memory, step_memory, training_model, training_size
from mmlape.research.analysis.live_bytes import bytes_kept, peak_live_bytes

pytestmark = pytest.mark.usefixtures('cheap_values')

MICRO = {
    'segmenter': 'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes',
    'mask-rcnn': 'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes',
    'retinanet': 'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes',
    'dino': 'experiments/dino-3scale_vit-micro-adapter-lape_digit-scenes',
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Half as large as usual, for micro models."""
    sizes = {
        scope: tuple((height // 2, width // 2) for height, width in each)
        for scope, each in step_memory.SMALL.items()
    }
    monkeypatch.setattr(step_memory, 'SMALL', sizes)


def config(name):
    return Config.fromfile(CONFIGS / f'{MICRO[name]}.py')


def test_kept_bytes_by_hand():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    values = 4 * 8 + 2 * 4 * 16 + 4 * 2  # inputs of the three layers, and the output
    assert bytes_kept(model, lambda: model(torch.zeros(4, 8))) == 4 * values
    model.requires_grad_(False)
    assert bytes_kept(model, lambda: model(torch.zeros(4, 8))) == 4 * 4 * 2


def test_peak_live_bytes_by_hand():
    model, given = nn.Linear(8, 16, bias=False), torch.zeros(4, 8)

    def call():
        made = model(given)  # 4 x 16
        passing = made.repeat(5, 1)  # 20 x 16
        del made
        return passing.sum()

    with torch.no_grad():
        assert peak_live_bytes(model, call) == 4 * (4 * 16 + 20 * 16)
        assert bytes_kept(model, call) == 4
    # Of the backward pass: the loss, its gradient and the weight's.
    assert peak_live_bytes(model, lambda: model(given).sum().backward()) == 4 * (1 + 1 + 8 * 16)


def test_bytes_of_a_convolution_in_bfloat16():
    """It is computed in float32, but what is kept and comes out has half the bytes."""
    conv, image = nn.Conv2d(3, 8, 3, padding=1), torch.randn(1, 3, 5, 7)

    def gradients():
        found.append(conv(image))
        return torch.autograd.grad(found[-1].float().square().sum(), conv.parameters())

    found = []
    with torch.autocast('cpu', torch.bfloat16):
        expected = gradients()
        assert bytes_kept(conv, lambda: found.append(conv(image))) == 2 * (3 + 8) * 5 * 7
        with_mode = []
        peak_live_bytes(conv, lambda: with_mode.extend(gradients()))
    for made in found:
        assert made.dtype == torch.bfloat16
        torch.testing.assert_close(made, found[0])
    torch.testing.assert_close(with_mode, list(expected), rtol=0.02, atol=0.02)


@pytest.mark.parametrize('name', marked(MICRO, ('mask-rcnn',)))
def test_of_a_size_that_was_not_fitted(name):
    cfg, size = config(name), (160, 352)
    found = measure_step_memory(cfg, 3, size)
    peak, values = counted(cfg, size)
    assert abs(found.activations / (3 * peak) - 1) < 0.05
    assert found.gradients == 4 * values
    assert 4 <= found.parameters / values < 4.1
    assert 8 <= found.optimizer / values < 8.1  # two moments of AdamW
    halved = measure_step_memory(cfg, 3, size, amp=True)
    if cfg.default_scope == 'mmseg':
        peak, _ = counted(cfg, size, amp=True)
        assert abs(halved.activations / (3 * peak) - 1) < 0.05
    assert found.activations / 2 < halved.activations < found.activations
    assert halved.parameters == found.parameters + 2 * values


def step(model, data):
    model.parse_losses(model(**data, mode='loss'))[0].backward()


def test_what_a_training_really_takes():
    """Without a mode that counts, DTN's steps and GELU are recomputed."""
    cfg, size = config('retinanet'), (224, 320)
    found = measure_step_memory(cfg, 1, size).activations
    model = training_model(cfg)
    data = model.data_preprocessor(step_memory.random_batch(cfg, size), True)
    peak = peak_bytes(partial(step, model, data))
    assert abs(found / peak - 1) < 0.05


def test_sparse_rcnn_starts_with_boxes():
    """Random ones would have negative sizes, which RoIAlign refuses."""
    name = 'experiments/sparse-rcnn_vit-micro-adapter-lape_fpn_digit-scenes'
    found = measure_step_memory(Config.fromfile(CONFIGS / f'{name}.py'), 1, (96, 128))
    assert found.activations > 1e6


def counted(cfg, size, amp=False):
    """The most bytes of a whole step at this size, and values of parameters."""
    sampler = cfg.model.get('train_cfg', {}).get('rcnn', {}).get('sampler')
    objects = round(sampler.num * sampler.pos_fraction) if sampler else 8
    with DefaultScope.overwrite_default_scope(cfg.default_scope), step_memory._as_on_a_gpu():
        model = training_model(cfg)
        data = model.data_preprocessor(step_memory.random_batch(cfg, size, objects), True)
        with torch.autocast('cpu', torch.bfloat16, enabled=amp):
            peak = peak_live_bytes(model, lambda: step(model, data))
    return peak, sum(parameter.numel() for parameter in model.parameters())


def test_htc_gets_label_maps():
    """Of COCO-Stuff, for its semantic head."""
    htc = Config.fromfile(CONFIGS / 'vit_adapter/htc_beit-l-adapter_fpn_ms-3x_coco.py')
    (sample,) = step_memory.random_batch(htc, (64, 96))['data_samples']
    assert sample.gt_sem_seg.sem_seg.shape == (1, 64, 96)
    assert 100 < sample.gt_sem_seg.sem_seg.max() < 183


def test_what_is_frozen_has_no_gradients_and_recomputation_keeps_less():
    """Nor states: without a paramwise_cfg, MMEngine's constructor gives the optimizer frozen parameters too."""
    cfg = config('segmenter')
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
    plain = measure_step_memory(cfg, 1, (96, 96))
    cfg.model.backbone.with_cp = True
    cfg.model.backbone.vit.frozen_stages = 4
    other = measure_step_memory(cfg, 1, (96, 96))
    assert other.activations < 0.8 * plain.activations
    assert other.gradients < plain.gradients and 2 <= other.optimizer / other.gradients < 2.1
    assert other.parameters == plain.parameters


def test_sizes_of_training():
    sizes = {
        'lape/upernet_deit-t-adapter-lape_8xb2-160k_ade20k-512x512': (512, 512),
        'foundation/mask2former_dinov3-s_sfp_lsj-1x_coco': (640, 640),
        'dtn/retinanet_pvt-t-dtn_fpn_1x_coco': (800, 1344),
        'vit_adapter/htc_beit-l-adapter_fpn_ms-3x_coco': (1408, 1600),
    }
    for name, size in sizes.items():
        assert training_size(Config.fromfile(CONFIGS / f'{name}.py')) == size


def test_sizes_of_scales():
    """As those of `mmlape fit`."""
    step = dict(type='RandomResize', scale=(160, 128), ratio_range=(0.75, 1.25))
    for scaled, size in (
        (step, (160, 224)),
        (dict(type='Resize', scale=(96, 96)), (96, 96)),
        (dict(type='Resize', scale_factor=2), (800, 1344)),
    ):
        loader = dict(dataset=dict(pipeline=[scaled]))
        assert training_size(Config(dict(model={}, train_dataloader=loader))) == size


@pytest.mark.parametrize(
    ('crop', 'size'), [((256, 320), (256, 320)), (256, (256, 256)), ((0.5, 0.5), (800, 1344))]
)
def test_sizes_of_crops_in_wrappers(crop, size):
    data = dict(type='A', pipeline=[dict(type='RandomCrop', crop_size=crop)])
    for dataset in (
        data,
        dict(type='RepeatDataset', dataset=data),
        dict(type='ConcatDataset', datasets=[data]),
    ):
        assert training_size(Config(dict(model={}, train_dataloader=dict(dataset=dataset)))) == size


def test_another_scope_is_refused():
    with pytest.raises(ValueError, match="must be 'mmdet' or 'mmseg' to be measured, got 'mmpose'"):
        measure_step_memory(Config(dict(default_scope='mmpose', model=dict())))


def test_what_the_command_prints(commands, monkeypatch):
    """GPUs have 1 GB less for the step: 4 GB beside the images, 1.5 GB for each."""
    found = step_memory.StepMemory(10**9, 10**9, 2 * 10**9, 3 * 10**9, (64, 96), 2)
    monkeypatch.setattr('mmlape.research.analysis.measure_step_memory', lambda *_: found)
    said = commands('estimate.py', str(CONFIGS / MICRO['mask-rcnn']) + '.py', '--amp')
    assert said.splitlines()[-7:] == [
        '2 images of 64 x 96, mixed precision',
        '  parameters      1.00 GB',
        '  gradients       1.00 GB',
        '  optimizer       2.00 GB',
        '  activations     3.00 GB',
        '  total           7.00 GB',
        'images per GPU, 1 GB left for CUDA: 12 GB: 4, 16 GB: 7, 24 GB: 12, 40 GB: 23, 80 GB: 50',
    ]


def test_the_command(commands, tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(f"_base_ = '{CONFIGS / MICRO['mask-rcnn']}.py'\n")
    said = commands('estimate.py', str(path), '--size', '160', '352', '--batch', '1000')
    assert '1000 images of 160 x 352, float32\n  parameters ' in said
    assert 'for 40 GB and less: --amp, --checkpointing, fewer images' in said
    wrong = commands.refused('estimate.py', str(path), '--cfg-options', 'model.backbone.vit.arhc=1')
    assert wrong.startswith('error: ') and 'arhc' in wrong
    runtime = CONFIGS / '_base_' / 'default_runtime_mmdet.py'
    assert 'has no model: it trains nothing' in commands.refused('estimate.py', str(runtime))

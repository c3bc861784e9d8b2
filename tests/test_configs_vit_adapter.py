"""Rows of ViT-Adapter's zoo: their values are those of the published configs, and each kind trains a step."""

import ast
import re
from typing import NamedTuple

import pytest
import timm
import torch
from config_utils import (
    CONFIGS,
    DEPTH,
    HEADS,
    WIDTH,
    marked,
    vit_adapter_configs,
    write_label_maps,
)
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS
from test_configs import load, read_a_data_set, train_a_step_and_predict

from mmlape.backbones.timm_archs import timm_arch
from mmlape.checkpoints import convert_with_report

NAMES = [path.stem for path in vit_adapter_configs() if re.search(r'-\d+k_', path.stem)]
DETECTORS = [path.stem for path in vit_adapter_configs() if path.stem not in NAMES]
pytestmark = pytest.mark.usefixtures('cheap_values')


class Published(NamedTuple):
    """What the published config of a row says; scales of images in training and test are (longer, shorter) sides."""

    data: str
    classes: int
    crop: int
    stride: int
    scales: tuple[tuple[int, int], tuple[int, int]]
    iterations: int
    width: int
    hidden: int = 0  # of the networks in the pixel decoder
    queries: int = 0
    lr: float = 2e-5
    weight_decay: float = 0.05
    decay_rate: float | None = 0.9
    drop_path_rate: float = 0.3


def square(long: int, short: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (long, short), (long, short)


ADE, PASCAL = ('ADE20KDataset', 150), ('PascalContextDataset59', 59)
STUFF = ('COCOStuffDataset', 171)
B = dict(lr=3e-5, decay_rate=0.95, drop_path_rate=0.2)
PUBLISHED = {
    'upernet_augreg-t-adapter_8xb2-160k_ade20k-512x512': Published(
        *ADE, 512, 341, square(2048, 512), 160, 512,
        lr=12e-5, weight_decay=0.01, decay_rate=0.95, drop_path_rate=0.1,
    ),
    'upernet_augreg-b-adapter_8xb2-160k_ade20k-512x512': Published(
        *ADE, 512, 341, square(2048, 512), 160, 512, weight_decay=0.01, decay_rate=None,
    ),
    'upernet_augreg-l-adapter_8xb2-160k_ade20k-512x512': Published(
        *ADE, 512, 341, square(2048, 512), 160, 512, decay_rate=0.95, drop_path_rate=0.4,
    ),
    'upernet_beit-l-adapter_8xb2-160k_ade20k-640x640': Published(*ADE, 640, 426, square(2048, 640), 160, 1024),
    'mask2former_beit-l-adapter_8xb2-160k_ade20k-640x640': Published(
        *ADE, 640, 426, square(2048, 640), 160, 1024, 4096, 100
    ),
    'mask2former_beit-l-adapter-coco_16xb1-80k_ade20k-896x896': Published(
        *ADE, 896, 512, square(3584, 896), 80, 1024, 4096, 200
    ),
    'mask2former_beitv2-l-adapter-coco_16xb1-80k_ade20k-896x896': Published(
        *ADE, 896, 512, square(3584, 896), 80, 1024, 4096, 200
    ),
    'mask2former_beit-b-adapter_8xb2-40k_coco-stuff10k-512x512': Published(
        *STUFF, 512, 341, square(2048, 512), 40, 256, 1024, 100, **B
    ),
    'upernet_beit-l-adapter_8xb2-80k_coco-stuff10k-512x512': Published(
        *STUFF, 512, 341, square(2048, 512), 80, 1024
    ),
    'mask2former_beit-l-adapter_8xb2-40k_coco-stuff10k-512x512': Published(
        *STUFF, 512, 341, square(2048, 512), 40, 1024, 4096, 100
    ),
    'upernet_beit-l-adapter_8xb2-80k_coco-stuff164k-640x640': Published(
        *STUFF, 640, 426, square(2560, 640), 80, 1024
    ),
    'mask2former_beit-l-adapter_16xb1-80k_coco-stuff164k-896x896': Published(
        *STUFF, 896, 512, square(3584, 896), 80, 1024, 4096, 200
    ),
    'mask2former_beitv2-l-adapter_16xb1-80k_coco-stuff164k-896x896': Published(
        *STUFF, 896, 512, square(3584, 896), 80, 1024, 4096, 200
    ),
    'mask2former_beit-b-adapter_8xb2-40k_pascal-context-59-480x480': Published(
        *PASCAL, 480, 320, ((520, 520), (4096, 520)), 40, 256, 1024, 100, **B
    ),
    'upernet_beit-l-adapter_8xb2-80k_pascal-context-59-480x480': Published(
        *PASCAL, 480, 320, ((520, 520), (4096, 520)), 80, 1024
    ),
    'mask2former_beit-l-adapter_8xb2-40k_pascal-context-59-480x480': Published(
        *PASCAL, 480, 320, ((520, 520), (4096, 520)), 40, 1024, 4096, 100
    ),
    'mask2former_beit-l-adapter_8xb1-80k_potsdam-512x512': Published(
        'PotsdamDataset', 6, 512, 341, square(2048, 512), 80, 256, 2048, 100
    ),
    'mask2former_beit-l-adapter_4xb4-40k_chase-db1-128x128': Published(
        'ChaseDB1Dataset', 2, 128, 85, square(960, 999), 40, 256, 2048, 100
    ),
    'mask2former_beit-l-adapter-mapillary_16xb1-80k_cityscapes-896x896': Published(
        'CityscapesDataset', 19, 896, 512, square(2048, 1024), 80, 1024, 4096, 100
    ),
}  # fmt: skip
# Of which a step is trained by the fast tests.
QUICK = (
    'upernet_augreg-t-adapter_8xb2-160k_ade20k-512x512',
    'upernet_beit-l-adapter_8xb2-160k_ade20k-640x640',
    'mask2former_beit-b-adapter_8xb2-40k_coco-stuff10k-512x512',
)
STEPS = (
    *QUICK,
    'upernet_augreg-b-adapter_8xb2-160k_ade20k-512x512',
    'mask2former_beit-l-adapter_4xb4-40k_chase-db1-128x128',
    'mask2former_beitv2-l-adapter-coco_16xb1-80k_ade20k-896x896',
)


def read(name: str) -> Config:
    return Config.fromfile(CONFIGS / f'vit_adapter/{name}.py')


def test_every_row_is_compared():
    assert sorted(PUBLISHED) == NAMES and sorted(DETECTED) == DETECTORS


@pytest.mark.parametrize('name', NAMES)
def test_values_are_those_of_the_published_config(name):
    cfg, said = read(name), PUBLISHED[name]
    model, head, crop = cfg.model, cfg.model.decode_head, (said.crop, said.crop)
    assert model.data_preprocessor.size == model.test_cfg.crop_size == crop
    assert model.test_cfg.mode == 'slide' and model.test_cfg.stride == (said.stride, said.stride)
    vit = model.backbone.vit
    if 'beit' in name:  # one relative table for the whole crop
        assert vit.img_size == crop and vit.layer_scale == 1e-6
        assert vit.arch.startswith('beitv2_large' if 'beitv2' in name else 'beit_')
    assert vit.drop_path_rate == said.drop_path_rate and model.backbone.vit_feature == 'per_stage'
    assert model.backbone.norm_cfg.type == 'SyncBN'
    auxiliary = model.get('auxiliary_head')
    assert {part.num_classes for part in (head, auxiliary) if part} == {said.classes}
    if said.queries:
        layers = head.pixel_decoder.encoder.layer_cfg, head.transformer_decoder.layer_cfg
        assert (head.num_queries, head.feat_channels) == (said.queries, said.width)
        assert head.out_channels == said.width and not auxiliary
        hidden = [layer.ffn_cfg.feedforward_channels for layer in layers]
        assert hidden == [said.hidden, max(said.hidden, 2048)]
        heads = {layer[f'{kind}_attn_cfg'].num_heads for layer in layers for kind in ('self',)}
        assert heads == {layers[1].cross_attn_cfg.num_heads} == {said.width // 32}
        assert head.loss_cls.class_weight == [1.0] * said.classes + [0.1]
        for part in (head, head.pixel_decoder):
            assert part.positional_encoding.num_feats == said.width // 2
    else:
        assert head.channels == said.width and auxiliary.channels == 256
    train, test = (cfg[f'{split}_dataloader'].dataset for split in ('train', 'test'))
    assert train.type == test.type == said.data
    assert train.get('reduce_zero_label', False) == ('stuff10k' in name)
    _, _, resize, cut, flip, colours, _ = train.pipeline
    assert (tuple(resize.scale), tuple(cut.crop_size)) == (said.scales[0], crop)
    assert (resize.ratio_range, cut.cat_max_ratio, flip.prob) == ((0.5, 2.0), 0.75, 0.5)
    assert colours.type == 'PhotoMetricDistortion'
    assert test.pipeline[1].scale == said.scales[1]
    to_multiple = [step.size_divisor for step in test.pipeline if step.type == 'ResizeToMultiple']
    assert to_multiple == ([] if 'cityscapes' in name else [32])
    wrapper, rates = cfg.optim_wrapper, cfg.optim_wrapper.paramwise_cfg
    assert (wrapper.optimizer.lr, wrapper.optimizer.weight_decay) == (said.lr, said.weight_decay)
    assert rates.get('decay_rate') == said.decay_rate and 'clip_grad' not in wrapper
    if name.startswith('mask2former'):
        # Layer id 0, like the stem, of the depth + 2 that the authors count.
        keys, depth = rates.custom_keys, 24 if '-l-adapter' in name else 12
        assert {options.lr_mult for options in keys.values()} == {said.decay_rate ** (depth + 1)}
        parts = {key.split('.')[1] for key in keys}
        assert parts == {'cls_embed', 'mask_embed', 'level_embed', 'query_embed', 'query_feat'}
    elif said.decay_rate is not None:
        assert set(rates) == {'decay_rate'}
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[-1].end == 1000 * said.iterations
    assert [s.type for s in cfg.param_scheduler] == ['LinearLR', 'PolyLR']
    gpus, images = map(int, re.search(r'_(\d+)xb(\d)-', name).groups())
    assert cfg.train_dataloader.batch_size == images
    assert cfg.auto_scale_lr.base_batch_size == gpus * images


def test_rows_of_a_kind_differ_in_their_bases_alone():
    """So that a few of them speak for all; what follows the model is compared above."""
    bodies = {}
    for name in NAMES:
        if 'augreg' in name:
            continue
        body = ast.parse((CONFIGS / f'vit_adapter/{name}.py').read_text()).body
        (model,) = (n for n in body if isinstance(n, ast.Assign) and n.targets[0].id == 'model')
        kind = name.partition('_')[0]
        assert bodies.setdefault(kind, ast.dump(model)) == ast.dump(model), name


class Detector(NamedTuple):
    """What the published config of a detector says of backbone and schedule; ``rate`` by layer, or None."""

    windows: list[int | None]
    drop_path_rate: float
    rate: float | None = None
    epochs: int = 36
    mean: float = 123.675


THREE, SIX, BEIT = [14, 14, None] * 4, [14, 14, 14, 14, 14, None] * 4, [14, 14, 14, 14, 14, 56] * 4
DETECTED = {
    'atss_deit-s-adapter_fpn_ms-3x_coco': Detector(THREE, 0.2),
    'gfl_deit-s-adapter_fpn_ms-3x_coco': Detector(THREE, 0.2),
    'sparse-rcnn_deit-s-adapter_fpn_ms-3x_coco': Detector(THREE, 0.2),
    'cascade-mask-rcnn_deit-b-adapter_fpn_ms-3x_coco': Detector(THREE, 0.3),
    'mask-rcnn_augreg-l-adapter_fpn_1x_coco': Detector(SIX, 0.4, 0.8, 12, 127.5),
    'mask-rcnn_augreg-l-adapter_fpn_ms-3x_coco': Detector(SIX, 0.4, 0.8, 36, 127.5),
    'mask-rcnn_dinov2-s-adapter-no-cls_fpn_ms-3x_coco': Detector(THREE, 0.2, 0.7),
    'mask-rcnn_dinov2-b-adapter-no-cls_fpn_ms-3x_coco': Detector(THREE, 0.3, 0.6),
    'mask-rcnn_dinov2-l-adapter-no-cls_fpn_ms-3x_coco': Detector(SIX, 0.4, 0.65, 36, 127.5),
    'mask-rcnn_mae-b-adapter_fpn_lsj-25e_coco': Detector(THREE, 0.1, None, 25),
    'mask-rcnn_mae-b-adapter_fpn_lsj-50e_coco': Detector(THREE, 0.2, None, 50),
    'htc_augreg-l-adapter_fpn_ms-3x_coco': Detector(SIX, 0.4, 0.9),
    'htc_beit-l-adapter_fpn_ms-3x_coco': Detector(BEIT, 0.4, 0.9),
    'htc_beitv2-l-adapter_fpn_ms-3x_coco': Detector(BEIT, 0.4, 0.9),
    'mask2former_beitv2-l-adapter_ms-3x_coco-panoptic': Detector(BEIT, 0.4, 0.9, 0),
}
IN_EPOCHS = [name for name, said in DETECTED.items() if said.epochs]


@pytest.mark.parametrize('name', DETECTORS)
def test_values_of_detectors_are_those_of_the_published_config(name):
    cfg, said = read(name), DETECTED[name]
    backbone, wrapper = cfg.model.backbone, cfg.optim_wrapper
    assert backbone.vit.window_size == said.windows and backbone.vit_feature == 'last'
    assert backbone.norm_cfg.type == 'SyncBN'
    assert backbone.vit.drop_path_rate == said.drop_path_rate
    assert (backbone.vit.get('layer_scale') is False) == ('mae' in name)
    assert backbone.get('num_extra_extractors', 2) == (0 if 'mae' in name else 2)
    assert cfg.model.data_preprocessor.mean[0] == said.mean
    assert (wrapper.optimizer.lr, wrapper.optimizer.weight_decay) == (1e-4, 0.05)
    if said.rate:
        assert wrapper.paramwise_cfg == dict(decay_rate=said.rate)
    else:
        keys = wrapper.paramwise_cfg.custom_keys
        spared = {key for key, value in keys.items() if value == dict(decay_mult=0.0)}
        assert spared >= {'level_embed', 'pos_embed', 'norm', 'bias'}
        assert 'constructor' not in wrapper
    assert cfg.auto_scale_lr.base_batch_size == 16
    images = 1 if re.match('htc|mask2former', name) else 2
    assert cfg.train_dataloader.batch_size == images


@pytest.mark.parametrize('name', IN_EPOCHS)
def test_schedules_of_detectors_are_those_of_the_published_config(name):
    cfg, epochs = read(name), DETECTED[name].epochs
    warm_up, decay = cfg.param_scheduler
    clip = dict(max_norm=1, norm_type=2) if 'sparse' in name else None
    assert (cfg.train_cfg.max_epochs, cfg.optim_wrapper.get('clip_grad')) == (epochs, clip)
    if 'mae' not in name:
        milestones = [8, 11] if epochs == 12 else [27, 33]
        assert (warm_up.end, decay.milestones) == (500, milestones)
        return
    assert (warm_up.end, decay.T_max, decay.eta_min_ratio) == (2000, epochs, 0.01)
    order = [step.type for step in cfg.train_dataloader.dataset.pipeline][2:]
    assert order == [
        'RandomResize', 'RandomCrop', 'FilterAnnotations', 'RandomFlip', 'PackDetInputs'
    ]  # fmt: skip


def test_sparse_rcnn_has_300_proposals():
    cfg = read('sparse-rcnn_deit-s-adapter_fpn_ms-3x_coco')
    keys = cfg.optim_wrapper.paramwise_cfg.custom_keys
    assert keys.rpn_head == dict(lr_mult=0.25, decay_mult=0.002)
    assert cfg.model.rpn_head.num_proposals == cfg.model.test_cfg.rcnn.max_per_img == 300


@pytest.mark.parametrize('name', [name for name in DETECTORS if name.startswith('htc')])
def test_htc_attends_before_its_pyramid(name):
    cfg = read(name)
    attention, neck = cfg.model.neck
    assert attention.drop_path_rate == (0.4 if 'augreg' in name else 0.3)
    assert (attention.in_channels, attention.get('num_heads', 32)) == (1024, 32)
    assert neck.in_channels == [1024] * 4 and neck.type == 'FPN'
    train, test = (cfg[f'{part}_dataloader'].dataset.pipeline for part in ('train', 'test'))
    assert train[2].scale == [(1600, 400), (1600, 1400)] and test[1].scale == (1600, 1400)
    proposals, found = cfg.model.test_cfg.rpn, cfg.model.test_cfg.rcnn
    assert proposals.nms.type == ('soft_nms' if 'beit-' in name else 'nms')
    assert (proposals.max_per_img, found.nms.type) == (1000, 'soft_nms')
    assert found.max_per_img == (300 if 'augreg' in name else 100)


def test_panoptic_mask2former_is_the_published_one():
    cfg = read('mask2former_beitv2-l-adapter_ms-3x_coco-panoptic')
    head = cfg.model.panoptic_head
    assert (head.num_queries, head.num_things_classes, head.num_stuff_classes) == (100, 80, 53)
    assert cfg.optim_wrapper.clip_grad == dict(max_norm=0.01, norm_type=2)
    (decay,), (average,) = cfg.param_scheduler, cfg.custom_hooks
    assert (decay.milestones, decay.by_epoch) == ([191750, 236000], False)
    assert cfg.train_cfg.max_iters == 265500
    assert (average.ema_type, average.momentum) == ('ExpMomentumEMA', 1e-4)
    pipelines = (cfg[f'{part}_dataloader'].dataset.pipeline for part in ('train', 'test'))
    train, test = ([step.type for step in pipeline] for pipeline in pipelines)
    assert train[1:] == ['LoadPanopticAnnotations', 'RandomFlip', 'RandomChoice', 'PackDetInputs']
    assert test[1] == 'Resize' and not cfg.model.data_preprocessor.batch_augments


@pytest.mark.parametrize(
    'name',
    marked([n for n in DETECTORS if not re.search('_1x_|50e|dinov2-[sl]', n)], DETECTORS[:1]),
)
def test_detectors_train_a_step(name):
    train_a_step_and_predict(small(load(CONFIGS / f'vit_adapter/{name}.py')))


def small(cfg: Config) -> Config:
    """Four layers of 48 channels instead of the backbone, and a narrow Mask2Former."""
    model = cfg.model
    head = next(model[part] for part in ('decode_head', 'panoptic_head', 'neck') if part in model)
    if isinstance(head, list):
        head[0].update(in_channels=WIDTH, num_heads=HEADS)
        head = head[1]
    backbone = model.backbone
    vit, wide = backbone.vit, head.get('feat_channels') == 1024
    if vit.get('window_size'):
        vit.window_size = [2, 4 if vit.window_size[5] else None] * 2
    arch = vit.arch if isinstance(vit.arch, dict) else {}
    arch = timm_arch(vit.arch) if str(vit.arch).startswith('beit') else arch
    vit.arch = dict(arch, embed_dims=WIDTH, depth=DEPTH, num_heads=HEADS)
    vit.drop_path_rate = 0.0
    if 'attention_position' in arch:
        vit.img_size = 96
    backbone.update(conv_inplanes=8, deform_num_heads=HEADS)
    backbone.interaction_indexes = [[layer, layer] for layer in range(DEPTH)]
    head.in_channels = [WIDTH] * len(head.in_channels)
    if 'auxiliary_head' in model:
        model.auxiliary_head.in_channels = WIDTH
    if wide:
        head.feat_channels = head.out_channels = 128
        pixels = head.pixel_decoder
        encoder, decoder = pixels.encoder.layer_cfg, head.transformer_decoder.layer_cfg
        for part in (*encoder.values(), *decoder.values()):
            part.embed_dims = 128
        pixels.positional_encoding.num_feats = head.positional_encoding.num_feats = 64
    return cfg


@pytest.mark.parametrize('name', marked(STEPS, QUICK))
def test_one_training_step_and_one_prediction(name):
    torch.manual_seed(0)
    train_a_step_and_predict(small(load(CONFIGS / f'vit_adapter/{name}.py')))


@pytest.mark.parametrize(
    'name',
    [name for name in NAMES if re.match(r'mask2former_beit-l-adapter(-\w+)?_(?!8xb2)', name)],
)
def test_data_comes_out_of_the_pipelines(name, tmp_path):
    read_a_data_set(CONFIGS / f'vit_adapter/{name}.py', tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('name', [QUICK[1], QUICK[2]])
def test_windows_slide_over_images_of_multiples_of_32(name, tmp_path):
    """Of 71 x 97 pixels, through the pipeline; MMSegmentation's Mask2Former fails here (mmsegmentation #3666)."""
    cfg = small(load(CONFIGS / f'vit_adapter/{name}.py'))
    write_label_maps(tmp_path, count=1)
    place = dict(img_path='images/train', seg_map_path='annotations/train')
    dataset = dict(
        cfg.test_dataloader.dataset,
        data_root=str(tmp_path),
        data_prefix=place,
        seg_map_suffix='.png',
    )
    dataset['pipeline'][1].scale = (2048, 96)
    item = DATASETS.build(dataset)[0]
    assert item['inputs'].shape == (3, 96, 160) and item['data_samples'].pad_shape == (96, 160)
    cfg.model.test_cfg.update(crop_size=(64, 96), stride=(40, 50))
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).eval()
    (found,) = model.test_step(dict(inputs=[item['inputs']], data_samples=[item['data_samples']]))
    assert found.pred_sem_seg.shape == (71, 97)


def test_the_augreg_base_keeps_biases_of_heads_at_the_lower_rate():
    """As MMCV's constructor does, which looks for ``bias`` before ``head``."""
    cfg = small(load(CONFIGS / f'vit_adapter/{STEPS[3]}.py'))
    model = MODELS.build(cfg.model)
    groups = {
        id(p): group['lr']
        for group in build_optim_wrapper(model, cfg.optim_wrapper).param_groups
        for p in group['params']
    }
    seg = model.decode_head.conv_seg
    assert groups[id(seg.weight)] == pytest.approx(2e-4)
    assert groups[id(seg.bias)] == pytest.approx(2e-5)


@pytest.mark.parametrize(
    'name',
    [
        'beit-b',
        'beit-l',
        'beit-l_windows',
        'beitv2-l',
        'augreg-t',
        'augreg-b',
        'augreg-l',
        'mae-b_windows',
    ],
)
def test_the_weights_of_a_backbone_fit(name):
    """timm's names and shapes; a relative table is resized to the crop's grid."""
    vit = Config.fromfile(CONFIGS / f'_base_/vit_adapter/{name}.py').vit_adapter.vit
    windows = name == 'beit-l_windows'
    if 'beit' in name and not windows:
        vit.img_size = 160
    weights = vit.init_cfg.get('model', vit.arch)
    assert timm.get_pretrained_cfg(weights).has_weights
    with torch.device('meta'):
        model = MODELS.build(dict(vit))
        source = timm.create_model(weights).state_dict()
    _, report = convert_with_report(source, 'timm', model)
    report.demand(0.99)
    fresh = set(model.state_dict()) - set(report.taken)
    assert bool(fresh) == ('augreg' in name)  # layer scales
    assert all(re.search(r'\.ls\d\.gamma$', key) for key in fresh)
    resized = [key for key in report.resized if key.endswith('relative_position_bias_table')]
    # Windows of 14 x 14 have the grid of the pre-training.
    assert len(resized) == (4 if windows else model.depth if 'beit' in name else 0)


# What the published configs say of pixels, maps, optimizer and start beside that.
HALF, IMAGENET = ([127.5] * 3, [127.5] * 3), ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])
SPARED = {key: dict(decay_mult=0.0) for key in ('level_embed', 'pos_embed', 'norm', 'bias')}


@pytest.mark.parametrize('name', [*NAMES, *DETECTORS])
def test_the_rest_is_that_of_the_published_config(name):
    cfg = read(name)
    pixels, wrapper = cfg.model.data_preprocessor, cfg.optim_wrapper
    said = HALF if re.search('(?<!htc_)augreg-[bl]|dinov2-l', name) else IMAGENET
    assert (pixels.mean, pixels.std) == said
    assert cfg.model.backbone.get('out_indices') == (
        [1, 2, 3] if re.match('atss|gfl', name) else None
    )
    assert wrapper.optimizer.get('betas', (0.9, 0.999)) == (0.9, 0.999)
    if 'augreg-b' in name:
        assert wrapper.paramwise_cfg.custom_keys == SPARED | dict(head=dict(lr_mult=10.0))
    start = name.replace('-coco_16xb1-80k_ade20k', '_16xb1-80k_coco-stuff164k')
    assert cfg.get('load_from') == (f'work_dirs/{start}/iter_80000.pth' if start != name else None)
    if 'mae' in name:
        warm_up, decay = cfg.param_scheduler
        assert (warm_up.start_factor, warm_up.by_epoch, decay.by_epoch) == (0.001, False, True)


def test_the_panoptic_row_resizes_decays_and_averages_as_published():
    cfg = read('mask2former_beitv2-l-adapter_ms-3x_coco-panoptic')
    resize = dict(
        type='RandomChoiceResize',
        scales=[(short, 1333) for short in range(480, 801, 32)],
        keep_ratio=True,
    )
    smaller = dict(resize, scales=[(400, 1333), (500, 1333), (600, 1333)])
    crop = dict(
        type='RandomCrop',
        crop_type='absolute_range',
        crop_size=(384, 600),
        allow_negative_crop=True,
    )
    pipelines = (cfg[f'{part}_dataloader'].dataset.pipeline for part in ('train', 'test'))
    (_, _, flip, choice, _), test = pipelines
    assert (flip.prob, choice.transforms) == (0.5, [[resize], [smaller, crop, resize]])
    assert (test[1].scale, test[1].keep_ratio) == ((1333, 800), True)
    (decay,), (average,) = cfg.param_scheduler, cfg.custom_hooks
    assert (decay.gamma, average.update_buffers, average.priority) == (0.1, True, 49)
    checkpoint = cfg.default_hooks.checkpoint
    assert cfg.train_cfg.val_interval == checkpoint.interval == 5000 and not checkpoint.by_epoch

"""Counting parameters and FLOPs: by hand for single parts, against published figures for whole models."""

import copy

import pytest
import torch
from config_utils import CONFIGS
from mmengine.config import Config

from mmlape.layers import DeformableAttention, sampling_plan
from mmlape.layers.attention import Attention
from mmlape.norm import DTN
from mmlape.research.analysis.complexity import count_flops, measure_complexity

pytestmark = pytest.mark.usefixtures('cheap_values')


def multiply_adds(run) -> int:
    with count_flops() as counter:
        run()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(('window', 'pairs'), [(None, 48 * 48), (4, 4 * 16 * 16)])
def test_attention_is_counted_with_both_of_its_products(window, pairs):
    """6 x 8 tokens, in windows of 4 x 4 padded to 8 x 8 after the projection."""
    layer, tokens, dims = Attention(48, num_heads=3, window_size=window).eval(), 6 * 8, 48
    expected = tokens * dims * 3 * dims + 2 * pairs * dims + tokens * dims * dims
    assert multiply_adds(lambda: layer(torch.empty(1, tokens, dims), (6, 8))) == expected


def test_deformable_attention_is_counted_with_its_sampling():
    dims, heads, points, shapes = 48, 6, 4, ((4, 4), (2, 2))
    layer = DeformableAttention(dims, heads, num_levels=2, num_points=points, value_proj_ratio=0.5)
    queries, values, width = 3 * 5, 16 + 4, 24

    def run():
        plan = sampling_plan(((3, 5),), shapes, torch.device('cpu'))
        layer(torch.empty(1, queries, dims), torch.empty(1, values, dims), plan)

    samples = queries * heads * 2 * points
    projections = (
        values * dims * width + queries * dims * samples // queries * 3 + queries * width * dims
    )
    # Four neighbours and a weight, for each channel of each sample.
    assert multiply_adds(run) == projections + samples * (width // heads) * 5


@pytest.mark.parametrize('pool', [1, 2])
def test_dtn_costs_its_products(pool):
    norm, (rows, columns) = DTN(12, 3, pool=pool), (6 // pool, 8 // pool)
    by_hand = 2 * 2 * 12 * rows * columns * (rows + columns)
    assert multiply_adds(lambda: norm(torch.empty(2, 48, 12), (6, 8))) == by_hand


def test_no_tensor_without_values_stays_behind():
    """Plans that are kept by grid are real before and after."""
    device = torch.device('cpu')
    before = sampling_plan(((2, 2),), ((4, 4),), device)
    measure_complexity(segmenter(), image_size=(64, 64))
    with count_flops():
        fake = sampling_plan(((2, 2),), ((4, 4),), device)
    after = sampling_plan(((2, 2),), ((4, 4),), device)
    assert type(fake.sizes) is not torch.Tensor
    assert type(after.sizes) is torch.Tensor and torch.equal(after.sizes, before.sizes)


def segmenter() -> Config:
    return Config.fromfile(CONFIGS / 'lape' / 'segmenter_deit-t_mask_8xb1-160k_ade20k-512x512.py')


def test_a_segmentor_by_hand():
    """DeiT-Ti at 64 x 64 (16 patches and the class token) and two decoder layers over 16 patches and 150 classes."""
    found = measure_complexity(segmenter(), image_size=(64, 64))
    layer = 12 * 192 * 192  # query, key, value, output and an MLP of ratio 4, per token
    vit = 16 * 192 * 768 + 12 * (17 * layer + 2 * 17 * 17 * 192)
    assert found.backbone_flops == vit
    tokens = 16 + 150
    decoder = 16 * 192 * 192 + 2 * (tokens * layer + 2 * tokens * tokens * 192)
    masks = 166 * 192 * 192 + 16 * 192 * 150
    assert found.flops == vit + decoder + masks
    assert found.image_size == (64, 64) and found.parameters == 6713388


# Mask R-CNN at 1280 x 800, InternImage (CVPR 2023); classifiers at 224 x 224, of which backbones are nearly all, DTN
# (ICLR 2022), Tables 1, 2 and 9.
PUBLISHED = [
    ('lape/mask-rcnn_deit-s-adapter_fpn_ms-3x_coco', None, 'flops', 403, 0.005),
    ('dtn/retinanet_pvt-t_fpn_1x_coco', (224, 224), 'backbone_flops', 1.90, 0.02),
]


@pytest.mark.parametrize(('name', 'size', 'part', 'published', 'error'), PUBLISHED)
def test_networks_cost_what_is_published(name, size, part, published, error):
    found = measure_complexity(Config.fromfile(CONFIGS / f'{name}.py'), size)
    assert getattr(found, part) / 1e9 == pytest.approx(published, rel=error)


@pytest.mark.slow
def test_mask2former_costs_what_is_published():
    """EoMT (CVPR 2025), Table 3, ViT-Adapter-S at 640 x 640: 165 G, by a counter that leaves sampling out."""
    path = CONFIGS / 'foundation' / 'mask2former_dinov2-reg4-s-adapter_lsj-1x_coco.py'
    found = measure_complexity(Config.fromfile(path), image_size=(640, 640))
    assert found.flops / 1e9 == pytest.approx(165, rel=0.06)
    assert found.parameters / 1e6 == pytest.approx(47, rel=0.03)
    assert found.flops > found.backbone_flops + 60e9


@pytest.mark.slow
def test_every_stage_of_sparse_rcnn_is_counted():
    cfg = Config.fromfile(CONFIGS / 'detectors/sparse-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco.py')
    stages = cfg.model.roi_head.bbox_head
    found = []
    for count in (1, 2, 3):
        cfg.model.roi_head.update(
            num_stages=count, stage_loss_weights=[1] * count, bbox_head=stages[:count]
        )
        cfg.model.train_cfg.rcnn = cfg.model.train_cfg.rcnn[:1] * count
        found.append(measure_complexity(cfg, (64, 96)).flops)
    one, two, three = found
    assert three - two == two - one > 0


@pytest.mark.slow
def test_all_heads_of_htc_are_counted():
    """The semantic head on the map of stride 8, and the 1x1 convolutions by which mask heads hand on their features."""
    cfg = Config.fromfile(CONFIGS / 'vit_adapter' / 'htc_augreg-l-adapter_fpn_ms-3x_coco.py')
    cfg.model.neck = cfg.model.neck[1]
    cfg.model.backbone = dict(type='mmlape.PyramidVisionTransformer', arch='tiny')
    cfg.model.neck.in_channels = [64, 128, 320, 512]
    whole = measure_complexity(cfg, (64, 96)).flops
    roi_head = cfg.model.roi_head
    roi_head.semantic_head = roi_head.semantic_roi_extractor = None
    without = measure_complexity(cfg, (64, 96)).flops
    convolutions = 5 + 9 * 4 + 1
    assert whole - without == 8 * 12 * 256 * (256 * convolutions + 183)
    for head in roi_head.mask_head:
        head.with_conv_res = False
    roi_head.mask_info_flow = False
    links = without - measure_complexity(cfg, (64, 96)).flops
    assert links == 2 * 100 * 14 * 14 * 256 * 256


def test_a_config_stays_as_it_is():
    """MMDetection's DETRs write into the config of their heads."""
    cfg = Config.fromfile(
        CONFIGS / 'experiments/dino-3scale_vit-micro-adapter-lape_digit-scenes.py'
    )
    before = copy.deepcopy(cfg.model)
    measure_complexity(cfg, (64, 96))
    assert cfg.model == before


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="must be 'mmdet' or 'mmseg' to be measured, got 'mmpose'"):
        measure_complexity(Config(dict(default_scope='mmpose', model=dict())))

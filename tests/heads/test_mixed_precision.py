"""Mask2Former and Hungarian matching in float16 and bfloat16: costs and losses are those of float32, and it trains."""

import itertools
from functools import partial

import pytest
import torch
from config_utils import CONFIGS, foundation_configs, use_scope
from mmdet.models.task_modules.assigners import HungarianAssigner as UpstreamAssigner
from mmdet.registry import TASK_UTILS
from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.structures import InstanceData
from test_configs import load
from test_configs_foundation import cut
from test_numerical_agreement import batches, train
from torch.nn.functional import binary_cross_entropy_with_logits

from mmlape.cli import enable_amp
from mmlape.heads import HungarianAssigner
from mmlape.research.datasets import build_digit_scenes

HALVES = (torch.float16, torch.bfloat16)
POINTS = 12544
COSTS = {
    'mask2former': [
        dict(type='mmdet.ClassificationCost', weight=2.0),
        dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
        dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
    ],
    'dino': [
        dict(type='mmdet.FocalLossCost', weight=2.0),
        dict(type='mmdet.BBoxL1Cost', weight=5.0, box_format='xywh'),
        dict(type='mmdet.IoUCost', iou_mode='giou', weight=2.0),
    ],
}
META = dict(img_shape=(333, 517))
ROWS = {
    'instance': 'mask2former_dinov3-s_sfp_lsj-1x_coco',
    'semantic': 'mask2former_dinov3-s-adapter_8xb2-40k_ade20k-512x512',
}
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def assigner_of(costs, made='mmlape.HungarianAssigner'):
    return TASK_UTILS.build(dict(type=made, match_costs=costs))


def instances(queries, truths, dtype=torch.float32, scale=1.0, empty=False, seed=0):
    """Predictions, and ground truth with boxes of their size in META's image."""
    draw = torch.Generator().manual_seed(seed)

    def boxes(number):
        corners = torch.rand(number, 2, 2, generator=draw).sort(dim=1).values
        return corners.flatten(1) * torch.tensor([517.0, 333.0] * 2)

    predicted = InstanceData(
        scores=torch.randn(queries, 7, generator=draw).to(dtype),
        masks=(scale * torch.randn(queries, POINTS, generator=draw)).to(dtype),
        bboxes=boxes(queries).to(dtype),
    )
    truth = InstanceData(
        labels=torch.randint(7, (truths,), generator=draw),
        masks=(torch.rand(truths, POINTS, generator=draw) > 0.5).float() * (not empty),
        bboxes=boxes(truths),
    )
    return predicted, truth


@pytest.mark.parametrize('costs', COSTS)
def test_in_float32_it_assigns_as_upstream_does(costs):
    ours, theirs = (
        assigner_of(COSTS[costs], f'{name}.HungarianAssigner') for name in ('mmlape', 'mmdet')
    )
    assert isinstance(ours, UpstreamAssigner)
    for sizes in ((30, 5), (1, 1), (1, 4), (4, 9), (20, 0), (0, 3)):
        for empty in (False, True):
            given = instances(*sizes, empty=empty)
            found, wanted = (each.assign(*given, META) for each in (ours, theirs))
            assert torch.equal(found.gt_inds, wanted.gt_inds), sizes
            assert torch.equal(found.labels, wanted.labels), sizes
            assert found.num_gts == wanted.num_gts


@pytest.mark.parametrize('costs', COSTS)
def test_under_autocast_it_assigns_as_in_float32(costs):
    for scale, dtype in itertools.product((1.0, 16.0), HALVES):
        predicted, truth = instances(40, 8, dtype, scale)
        exact = predicted.new(**{name: value.float() for name, value in predicted.items()})
        wanted = assigner_of(COSTS[costs], 'mmdet.HungarianAssigner').assign(exact, truth, META)
        with torch.autocast('cpu', dtype):
            found = assigner_of(COSTS[costs]).assign(predicted, truth, META)
        assert torch.equal(found.gt_inds, wanted.gt_inds), (scale, dtype)


def test_a_mean_cross_entropy_above_5_in_float16_ends_upstream():
    """What the class is for; a cost that is not finite ends with its name."""
    predicted, truth = instances(10, 3, torch.float16, scale=16.0)
    cross_entropy = binary_cross_entropy_with_logits(
        predicted.masks[:3].float(), truth.masks, reduction='none'
    ).mean(1)
    assert (cross_entropy > 65504 / POINTS).all()
    with torch.autocast('cpu', torch.float16):
        with pytest.raises(ValueError, match=r'infeasible|invalid numeric'):
            assigner_of(COSTS['mask2former'], 'mmdet.HungarianAssigner').assign(predicted, truth)
        assert assigner_of(COSTS['mask2former']).assign(predicted, truth).gt_inds.max() == 3


@pytest.mark.parametrize(
    ('costs', 'field', 'value', 'says'),
    [
        ('mask2former', 'scores', 'nan', 'ClassificationCost in 3 of 30 values; so are predicted scores in 1 of 70'),
        ('mask2former', 'masks', 'inf', 'CrossEntropyLossCost in 3 of 30 values; so are predicted masks in 1 of '),
        ('mask2former', 'masks', 'nan', 'CrossEntropyLossCost in 3 of 30 values, DiceCost in 3 of 30 values; so are'),
        ('dino', 'bboxes', 'nan', 'BBoxL1Cost in 3 of 30 values, IoUCost in 3 of 30 values; so are predicted bboxes'),
    ],
)  # fmt: skip
def test_costs_that_are_not_finite_are_named(costs, field, value, says):
    predicted, truth = instances(10, 3, torch.float16)
    predicted[field][4, 2] = float(value)
    with pytest.raises(FloatingPointError) as error:
        assigner_of(COSTS[costs]).assign(predicted, truth, META)
    assert str(error.value).startswith('costs of the matching are NaN or infinite: ')
    assert says in str(error.value) and '\n' not in str(error.value)


def test_costs_of_finite_predictions_that_are_not_finite():
    predicted, truth = instances(10, 3)
    predicted.masks *= 1e37
    with pytest.raises(
        FloatingPointError, match=r'CrossEntropyLossCost.*; the predictions are fin'
    ):
        assigner_of(COSTS['mask2former']).assign(predicted, truth)


def test_no_costs_are_refused():
    with pytest.raises(ValueError, match='match_costs must have at least one cost, got '):
        HungarianAssigner([])


def head_of(kind):
    """A row's head with one layer and few queries."""
    cfg = load(CONFIGS / 'foundation' / f'{ROWS[kind]}.py')
    model = cfg.model
    head = model.panoptic_head if kind == 'instance' else model.decode_head
    head.update(in_channels=[8] * 4, num_queries=14)
    head.pixel_decoder.encoder.num_layers = head.transformer_decoder.num_layers = 1
    if kind == 'instance':
        head.update(train_cfg=model.train_cfg, test_cfg=model.test_cfg)
    return MODELS.build(ConfigDict(head)), head.loss_cls.class_weight


@pytest.mark.parametrize('dtype', HALVES)
@pytest.mark.parametrize('kind', ROWS)
def test_losses_under_autocast_are_those_of_float32(kind, dtype):
    """Of 14 masks: upstream divides the mask loss by 14 * 12,544, which is infinite in float16."""
    head, weights = head_of(kind)
    truths = []
    for number, seed in ((11, 0), (3, 1), (0, 2)):
        masks = torch.rand(number, 61, 97, generator=torch.Generator().manual_seed(seed)) > 0.5
        truths.append(InstanceData(labels=torch.arange(number), masks=masks.long()))
    draw = torch.Generator().manual_seed(3)
    predicted = [
        torch.randn(3, 14, *sizes, generator=draw).to(dtype) for sizes in ([len(weights)], [15, 25])
    ]

    def losses_of(half, compute):
        leaves = [(each if half else each.float()).clone().requires_grad_() for each in predicted]
        torch.manual_seed(5)
        with torch.autocast('cpu', dtype, enabled=half):
            losses = compute(*leaves, truths, [{}] * len(truths))
        return losses, [grad.float() for grad in torch.autograd.grad(sum(losses), leaves)]

    found, grads = losses_of(True, head._loss_by_feat_single)
    wanted, exact = losses_of(False, head._loss_by_feat_single)
    assert all(loss.dtype == torch.float32 for loss in found)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grads, exact, rtol=2**-7, atol=1e-7)
    upstream = partial(type(head).__bases__[-1]._loss_by_feat_single, head)
    torch.testing.assert_close(losses_of(False, upstream)[0], wanted, rtol=0, atol=0)
    if dtype == torch.float16:
        (_, mask_loss, _), _ = losses_of(True, upstream)
        assert mask_loss == 0 or not mask_loss.isfinite()
    # With upstream's assigner and a cost that overflows there.
    head.assigner = assigner_of(COSTS['mask2former'], 'mmdet.HungarianAssigner')
    predicted[1] *= 16
    found, wanted = (losses_of(half, head._loss_by_feat_single)[0] for half in (True, False))
    torch.testing.assert_close(found, wanted)


def test_every_row_of_mask2former_has_them():
    seen = []
    for path in foundation_configs():
        if path.stem.startswith('mask2former'):
            model = Config.fromfile(path).model
            if model.type == 'Mask2Former':
                head, matching = model.panoptic_head.type, model.train_cfg
            else:
                head, matching = model.decode_head.type, model.decode_head.train_cfg
            seen.append(head)
            assert matching.assigner.type == 'mmlape.HungarianAssigner', path.stem
    assert seen.count('mmlape.Mask2FormerHead') == seen.count('mmlape.Mask2FormerSegHead') == 22


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return build_digit_scenes(tmp_path_factory.mktemp('digits'), num_train=4, num_val=1)


def micro(kind, data, work_dir, height, width):
    """A row with four layers of 48 channels, trained for 20 steps on digits in images of one odd size."""
    cfg = cut(load(CONFIGS / 'foundation' / f'{ROWS[kind]}.py'))
    source = Config.fromfile(CONFIGS / '_base_' / 'datasets' / f'digit-scenes_{kind}.py')
    loader, model = source.train_dataloader, cfg.model
    loader.update(batch_size=2)
    loader.dataset.data_root = str(data)
    loader.dataset.pipeline.insert(2, dict(type='Resize', scale=(width, height), keep_ratio=False))
    classes = len(source.metainfo.classes)
    if kind == 'instance':
        head = model.panoptic_head
        head.num_things_classes = model.panoptic_fusion_head.num_things_classes = classes
        model.data_preprocessor.update(pad_size_divisor=1, batch_augments=None)
    else:
        head = model.decode_head
        head.num_classes = classes
        model.data_preprocessor.size = (height, width)
    head.num_queries = 16
    head.pixel_decoder.encoder.num_layers, head.transformer_decoder.num_layers = 1, 2
    head.loss_cls.class_weight = [1.0] * classes + [0.1]
    cfg.update(
        work_dir=str(work_dir),
        train_dataloader=loader,
        param_scheduler=[],
        randomness=dict(seed=0),
    )
    for split in ('val', 'test'):
        for key in ('dataloader', 'cfg', 'evaluator'):
            cfg.pop(f'{split}_{key}')
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=20)
    cfg.optim_wrapper.optimizer.lr = 1e-3
    for key in ('visualization', 'check_weights'):
        cfg.default_hooks.pop(key)
    cfg.default_hooks.checkpoint = None
    return cfg


class Losses(Hook):
    """The loss of each step."""

    def __init__(self):
        self.values = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.values.append(outputs['loss'].item())


def falls(losses):
    losses = torch.as_tensor(losses)
    assert losses.isfinite().all()
    assert losses[-5:].mean() < 0.9 * losses[:5].mean(), losses


@pytest.mark.slow
def test_trains_in_bfloat16(digits, tmp_path, monkeypatch):
    """Twenty steps of MMEngine's runner, with what `mmlape train --amp-dtype bf16` makes of the config."""
    cfg = micro('semantic', digits, tmp_path, 31, 47)
    with monkeypatch.context() as patch:
        patch.setattr('mmlape.cli.options.get_device', lambda: 'cuda')
        enable_amp(cfg, 'bf16')
    # MMEngine's wrapper wants a GPU, and then runs on CPUs too.
    monkeypatch.setattr(f'{AmpOptimWrapper.__module__}.is_cuda_available', lambda: True)
    runner, losses, seen = Runner.from_cfg(cfg), Losses(), set()
    runner.model.decode_head.register_forward_hook(lambda *call: seen.add(call[-1][1][-1].dtype))
    runner.register_hook(losses)
    runner.train()
    assert seen == {torch.bfloat16} and len(losses.values) == 20
    falls(losses.values)


@pytest.mark.slow
def test_trains_in_float16(digits, tmp_path):
    """With a loss scale; MMEngine's runner has no float16 on CPUs."""
    cfg = micro('instance', digits, tmp_path, 31, 47)
    use_scope(cfg.default_scope)
    # oneDNN's backward pass of a convolution in float16 is ten times as slow as PyTorch's own.
    with torch.backends.mkldnn.flags(enabled=False):
        losses, _ = train(cfg, batches(cfg, 20), torch.float16)
    falls(losses)

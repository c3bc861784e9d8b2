"""Detection heads in bfloat16, which MMCV's operators do not have."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from config_utils import CONFIGS, use_scope
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.structures import InstanceData

from mmlape.training import Bfloat16Hook

ROWS = [
    'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes',
    'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes',
    'experiments/sparse-rcnn_vit-micro-adapter-lape_fpn_digit-scenes',
    'experiments/dino-3scale_vit-micro-adapter-lape_digit-scenes',
]


def detector(name):
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    use_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()  # DINO's level_embed is uninitialised memory until then
    return model.train()


def losses(model, height=71, width=109):
    """The sum of a detector's losses for an image with two boxes, in bfloat16 where the model allows it."""
    shape = (height, width)
    sample = DetDataSample(
        metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape, batch_input_shape=shape, scale_factor=(1, 1)),
        gt_instances=InstanceData(
            bboxes=torch.tensor([[10.0, 10.0, 60.0, 50.0], [30.0, 20.0, 100.0, 70.0]]),
            labels=torch.tensor([0, 1]),
            masks=BitmapMasks(np.ones((2, *shape), np.uint8), *shape),
        ),
    )  # fmt: skip
    image = torch.randn(1, 3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.autocast('cpu', torch.bfloat16):
        return model.parse_losses(model.loss(image, [sample]))[0]


@pytest.mark.parametrize('name', ROWS)
def test_losses_and_gradients(name):
    model, taken, maps = detector(name), set(), set()
    Bfloat16Hook().before_run(SimpleNamespace(model=model))
    for module in model.modules():
        if type(module).__name__ in ('SingleRoIExtractor', 'FocalLoss'):
            module.register_forward_pre_hook(lambda _, args: taken.update(x.dtype for x in args[0]))
    model.neck.register_forward_hook(lambda *call: maps.update(x.dtype for x in call[-1]))
    loss = losses(model)
    loss.backward()
    assert (taken, maps) == ({torch.float32}, {torch.bfloat16})
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    assert loss.isfinite() and all(each.isfinite().all() for each in gradients)


def test_roi_align_has_no_bfloat16():
    """Else the hook could go."""
    with pytest.raises((RuntimeError, NotImplementedError), match=r'(?i)bfloat16'):
        losses(detector(ROWS[0]))

"""A row of configs/detr in float16 (bfloat16: test_bfloat16.py), with our deformable attention in its heads."""

import copy

import pytest
import torch
from config_utils import CONFIGS
from test_configs import build, detection_batch, load, take_less_work

from mmlape.layers import HeadDeformableAttention, replace_deformable_attention

pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def losses_of(model, batch, dtype):
    """Of one pass with gradients; None is without autocast."""
    torch.manual_seed(1)  # DINO's noise
    data = model.data_preprocessor(copy.deepcopy(batch), training=True)
    with torch.autocast('cpu', dtype or torch.bfloat16, enabled=dtype is not None):
        losses, _ = model.parse_losses(model(**data, mode='loss'))
    model.zero_grad()
    losses.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    return losses.item()


def test_a_step_in_half_precision():
    torch.manual_seed(0)
    cfg = load(CONFIGS / 'experiments/dino-3scale_vit-micro-adapter-lape_digit-scenes.py')
    take_less_work(cfg)
    model = replace_deformable_attention(build(cfg)).train()
    ours = [m for m in model.modules() if isinstance(m, HeadDeformableAttention)]
    assert len(ours) == 3, 'one layer of the encoder and two of the decoder'
    batch = detection_batch(cfg)
    exact = losses_of(model, batch, None)
    assert losses_of(model, batch, torch.float16) == pytest.approx(exact, rel=0.05)

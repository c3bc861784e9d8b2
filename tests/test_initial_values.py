"""Initial values of networks are those of timm's; tests/test_frozen_values.py has those of every part."""

import re

import pytest
import timm
import torch

from mmlape.backbones.timm_archs import timm_arch
from mmlape.checkpoints import convert
from mmlape.registry import MODELS

# Rescaled by depth in timm, as BEiT's released code does before pre-training.
RESCALED = {'blocks.*.attn.proj.weight', 'blocks.*.mlp.fc2.weight'}
PLAIN = dict(type='mmlape.VisionTransformer', out_type='pooled')
# timm's name, our network, and what starts otherwise.
CASES = [
    ('deit_tiny_patch16_224', dict(PLAIN, out_type='cls_token'), {'cls_token'}),
    ('deit3_small_patch16_224', PLAIN, {'cls_token'}),
    ('vit_small_patch14_dinov2', PLAIN, {'cls_token'}),
    ('vit_small_patch16_dinov3', PLAIN, RESCALED),
    ('eva02_tiny_patch14_224', PLAIN, RESCALED),
    ('vit_small_patch16_rope_mixed_224', PLAIN, RESCALED | {'blocks.*.attn.position.freqs'}),
    ('swin_tiny_patch4_window7_224', dict(type='mmlape.SwinTransformer'), set()),
    ('pvt_v2_b0', dict(type='mmlape.PyramidVisionTransformerV2', arch='b0'), set()),
    ('levit_128s', dict(type='mmlape.LeViT'), set()),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'config', 'otherwise'), CASES, ids=[case[0] for case in CASES])
def test_initial_values_are_timms(name, config, otherwise):
    """Mean and standard deviation of all parameters of one name, over the layers; three of them tell in plain ViTs."""
    few = dict(depth=3) if config['type'] == PLAIN['type'] else {}
    config = dict(config, arch=dict(timm_arch(name), **few)) if few else config
    ours = MODELS.build(config)
    theirs = timm.create_model(name, **few).state_dict()
    theirs = convert(theirs, 'timm', ours, min_matched=0.9)
    values = {}
    for key, value in ours.state_dict().items():
        both = values.setdefault(re.sub(r'\.\d+\.', '.*.', key), ([], []))
        both[0].append(value.float().flatten())
        both[1].append(theirs[key].float().flatten())
    assert otherwise <= values.keys()
    compared = 0
    for key, both in values.items():
        mine, upstream = map(torch.cat, both)
        if key in otherwise or len(mine) < 2:
            continue
        compared += 1
        error = (0.01 + 5 / len(mine) ** 0.5) * upstream.std() + 1e-7
        assert abs(mine.mean() - upstream.mean()) <= 2 * error, key
        assert abs(mine.std() - upstream.std()) <= error, key
    assert compared > 10

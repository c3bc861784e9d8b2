"""Meta's own files of DINOv2 and DINOv3: what timm and transformers rename, drop or add up before they load them."""

import math

import pytest
import torch
from foundation_kinds import assert_same_tokens, small, vit

from mmlape.checkpoints import convert, convert_with_report

pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


def both(name):
    """timm's model with random values, and ours."""
    theirs, arch = small(name, img_size=64, patch_size=16)
    return theirs, vit(arch=arch)


def assert_equal_outputs(theirs, ours, state):
    ours.load_state_dict(state)
    assert_same_tokens(ours, theirs, torch.randn(1, 3, 64, 64), atol=1e-5)


def dinov3(model, biases=True, merged=True):
    """A state dict of timm's under Meta's names, with what else is in those files."""
    state = model.state_dict()
    state['storage_tokens'] = state.pop('reg_token')
    state['mask_token'] = torch.randn(1, 48)
    state['local_cls_norm.weight'] = torch.ones(48)
    state['rope_embed.periods'] = (100 ** (torch.arange(3) / 3)).bfloat16()
    for layer in range(2):
        place = f'blocks.{layer}.attn.'
        query, value = (state.pop(f'{place}{part}_bias', torch.zeros(48)) for part in 'qv')
        # What stands for keys is never used.
        key = torch.randn(48) if biases else torch.zeros(48)
        state[f'{place}qkv.bias'] = torch.cat([query, key, value])
        state[f'{place}qkv.bias_mask'] = torch.cat(
            [torch.ones(48), torch.zeros(48), torch.ones(48)]
        )
        for number in '12':
            state[f'blocks.{layer}.ls{number}.gamma'] = state.pop(f'blocks.{layer}.gamma_{number}')
        if f'blocks.{layer}.mlp.fc1_g.weight' in state:  # a gated network
            for part in ('weight', 'bias'):
                place = f'blocks.{layer}.mlp.{{}}.{part}'.format
                halves = [state.pop(place(name)) for name in ('fc1_g', 'fc1_x')]
                names = ('w12',) if merged else ('w1', 'w2')
                parts = [torch.cat(halves)] if merged else halves
                state.update(zip(map(place, names), parts, strict=True))
                state[place('w3')] = state.pop(place('fc2'))
    return state


@pytest.mark.parametrize(
    ('name', 'written', 'merged'),
    [
        ('vit_small_patch16_dinov3_qkvb', True, True),
        ('vit_small_patch16_dinov3_qkvb', False, True),
        ('vit_small_plus_patch16_dinov3_qkvb', True, True),
        ('vit_small_plus_patch16_dinov3_qkvb', True, False),  # as Meta has it
    ],
)
def test_dinov3_masks_the_bias_of_keys(name, written, merged):
    theirs, ours = both(name)
    state = dinov3(theirs, merged=merged)
    if not written:
        for name in [name for name in state if name.endswith('bias_mask')]:
            state[name] = torch.full_like(state[name], math.nan)
    converted, report = convert_with_report(state, 'timm', ours)
    report.demand(1)
    assert report.left_out == {
        'local_cls_norm.weight': 'of the pre-training',
        'mask_token': 'of the pre-training',
        'rope_embed.periods': 'computed, not learned',
    }
    assert not converted['blocks.1.attn.qkv.bias'][48:96].any()
    assert_equal_outputs(theirs, ours, converted)


def test_biases_of_zeros_go_into_a_model_without():
    """Of DINOv3 distilled: timm's names without ``_qkvb`` have no biases."""
    theirs, ours = both('vit_small_patch16_dinov3')
    state = dinov3(theirs, biases=False)
    converted, report = convert_with_report(state, 'timm', ours)
    report.demand(1)
    assert report.left_out['blocks.1.attn.qkv.bias'] == 'zeros, as in the model without it'
    assert_equal_outputs(theirs, ours, converted)
    state['blocks.1.attn.qkv.bias'][0] = 1
    with pytest.raises(ValueError, match=r'a bias of queries, keys and values.*qkv_bias=True'):
        convert(state, 'timm', ours)


def test_dinov3_with_other_periods():
    theirs, ours = both('vit_small_patch16_dinov3_qkvb')
    state = dinov3(theirs)
    state['rope_embed.periods'] = 10 ** (torch.arange(3) / 3)
    with pytest.raises(ValueError, match='by other angles than the RotaryPosition'):
        convert(state, 'timm', ours)
    with pytest.raises(ValueError, match='a rotary position'):
        convert(state, 'timm', both('vit_small_patch16_224')[1])


@pytest.mark.parametrize('name', ['vit_small_patch14_reg4_dinov2', 'vit_giant_patch14_dinov2'])
def test_dinov2(name):
    """Its table has a row for the class token, which timm adds up with registers; packed gates have other names."""
    theirs, ours = both(name)
    state = theirs.state_dict()
    state['mask_token'] = torch.randn(1, 48)
    if 'reg_token' in state:
        row = torch.randn(1, 1, 48)
        state['register_tokens'] = state.pop('reg_token')
        state['cls_token'] = state['cls_token'] - row
        state['pos_embed'] = torch.cat([row, state['pos_embed']], dim=1)
    else:
        for old in [old for old in state if '.mlp.' in old]:
            state[old.replace('fc1', 'w12').replace('fc2', 'w3')] = state.pop(old)
    converted, report = convert_with_report(state, 'timm', ours)
    report.demand(1)
    assert report.left_out == {'mask_token': 'of the pre-training'} and not report.resized
    assert_equal_outputs(theirs, ours, converted)

"""ViT-Adapter: parity, sizes, flavours, initial values, errors."""

import math

import pytest
import torch
from backbone_variants import build_adapter
from config_utils import marked
from foundation_kinds import KINDS, load, patch_of, source
from torch import nn

from mmlape.backbones import StagedTransformer, VisionTransformer, ViTAdapter
from mmlape.checkpoints import convert, convert_with_report
from mmlape.layers import deformable
from mmlape.registry import MODELS

FLAVOURS = {'det': ('last', 1610), 'seg': ('per_stage', 1620)}


def adapter_of(meta, vit, vit_feature, **options):
    arch = dict(embed_dims='embed_dim', depth='depth', num_heads='num_heads', mlp_ratio='mlp_ratio')
    same = ('deform_num_heads', 'cffn_ratio', 'deform_ratio', 'interaction_indexes')
    arch = {ours: meta[theirs] for ours, theirs in arch.items()}
    config = dict(
        vit=dict(vit, arch=arch, final_norm=False),
        conv_inplanes=meta['conv_inplane'],
        num_points=meta['n_points'],
        vit_feature=vit_feature,
        **{name: meta[name] for name in same},
    )
    return MODELS.build(dict(config, type='mmlape.ViTAdapter', **options)).eval()


def build_golden(meta, **options):
    vit = {name: meta[name] for name in ('patch_size', 'window_size', 'layer_scale')}
    vit.update(img_size=meta['pretrain_size'], with_cls_token=False)
    return adapter_of(meta, vit, FLAVOURS[meta['flavour']][0], **options)


def in_double(model, arrays):
    """In single precision, another processor may round to the other of two nearly equal maxima of the stem's pooling,
    whose gradient goes elsewhere."""
    return model.double(), {name: array.double() for name, array in arrays.items()}


@pytest.mark.parametrize('flavour', FLAVOURS)
def test_parity_with_the_published_code(golden, flavour):
    """Outputs within 1e-4, input gradient within 1e-3 relative."""
    meta, state, arrays = golden(f'vit_adapter_{flavour}')
    model = build_golden(meta)
    converted, report = convert_with_report(state, 'vit_adapter', model)
    assert report.matched_fraction == 1 and report.unused == []
    model.load_state_dict(converted, strict=True)
    model, arrays = in_double(model, arrays)
    image = arrays['input'].requires_grad_()
    outputs = model(image)
    seed = FLAVOURS[flavour][1]
    total = 0
    for index, output in enumerate(outputs):
        assert torch.allclose(output, arrays[f'f{index + 1}'], atol=1e-4, rtol=0)
        generator = torch.Generator().manual_seed(seed + index)
        total = total + (output * torch.randn(output.shape, generator=generator)).sum()
    total.backward()
    expected = arrays['grad/input']
    assert (image.grad - expected).abs().max() < 1e-3 * expected.abs().max()


BEIT = {'seg': 'per_stage', 'det_new': 'last', 'det_old': 'per_stage'}


def build_beit_golden(meta, flavour):
    """In segmentation a class token runs along, and a relative table is that of the whole grid; in detection each layer
    has windows, and its table is theirs."""
    whole = flavour == 'seg'
    relative = dict(type='mmlape.RelativePositionBias', prefix_scores=whole, resize='geometric')
    vit = dict(
        img_size=meta['img_size'] if whole else meta['size'],
        window_size=None if whole else meta['window_size'],
        position=False,
        attention_position=relative,
        with_cls_token=whole,
        layer_scale=meta['init_values'],
    )
    if not whole:  # pads before the projection
        vit['attention'] = dict(type='mmlape.ShiftedWindowAttention')
    return adapter_of(meta, vit, BEIT[flavour])


@pytest.mark.parametrize('flavour', BEIT)
def test_parity_of_beit_adapters_with_the_published_code(golden, flavour):
    meta, state, arrays = golden(f'beit_adapter_{flavour}')
    if flavour == 'det_old':  # holds what differs from the other one
        _, state, others = golden('beit_adapter_det_new')
        arrays = others | arrays
    model = build_beit_golden(meta, flavour)
    converted, report = convert_with_report(state, 'vit_adapter', model)
    assert report.matched_fraction == 1
    assert all(name.endswith('relative_position_index') for name in report.unused)
    model.load_state_dict(converted, strict=True)
    model, arrays = in_double(model, arrays)
    image = arrays['input'].requires_grad_()
    total = 0
    for index, output in enumerate(model(image), start=1):
        torch.testing.assert_close(output, arrays[f'f{index}'], atol=1e-4, rtol=0)
        total = total + (output * arrays[f'cotangent{index}']).sum()
    total.backward()
    relative = model.vit.blocks[1].attn.position
    tables = [relative.relative_position_bias_table, relative.prefix_table]
    gradients = {
        'grad/input': image.grad,
        'grad/blocks.1.attn.relative_position_bias_table': torch.cat(
            [table.grad for table in tables if table is not None]
        ),
    }
    for name, found in gradients.items():
        assert (found - arrays[name]).norm() < 1e-5 * arrays[name].norm(), name


@pytest.mark.parametrize(
    ('out_indices', 'vit_feature'),
    [((1, 2, 3), 'last'), ([2, 0], 'per_stage'), (3, 'per_stage'), (-1, 'last')],
)
def test_out_indices_choose_maps(out_indices, vit_feature):
    """The maps are those of the whole adapter, whose weights load, and nothing that only others need is built."""
    whole = build_adapter(vit_feature=vit_feature).eval()
    chosen = build_adapter(vit_feature=vit_feature, out_indices=out_indices).eval()
    state, report = convert_with_report(whole.state_dict(), 'mmlape', chosen)
    assert report.matched_fraction == 1
    chosen.load_state_dict(state, strict=True)
    image = torch.randn(1, 3, 50, 70)
    every, indices = whole(image), chosen.out_indices
    assert all(torch.equal(a, every[i]) for i, a in zip(indices, chosen(image), strict=True))
    left_out = {f'norm{index + 1}' for index in range(4) if index not in indices}
    left_out |= set() if 0 in indices else {'up', 'spm.fc1'}
    gone = {name.rsplit('.', 1)[0] for name in whole.state_dict().keys() - state.keys()}
    assert gone == left_out


def test_published_weights_of_maps_left_out(golden):
    """They may be left out; an adapter without other parts of theirs is another network."""
    meta, state, _ = golden('vit_adapter_det')
    model = build_golden(meta, out_indices=[1, 2, 3])
    report = convert_with_report(state, 'vit_adapter', model)[1]
    assert report.matched_fraction == 1
    assert {name.rsplit('.', 1)[0] for name in report.unused} == {'spm.fc1', 'up', 'norm1'}
    with pytest.raises(ValueError, match='no place for'):
        convert({**state, 'spm.fc5.weight': torch.zeros(1)}, 'vit_adapter', model)


def test_no_shape_travels_as_a_tensor(monkeypatch):
    """On a GPU, reading one would wait for the device. The first pass caches the two sampling plans of a grid."""
    model, image = build_adapter(), torch.randn(1, 3, 64, 64)
    deformable.sampling_plan.cache.clear()
    model(image)
    assert len(deformable.sampling_plan.cache) == 2

    def refuse(*args, **kwargs):
        raise AssertionError('a tensor was read back')

    for name in ('item', 'tolist', '__int__', '__bool__', '__index__', '__float__', 'numpy'):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    loss = sum(output.mean() for output in model(image))
    monkeypatch.undo()
    loss.backward()


@pytest.mark.parametrize('norm', ['BN', 'SyncBN', 'GN'])
def test_norm_cfg(norm):
    extra = dict(num_groups=4) if norm == 'GN' else {}
    model = build_adapter(norm_cfg=dict(type=norm, **extra))
    cls = {'BN': nn.BatchNorm2d, 'SyncBN': nn.SyncBatchNorm, 'GN': nn.GroupNorm}[norm]
    assert sum(isinstance(m, cls) for m in model.modules()) == 10


def test_frozen_vit():
    model = build_adapter(dict(frozen_stages=4))
    sum(output.mean() for output in model(torch.randn(2, 3, 64, 64))).backward()
    assert all(p.grad is None for p in model.vit.parameters())
    assert model.spm.stem[0].weight.grad is not None


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('kind', marked(KINDS, ('registers', 'no-prefix')))
def test_around_timms_vits(kind):
    """Blocks see prefix tokens, injectors the cells of the padded image; both learn."""
    flavour = ('last', 'per_stage')[[*KINDS].index(kind) % 2]
    model = MODELS.build(
        dict(
            type='mmlape.ViTAdapter',
            vit=dict(arch=source(kind)[1]),
            conv_inplanes=4,
            deform_num_heads=2,
            interaction_indexes=[[layer, layer] for layer in range(4)],
            vit_feature=flavour,
            with_cp=flavour == 'last',
        )
    )
    assert model.vit.with_cp == model.with_cp
    assert all(not name.startswith('vit.') for name in load(kind, model).fresh)
    seen = {}
    for name, part in (('block', model.vit.blocks[1]), ('cells', model.interactions[1].injector)):
        part.register_forward_pre_hook(
            lambda _, inputs, name=name: seen.update({name: inputs[0].shape[1]})
        )
    maps = model(torch.randn(1, 3, 50, 90))
    cells = [-(-padded // patch_of(kind)) for padded in (64, 96)]
    assert seen == dict(
        cells=math.prod(cells), block=math.prod(cells) + model.vit.num_prefix_tokens
    )
    sum(each.square().mean() for each in maps).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    for name in model.vit.prefix_names:  # they are read by the cells
        assert getattr(model.vit, name).grad.abs().max() > 0


def test_a_network_of_two_stages_is_refused():
    class TwoStages(VisionTransformer):
        names = StagedTransformer.names

        @classmethod
        def stage_sizes(cls, arch):
            return super().stage_sizes(arch) * 2

    assert len(TwoStages(arch=dict(embed_dims=24, depth=1, num_heads=3)).stages()) == 2
    vit = dict(type=TwoStages, arch=dict(embed_dims=24, depth=2, num_heads=3))
    with pytest.raises(TypeError, match='network of one stage, got TwoStages'):
        ViTAdapter(vit=vit)

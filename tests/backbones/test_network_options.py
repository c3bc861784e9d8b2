"""Options of networks: outputs, positions and norms per stage, frozen layers, recomputation, names in a state dict."""

import json

import pytest
import torch
from backbone_variants import (
    ARCH,
    DTN,
    PYRAMID_ARCH,
    build_adapter,
    build_compact,
    build_pvt,
    build_swin,
    build_vit,
    randomise,
)
from mmengine.config import Config, DictAction
from mmengine.runner.checkpoint import load_state_dict
from torch import nn

from benchmarks.side_by_side import saved_bytes

LAPE = dict(type='mmlape.LaPE')


@pytest.mark.parametrize('norm', [None, DTN], ids=['ln', 'dtn'])
def test_vectors_of_a_vit_are_of_its_tokens(norm):
    image = torch.linspace(-1, 1, 2 * 3 * 50 * 70).view(2, 3, 50, 70)  # 4 x 5 patches of 16
    whole = randomise(build_vit(with_dist_token=True, norm_cfg=norm, out_type='raw'))
    found = {}
    for out_type in ('cls_token', 'cls_and_dist', 'avg'):
        model = build_vit(with_dist_token=True, norm_cfg=norm, out_type=out_type).eval()
        model.load_state_dict(whole.state_dict())
        found[out_type] = model(image)[0]
    (tokens,) = whole(image)
    assert tokens.shape == (2, 2 + 4 * 5, 24)
    assert torch.equal(found['cls_token'], tokens[:, 0])
    assert torch.equal(torch.stack(found['cls_and_dist'], dim=1), tokens[:, :2])
    torch.testing.assert_close(found['avg'], tokens[:, 2:].mean(1))


def test_the_norm_of_the_last_output_replaces_that_of_its_map():
    """Two norms of one output would leave one without a gradient; False leaves out both."""
    found = {
        final: {name for name, _ in build_swin(final_norm=final).named_children() if 'norm' in name}
        for final in (None, True, False)
    }
    maps = {'norm1', 'norm2', 'norm3', 'norm4'}
    assert found == {None: maps, True: maps - {'norm4'} | {'norm'}, False: set()}


def test_pooled_is_what_the_architecture_was_published_with():
    image = torch.randn(1, 3, 32, 32)
    for model in (
        build_vit(out_type='pooled'),
        build_pvt('V2', out_type='pooled', out_indices=3),
        build_swin(out_type='pooled', out_indices=3),
        build_compact(out_type='pooled'),
    ):
        assert model(image)[0].shape == (1, model.norm.weight.numel() if model.norm else 32)
    assert build_vit(out_type='pooled').out_type == 'cls_token'
    with pytest.raises(ValueError, match='with_cls_token=True'):
        build_pvt(out_type='pooled', out_indices=3)


def test_vectors_of_earlier_layers_have_the_norm_of_the_output_without_the_last():
    image, whole = torch.randn(1, 3, 48, 32), build_vit(out_type='avg', out_indices=[1, 3])
    part = build_vit(out_type='avg', out_indices=1)
    part.load_state_dict({key: whole.state_dict()[key] for key in part.state_dict()})
    assert torch.equal(part.eval()(image)[0], whole.eval()(image)[0])
    assert build_vit(out_indices=1).norm is None


@pytest.mark.parametrize('frozen', [-1, 0, 2, 4])
def test_frozen_layers_of_a_vit(frozen):
    options = dict(joining=LAPE, pre_norm=True, drop_path_rate=0.5)
    model = build_vit(frozen_stages=frozen, **options).train()
    names = {name.split('.')[0] for name, p in model.named_parameters() if p.requires_grad}
    stem = {'patch_embed', 'cls_token', 'norm_pre'} if frozen < 0 else set()
    assert names == stem | ({'position', 'blocks', 'norm'} if frozen < 4 else set())
    for layer, block in enumerate(model.blocks):
        trained = layer >= frozen
        assert block.training == block.attn.qkv.weight.requires_grad == trained
        assert model.position.joining.norms[layer].weight.requires_grad == trained
    assert model.train(False).training is False


def test_position_per_stage():
    gabor, learned = dict(type='mmlape.GaborPosition'), dict(type='mmlape.LearnedPosition')
    joining = [LAPE] * 2 + [dict(type='mmlape.DefaultJoining')] * 2
    model = build_pvt(position=[learned, gabor, None, learned], joining=joining)
    names = set(model.state_dict())
    assert 'pos_embed1' in names and 'position2.embedding.gabor_x.weight' in names
    assert not any(name.startswith(('pos_embed2', 'pos_embed3', 'position3')) for name in names)
    assert 'position1.joining.norms.0.weight' in names
    assert len(model(torch.randn(1, 3, 40, 56))) == 4
    arch = dict(PYRAMID_ARCH, position=gabor)
    model = build_pvt(arch=arch, position=[learned, None, None, None])
    assert not hasattr(model, 'position2')


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ((4, 2), [(4, 2)] * 2),
        ([4, 2], [(4, 2)] * 2),
        ([(4, 4), [2, 2]], [(4, 4), (2, 2)]),
        (((4, 4), 2), [(4, 4), (2, 2)]),
        ([4, None], [(4, 4), None]),
        ([[4, 2], None], [(4, 2), None]),
    ],
)
def test_windows_are_the_same_as_tuples_as_lists_and_through_json(given, expected, tmp_path):
    arch = dict(ARCH, depth=2)
    (tmp_path / 'a.json').write_text(json.dumps(dict(window_size=given)))
    read = Config.fromfile(tmp_path / 'a.json').window_size
    text = str(given).replace(' ', '')
    listed = DictAction._parse_iterable(text)  # of --cfg-options
    for window in (given, read, listed):
        model = build_vit(arch=arch, window_size=window)
        assert [block.attn.window_size for block in model.blocks] == expected


def test_a_flat_list_is_one_window_a_layer_in_networks_of_more_than_two():
    model = build_vit(window_size=[2, 4, 2, None])
    windows = [block.attn.window_size for block in model.blocks]
    assert windows == [(2, 2), (4, 4), (2, 2), None]
    with pytest.raises(ValueError, match=r'one window for each of 4 layers, e\.g\. \[\[7, 7\]'):
        build_vit(window_size=[2, 4, 2])


def test_a_position_knows_the_window_that_is_the_default_of_its_attention():
    inside = dict(type='mmlape.RelativePositionBias')
    attention = dict(type='mmlape.ShiftedWindowAttention')
    model = build_vit(with_cls_token=False, attention=attention, attention_position=inside)
    assert {block.attn.position.window_size for block in model.blocks} == {(7, 7)}


def test_depths_where_outputs_end_before_the_class_token_enters():
    model = build_vit(prefix_after=3, out_indices=[0, 1])
    assert model.get_layer_depth('blocks.1.attn.qkv.weight') == (2, 2 + 2)


def test_a_loaded_pooling_is_not_drawn_again():
    pool = dict(type='mmlape.AttentionPooling', num_heads=3)
    model = build_vit(out_type=pool, out_indices=[3])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.init_weights()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_adapter_of_images_of_one_channel():
    model = build_adapter(dict(in_channels=1)).eval()
    assert len(model(torch.randn(1, 1, 64, 64))) == 4
    with pytest.raises(ValueError, match=r'shape \(batch, 1, height, width\)'):
        model(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize('frozen_stages', [-1, 0, 1, 3, 4])
def test_frozen_stages_of_a_pyramid(frozen_stages):
    model = build_pvt(
        frozen_stages=frozen_stages,
        joining=LAPE,
        drop_rate=0.5,
        drop_path_rate=0.5,
        with_cls_token=True,
    ).train()
    image = torch.randn(1, 3, 64, 64)
    same = [torch.equal(one, other) for one, other in zip(model(image), model(image), strict=True)]
    assert same == [stage <= frozen_stages for stage in range(1, 5)]
    for stage in range(1, 5):
        frozen = stage <= frozen_stages
        block = getattr(model, f'block{stage}')[0]
        assert block.training != frozen and block.attn.q.weight.requires_grad != frozen
        position = getattr(model, f'position{stage}')
        assert position.joining.norms[0].weight.requires_grad != frozen
        stem = frozen or (stage == 1 and frozen_stages == 0)
        assert position.embedding.pos_embed.requires_grad != stem
        assert isinstance(model.stages()[stage - 1].dropout, torch.nn.Identity) == stem
        assert getattr(model, f'patch_embed{stage}').proj.weight.requires_grad != stem
    assert model.cls_token.requires_grad == (frozen_stages < 4)


def test_norm_per_stage():
    eps = [1e-3, 1e-4, 1e-5, 1e-6]
    model = build_pvt('V2', norm_cfg=[dict(type='mmlape.LN', eps=value) for value in eps])
    assert [getattr(model, f'block{i}')[0].norm2.eps for i in range(1, 5)] == eps
    assert model.norm1.eps == 1e-6 and model.patch_embed1.norm.eps == 1e-5
    plain = build_pvt()
    assert plain.block1[0].norm1.eps == 1e-6 and plain.patch_embed1.norm.eps == 1e-5
    assert plain.block1[0].attn.norm.eps == 1e-5


def test_layers_after_the_last_output_are_not_built():
    """They would get no gradient, which DistributedDataParallel refuses."""
    model = build_vit(out_indices=1, joining=LAPE, drop_path_rate=0.3)
    assert len(model.blocks) == len(model.position.joining.norms) == 2 and model.norm is None
    assert model.blocks[1].drop_path.drop_prob == pytest.approx(0.1)


def test_recomputation_saves_memory():
    image = torch.randn(1, 3, 128, 128)
    plain, recomputed = (build_vit(with_cp=with_cp) for with_cp in (False, True))
    assert saved_bytes(lambda: recomputed(image)) < 0.5 * saved_bytes(lambda: plain(image))


def test_names_hold_inside_a_parent_and_through_mmengine():
    parents = [nn.Sequential(build_vit(), nn.Linear(2, 2)) for _ in range(2)]
    state = parents[0].state_dict()
    assert '0.pos_embed' in state and '0.position.embedding.pos_embed' not in state
    load_state_dict(parents[1], state, strict=True)
    assert torch.equal(
        parents[0][0].position.embedding.pos_embed, parents[1][0].position.embedding.pos_embed
    )


def test_dpt_takes_pairs_of_maps_and_class_tokens():
    """MMSegmentation's head joins a class token ``(B, C)`` to every map."""
    from mmseg.models.decode_heads import DPTHead

    head = DPTHead(
        in_channels=(24, 24, 24, 24),
        channels=16,
        embed_dims=24,
        post_process_channels=[16, 16, 16, 16],
        num_classes=3,
        readout_type='project',
        input_transform='multiple_select',
        in_index=(0, 1, 2, 3),
        norm_cfg=dict(type='BN'),
    ).eval()
    model = build_vit(out_type='featmap_and_cls', out_indices=[0, 1, 2, 3], patch_size=16).eval()
    pairs = model(torch.randn(2, 3, 64, 96))
    assert [tuple(part.shape) for part in pairs[0]] == [(2, 24, 4, 6), (2, 24)]
    raw = build_vit(out_type='raw', out_indices=[0, 1, 2, 3], patch_size=16).eval()
    raw.load_state_dict(model.state_dict())
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(image)[2][1], raw(image)[2][:, 0])
    assert head(pairs).shape == (2, 3, 32, 48)
    with pytest.raises(ValueError, match="out_type='featmap_and_cls' needs with_cls_token=True"):
        build_vit(out_type='featmap_and_cls', with_cls_token=False)

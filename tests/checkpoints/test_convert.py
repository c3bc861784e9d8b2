"""Weights from elsewhere: every entry is accounted for, and wrong ones are refused."""

import pytest
import timm
import torch
from backbone_variants import build_adapter, build_pvt

from mmlape.checkpoints import CheckpointError, Pretrained, conversion, convert, convert_with_report
from mmlape.registry import MODELS

ARCH = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=4)


def vit(**options):
    return MODELS.build(
        dict(dict(type='mmlape.VisionTransformer', arch=ARCH, img_size=32, patch_size=8), **options)
    ).eval()


def timm_vit(**options):
    options = dict(dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3), **options)
    return timm.models.VisionTransformer(num_classes=5, **options).eval()


def test_position_table_is_resized_and_said():
    source, model = timm_vit(), vit(img_size=(48, 64))
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    model.load_state_dict(state)
    assert report.resized == {'pos_embed': '1 + 4 x 4 rows to 1 + 6 x 8'}
    assert torch.equal(model.position.embedding.pos_embed[:, :1], source.pos_embed[:, :1])


def test_other_than_square_table_needs_its_grid():
    state = vit(img_size=(16, 56)).state_dict()
    with pytest.raises(ValueError, match='source_grid'):
        convert(state, 'timm', vit())
    assert convert(state, 'timm', vit(), source_grid=(2, 7))['pos_embed'].shape == (1, 17, 24)
    with pytest.raises(ValueError, match='more cells'):
        convert(state, 'timm', vit(), source_grid=(4, 7))
    with pytest.raises(
        ValueError, match='source_grid: a table of 15 rows has 5 more than 2 x 5 cells'
    ):
        convert(state, 'timm', vit(), source_grid=(2, 5))


def test_a_class_token_in_the_file_has_a_row():
    """5 x 3 cells and a class row are as many rows as 4 x 4 cells; 30 x 32 were read as 31 x 31."""
    wide, square = vit(img_size=(40, 24)), vit(img_size=64)
    without = vit(img_size=(40, 24), with_cls_token=False)
    torch.nn.init.normal_(wide.position.embedding.pos_embed)
    state, report = convert_with_report(wide.state_dict(), 'mmlape', without)
    assert report.resized == {'pos_embed': '1 + 5 x 3 rows to 0 + 5 x 3'}
    assert torch.equal(state['pos_embed'], wide.state_dict()['pos_embed'][:, 1:])
    with pytest.raises(ValueError, match=r'4 x 4 cells and no row .* or 15 cells.*source_grid'):
        convert(wide.state_dict(), 'mmlape', square)
    tableless = vit(
        img_size=32, position=dict(type='mmlape.LearnedPosition', prefix_rows=False)
    ).state_dict()
    for options in (dict(img_size=32), dict(img_size=32, with_cls_token=False)):
        table = convert_with_report(tableless, 'mmlape', vit(**options))[0]['pos_embed']
        assert torch.equal(table[:, -16:], tableless['pos_embed'])


@pytest.mark.parametrize('config', ['img_size=(40, 24)', 'vit=dict(img_size=(40, 24))'])
def test_the_saved_config_says_the_grid(config):
    checkpoint = dict(
        meta=dict(cfg=f'model = dict(backbone=dict({config}))'),
        state_dict=vit(img_size=(40, 24)).state_dict(),
    )
    report = convert_with_report(checkpoint, 'mmlape', vit(img_size=64))[1]
    assert report.resized == {'pos_embed': '1 + 5 x 3 rows to 1 + 8 x 8'}
    checkpoint['meta']['cfg'] = 'model = dict(backbone=dict(img_size=512))'  # of something else
    with pytest.raises(ValueError, match='source_grid'):
        convert(checkpoint, 'mmlape', vit(img_size=64))


def test_the_grid_of_a_pyramids_first_table_says_those_of_all():
    wide, square = build_pvt(img_size=(64, 128)), build_pvt(img_size=64)
    report = convert_with_report(wide.state_dict(), 'mmlape', square, source_grid=(16, 32))[1]
    assert report.resized == {
        f'pos_embed{1 + stage}': f'0 + {side} x {2 * side} rows to 0 + {side} x {side}'
        for stage, side in enumerate((16, 8, 4, 2))
    }
    odd = build_pvt(img_size=(72, 104)).state_dict()
    report = convert_with_report(odd, 'mmlape', square, source_grid=(18, 26))[1]
    assert report.resized['pos_embed3'] == '0 + 5 x 7 rows to 0 + 4 x 4'


def test_a_token_without_a_row_gets_zeros():
    source, model = vit(), vit(with_dist_token=True)
    torch.nn.init.normal_(source.position.embedding.pos_embed)
    table = convert_with_report(source.state_dict(), 'mmlape', model)[0]['pos_embed']
    assert torch.equal(table[:, :1], source.state_dict()['pos_embed'][:, :1])
    assert not table[:, 1].any()


@pytest.mark.parametrize(
    ('theirs', 'ours', 'rows'),
    [
        (dict(num_registers=4), dict(num_registers=4), (5, 5)),
        (dict(with_dist_token=True), dict(), (2, 1)),
        (dict(with_dist_token=True), dict(with_dist_token=True), (2, 2)),
    ],
)
def test_tables_with_rows_of_several_tokens(theirs, ours, rows):
    source = vit(**theirs).state_dict()
    state, report = convert_with_report(source, 'mmlape', vit(img_size=64, **ours))
    assert report.resized == {'pos_embed': '{} + 4 x 4 rows to {} + 8 x 8'.format(*rows)}
    assert torch.equal(state['pos_embed'][:, : rows[1]], source['pos_embed'][:, : rows[1]])


def test_offsets_that_fit_are_left_alone():
    """5 x 13 cells have as many offsets as 8 x 8."""
    options = dict(
        img_size=(40, 104),
        position=False,
        attention_position=dict(type='mmlape.RelativePositionBias'),
    )
    source, model = vit(**options), vit(**options)
    torch.nn.init.normal_(source.blocks[0].attn.position.relative_position_bias_table)
    state, report = convert_with_report(source.state_dict(), 'mmlape', model)
    assert not report.resized
    assert all(torch.equal(state[name], value) for name, value in source.state_dict().items())


def test_a_table_of_as_many_cells_is_said_to_be_of_the_networks_grid():
    source, model = timm_vit(), vit(img_size=(16, 64))
    state, report = convert_with_report(source.state_dict(), 'timm', model)
    assert torch.equal(state['pos_embed'], source.pos_embed)
    said = report.resized['pos_embed']
    assert said.startswith('rows taken for those of 2 x 8 cells; source_grid=(4, 4) resizes')
    state, report = convert_with_report(source.state_dict(), 'timm', model, source_grid=4)
    assert report.resized == {'pos_embed': '1 + 4 x 4 rows to 1 + 2 x 8'}


def test_into_the_vit_of_an_adapter():
    inside = dict(arch=ARCH, img_size=32, patch_size=8, layer_scale=False)
    adapter = build_adapter(inside, interaction_indexes=[[0, 0], [1, 1]])
    source = timm_vit()
    state, report = convert_with_report(source.state_dict(), 'timm', adapter)
    adapter.load_state_dict(state, strict=True)
    assert torch.equal(adapter.vit.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)
    assert torch.equal(adapter.vit.position.embedding.pos_embed, source.pos_embed[:, 1:])
    assert report.matched_fraction == 1
    assert report.unused == ['cls_token', 'head.bias', 'head.weight', 'norm.bias', 'norm.weight']
    assert all('outside' in why for why in report.fresh.values())


def test_a_network_without_any_position():
    source = timm_vit(pos_embed='none')
    model = vit(position=False)
    convert_with_report(source.state_dict(), 'timm', model)[1].demand(1)
    with pytest.raises(ValueError, match='has no position table'):
        convert(source.state_dict(), 'timm', vit())


@pytest.mark.parametrize(
    'name',
    ['module._orig_mod.{}', '_orig_mod.module.{}', 'backbone._orig_mod.{}', 'teacher.backbone.{}',
     'teacher._orig_mod.{}'],
)  # fmt: skip
def test_names_of_wrappers_are_taken_off(name):
    model = vit()
    state = {name.format(k): v + 1 for k, v in model.state_dict().items()}
    state['student.head.weight'] = torch.zeros(2)
    found = convert(state, 'mmlape', model)
    assert all(torch.equal(found[k], v + 1) for k, v in model.state_dict().items())


def test_a_part_of_a_checkpoint_is_chosen(monkeypatch):
    model = vit()
    states = [{k: v + add for k, v in model.state_dict().items()} for add in (1, 2, 3)]
    student = {f'student.backbone.{k}': v for k, v in states[2].items()}
    checkpoint = dict(state_dict=states[0], state_dict_ema=states[1], more=dict(deep=student))
    said = []
    monkeypatch.setattr(conversion, 'print_log', lambda text, **_: said.append(text))
    found = convert(checkpoint, 'mmlape', model)
    assert torch.equal(found['cls_token'], states[0]['cls_token'])
    assert "key='state_dict_ema' takes them" in said[0]
    for name in ('state_dict', 'model', 'module', 'teacher', 'state_dict_ema'):
        found = convert({name: states[1]}, 'mmlape', model)
        assert torch.equal(found['cls_token'], states[1]['cls_token'])
    weights = dict(key='state_dict_ema')
    assert torch.equal(
        convert(checkpoint, 'mmlape', model, **weights)['cls_token'], states[1]['cls_token']
    )
    weights = dict(key='more.deep', prefix='student.')
    assert torch.equal(
        convert(checkpoint, 'mmlape', model, **weights)['cls_token'], states[2]['cls_token']
    )
    with pytest.raises(ValueError, match=r"key must be one of \['state_dict', .*got 'ema'"):
        convert(checkpoint, 'mmlape', model, key='ema')
    with pytest.raises(ValueError, match=r"prefix must begin a name: of student, got 'teacher\.'"):
        convert(checkpoint, 'mmlape', model, key='more.deep', prefix='teacher.')


def test_wrong_source_fails():
    with pytest.raises(ValueError, match=r"(?s)no place for: layers.0.weight\n.*right source"):
        convert({'layers.0.weight': torch.zeros(3)}, 'timm', vit())
    with pytest.raises(ValueError, match=r'only 0.0% of the values.*right source'):
        convert({'head.weight': torch.zeros(3)}, 'timm', vit())


@pytest.mark.parametrize(
    ('options', 'what'),
    [
        (dict(layer_scale=True), 'a layer scale.*layer_scale=True'),
        (dict(joining=dict(type='mmlape.LaPE')), r'norms of a joining \(LaPE\)'),
        (dict(norm_cfg=dict(type='mmlape.DTN', num_heads=3)), 'DTN'),
        (
            dict(attention_position=dict(type='mmlape.RelativePositionBias')),
            'a position inside the attention',
        ),
        (dict(pre_norm=True), 'a norm before the first layer'),
        (dict(lora=dict(rank=2)), 'LoRA'),
        (
            dict(arch=dict(embed_dims=24, depth=4, num_heads=3, mlp_ratio=2)),
            "more layers than 'blocks', 2",
        ),
        *(
            (options, 'entries in its layers')
            for options in (
                dict(attention=dict(type='mmlape.Attention', qk_norm=dict(type='mmlape.LN'))),
                dict(attention=dict(type='mmlape.DifferentialAttention')),
                dict(block=dict(type='mmlape.SeveralBranchesBlock')),
            )
        ),
    ],
)
def test_our_own_weights_of_another_network_are_refused(options, what):
    state = vit(**options).state_dict()
    with pytest.raises(ValueError, match=f'(?s)do not fit.*the source has {what}'):
        convert(state, 'mmlape', vit(), min_matched=0)
    assert convert(state, 'mmlape', vit(**options), min_matched=1)


def test_another_position_is_said():
    learned, sinusoidal = vit(), vit(position=dict(type='mmlape.SinusoidalPosition'))
    for source in ('mmlape', 'timm'):
        report = convert_with_report(learned.state_dict(), source, sinusoidal)[1]
        report.demand(1)
        assert 'position' in report.left_out['pos_embed'], source
    report = convert_with_report(sinusoidal.state_dict(), 'mmlape', learned)[1]
    assert report.fresh == {'pos_embed': 'not in the source'}


def test_layers_that_a_model_does_not_build_are_no_other_network():
    options = dict(layer_scale=True, joining=dict(type='mmlape.LaPE'))
    source, model = vit(**options), vit(out_indices=0, **options)
    report = convert_with_report(source.state_dict(), 'mmlape', model)[1]
    report.demand(1)
    assert {'blocks.1.ls1.gamma', 'position.joining.norms.1.weight'} <= set(report.left_out)


def test_shapes_must_fit():
    with pytest.raises(ValueError, match=r'patch_embed.proj.weight has the shape \(24, 1, 8, 8\)'):
        convert(timm_vit(in_chans=1).state_dict(), 'timm', vit())
    with pytest.raises(ValueError, match=r'(?s)fc1.weight has the shape \(48, 24\).* and 1 more'):
        convert(
            timm_vit(mlp_ratio=2, in_chans=1, depth=3).state_dict(), 'timm', vit(), min_matched=0
        )


@pytest.mark.parametrize('source', ['Timm', 'dino', None])
def test_unknown_source_lists_the_known(source):
    with pytest.raises(ValueError, match=r"source must be one of.*'vit_adapter'"):
        convert({}, source, vit())


def test_adapter_weights_need_an_adapter():
    with pytest.raises(
        ValueError, match='describes a ViTAdapter, the model is a VisionTransformer'
    ):
        convert({}, 'vit_adapter', vit())


def test_no_tensor_is_refused():
    for state in ({'epoch': 3}, {3: torch.zeros(1)}):
        with pytest.raises(TypeError, match=r'epoch|holds 3') as raised:
            convert(state, 'timm', vit())
        assert isinstance(raised.value, CheckpointError)  # which commands end with in one line


def test_wrappers_are_unwrapped():
    model = vit()
    wrapped = {'state_dict': {f'module.backbone.{k}': v + 1 for k, v in model.state_dict().items()}}
    wrapped['state_dict']['module.decode_head.weight'] = torch.zeros(1)
    state, report = convert_with_report(wrapped, 'mmlape', model)
    assert all(torch.equal(state[k], v + 1) for k, v in model.state_dict().items())
    assert report.unused == ['decode_head.weight']


@pytest.mark.parametrize(
    'options',
    [
        dict(source='deit'),
        dict(source='deit', model='deit_tiny_patch16_224'),
        dict(source='timm', model='vit', checkpoint='x.pth'),
        dict(source='imagenet', checkpoint='x.pth'),
        dict(source='timm', checkpoint='x.pth', min_matched=1.5),
    ],
)
def test_bad_init_cfg(options):
    with pytest.raises(ValueError, match=r'source|min_matched'):
        Pretrained(**options)


def test_another_pyramid_is_refused():
    first, second = build_pvt(), build_pvt('V2')
    with pytest.raises(ValueError, match=r'no place for: block1\.0\.mlp\.dwconv\.dwconv\.bias, '):
        convert(second.state_dict(), 'pvt', first, min_matched=0)
    state = {**first.state_dict(), 'head.weight': torch.zeros(2), 'cls_token': torch.zeros(1)}
    _state, report = convert_with_report(state, 'pvt', first)
    report.demand(1)
    assert set(report.left_out.values()) == {'of the classifier'}
    report = convert_with_report(state, 'pvt', build_pvt(out_indices=2))[1]
    report.demand(1)
    assert report.left_out['pos_embed4'] == 'stages after the last output are not built'


def test_partial_match_can_be_asked_for():
    state = timm_vit(depth=1).state_dict()
    with pytest.raises(ValueError, match='min_matched'):
        convert(state, 'timm', vit())
    assert set(convert(state, 'timm', vit(), min_matched=0.4)) == set(vit().state_dict())


def test_half_precision_checkpoint_keeps_the_models_dtype():
    model = vit()
    state = convert({k: v.half() for k, v in model.state_dict().items()}, 'mmlape', model)
    assert all(v.dtype == torch.float32 for v in state.values())

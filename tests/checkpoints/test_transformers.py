"""Files of Hugging Face's transformers: its outputs from its weights, in its names, whole or a part of something."""

import json

import pytest
import torch
from foundation_kinds import of_transformers
from safetensors.torch import save_file

from mmlape.checkpoints import Pretrained, convert, convert_with_report

NAMES = (
    'vit', 'vit_mae', 'deit', 'dinov2', 'dinov2_swiglu', 'dinov2_with_registers', 'dinov3_vit',
    'dinov3_vit_gated', 'beit', 'beit_shared', 'clip_vision', 'siglip_vision',
    'siglip2_vision',
)  # fmt: skip
# What stands before the names of a network inside of a classifier, or of both towers.
AROUND = {
    'vit': 'vit.', 'vit_mae': 'vit.', 'deit': 'deit.', 'dinov2': 'dinov2.',
    'dinov2_with_registers': 'dinov2_with_registers.', 'dinov3_vit': 'model.', 'beit': 'beit.',
    'clip_vision': 'vision_model.', 'siglip_vision': 'vision_model.', 'siglip2_vision': 'vision_model.',
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')


POOLED = [('siglip_vision', 'pooled'), ('siglip2_vision', 'pooled')]


@pytest.mark.parametrize(('name', 'out'), [*((name, 'tokens') for name in NAMES), *POOLED])
def test_outputs_are_theirs(golden, name, out):
    meta, state, arrays = golden(f'transformers_{name}')
    model = of_transformers(meta, out_type='raw' if out == 'tokens' else out)
    converted, report = convert_with_report(state, 'transformers', model)
    report.demand(1)
    assert not report.fresh and not report.resized and not (out == 'pooled' and report.left_out)
    model.load_state_dict(converted)
    for index, size in enumerate(meta['sizes']):
        image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(index))
        with torch.no_grad():
            found = model(image)[0]
        torch.testing.assert_close(found, arrays[f'{out}{index}'], atol=1e-4, rtol=0)


@pytest.mark.parametrize('name', NAMES)
def test_names_of_newer_versions(golden, name):
    """What a model holds in memory since transformers 5, where that is not what it saves."""
    meta, state, _ = golden(f'transformers_{name}')
    model = of_transformers(meta)
    newer = {k: v for k, v in state.items() if k not in meta['newer']}
    for theirs, names in meta['newer'].items():
        newer.update(zip(names, state[theirs].tensor_split(len(names)), strict=True))
    assert newer.keys() != state.keys() or name.endswith(
        ('clip_vision', 'siglip_vision', 'siglip2_vision')
    )
    expected = convert(state, 'transformers', model)
    found = convert(newer, 'transformers', model, min_matched=1)
    assert all(torch.equal(found[each], value) for each, value in expected.items())


@pytest.mark.parametrize('name', AROUND)
def test_a_part_of_something(golden, name):
    """In a classifier, or beside the texts' tower, each with entries of its own."""
    meta, state, _ = golden(f'transformers_{name}')
    model = of_transformers(meta)
    others = {
        'classifier.weight': 'of the classifier',
        'distillation_classifier.bias': 'of the classifier',
        'text_model.encoder.layers.0.self_attn.k_proj.weight': 'of the comparison with texts',
        'text_model.embeddings.token_embedding.weight': 'of the comparison with texts',
        'visual_projection.weight': 'of the comparison with texts',
        'logit_scale': 'of the comparison with texts',
        'decoder.decoder_layers.0.attention.attention.key.weight': 'of the pre-training',
        'vision_model.embeddings.position_ids': 'computed, not learned',
    }
    around = {f'{AROUND[name]}{key}': value for key, value in state.items()}
    around.update(dict.fromkeys(others, torch.zeros(1)))
    converted, report = convert_with_report(around, 'transformers', model)
    report.demand(1)
    left = {key.removeprefix('vision_model.'): why for key, why in report.left_out.items()}
    assert {
        key.removeprefix('vision_model.'): why for key, why in others.items()
    }.items() <= left.items()
    expected = convert(state, 'transformers', model)
    assert all(torch.equal(converted[each], value) for each, value in expected.items())


@pytest.mark.parametrize(
    ('file', 'network', 'message'),
    [
        ('dinov3_vit', 'vit', 'no position table'),
        ('clip_vision', 'vit', 'a norm before the first layer'),
        ('beit', 'vit', 'relative positions'),
        ('dinov2', 'vit', 'a layer scale'),
        ('dinov2_swiglu', 'dinov2', r'a gated feed-forward network \(SwiGLU\)'),
    ],
)
def test_another_network_is_refused(golden, file, network, message):
    state, model = (
        golden(f'transformers_{file}').state,
        of_transformers(golden(f'transformers_{network}').meta),
    )
    with pytest.raises(ValueError, match=message):
        convert(state, 'transformers', model)


def test_other_files_are_refused(golden):
    meta, state, _ = golden('transformers_vit')
    model = of_transformers(meta)
    layer = 'encoder.layer.0.attention.'
    swin = {k.replace(layer, f'{layer}self.'): v for k, v in state.items()}
    with pytest.raises(ValueError, match='no place for'):
        convert(swin, 'transformers', model, min_matched=0)
    with pytest.raises(ValueError, match=r"holds 'cls_token' twice.*two networks"):
        convert({**state, 'vit.embeddings.cls_token': torch.zeros(1)}, 'transformers', model)
    for file, network, what in (
        ('beit_shared', 'beit', 'that all layers share'),
        ('beit', 'beit_shared', 'of each layer'),
        ('beit_shared', 'vit', 'that all layers share'),
    ):
        model = of_transformers(golden(f'transformers_{network}').meta)
        with pytest.raises(
            ValueError, match=f'relative positions {what} .*which the model does not have'
        ):
            convert(golden(f'transformers_{file}').state, 'transformers', model)


@pytest.mark.parametrize('wrapped', [False, True])
def test_the_config_beside_it(golden, tmp_path, wrapped):
    """Names what weights do not: another number of heads, another activation, other turns."""
    meta, state, _ = golden('transformers_dinov3_vit')
    save_file(state, tmp_path / 'model.safetensors')
    model = of_transformers(meta)
    config = dict(num_attention_heads=2, hidden_act='gelu', rope_theta=100.0, layer_norm_eps=1e-5)

    def load(place, **changes):
        content = {**config, **changes}
        content = dict(vision_config=content) if wrapped else content
        (tmp_path / 'config.json').write_text(json.dumps(content))
        Pretrained('transformers', checkpoint=str(place))(model)

    load(tmp_path)
    load(tmp_path / 'model.safetensors')
    for changes, ours in (
        (dict(num_attention_heads=4), '2'),
        *(
            (dict(hidden_act=name), 'GELU')
            for name in ('gelu_pytorch_tanh', 'gelu_new', 'quick_gelu', 'relu', 'silu', 'swish')
        ),
        (dict(rope_theta=10.0), '100.0'),
    ):
        with pytest.raises(ValueError, match=f'config.json.* says .*, the model has {ours}'):
            load(tmp_path, **changes)
    load(tmp_path, hidden_act='of another library', num_attention_heads=None)
    (tmp_path / 'config.json').write_text('[]')
    with pytest.raises(ValueError, match='is not a valid config of a model'):
        Pretrained('transformers', checkpoint=str(tmp_path))(model)

"""LoRA and DoRA in every backbone: the start to the bit, what is trained, merged layers, optimizers, ways to run."""

import copy

import pytest
import torch
from backbone_variants import (
    DTN,
    LAPE,
    VARIANTS,
    build_adapter,
    build_compact,
    build_eomt,
    build_levit,
    build_light_adapter,
    build_pvt,
    build_sequence,
    build_vit,
    randomise,
)
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmlape.checkpoints import Pretrained
from mmlape.cpu import optimize
from mmlape.layers import LoRALinear, merge_lora

AROUND = (build_adapter, build_light_adapter, build_eomt)
# A network of each family, with and without windows, and of each kind of attention and stem: other options (joinings,
# norms, outputs) have no linear layers. Those of LeViT belong to norms.
NAMES = (
    'vit-lape', 'vit-windows-gabor-2,3,4', 'vit-dtn', 'adapter-lape', 'adapter-windows', 'light-adapter', 'adapter-t2t',
    'pvt-lape', 'pvt-dtn', 'swin-lape', 'swin-dtn', 't2t-lape', 't2t-transformer', 'compact-cct-lape', 'ceit-lape',
    'ceit-dtn', 'sequence-dtn', 'sequence-bigbird', 'sequence-lsh', 'pvtv2-linear', 'pvtv2-lape',
)  # fmt: skip


def with_lora(build, **lora):
    """A variant with LoRA in its transformer."""
    if getattr(build, 'func', build) not in AROUND:
        return build(lora=lora)
    vit = build.args[0] if getattr(build, 'args', ()) else {}
    return build.func(dict(vit, lora=lora), **build.keywords)


def images(height=33, width=50):
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def flat(outputs):
    """All tensors of nested outputs."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [tensor for each in outputs for tensor in flat(each)]


def trained(model):
    return [name for name, value in model.named_parameters() if value.requires_grad]


def change(model, std=0.3):
    """Values of LoRA as after a training."""
    for name, value in model.named_parameters():
        if '.lora_' in name:
            nn.init.normal_(value, mean='magnitude' in name, std=std)
    return model


@pytest.mark.parametrize('name', NAMES)
def test_starts_equal_and_is_merged(name):
    dora = len(name) % 2 == 0
    plain = randomise(VARIANTS[name]())
    model = with_lora(VARIANTS[name], rank=2, dora=dora, dropout=0.5).eval()
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert missing and all('.lora_' in each for each in missing) and not unexpected
    with torch.no_grad():  # with gradients, a bias of scores that is trained takes another kernel
        assert all(map(torch.equal, flat(model(images())), flat(plain(images()))))
    network = getattr(model, 'vit', model)
    assert trained(network) == [each for each, _ in network.named_parameters() if '.lora_' in each]
    with torch.no_grad():
        changed = flat(change(model)(images()))
        model.switch_to_deploy()
        merged = flat(model(images()))
    assert not any(map(torch.equal, changed, flat(plain(images()))))
    for one, other in zip(changed, merged, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())
    assert {*model.state_dict()} == {*plain.state_dict()}


def test_layers_of_norms_are_refused():
    with pytest.raises(ValueError, match='lora needs linear layers, the blocks of LeViT have none'):
        build_levit(lora=dict(rank=2))


@pytest.mark.parametrize('bias', [True, False])
def test_dora_by_hand(bias):
    plain = nn.Linear(5, 7, bias=bias)
    layer = change(LoRALinear(plain, rank=2, alpha=6, dora=True), std=1.0)
    x = torch.randn(3, 4, 5)
    sums = plain.weight + 3 * layer.lora_B.weight @ layer.lora_A.weight
    weight = layer.lora_magnitude_vector[:, None] * sums / sums.norm(dim=1, keepdim=True)
    expected = x @ weight.T + (plain.bias if bias else 0)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.merged()(x), expected)
    # Section 4.3: the length of a row is a constant for the gradient.
    constant = layer.lora_magnitude_vector[:, None] * sums / sums.detach().norm(dim=1, keepdim=True)
    wanted = torch.autograd.grad((x @ constant.T).square().sum(), [*layer.lora_A.parameters()])
    found = layer(x) - (plain.bias if bias else 0)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), [*layer.lora_A.parameters()]), wanted
    )


def test_a_row_of_zeros_is_finite():
    plain = nn.Linear(5, 7)
    nn.init.zeros_(plain.weight)
    layer = LoRALinear(plain, rank=2, alpha=4, dora=True)
    x = torch.randn(3, 5, requires_grad=True)
    assert torch.equal(layer(x), plain(x))
    layer(x).sum().backward()
    assert all(value.grad.isfinite().all() for name, value in layer.named_parameters())


def test_what_else_is_trained():
    options = dict(norm_cfg=DTN, joining=LAPE, out_type='raw')
    kinds = {
        kind: {*trained(build_vit(**options, lora=dict(rank=2, train=[kind] if kind else [])))}
        for kind in ('', 'position', 'norm', 'dtn')
    }
    added = {kind: names - kinds[''] for kind, names in kinds.items()}
    whole = build_vit(**options)
    names = {name for name, _ in whole.named_parameters()}
    positions = {name for name in names if name.startswith('position.')}
    assert added['position'] == positions
    norms = {name for name in names - positions if 'norm' in name}
    weights = {name for name in norms if 'norm' in name.split('.')[-2]}
    assert added['norm'] == weights and added['dtn'] == norms - weights and added['dtn']


def test_layers_and_targets():
    model = build_pvt(lora=dict(rank=3, layers=[1, 4], targets=['fc2', 'q'], alpha=1.5))
    layers = {path: part for path, part in model.named_modules() if isinstance(part, LoRALinear)}
    # Blocks are counted through the stages, which have 1, 2, 1 and 1.
    assert {*layers} == {
        f'block{stage}.0.{path}' for stage in (2, 4) for path in ('attn.q', 'mlp.fc2')
    }
    assert all(part.rank == 3 and part.scaling == 0.5 for part in layers.values())
    # Linear layers of positions are not the transformer's.
    inside = dict(type='mmlape.RelativePositionBias', layer_norm=True)
    model = build_vit(attention_position=inside, lora=dict(rank=2))
    assert not [each for each in trained(model) if '.position.' in each]


@pytest.mark.parametrize(
    ('options', 'error', 'words'),
    [
        (dict(rank=0), ValueError, 'lora rank must be'),
        (dict(rank='8'), TypeError, 'rank must be'),
        (dict(rnk=8), TypeError, "'rnk'.*did you mean 'rank'"),
        (dict(alpha=-1), ValueError, 'lora alpha must be'),
        (dict(dropout=1), ValueError, 'lora dropout must be'),
        (dict(layers=5), ValueError, 'lora layers must be'),
        (dict(targets=['qvk']), ValueError, "lora targets must be one of .*did you mean 'qkv'"),
        (dict(targets=[]), ValueError, 'lora needs linear layers'),
        (dict(train=['norms']), ValueError, "lora train must be one of .*'norms'"),
    ],
)
def test_wrong_options(options, error, words):
    with pytest.raises(error, match=words):
        build_vit(lora=options)


def test_it_freezes_alone():
    with pytest.raises(ValueError, match='frozen_stages must be -1 with it, got 2'):
        build_vit(lora=dict(rank=2), frozen_stages=2)


def test_running_statistics_stay():
    model = build_pvt(norm_cfg=dict(type='mmlape.TokenBN'), lora=dict(rank=2)).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(images(64, 64))
    assert before and all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    model = build_pvt(norm_cfg=dict(type='mmlape.TokenBN'), lora=dict(rank=2, train=['norm']))
    model.train()(images(64, 64))
    assert not all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize(
    'way', ['with_cp', pytest.param('compile_blocks', marks=pytest.mark.slow), 'optimize']
)
@pytest.mark.parametrize('dora', [False, True])
def test_ways_to_run(way, dora):
    """Recomputation, compiled blocks and layers for CPUs: gradients of LoRA stay the same."""
    torch.manual_seed(0)
    arch = dict(embed_dims=24, depth=1, num_heads=3, mlp_ratio=2)
    plain = change(build_vit(arch=arch, lora=dict(rank=2, dora=dora)))
    options = {} if way == 'optimize' else {way: True}
    model = build_vit(arch=arch, lora=dict(rank=2, dora=dora), **options)
    model.load_state_dict(plain.state_dict())
    model = optimize(model) if way == 'optimize' else model
    assert sum(type(part) is LoRALinear for part in model.modules()) == 4
    found = []
    for each in (plain, model):
        each.train()(images())[0].square().mean().backward()
        found.append([value.grad for value in each.parameters() if value.requires_grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('dora', [False, True])
def test_mixed_precision_starts_equal(dtype, dora):
    model = build_vit(lora=dict(rank=2, dora=dora))
    plain = merge_lora(copy.deepcopy(model)) if not dora else build_vit()
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.autocast('cpu', dtype):
        one, other = model.train()(images())[0], plain.train()(images())[0]
        assert one.dtype == other.dtype and torch.equal(one, other)
        change(model)(images())[0].float().square().mean().backward()
    assert all(model.get_parameter(name).grad.isfinite().all() for name in trained(model))


@pytest.mark.parametrize('kind', ['LayerDecay', 'MergedGroups'])
def test_optimizers(kind):
    """Depths are those of the layers; a step moves what LoRA trains and nothing else."""
    model = build_vit(lora=dict(rank=2, dora=True, train=['norm']))
    rates = dict(decay_rate=0.5) if kind == 'LayerDecay' else {}
    wrapper = build_optim_wrapper(
        model,
        dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=0.01, weight_decay=0.1),
            constructor=f'mmlape.{kind}OptimizerConstructor',
            paramwise_cfg=rates,
        ),
    )
    if rates:
        by_value = {
            value: (group['lr'], group['weight_decay'])
            for group in wrapper.param_groups
            for value in group['params']
        }
        layer = model.get_submodule('blocks.1.attn.qkv')
        rate = pytest.approx(0.01 * 0.5**3)  # of 4 layers, the second has depth 2 of 6
        assert by_value[layer.lora_A.weight] == by_value[layer.lora_B.weight] == (rate, 0.1)
        assert by_value[layer.lora_magnitude_vector] == (rate, 0.0)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    names = {value: name for name, value in model.named_parameters()}
    # MMEngine adds a group for its log.
    grouped = {
        names[value]
        for group in wrapper.param_groups
        for value in group['params']
        if value in names
    }
    assert {*trained(model)} == (grouped if rates else {*trained(model)} & grouped)
    for _ in range(2):
        wrapper.update_params(model.train()(images())[0].square().mean())
    moved = {n for n, value in model.named_parameters() if not torch.equal(value, before[n])}
    assert moved == {*trained(model)}


@pytest.mark.parametrize('dora', [False, True])
def test_weights_from_elsewhere(tmp_path, dora):
    """All of the plain network's are asked for; DoRA starts from their lengths."""
    plain = randomise(build_compact(joining=LAPE))
    torch.save(plain.state_dict(), tmp_path / 'plain.pth')
    init = dict(type='mmlape.Pretrained', source='mmlape', checkpoint=str(tmp_path / 'plain.pth'))
    model = build_compact(joining=LAPE, lora=dict(rank=2, dora=dora), init_cfg=init)
    model.init_weights()
    given = torch.rand(2, 3, 32, 40)
    assert all(map(torch.equal, flat(model.eval()(given)), flat(plain(given))))
    load = Pretrained('mmlape', checkpoint=str(tmp_path / 'plain.pth'), min_matched=1.0)
    report = load.load(model, load.read())
    assert report.matched_fraction == 1
    assert all('.lora_' in name for name in report.fresh)


def test_masks_of_sequences():
    """A sequence's padding stays without effect."""
    model = change(build_sequence(lora=dict(rank=2), norm_cfg=DTN)).eval()
    with torch.no_grad():
        found = flat(model(images(8, 13)))
    assert all(each.isfinite().all() for each in found)

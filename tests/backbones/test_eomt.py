"""EoMT against outputs of transformers, and against the paper's steps written out."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backbone_variants import component, randomise

from mmlape.checkpoints import convert_with_report
from mmlape.registry import MODELS

GOLDEN = Path(__file__).parents[1] / 'data' / 'eomt'
ARCH = dict(embed_dims=32, depth=4, num_heads=2, mlp_ratio=2)
TABLE = component('LearnedPosition', prefix_rows=False)
ROTARY = component('RotaryPosition', coordinates='centred', pairs='halves', temperature=100.0)
# The ViTs of make_golden.py: options, and the image for which a table is made.
VITS = {
    'patch-14': dict(patch_size=14, img_size=(28, 112), position=TABLE),
    'registers': dict(patch_size=16, img_size=(64, 144), position=TABLE, num_registers=2),
    'dinov3': dict(patch_size=16, position=False, attention_position=ROTARY, num_registers=4),
}


def build(vit=None, **options):
    vit = dict(dict(type='mmlape.VisionTransformer', arch=ARCH, layer_scale=True), **(vit or {}))
    if vit['arch'] is None:
        vit = dict(type=vit['type'])
    sizes = dict(num_classes=3, num_queries=5, num_blocks=2)
    return MODELS.build(component('EoMT', vit=vit, **{**sizes, **options}))


@cache
def golden(name):
    with np.load(GOLDEN / f'{name}.npz') as arrays:
        return {key: torch.from_numpy(value).float() for key, value in arrays.items()}


def weights_of(name):
    arrays = golden(name)
    return {k.removeprefix('weights.'): v for k, v in arrays.items() if k.startswith('weights.')}


def loaded(name, **options):
    """Our model with the weights of transformers, by the format table."""
    model = build(VITS[name], **options)
    state, report = convert_with_report(weights_of(name), 'eomt', model)
    report.demand(1.0)
    assert not report.fresh, report
    model.load_state_dict(state, strict=True)
    return model.eval()


def check(predictions, name, case):
    classes, masks = predictions
    count = 3 if case == 'masked' else 1
    assert len(classes) == len(masks) == count
    for number in range(count):
        for found, kind in ((classes, 'classes'), (masks, 'masks')):
            expected = golden(name)[f'{case}.{number}.{kind}']
            torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', VITS)
def test_outputs_are_those_of_transformers(name):
    """All predictions at probability 1, and the only one at probability 0."""
    model = loaded(name, with_cp=name == 'registers')
    image = golden(name)['image']
    # The file has the probability of its last case.
    assert model.attn_mask_probs.tolist() == [0, 0]
    check(model(image), name, 'annealed')
    model.set_mask_probs([1, 1])
    check(model(image), name, 'masked')


def attend(block, tokens, layout, rows, allowed):
    """A block of the ViT with masked attention, (B, N, N) of True for what is read."""
    normed = block.norm1(tokens, layout)
    if rows is not None:
        normed = torch.cat([normed[:, :5], normed[:, 5:] + rows], dim=1)
    heads = block.attn.qkv(normed).unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4)
    scores = heads[0] @ heads[1].transpose(2, 3) / 4
    weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    read = (weights @ heads[2]).transpose(1, 2).flatten(2)
    tokens = tokens + block.ls1(block.attn.proj(read))
    return tokens + block.ls2(block.mlp(block.norm2(tokens, layout)))


def by_hand(model, image, masked):
    """Predictions of a model of two last blocks and five queries, ``masked`` (2, B, 5): which queries are."""
    (stage,), vit = model.vit.stages(), model.vit
    tokens, layout, plan = stage.begin(image)
    tokens, layout = stage.run(tokens, layout, plan, 0, 2)
    if layout.num_prefix < stage.num_prefix:
        layout = layout.with_prefix(stage.num_prefix)
        class_token = vit.cls_token + plan.position.stem[:, :1]
        tokens = torch.cat([class_token.expand(len(image), -1, -1), tokens], dim=1)
    prefix, (height, width) = 5 + layout.num_prefix, layout.grid
    layout = layout.with_prefix(prefix)
    tokens = torch.cat([model.q.weight.expand(len(image), -1, -1), tokens], dim=1)
    outputs = []
    for number in range(3):
        normed = vit.norm(tokens, layout)
        maps = normed[:, prefix:].transpose(1, 2).unflatten(2, (height, width))
        for part in model.upscale:
            maps = F.gelu(F.conv_transpose2d(maps, part.conv1.weight, part.conv1.bias, stride=2))
            maps = F.conv2d(maps, part.conv2.weight, padding=1, groups=32).movedim(1, -1)
            maps = F.layer_norm(maps, (32,), part.norm.weight, part.norm.bias, 1e-6).movedim(-1, 1)
        logits = model.mask_head(normed[:, :5]) @ maps.flatten(2)
        outputs.append((model.class_head(normed[:, :5]), logits.unflatten(2, maps.shape[2:])))
        if number < 2:
            inside = F.interpolate(outputs[-1][1], (height, width), mode='bilinear').flatten(2) > 0
            allowed = torch.ones(len(image), *[prefix + height * width] * 2, dtype=torch.bool)
            allowed[:, :5, prefix:] = inside | ~masked[number][..., None]
            rows, block = plan.position.attention[2 + number], vit.blocks[2 + number]
            tokens = attend(block, tokens, layout, rows, allowed)
    return tuple(map(list, zip(*outputs, strict=True)))


SMALL = dict(patch_size=8, img_size=32)
LAPE, DTN = dict(joining=component('LaPE')), component('DTN')
NETWORKS = {
    'plain': SMALL,
    'lape': dict(SMALL, **LAPE, num_registers=2),
    'lape-without-prefix': dict(SMALL, **LAPE, with_cls_token=False),
    'dtn': dict(SMALL, norm_cfg=dict(DTN, num_heads=2), with_cls_token=False),
    # The class token enters with the queries; the third block has DTN, which normalises both apart.
    'dtn-later': dict(SMALL, norm_cfg=dict(DTN, num_heads=2, layers=3)),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_outputs_are_the_papers_steps(name):
    """In training, with half of the queries masked; and the gradients of all parameters."""
    model = randomise(build(NETWORKS[name]), 0.15).train()
    image = torch.randn(2, 3, 32, 56, generator=torch.Generator().manual_seed(0))
    model.set_mask_probs([1, 0.5])
    torch.manual_seed(3)
    found = model(image)
    torch.manual_seed(3)
    masked = torch.stack([torch.ones(2, 5, dtype=torch.bool), torch.rand(2, 5) <= 0.5])
    assert 0 < masked[1].sum() < 10
    expected = by_hand(model, image, masked)
    parameters = dict(model.named_parameters())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    gradients = []
    for predictions in (found, expected):
        loss = sum(each.square().mean() for kind in predictions for each in kind)
        gradients.append(torch.autograd.grad(loss, [*parameters.values()]))
    for parameter, ours, theirs in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=parameter)


@pytest.mark.parametrize('patch', [8, 14, 16])
def test_any_size(patch):
    """Masks cover the image, not what it is padded with."""
    model = randomise(build(dict(patch_size=patch, img_size=4 * patch)), 0.1)
    doublings = 2 if patch == 16 else 1
    for size in ((1, 1), (37, 64), (64, 23)):
        with torch.no_grad():
            classes, masks = model(torch.randn(1, 3, *size))
        assert len(classes) == 3 and classes[0].shape == (1, 5, 4)
        sides = [-(-side * 2**doublings // patch) for side in size]
        assert masks[-1].shape == (1, 5, *sides) and masks[-1].isfinite().all()


def test_masks_are_enlarged_for_the_longer_side_of_a_patch():
    sizes = dict(arch=dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2), img_size=32)
    assert len(build(dict(sizes, patch_size=(8, 32))).upscale) == 3


def test_empty_masks_leave_numbers():
    """A query outside of whose mask everything lies reads prefix tokens and queries."""
    model = randomise(build(SMALL), 0.1).train()
    with torch.no_grad():
        model.mask_head[4].weight.zero_()
        model.mask_head[4].bias.zero_()
    for outputs in model(torch.randn(2, 3, 32, 32)):
        assert all(output.isfinite().all() for output in outputs)


POSITIONS = (
    'RelativePositionBias',
    'SharedRelativePositionBias',
    'MixedRotaryPosition',
    'RotaryPosition',
)


@pytest.mark.parametrize('position', POSITIONS)
def test_masks_join_any_position_inside_the_attention(position):
    """A patch that a query must not read does not change it, at any position; without masks it does."""
    vit = dict(SMALL, attention_position=component(position), position=False)
    model = randomise(build(vit, num_blocks=1), 0.3)
    block, seen = model.vit.blocks[3], []
    block.register_forward_pre_hook(lambda _, args: seen.append(args))
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
        tokens, layout, attended, own = seen[0]
        assert own.mask.shape == (1, 1, 22, 22)
        mask = torch.zeros(1, 1, 22, 22)
        mask[..., 0, -7:] = -torch.inf
        changed = torch.cat([tokens[:, :-7], tokens[:, -7:] + torch.randn(1, 7, 32)], dim=1)
        for given, differs in ((mask, False), (None, True)):
            plan = own._replace(mask=given)
            results = [block(each, layout, attended, plan)[0] for each in (tokens, changed)]
            assert torch.allclose(results[0][0], results[1][0]) != differs
            assert not torch.allclose(results[0][1], results[1][1])


def test_an_annealed_model_is_a_plain_vit():
    """In evaluation: no mask, one prediction. Exported: tests/export/test_files.py."""
    model = randomise(build(dict(SMALL, **LAPE)), 0.1)
    model.set_mask_probs([0, 0])
    calls = []
    for block in model.vit.blocks:
        block.register_forward_pre_hook(lambda _, args: calls.append(args[3:]))
    image = torch.randn(2, 3, 32, 40)
    with torch.no_grad():
        classes, masks = model(image)
    assert calls == [()] * 4 and len(classes) == len(masks) == 1
    # In training every block is followed by a prediction still.
    assert len(model.train()(image)[0]) == 3


def test_probabilities_are_saved():
    """And read back, by copies too; a deployed model has none."""
    model, other = build(SMALL), build(SMALL)
    model.set_mask_probs([0, 0.25])
    other.load_state_dict(model.state_dict())
    assert other._probs == [0, 0.25] == other.attn_mask_probs.tolist()
    other.switch_to_deploy()
    other.load_state_dict(model.state_dict())
    assert other._probs == [0, 0] == other.attn_mask_probs.tolist()


@pytest.mark.parametrize(
    ('vit', 'options', 'error', 'message'),
    [
        (dict(final_norm=False), {}, ValueError, 'final_norm'),
        (dict(window_size=[None, None, None, 2]), {}, ValueError, 'window_size'),
        (dict(attention=component('BigBirdAttention', block_size=4)), {}, ValueError, 'BigBird'),
        ({}, dict(num_blocks=5), ValueError, 'num_blocks must be 1 to 4, got 5'),
        ({}, dict(num_queries=0), ValueError, 'num_queries'),
        ({}, dict(num_classes=1.5), TypeError, 'num_classes'),
        (dict(type='mmlape.PyramidVisionTransformer', arch=None), {}, TypeError, 'one stage'),
    ],
)
def test_refuses(vit, options, error, message):
    with pytest.raises(error, match=message):
        build(vit, **options)


@pytest.mark.parametrize('probs', [[1], [0, 2], [0, -1]])
def test_refuses_probabilities(probs):
    with pytest.raises(ValueError, match='probs'):
        build().set_mask_probs(probs)


def published(name):
    """The released names for the weights of transformers: heads, and around a ViT of timm's or of DINOv3's."""
    heads = {
        'query': 'q', 'class_predictor': 'class_head', 'mask_head.fc1': 'mask_head.0', 'mask_head.fc2': 'mask_head.2',
        'mask_head.fc3': 'mask_head.4', 'upscale_block.block': 'upscale', 'layernorm2d': 'norm',
    }  # fmt: skip
    encoder = {
        'layers.': 'blocks.', 'layernorm.': 'norm.', 'embeddings.': 'patch_embed.',
    }  # fmt: skip
    found = {}
    for key, value in weights_of(name).items():
        if key.startswith(('query', 'class_', 'mask_', 'upscale')):
            for theirs, released in heads.items():
                key = key.replace(theirs, released)
        elif key.startswith(tuple(encoder)):
            theirs = next(theirs for theirs in encoder if key.startswith(theirs))
            key = encoder[theirs] + key.removeprefix(theirs)
            key = f'encoder.backbone.{key}'
        found[key if key.startswith('criterion') else f'network.{key}'] = value
    pixels = dict.fromkeys(('mean', 'std'), torch.ones(1, 3, 1, 1))
    return found | {f'network.encoder.pixel_{key}': value for key, value in pixels.items()}


def test_published_files_with_timms_names():
    """A file of the published code around a ViT of timm's: its entries are ours after their prefix."""
    model = randomise(loaded('registers'), 0.2)
    model.set_mask_probs([0.5, 0])
    file = {}
    for key, value in model.state_dict().items():
        inside = key.startswith('vit.')
        key = f'network.encoder.backbone.{key.removeprefix("vit.")}' if inside else f'network.{key}'
        file[key] = value
    file['network.encoder.pixel_mean'] = torch.zeros(1, 3, 1, 1)
    file['criterion.empty_weight'] = torch.ones(4)
    other = build(VITS['registers'])
    state, report = convert_with_report(dict(state_dict=file), 'eomt', other)
    report.demand(1.0)
    assert set(report.left_out) == {'encoder.pixel_mean', 'criterion.empty_weight'}
    other.load_state_dict(state)
    assert other._probs == [0.5, 0]
    image = golden('registers')['image']
    torch.manual_seed(0)
    expected = model(image)
    torch.manual_seed(0)
    torch.testing.assert_close(other.eval()(image), expected, rtol=0, atol=0)


def test_published_differences_to_dinov3():
    """The ViT holds DINOv3, the file what training changed; heads are values."""
    whole = weights_of('dinov3')
    base = {name: (0.5 * value).clone() for name, value in whole.items()}
    file = published('dinov3')
    for name, value in file.items():
        if '.encoder.backbone.' in name:
            file[name] = 0.5 * value
    model = build(VITS['dinov3'])
    state, _ = convert_with_report(base, 'eomt', model)
    model.load_state_dict(state)
    state, report = convert_with_report(file, 'eomt_delta', model)
    report.demand(1.0)
    assert 'a difference, added' in str(report)
    model.load_state_dict(state)
    check(model.eval()(golden('dinov3')['image']), 'dinov3', 'annealed')


def test_weights_of_a_plain_vit_go_into_the_vit():
    model, vit = (
        build(SMALL),
        MODELS.build(dict(SMALL, type='mmlape.VisionTransformer', arch=ARCH, layer_scale=True)),
    )
    state, report = convert_with_report(randomise(vit).state_dict(), 'timm', model)
    report.demand(1.0)
    assert report.part == 'vit.'
    torch.testing.assert_close(
        state['vit.blocks.3.attn.qkv.weight'], vit.blocks[3].attn.qkv.weight.data
    )


def test_refuses_files_of_other_networks():
    for name, message in (('dinov3', 'position'), ('registers', 'no place for')):
        other = build(dict(SMALL, num_registers=0))
        with pytest.raises(ValueError, match=message):
            convert_with_report(weights_of(name), 'eomt', other)[1].demand(0.95)
    with pytest.raises(ValueError, match='describes a EoMT'):
        convert_with_report(weights_of('dinov3'), 'eomt', build(SMALL).vit)

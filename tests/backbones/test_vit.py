"""The plain ViT: parity, parameter counts, options, sizes, errors."""

import pytest
import torch
from backbone_variants import build_vit
from torch import nn

from mmlape.checkpoints import convert_with_report
from mmlape.registry import MODELS

POSITIONS = {
    'learnable': dict(position=dict(type='mmlape.LearnedPosition')),
    '1D_sin': dict(position=dict(type='mmlape.SinusoidalPosition', axes=1)),
    '2D_sin': dict(position=dict(type='mmlape.SinusoidalPosition', axes=2)),
    '2D_RPE': dict(
        position=dict(type='mmlape.NoPosition'),
        attention_position=dict(type='mmlape.RelativePositionBias'),
    ),
}
JOININGS = {'basic': 'DefaultJoining', 'share': 'SharedJoining', 'unshare': 'UnsharedJoining'}


def build_golden(meta):
    options = dict(POSITIONS[meta['position']])
    if meta['joining'] == 'LaPE':
        options['joining'] = dict(type='mmlape.LaPE')
    elif meta['joining'] == 'LN':
        options['attention_position'] = dict(options['attention_position'], layer_norm=True)
    else:
        options['joining'] = dict(type=f'mmlape.{JOININGS[meta["joining"]]}')
    arch = dict(embed_dims='embed_dim', depth='depth', num_heads='num_heads', mlp_ratio='mlp_ratio')
    return MODELS.build(
        dict(
            type='mmlape.VisionTransformer',
            arch={key: meta[theirs] for key, theirs in arch.items()},
            img_size=meta['img_size'],
            patch_size=meta['patch_size'],
            out_type='raw',
            **options,
        )
    )


@pytest.mark.parametrize(
    'name',
    [
        'default_learnable',
        'default_sin1d',
        'default_sin2d',
        'shared_learnable',
        'unshared_learnable',
        'lape_learnable',
        'lape_sin1d',
        'lape_sin2d',
        'relative_default',
        'relative_lape',
    ],
)
def test_parity_with_published_lape(golden, name):
    """ICCV 2023: outputs within 1e-4, gradients within 1e-3 relative."""
    meta, state, arrays = golden(f'lape_vit_{name}')
    model = build_golden(meta)
    converted, report = convert_with_report(state, 'lape', model)
    assert report.matched_fraction == 1
    assert all(name == 'pos_embed' or 'index' in name for name in report.unused)
    model.load_state_dict(converted, strict=True)
    image = arrays['input'].requires_grad_()
    (tokens,) = model(image)
    assert torch.allclose(tokens, arrays['tokens'], atol=1e-4, rtol=0)
    (tokens * arrays['cotangent']).sum().backward()
    for key in (key for key in arrays if key.startswith('grad/')):
        name = key.removeprefix('grad/')
        if name == 'input':
            grad = image.grad
        elif name == 'pos_embed':
            grad = model.position.embedding.pos_embed.grad
        else:
            grad = model.position.joining.norms[int(name.split('.')[1])].weight.grad
        assert (grad - arrays[key]).abs().max() < 1e-3 * arrays[key].abs().max(), key


@pytest.mark.parametrize(
    ('arch', 'default', 'lape'),
    [
        ('deit-tiny', 5.717, 5.722),
        ('deit-small', 22.051, 22.060),
        ('deit-base', 86.568, 86.586),
    ],
)
def test_parameter_counts(arch, default, lape):
    """ICCV 2023, Table 5, with a linear head of 1000 classes; LaPE adds exactly 2 x depth x C."""
    counts = {}
    for name in ('DefaultJoining', 'LaPE'):
        with torch.device('meta'):
            model = build_vit(arch=arch, img_size=224, joining=dict(type=f'mmlape.{name}'))
            head = nn.Linear(model.embed_dims, 1000)
        counts[name] = sum(p.numel() for part in (model, head) for p in part.parameters())
    assert round(counts['DefaultJoining'] / 1e6, 3) == default
    assert round(counts['LaPE'] / 1e6, 3) == lape
    assert counts['LaPE'] - counts['DefaultJoining'] == 2 * model.depth * model.embed_dims


@pytest.mark.parametrize('size', [(1, 1), (16, 16), (33, 70), (64, 64), (15, 200)])
@pytest.mark.parametrize('window_size', [None, 3])
def test_any_image_size(size, window_size):
    model = build_vit(window_size=window_size).eval()
    (maps,) = model(torch.randn(1, 3, *size))
    assert maps.shape == (1, 24, -(-size[0] // 16), -(-size[1] // 16))


@pytest.mark.parametrize(
    ('joining', 'thousands'),
    [('Default', 38), ('Shared', 38), ('Unshared', 454), ('LaPE', 42), ('LaPE sharing', 42)],
)
def test_position_parameter_counts(joining, thousands):
    """ICCV 2023, Table 7: DeiT-Ti at 224, a learned embedding."""
    types = {
        'LaPE': dict(type='mmlape.LaPE'),
        'LaPE sharing': dict(type='mmlape.LaPE', progressive=False),
    }
    config = types.get(joining, dict(type=f'mmlape.{joining}Joining'))
    model = build_vit(arch='deit-tiny', img_size=224, joining=config)
    parts = (model.position,)
    assert round(sum(p.numel() for part in parts for p in part.parameters()) / 1e3) == thousands


def test_layers_after_the_last_output_are_not_built():
    """They would get no gradient, which DistributedDataParallel refuses."""
    model = build_vit(out_indices=1, joining=dict(type='mmlape.LaPE'), drop_path_rate=0.3)
    assert len(model.blocks) == len(model.position.joining.norms) == 2 and model.norm is None
    assert model.blocks[1].drop_path.drop_prob == pytest.approx(0.1)


@pytest.mark.parametrize(
    ('frozen_stages', 'trained'),
    [
        (-1, {'patch_embed', 'cls_token', 'position', 'blocks', 'norm'}),
        (0, {'position', 'blocks', 'norm'}),
        (2, {'position', 'blocks', 'norm'}),
        (4, set()),
    ],
)
def test_frozen_stages(frozen_stages, trained):
    model = build_vit(
        frozen_stages=frozen_stages, joining=dict(type='mmlape.LaPE'), drop_path_rate=0.5
    ).train()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert {name.split('.')[0] for name in names} == trained
    for layer, block in enumerate(model.blocks):
        assert block.training == (layer >= frozen_stages)
        assert block.attn.qkv.weight.requires_grad == (layer >= frozen_stages)
        assert model.position.joining.norms[layer].weight.requires_grad == (layer >= frozen_stages)
    assert model.train(False).training is False


def test_recomputation_saves_memory():
    def saved_bytes(**options):
        sizes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.numel() * t.element_size()) or t, lambda t: t
        )
        model = build_vit(**options)
        with hooks:
            model(torch.randn(1, 3, 128, 128))
        return sum(sizes)

    assert saved_bytes(with_cp=True) < 0.5 * saved_bytes()


def test_names_hold_inside_a_parent_and_through_mmengine():
    from mmengine.runner.checkpoint import load_state_dict

    parents = [nn.Sequential(build_vit(), nn.Linear(2, 2)) for _ in range(2)]
    state = parents[0].state_dict()
    assert '0.pos_embed' in state and '0.position.embedding.pos_embed' not in state
    load_state_dict(parents[1], state, strict=True)
    assert torch.equal(
        parents[0][0].position.embedding.pos_embed, parents[1][0].position.embedding.pos_embed
    )


def test_float64_gradcheck():
    arch = dict(embed_dims=4, depth=2, num_heads=2, mlp_ratio=1)
    model = build_vit(arch=arch, patch_size=2, img_size=4, joining=dict(type='mmlape.LaPE'))
    image = torch.randn(1, 3, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model.double(), (image,))

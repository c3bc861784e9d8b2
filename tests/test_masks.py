"""What pools, mixes or normalises tokens reads the cells that a mask shows, and nothing of those that it hides."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from backbone_variants import ids_of_images
from registered import BACKBONES, component
from torch import nn

from mmlape.layers import TokenEmbed
from mmlape.layout import Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

SIZE = (40, 64)  # of images: no grid is square


def randomised(module, std=0.3):
    """Initial values hide what is read: norms scale by 1 or 0, biases are 0."""
    for name, parameter in module.named_parameters():
        if (
            '.positions.' not in f'.{name}'
        ):  # a map of DTN that looks at nothing but padding sees all tokens
            nn.init.normal_(parameter, std=std)
    return module


def random_mask(batch, cells):
    """More than half of the cells of each image, in other places and other numbers."""
    mask = torch.rand(batch, cells) < torch.linspace(0.5, 0.9, batch)[:, None]
    mask[:, cells // 2] = True
    if cells > 1:
        mask[:, -1] = False
    return mask


def stages_of(model, images):
    """Every stage with what enters its first block: tokens, their layout, and the plan."""
    network = getattr(model, 'vit', model)
    if isinstance(network.stages()[0].embed, TokenEmbed):
        (images,) = ids_of_images(None, (images,))
    maps, position = images, None
    for stage in network.stages():
        tokens, layout, plan = stage.begin(maps, position)
        yield network, stage, tokens, layout, plan
        tokens, layout = stage.run(tokens, layout, plan)
        maps = layout.to_maps(stage.end(tokens, layout))
        position = stage.carried(plan, layout)


def outcome(network, stage, tokens, layout, plan):
    """Tokens at the end of a stage, what is pooled of them, and statistics that training has changed."""
    torch.manual_seed(0)
    tokens, layout = stage.run(tokens, layout, plan)
    tokens = stage.end(tokens, layout)
    if network.norm is not None and stage.name == network.stages()[-1].name:
        tokens = network.norm(tokens, layout)
    visible = tokens[layout.token_mask()]
    if network.pool is not None:
        visible = (visible, network.pool(tokens, layout))
    return visible, {name: value.clone() for name, value in network.named_buffers()}


@pytest.mark.parametrize('name', BACKBONES)
def test_no_registered_part_reads_hidden_cells(name):
    """Neither in training nor, with the statistics of that pass, in evaluation."""
    model = randomised(BACKBONES[name]())
    for training in (True, False):
        images = torch.randn(3, 3, *SIZE)
        for network, stage, tokens, layout, plan in stages_of(model.train(training), images):
            layout = replace(layout, mask=random_mask(3, layout.num_cells))
            hidden = ~layout.token_mask()
            other = tokens.detach().clone()
            other[hidden] = 20 * torch.randn_like(other[hidden]) - 7
            if getattr(stage.blocks[0].attn, 'reduces', False):
                with pytest.raises(ValueError, match=r'spatial reduction takes no .* mask'):
                    outcome(network, stage, tokens, layout, plan)
                continue
            before = {name: value.clone() for name, value in network.named_buffers()}
            results = []
            for given in (tokens, other):
                for name, value in network.named_buffers():
                    value.copy_(before[name])
                results.append(outcome(network, stage, given, layout, plan))
            torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


PARTS = {
    **{
        name: (lambda name=name, more=more: build_token_norm(component(name, **more), 8))
        for name, more in {
            'LN': {}, 'TokenRMS': {}, 'DTN': dict(num_heads=2), 'PowerNorm': dict(warmup_iters=1),
            'ScaleNorm': {}, 'SwitchableNorm': dict(use_bn=True), 'TokenBN': {},
            'TokenGN': dict(num_groups=2), 'TokenIN': {}, 'DyT': {}, 'Derf': {},
        }.items()
    },
    'DTN pooled': lambda: build_token_norm(component('DTN', num_heads=2, pool=2), 8),
    **{
        f'{name} {more}': (lambda name=name, more=more: MODELS.build(component(name, embed_dims=8, **more)))
        for name, more in [
            ('Attention', dict(num_heads=2)),
            ('Attention', dict(num_heads=2, inner_norm=component('TokenIN'))),
            ('WideValueAttention', dict(num_heads=2)),
            ('SpatialReductionAttention', dict(num_heads=2)),
            ('DifferentialAttention', dict(num_heads=2)),
            ('DifferentialAttention', dict(num_heads=2, window_size=2)),
            ('BigBirdAttention', dict(num_heads=2, block_size=2, num_random=1)),
            ('LSHAttention', dict(num_heads=2, chunk_size=4, num_buckets=4, num_rounds=2)),
            ('Mlp', dict(hidden_dims=12, norm_cfg=component('TokenIN'))),
            ('SwiGLU', dict(hidden_dims=12, norm_cfg=component('TokenGN', num_groups=2))),
            ('NormedMlp', dict(hidden_dims=12)),
            ('ConvMlp', dict(hidden_dims=12)),
            ('LocallyEnhancedMlp', dict(hidden_dims=12)),
            ('SequencePooling', dict()),
            ('AttentionPooling', dict(num_heads=2)),
        ]
    },
}  # fmt: skip
WITHOUT_PREFIX = ('ConvMlp', 'SequencePooling')


WINDOWED = {
    'Attention': dict(window_size=(2, 3)),
    'ShiftedWindowAttention': dict(window_size=(2, 3), shift=1),
}


def built(name):
    if name in PARTS:
        return PARTS[name]()
    return MODELS.build(component(name, embed_dims=8, num_heads=2, **WINDOWED[name]))


@pytest.mark.parametrize('training', [False, True], ids=['eval', 'train'])
@pytest.mark.parametrize('name', PARTS)
def test_hidden_rows_are_as_if_cut_off(name, training):
    """Not read, and not counted either: what a mean divides by, how far a softmax spreads, where a grid ends."""
    part = randomised(PARTS[name]()).train(training).double()
    for prefix in (0,) if name.startswith(WITHOUT_PREFIX) else (0, 1):
        shown = Layout((4, 5), prefix)
        masked = Layout((7, 5), prefix, torch.arange(35).expand(2, -1) < 20)
        twins = deepcopy(part), deepcopy(part)
        for _step in range(3):  # past the warm-up of PowerNorm
            tokens, results = torch.randn(2, masked.num_tokens, 8).double().requires_grad_(), []
            for twin, where in zip(twins, (masked, shown), strict=True):
                out = twin(tokens[:, : where.num_tokens], where)
                out = out[:, : shown.num_tokens] if out.ndim == 3 else out
                leaves = [tokens, *twin.parameters()]
                gradients = torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True)
                results.append((out, gradients, dict(twin.named_buffers())))
            # LSH attention has finite scores, of -1e9, for what it does not read: they cost digits.
            accepted = dict(atol=1e-5, rtol=1e-4) if name.startswith('LSH') else {}
            torch.testing.assert_close(*results, **accepted)


@pytest.mark.parametrize('count', [0, 1])
@pytest.mark.parametrize('name', [*PARTS, *WINDOWED])
def test_images_of_padding_alone_are_finite(name, count):
    """And those with a single token that is there: outputs, gradients and running statistics."""
    part = built(name)
    tokens = torch.randn(2, 35, 8, requires_grad=True)
    out = part(tokens, Layout((7, 5), mask=torch.arange(35).expand(2, -1) < count))
    out.square().sum().backward()
    assert out.isfinite().all() and tokens.grad.isfinite().all()
    assert all(value.isfinite().all() for value in part.state_dict().values())


@pytest.mark.parametrize(
    'out_type',
    ['avg', component('SequencePooling'), component('AttentionPooling', num_heads=4)],
    ids=str,
)
def test_what_padding_is_embedded_as_does_not_reach_a_vector(out_type):
    build = BACKBONES['TokenEmbed']
    model = randomised(build(out_type=out_type)).eval()
    ids = torch.randn(3, 3, 9, 12)
    before = model(ids)[0]
    model.patch_embed.embedding.weight.data[0] += 5
    torch.testing.assert_close(model(ids)[0], before, atol=1e-5, rtol=1e-4)
    model.patch_embed.embedding.weight.data[1] += 5
    assert not torch.allclose(model(ids)[0], before, atol=1e-2)


@pytest.mark.parametrize('name', WINDOWED)
def test_what_windows_are_padded_with_counts_as_visible(name):
    """And so do prefix tokens: a mask that shows all cells changes nothing."""
    part = randomised(built(name)).eval()
    prefix = 0 if name.startswith('Shifted') else 2
    tokens, full = torch.randn(2, prefix + 35, 8), torch.ones(2, 35, dtype=torch.bool)
    found, expected = (part(tokens, Layout((5, 7), prefix, mask)) for mask in (full, None))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)

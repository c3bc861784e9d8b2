"""Our deformable attention in upstream's heads: MMCV's results, in every form, and models that stay the same."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.structures import DetDataSample
from mmengine.hub import get_config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData
from pixel_decoders import FFN, pixel_decoder
from torch import nn
from torch.utils._pytree import tree_leaves

from mmlape.cpu import optimize, replace
from mmlape.layers import HeadDeformableAttention, deformable_heads, replace_deformable_attention
from mmlape.training import DeformableAttentionHook

SHAPES = ((5, 7), (3, 2), (1, 1))
VALUES = 35 + 6 + 1
FORMS = ('pytorch', 'gathers', 'operator')

pytestmark = pytest.mark.usefixtures('switched_on')


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """How a CPU samples; gathers as where the values of tensors cannot be read."""
    if request.param == 'gathers':
        monkeypatch.setattr(deformable_heads, '_UNREAD', ('cpu',))
    return request.param


def randomised(module, std=0.5):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def pair(form='pytorch', **options):
    """MMCV's module, and ours with equal weights."""
    options = dict(embed_dims=16, num_heads=2, num_levels=3, num_points=4, dropout=0.0) | options
    theirs = randomised(MultiScaleDeformableAttention(**options))
    ours = replace_deformable_attention(copy.deepcopy(theirs))
    assert type(ours) is HeadDeformableAttention
    if form == 'operator':
        optimize(ours, keep_memory=False)
        assert type(ours.sampling) is replace.DeformableSampling
    return ours, theirs


def inputs(batch=3, queries=9, coordinates=2, spread=1.0, mask=False, shapes=SHAPES, first=False):
    """Arguments of a call; a spread above 1 puts references outside of the maps."""
    sizes = torch.tensor(shapes)
    starts = sizes.prod(dim=1).cumsum(0).roll(1)
    starts[0] = 0
    references = torch.rand(batch, queries, len(shapes), coordinates)
    references[..., :2] = (references[..., :2] - 0.5) * spread + 0.5
    tokens = dict(query=queries, query_pos=queries, value=int(sizes.prod(dim=1).sum()))
    tokens = {
        name: torch.randn((batch, count, 16) if first else (count, batch, 16))
        for name, count in tokens.items()
    }
    leaves = {**tokens, 'reference_points': references}
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()} | dict(
        spatial_shapes=sizes,
        level_start_index=starts,
        key_padding_mask=torch.rand(batch, tokens['value'].shape[first]) < 0.3 if mask else None,
    )


def result(module, given):
    """Output and gradients of inputs and parameters."""
    out = module(**given)
    leaves = [each for each in given.values() if each is not None and each.requires_grad]
    leaves += module.parameters()
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).cos()
    return out.detach(), torch.autograd.grad((out * weights).sum(), leaves)


CASES = {
    'self-attention': dict(coordinates=2),
    'one image': dict(batch=1),
    'boxes': dict(coordinates=4),
    'boxes and padding': dict(coordinates=4, mask=True),
    'batch first': dict(first=True, mask=True),
    'outside': dict(spread=4.0),
    'far outside': dict(spread=1e6),
    'no queries': dict(queries=0),
    'one query': dict(queries=1, batch=1, coordinates=4),
    'one level': dict(shapes=((4, 3),)),
}


@pytest.mark.parametrize('name', CASES)
def test_results_and_gradients_are_mmcvs(name, form):
    case = CASES[name]
    options = dict(batch_first=case.get('first', False), num_levels=len(case.get('shapes', SHAPES)))
    # The offsets of boxes are divided by the number of points.
    ours, theirs = pair(form, num_points=3 if name == 'boxes' else 4, **options)
    given = inputs(**case)
    (out, gradients), (expected, wanted) = result(ours, given), result(theirs, given)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    for found, want in zip(gradients, wanted, strict=True):
        largest = max([1.0, *want.abs().flatten().tolist()])
        torch.testing.assert_close(found, want, atol=1e-3 * largest, rtol=0)


@pytest.mark.parametrize(
    'options',
    [
        dict(value_proj_ratio=0.5),
        dict(im2col_step=2),  # 3 images are not a multiple of it
        dict(dropout=0.5),
        dict(num_points=1, num_heads=1),
    ],
    ids=str,
)
def test_options(options, form):
    ours, theirs = pair(form, **options)
    given = inputs()
    results = []
    for module in (ours, theirs):
        torch.manual_seed(3)  # of the dropout
        results.append(module.train()(**given))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_arguments_that_may_be_left_out(form):
    """Queries are their own values, and what is added; starts of levels follow from the shapes."""
    ours, theirs = pair(form)
    given = inputs(queries=VALUES)
    short = dict(query=given['query'], reference_points=given['reference_points'])
    shapes, starts = given['spatial_shapes'], given['level_start_index']
    expected = theirs(**short, spatial_shapes=shapes, level_start_index=starts)
    torch.testing.assert_close(ours(**short, spatial_shapes=shapes), expected, atol=1e-4, rtol=1e-4)
    zeros = torch.zeros_like(given['query'])
    for name in ('identity', 'residual'):
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)
            out = ours(**short, spatial_shapes=shapes, **{name: zeros})
        torch.testing.assert_close(out, expected - given['query'], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast(dtype, form):
    """Locations and sampling are float32: the result is no further from float32's than MMCV's."""
    ours, theirs = pair(form)
    given = inputs(spread=1.5, mask=True)
    exact = theirs(**given)
    with torch.autocast('cpu', dtype=dtype):
        found, other = (module(**given) for module in (ours, theirs))
    assert found.dtype == other.dtype
    error, theirs_error = ((each - exact).abs().mean() for each in (found, other))
    assert error <= 1.1 * theirs_error
    assert error < 0.02 * exact.abs().max()


def test_float64(form):
    ours, theirs = (module.double() for module in pair(form))
    given = inputs(coordinates=4)
    given = {
        name: each.double() if each is not None and each.is_floating_point() else each
        for name, each in given.items()
    }
    torch.testing.assert_close(ours(**given), theirs(**given), atol=1e-12, rtol=1e-12)


def test_wrong_inputs_are_refused(form):
    ours, _ = pair(form)
    with pytest.raises(ValueError, match='must have 2 or 4 coordinates, got 3'):
        ours(**inputs(coordinates=3))
    with pytest.raises(ValueError, match='spatial_shapes must be given, got None'):
        ours(**inputs() | dict(spatial_shapes=None))


def test_values_that_do_not_fit_are_refused():
    ours, _ = pair('operator')
    given = inputs()
    given['spatial_shapes'] = torch.tensor(((5, 7), (3, 2), (1, 2)))
    with pytest.raises(ValueError, match='do not fit: got'):
        ours(**given)


@pytest.mark.parametrize(('coordinates', 'strict'), [(2, True), (4, False)])
def test_exported_graphs_serve_maps_of_other_sizes(coordinates, strict):
    """As tensors say them; others who run a graph need no mmlape."""
    ours, theirs = pair('operator')
    given = inputs(coordinates=coordinates, mask=True)
    program = torch.export.export(ours.eval(), (), given, strict=strict)
    assert 'mmlape.' not in str(program.graph_module.code)
    other = inputs(coordinates=coordinates, mask=True, shapes=((4, 6), (2, 8), (1, 2)))
    for each in (given, other):
        found, expected = program.module()(**each), theirs(**each)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_compiles_as_one_graph():
    ours, theirs = pair('operator')
    given = inputs()
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(**given), theirs(**given), atol=1e-4, rtol=1e-4)
    torch._dynamo.reset()


def test_what_is_left_alone():
    hooked, own = MultiScaleDeformableAttention(16, 2), MultiScaleDeformableAttention(16, 2)
    hooked.register_forward_hook(lambda *_: None)
    own.forward = lambda x: x
    plain = MultiScaleDeformableAttention(16, 2)
    model = nn.ModuleDict(dict(hooked=hooked, own=own, a=plain, b=nn.Sequential(plain)))
    weights = dict(model.state_dict(keep_vars=True))
    assert replace_deformable_attention(model) is model
    assert model['hooked'] is hooked and model['own'] is own
    assert type(model['a']) is HeadDeformableAttention and model['a'] is model['b'][0]
    assert isinstance(
        model['a'], MultiScaleDeformableAttention
    )  # upstream's heads initialise these
    assert all(each is weights[name] for name, each in model.state_dict(keep_vars=True).items())
    assert list(model.state_dict()) == list(weights)
    assert 'sampling' not in plain._modules


def test_the_hook():
    model = nn.Sequential(MultiScaleDeformableAttention(16, 2))
    DeformableAttentionHook().before_run(SimpleNamespace(model=model))
    assert type(model[0]) is HeadDeformableAttention


DIMS = 256  # MMDetection 3.3 encodes boxes of DINO for no other


def detector(name):
    """A small model of MMDetection's config."""
    config = get_config(f'mmdet::{name}.py')
    layers = dict(
        self_attn_cfg=dict(embed_dims=DIMS, dropout=0.0), ffn_cfg=dict(FFN, embed_dims=DIMS)
    )
    cross = dict(cross_attn_cfg=dict(embed_dims=DIMS, dropout=0.0))
    small = dict(
        num_queries=20,
        backbone=dict(depth=18, base_channels=8, frozen_stages=-1, init_cfg=None),
        neck=dict(in_channels=[16, 32, 64], out_channels=DIMS),
        encoder=dict(num_layers=1, num_cp=-1, layer_cfg=layers),
        decoder=dict(num_layers=2, layer_cfg=layers | cross),
        positional_encoding=dict(num_feats=DIMS // 2),
        bbox_head=dict(embed_dims=DIMS, num_classes=3),
    )
    if 'dn_cfg' in config.model:
        small['dn_cfg'] = dict(group_cfg=dict(num_dn_queries=6))
    config.merge_from_dict(dict(model=small))
    return MODELS.build(config.model)


def losses(model):
    """Of two images of unequal sizes, so that one is padded."""
    samples = []
    for height, width in ((64, 96), (40, 64)):
        boxes = torch.tensor([[3.0, 5.0, 33.0, 30.0], [20.0, 8.0, 60.0, 39.0]])
        sample = DetDataSample(
            metainfo=dict(img_shape=(height, width), batch_input_shape=(64, 96), scale_factor=1.0)
        )
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([0, 2]))
        samples.append(sample)
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)  # of denoising queries
    return model.loss(images, samples)


def maps(model):
    generator = torch.Generator().manual_seed(1)
    shapes = (18, 22), (9, 11), (5, 6), (3, 3)
    return model([torch.randn(2, 8, *shape, generator=generator) for shape in shapes])


MODELS_AND_RUNS = {
    'pixel decoder': (pixel_decoder, maps, 2),
    'DINO': (lambda: detector('dino/dino-4scale_r50_8xb2-12e_coco'), losses, 3),
}  # fmt: skip


def of_upstream(name):
    """A model with random weights, what runs it, and how many attentions it has."""
    build, run, count = MODELS_AND_RUNS[name]
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = build()
        model.init_weights()
    for module in model.modules():  # weights that start as zeros
        if isinstance(module, MultiScaleDeformableAttention):
            randomised(module, 0.2)
    return model, run, count


def step(model, run):
    model.zero_grad()
    outputs = [each for each in tree_leaves(run(model)) if isinstance(each, torch.Tensor)]
    sum(each.float().square().mean() for each in outputs).backward()
    return [each.detach() for each in outputs], {
        name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
    }


@pytest.mark.parametrize('name', MODELS_AND_RUNS)
def test_whole_models_stay_the_same(name):
    model, run, count = of_upstream(name)
    parameters, names = list(model.parameters()), list(model.state_dict())
    expected = step(model, run)
    for change in (replace_deformable_attention, optimize):
        change(model)
        ours = [module for module in model.modules() if type(module) is HeadDeformableAttention]
        assert len(ours) == count
        assert list(model.state_dict()) == names
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        found = step(model, run)
        torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
        for name, want in expected[1].items():
            scale = max(1, float(want.abs().max()))
            assert (found[1][name] - want).abs().max() < 1e-3 * scale, name
    model.init_weights()
    assert all(module.sampling_offsets.weight.count_nonzero() == 0 for module in ours)


def test_an_encoder_is_exported():
    """Mask2Former's whole pixel decoder is not: it reads sizes of maps by ``torch._shape_as_tensor``."""
    encoder = randomised(pixel_decoder().encoder, 0.2)
    given = inputs(queries=VALUES, mask=True, first=True)
    given = {**given, 'query': torch.randn(3, VALUES, 32), 'query_pos': torch.randn(3, VALUES, 32)}
    del given['value']
    given['valid_ratios'] = torch.ones(3, 3, 2)
    expected = encoder(**given)
    program = torch.export.export(optimize(encoder, keep_memory=False), (), given)
    found = program.module()(**given)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert 'mmlape.' not in str(program.graph_module.code)

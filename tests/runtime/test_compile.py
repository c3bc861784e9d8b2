"""Compiled blocks: ``compile_blocks`` of every backbone. Each part in a block: tests/test_registry.py."""

import copy
import pickle

import pytest
import torch
from backbone_variants import JOININGS, build_vit
from mmengine.model import ExponentialMovingAverage
from registered import adapter, levit, pvt, swin
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from toy_training import toy_config, toy_run

from mmlape.backbones import Backbone
from mmlape.cpu import optimize
from mmlape.layers.basic import DropPath
from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.runtime import compile as compiled_module

EAGER = dict(backend='eager')  # graphs, without code for them
LAPE = dict(joining=JOININGS['lape'])
STATISTICS = dict(norm_cfg=dict(type='mmlape.TokenBN'))
STILL = dict(drop_rate=0.0, drop_path_rate=0.0)
SIZES = [(64, 96), (96, 128), (128, 64)]
slow = pytest.mark.slow
# How to build a network, the graphs of its blocks in a step of training on images of some sizes, and the sizes.
FAMILIES = {
    'vit': (lambda **way: build_vit(**LAPE, **way), 1, SIZES),
    'vit, recomputed': (lambda **way: build_vit(with_cp=True, **way), 1, SIZES[:2]),
    # They count once: blocks that keep some run plain.
    'vit, recomputed statistics': (
        lambda **way: build_vit(with_cp=True, **STATISTICS, **way),
        0,
        SIZES[:2],
    ),
    # An injector, an extractor and its ViT's layers.
    'adapter': (adapter(**STILL), 3, SIZES[:2]),
    'pvtv2': (pvt('V2', **STILL), 4, SIZES[:2]),
    'levit': (levit(**STILL), 3, [(128, 192), (192, 256)]),
    # There are more graphs where windows do not fill a grid, and all take long to make.
    'swin': (swin(out_indices=0, **STILL), 1, [(96, 192)]),
}

FAST = ('vit', 'vit, recomputed', 'vit, recomputed statistics')


@pytest.fixture(autouse=True)
def fresh():
    """No graphs of other tests; nothing breaks a graph."""
    torch._dynamo.reset()
    counters.clear()
    yield
    assert dict(counters['graph_break']) == {}
    torch._dynamo.reset()


def num_graphs():
    return counters['stats']['unique_graphs']


def pair(build, **options):
    """A network with random parameters, and the same one with compiled blocks."""
    plain, compiled = build(), build(compile_blocks=EAGER, **options)
    for parameter in plain.parameters():
        nn.init.normal_(parameter, std=0.2)
    compiled.load_state_dict(plain.state_dict(), strict=True)
    return plain, compiled


def images(size, batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


def step(model, size=SIZES[0], batch=2):
    """Outputs, gradients and buffers of a step; what is random outside of blocks is drawn alike."""
    torch.manual_seed(1)
    model.zero_grad()
    dtype = next(model.parameters()).dtype
    outputs = tree_leaves(model(images(size, batch).to(dtype)))
    sum(output.to(dtype).square().mean() for output in outputs).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return outputs, gradients, {name: value.clone() for name, value in model.named_buffers()}


def assert_same(found, expected, **tolerances):
    torch.testing.assert_close(found, expected, **(tolerances or dict(rtol=1e-4, atol=1e-5)))


@pytest.mark.parametrize(
    ('build', 'kinds', 'sizes'),
    [pytest.param(*FAMILIES[name], id=name, marks=[slow][name in FAST :]) for name in FAMILIES],
)
def test_one_graph_for_each_kind_of_block_whatever_the_size(build, kinds, sizes):
    plain, compiled = (model.double() for model in pair(build))
    for size in sizes:
        assert_same(step(compiled, size), step(plain, size))
    assert num_graphs() == kinds


@pytest.mark.slow
@pytest.mark.parametrize('operator', [True, False])
def test_one_graph_for_pooled_dtn_on_full_and_ragged_windows(operator):
    norm, symbols = DTN(24, 2, pool=4), set()
    norm = (optimize(norm, keep_memory=False) if operator else norm).double()

    def backend(module, inputs):
        sizes = {str(value) for value in inputs if isinstance(value, torch.SymInt)}
        symbols.update(size for size in sizes if not size.isdigit())
        return module.forward

    for grid in ((8, 12), (9, 15)):
        layout = Layout(grid, 1)
        tokens = torch.randn(2, layout.num_tokens, 24, dtype=torch.float64, requires_grad=True)
        results = []
        for way in (False, dict(backend=backend)):
            out = compiled_module.run_block(norm, tokens, layout, compile_blocks=way)
            leaves = [tokens, *norm.parameters()]
            results.append([out, *torch.autograd.grad(out.square().mean(), leaves)])
        assert_same(*results)
    assert num_graphs() == 1
    # Images, tokens, height, width, rows and columns of cells, which a compiler for GPUs needs.
    assert operator or len(symbols) == 6


@slow
def test_evaluation_without_gradients():
    """And with other parameters in the place of its own."""
    plain, compiled = pair(build_vit)
    step(compiled)
    with torch.no_grad():
        for size in SIZES[:2]:
            assert_same(compiled.eval()(images(size)), plain.eval()(images(size)))
    assert num_graphs() == 2  # one for training
    others = {name: value * 2 for name, value in compiled.named_parameters()}
    call = torch.func.functional_call
    assert_same(*(call(model, others, (images(SIZES[0]),)) for model in (compiled, plain)))


def test_layers_that_drop_paths_at_several_rates_share_a_graph():
    model = build_vit(drop_path_rate=0.3, compile_blocks=EAGER)
    rates = [block.drop_path.drop_prob for block in model.blocks[1:]]
    assert len(set(rates)) == len(rates) == 3
    step(model)
    assert num_graphs() == 2  # the first layer drops none


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_graph_drops_as_many_paths(dtype):
    drop, branch = DropPath(0.25), torch.ones(10_000, 1, 1, dtype=dtype)
    call = torch.compile(drop, backend='eager')
    torch.manual_seed(0)
    out = call(branch)
    kept = out != 0
    assert out.dtype == dtype and abs(kept.float().mean() - 0.75) < 0.02
    assert_same(out[kept], torch.full_like(out[kept], 1 / 0.75))
    assert call(branch[:, 0]).shape == (10_000, 1)
    drop.eval()
    assert torch.equal(call(branch), branch)


def test_outside_of_graphs_the_draws_are_timms():
    branch = torch.randn(50, 2, 3)
    found, expected = (
        (torch.manual_seed(0), cls(0.4)(branch))[1] for cls in (DropPath, DropPath.__base__)
    )
    assert torch.equal(found, expected)


def test_state_copies_pickles_and_averages():
    plain, compiled = pair(build_vit)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    expected = step(plain)
    step(compiled)
    model = pickle.loads(pickle.dumps(copy.deepcopy(compiled)))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert_same(step(model), expected)
    assert num_graphs() == 1
    average = ExponentialMovingAverage(compiled)
    assert_same(tuple(average(images(SIZES[0]))), tuple(expected[0]))


@slow
def test_autocast():
    plain, compiled = pair(build_vit)
    with torch.autocast('cpu', torch.bfloat16):
        assert_same(step(compiled), step(plain), rtol=0.05, atol=0.05)
    assert_same(step(compiled), step(plain))
    assert num_graphs() == 2


def test_hooks_of_a_part_are_called():
    """A graph that was made without them would leave them out."""
    plain, compiled = pair(build_vit)
    step(compiled)
    seen = []
    handle = compiled.blocks[1].attn.register_forward_hook(lambda *_: seen.append(1))
    assert_same(step(compiled), step(plain))
    assert seen == [1] and num_graphs() == 1
    handle.remove()
    step(compiled)
    assert seen == [1]


@slow
@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
def test_plain_where_something_else_traces_counts_or_derives():
    plain, compiled = (model.eval() for model in pair(build_vit))
    image = images(SIZES[0])
    with torch.no_grad():
        (expected,) = plain(image)
        compiled(image)
        graph = torch.export.export(compiled, (image,)).module()
        assert_same(graph(image)[0], expected)
        assert_same(torch.jit.trace(compiled, image)(image)[0], expected)
        whole = torch.compile(compiled, backend='eager', fullgraph=True)
        assert_same(whole(image)[0], expected)
    made, counts = num_graphs(), []
    for model in (plain, compiled):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(image)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    parameters = dict(compiled.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(compiled, parameters, (image,))[0].square().mean()

    for name, gradient in torch.func.grad(loss)(parameters).items():
        expected = torch.autograd.grad(plain(image)[0].square().mean(), plain.get_parameter(name))
        assert_same(gradient, *expected)
        break
    assert num_graphs() == made


@slow
def test_a_deployed_network():
    plain, compiled = pair(
        lambda **way: build_vit(
            attention_position=dict(type='mmlape.GaborAttention'), **way, **LAPE
        )
    )
    compiled.switch_to_deploy()
    for size in (*SIZES[:2], SIZES[0]):
        with torch.no_grad():
            assert_same(compiled(images(size)), plain.eval()(images(size)))


@slow
def test_data_parallel(process_group):
    plain, compiled = pair(build_vit)
    found, expected = step(DistributedDataParallel(compiled)), step(plain)
    assert_same(found[0], expected[0])
    assert_same([*found[1].values()], [*expected[1].values()])
    assert num_graphs() == 1


@slow
def test_a_training_by_the_runner(tmp_path):
    """Recomputed, averaged, validated and saved."""
    saved = []
    for way in (False, EAGER):
        folder = tmp_path / str(bool(way))
        model = dict(type='mmlape.ToyBackbone', with_cp=True, compile_blocks=way)
        toy_run(toy_config(folder, model=model))
        saved.append(torch.load(folder / 'iter_12.pth', weights_only=False))
    plain, compiled = saved
    for part in ('state_dict', 'ema_state_dict'):
        assert list(compiled[part]) == list(plain[part])
        assert_same(dict(compiled[part]), dict(plain[part]))
    assert num_graphs() == 2  # of training, and of validation, an image at a time


def test_blocks_of_fsdp_run_plain(monkeypatch):
    said, model = [], build_vit(compile_blocks=EAGER)
    monkeypatch.setattr(compiled_module, 'print_log', lambda text, *_: said.append(text))
    compiled_module._log_once.cache_clear()
    for block in model.blocks:
        block._is_fsdp_managed_module = True  # what FSDP sets
    step(model)
    assert num_graphs() == 0
    assert said == ['compile_blocks: Block runs plain, since FSDP holds its parameters']


def test_graphs_by_options():
    """Other options make another graph, and a block is computed again in the backward pass if asked for."""
    calls = []

    def backend(name):
        def make(graph, inputs):
            return lambda *args: (calls.append(name), graph.forward(*args))[1]

        return make

    block, x = nn.Linear(2, 2), torch.randn(3, 2, requires_grad=True)
    options = dict(backend=backend('first'))
    compiled_module.run_block(block, x, compile_blocks=options)
    options['backend'] = backend('second')
    out = compiled_module.run_block(block, x, compile_blocks=options, with_cp=True)
    assert calls == ['first', 'second']
    out.sum().backward()
    assert calls == ['first', 'second', 'second']


def test_many_kinds_of_blocks(monkeypatch):
    """PyTorch makes a limited number of graphs of one function."""
    monkeypatch.setattr(torch._dynamo.config, 'cache_size_limit', 2)
    for width in (2, 3, 4):
        compiled_module.run_block(nn.Linear(2, width), torch.ones(3, 2), compile_blocks=EAGER)
    assert num_graphs() == 3


def test_a_graph_gets_the_whole_layout():
    class Pooling(nn.Module):
        pool = 2

        def forward(self, x, layout):
            assert layout.pooled(self.pool) == (2, 3)
            return x * layout.token_mask()[..., None] + layout.num_prefix

    layout = Layout((4, 5), 1, torch.arange(20).expand(2, -1) < 10)
    found, expected = (
        compiled_module.run_block(Pooling(), torch.ones(2, 21, 8), layout, compile_blocks=way)
        for way in (EAGER, False)
    )
    assert_same(found, expected)
    assert num_graphs() == 1


@pytest.mark.parametrize(('version', 'chooses'), [('2.11.0+cpu', False), ('2.15.0', True)])
def test_arguments_of_the_compiler(monkeypatch, version, chooses):
    monkeypatch.setattr(torch, '__version__', version)
    given = compiled_module._arguments_of_torch(
        mode='max-autotune-no-cudagraphs', options=dict(epilogue_fusion=False)
    )
    assert given['dynamic'] is True and given['mode'] is None
    assert given['options'] == dict(
        layout_optimization=chooses,
        max_autotune=True,
        coordinate_descent_tuning=True,
        epilogue_fusion=False,
    )
    found = compiled_module._arguments_of_torch(dynamic=False, fullgraph=True, **EAGER)
    assert found == dict(EAGER, dynamic=False, fullgraph=True, mode=None, options=None)


def test_an_adapter_passes_it_on():
    model = adapter()(compile_blocks=EAGER)
    ours = [part for part in model.modules() if isinstance(part, Backbone)]
    assert len(ours) == 2 and all(part.compile_blocks == EAGER for part in ours)


@slow
def test_the_compiler_itself():
    """On a grid of changing sides, which convolutions read tokens on, too."""
    plain, compiled = pair(pvt(out_indices=0, **STILL))
    compiled.compile_blocks = True
    for size in SIZES[:2]:
        assert_same(step(compiled, size), step(plain, size), rtol=1e-3, atol=1e-4)
    assert num_graphs() == 1

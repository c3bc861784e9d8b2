"""``mmlape.cpu.optimize``: what is replaced, and that the model stays the same to everyone else."""

import copy
import pickle

import pytest
import torch
from backbone_variants import build_adapter, build_vit
from mmcv.ops import MultiScaleDeformableAttention
from mmengine.model import ExponentialMovingAverage
from pixel_decoders import OfImages
from registered import pvt
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._pytree import tree_leaves
from toy_training import toy_config, toy_run

from mmlape.cpu import library, linear, optimize, replace
from mmlape.layers import basic
from mmlape.layers.deformable import DeformableSampling
from mmlape.norm import DTN
from mmlape.norm.dtn_plain import PlainDTN
from mmlape.training import CpuHook

DTN_NORM = dict(norm_cfg=dict(type='mmlape.DTN'))
BUILDS = {
    'vit': lambda: build_vit(joining=dict(type='mmlape.LaPE')),
    'vit, recomputed': lambda: build_vit(with_cp=True, **DTN_NORM),
    'adapter': build_adapter,
    'pvt': pvt(drop_path_rate=0.0, norm_cfg=dict(type='mmlape.DTN', num_heads=2)),
    'pixel decoder': OfImages,
}
every_network = pytest.mark.parametrize('name', BUILDS)


@pytest.fixture(autouse=True)
def all_of_it(switched_on, monkeypatch):
    """Products by oneDNN as well, whatever the processor and their size."""
    monkeypatch.setattr(replace, 'is_faster_here', lambda: True)
    monkeypatch.setattr(linear, 'FEW', 1)


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(replace, 'print_log', lambda text, *_: lines.append(text))
    return lines


def build(name):
    torch.manual_seed(0)
    model = BUILDS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def image(batch=2):
    return torch.randn(batch, 3, 64, 96, generator=torch.Generator().manual_seed(1))


def step(model, x=None):
    """Outputs and gradients."""
    model.zero_grad()
    outputs = tree_leaves(model(image() if x is None else x))
    sum(output.square().mean() for output in outputs).backward()
    return outputs, [p.grad for p in model.parameters() if p.grad is not None]


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-4)


def kinds(model):
    return {type(module) for module in model.modules()}


@every_network
def test_outputs_gradients_and_state_stay(name, said):
    model = build(name)
    expected, state = step(model), model.state_dict()
    parameters, names = list(model.parameters()), [n for n, _ in model.named_parameters()]
    assert optimize(model) is model
    plain = {nn.Linear, basic.PatchConv2d}
    assert not kinds(model) & plain and kinds(model) & {replace.Linear, replace.DTN}
    assert MultiScaleDeformableAttention not in kinds(model)
    for module in model.modules():  # plain ones are within those that replace them
        children = [type(child) for child in module.children()]
        if not isinstance(module, (replace.DTN, replace.DeformableSampling)):
            assert PlainDTN not in children and DeformableSampling not in children
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [n for n, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == list(state)
    assert_same(step(model), expected)
    (line,) = said
    assert line.startswith('mmlape.cpu.optimize: ') and ' x linear layers' in line
    assert optimize(model, keep_memory=False) is model
    assert said[1] == 'mmlape.cpu.optimize: nothing replaced'
    assert_same(step(model), expected)


def test_after_the_optimizer_is_built():
    """The steps are those of the model as it was."""
    results = []
    for optimized in (False, True):
        model = build('pvt')
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if optimized:
            optimize(model)
        for _ in range(2):
            step(model)
            optimizer.step()
        results.append(model.state_dict())
    assert_same(dict(results[1]), dict(results[0]))


@pytest.mark.parametrize('name', ['pvt', 'pixel decoder'])
def test_copies_pickles_and_averages(name):
    model = optimize(build(name))
    expected = step(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kinds(other) == kinds(model)
        assert_same(step(other), expected)
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
        with torch.no_grad():  # parameters of a copy are its own
            for parameter in other.parameters():
                parameter.zero_()
    assert_same(step(model), expected)
    average = ExponentialMovingAverage(model)
    with torch.no_grad():
        assert_same(tree_leaves(average(image())), [out.detach() for out in expected[0]])


@pytest.mark.parametrize('before', [True, False])
def test_distributed(process_group, before):
    model = build('adapter')
    expected = step(model)
    wrapped = DistributedDataParallel(optimize(model) if before else model)
    wrapped = wrapped if before else optimize(wrapped)
    assert replace.Linear in kinds(wrapped)
    assert_same(step(wrapped), expected)


@pytest.mark.parametrize('name', ['pvt', 'pixel decoder'])
def test_state_goes_both_ways(name):
    plain, other = build(name), optimize(BUILDS[name]())
    other.load_state_dict(plain.state_dict(), strict=True)
    assert_same(step(other.eval()), step(plain))
    other.load_state_dict(plain.state_dict(), strict=True, assign=True)
    assert_same(step(other), step(plain))


def test_blocks_that_were_compiled_before():
    """A graph of the block as it was is not used."""
    model = build('vit')
    model.compile_blocks = dict(backend='eager')
    expected = step(model)
    assert_same(step(optimize(model)), expected)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['adapter', 'pvt'])
def test_exported(name):
    """Others who run it need no mmlape. MMDetection's pixel decoder reads sizes from tensors, which no graph does."""
    model = optimize(build(name))
    program = torch.export.export(model, (image(),), strict=False)
    assert 'mmlape.' not in str(program.graph_module.code)
    assert_same(tree_leaves(program.module()(image())), step(model)[0])


@pytest.mark.parametrize('name', ['adapter', 'pvt'])
def test_vmap(name):
    model = optimize(build(name))
    with torch.no_grad():
        expected = tree_leaves(model(image(3)))
        found = tree_leaves(torch.vmap(lambda one: model(one[None]))(image(3)))
    assert_same([each.squeeze(1) for each in found], expected)


def test_autocast():
    model = build('adapter')
    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
        expected = model(image())
        found = optimize(model)(image())
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == other.dtype
        assert (mine - other).abs().max() < 0.03 * other.abs().max()


class LoRA(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(layer):
    layer.register_forward_hook(lambda *_: None)
    return layer


def own_forward(layer):
    layer.forward = lambda x: x
    return layer


def parametrized(layer):
    parametrize.register_parametrization(layer, 'weight', nn.Identity())
    return layer


LEFT_ALONE = {
    'a subclass': lambda: LoRA(4, 4),
    'hooks': lambda: hooked(nn.Linear(4, 4)),
    'a forward of its own': lambda: own_forward(nn.Linear(4, 4)),
    'a parametrization': lambda: parametrized(nn.Linear(4, 4)),
    'weight norm': lambda: weight_norm(nn.Linear(4, 4)),
    'old weight norm': lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    'float64': lambda: nn.Linear(4, 4).double(),
    'quantized': lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))[0],
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('what', LEFT_ALONE)
def test_is_left_alone(what):
    layer = LEFT_ALONE[what]()
    model = nn.Sequential(layer, nn.Linear(4, 4))
    optimize(model)
    assert model[0] is layer and type(model[1]) is replace.Linear


def test_shared_and_single_modules():
    layer = nn.Linear(4, 4)
    model = nn.ModuleDict({'a': layer, 'b': layer, 'c': nn.Sequential(layer)})
    optimize(model)
    assert model['a'] is model['b'] is model['c'][0] and type(model['a']) is replace.Linear
    alone = optimize(layer)
    assert type(alone) is replace.Linear and alone.weight is layer.weight


def test_on_another_device(said):
    model = nn.Sequential(nn.Linear(4, 4)).to('meta')
    optimize(model)
    assert type(model[0]) is nn.Linear
    assert said == ['mmlape.cpu.optimize: nothing to do, the model is on meta']


def test_moved_afterwards():
    """Operators for CPUs stand back."""
    model = optimize(build('adapter')).to('meta')
    assert all(out.device.type == 'meta' for out in model(image().to('meta')))


def test_switched_off(monkeypatch, said):
    monkeypatch.setenv('MMLAPE_OPS', '0')
    library.library.cache_clear()
    model = nn.ModuleList([build('adapter'), build('pixel decoder')])
    before = [id(module) for module in model.modules()]
    optimize(model)
    assert [id(module) for module in model.modules()] == before
    assert said == ['mmlape.cpu.optimize: nothing replaced, switched off by MMLAPE_OPS=0']


def test_without_a_compiler(monkeypatch, said, tmp_path):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    library.library.cache_clear()
    model = nn.Sequential(DTN(8, 2), nn.Linear(4, 4))
    optimize(model, keep_memory=False)
    assert type(model[0].normalise) is PlainDTN and type(model[1]) is replace.Linear
    assert len(said) == 1 and 'DTN stay in PyTorch, which is slower: no C++ compiler' in said[0]


def test_a_training_with_the_hook(tmp_path, said):
    """By upstream's runner: averaged (EMA), saved and validated; weights are those of a training without it."""
    saved = []
    for hooks in ({}, dict(cpu=dict(type='mmlape.CpuHook'))):
        folder = tmp_path / str(len(hooks))
        config = toy_config(folder, model=dict(type='mmlape.ToyBackbone', **DTN_NORM))
        config.default_hooks = dict(config.get('default_hooks') or {}, **hooks)
        toy_run(config)
        saved.append(torch.load(folder / 'iter_12.pth', weights_only=False))
    for part in ('state_dict', 'ema_state_dict'):
        assert_same(dict(saved[1][part]), dict(saved[0][part]))
    assert len(said) == 1 and ' x DTN' in said[0] and CpuHook.priority == 'VERY_HIGH'

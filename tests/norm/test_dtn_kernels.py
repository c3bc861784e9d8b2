"""DTN by Triton kernels without a GPU: values in Triton's interpreter, launches, bytes, registers, what is replaced."""

import os
import pickle
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from recorded_kernels import compiled, recorded, resources, step_launches
from test_devices import MadeOnHost, to_fake
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import mmlape
from benchmarks.launches import SEVERAL
from mmlape.gpu import dtn as gpu_dtn
from mmlape.gpu import optimize, replace
from mmlape.layout import Layout
from mmlape.norm import DTN
from mmlape.registry import HOOKS

HERE = Path(__file__).resolve().parent
# Channels, heads, grid and pool as in networks: PVT-S, Swin-T, ViT of all sizes; one channel of a head; a large cell.
WIDTHS = {
    'pvt 1': (64, 1, (56, 56), 4),
    'pvt 2': (128, 2, (28, 28), 2),
    'pvt 3': (320, 5, (14, 14), 1),
    'pvt 4': (512, 8, (7, 7), 1),
    'swin 1': (96, 3, (56, 56), 4),
    'swin 2': (192, 6, (28, 28), 2),
    'swin 4': (768, 24, (7, 7), 1),
    'vit-ti': (192, 3, (14, 14), 1),
    'vit-s': (384, 6, (14, 14), 1),
    'vit-b': (768, 12, (14, 14), 1),
    'vit-h': (1280, 16, (14, 14), 1),
    'swin-l 4': (1536, 48, (7, 7), 1),
    'narrow heads': (48, 3, (14, 14), 1),
    'wide heads': (96, 1, (14, 14), 1),
    'large cells': (768, 8, (56, 56), 7),
}


@pytest.mark.slow
def test_values_in_the_interpreter():
    command = [sys.executable, '-m', 'pytest', 'interpreted_dtn.py', '-q']
    done = subprocess.run(
        [*command, '-p', 'no:cacheprovider', '-W', 'ignore'],
        cwd=HERE,
        env={**os.environ, 'TRITON_INTERPRET': '1', 'PYTEST_ADDOPTS': ''},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert ' passed' in done.stdout


def test_launches():
    assert (SEVERAL['dtn_gpu'], SEVERAL['dtn_gpu_backward']) == (4, 5)
    for sizes in WIDTHS.values():
        forward, backward = step_launches(*sizes, prefix=1)
        assert (len(forward), len(backward)) == (4, 5), sizes


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != 'prim' and func is not torch.ops.aten.new_empty.default:  # no kernels
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_nothing_else_runs(dtype):
    """No cast, no map, no sigmoid, no split for prefix tokens; and nothing is made on the host."""
    norm = optimize(DTN(64, 4, pool=4))
    with FakeTensorMode():
        to_fake(norm)
        tokens = torch.empty(2, 197, 64, dtype=dtype, device='cuda')
        with Operators() as seen, MadeOnHost() as made:
            out = norm(tokens, Layout((14, 14), 1))
    assert out.is_cuda and (out.shape, out.dtype) == (tokens.shape, dtype)
    assert seen.names == ['mmlape.dtn_gpu.default'] and not made.names


@pytest.mark.parametrize(
    ('dtype', 'most'), [(torch.float32, (1.25, 1.35)), (torch.bfloat16, (1.5, 1.65))]
)
def test_bytes_beside_the_floor(dtype, most):
    """Of the first stage of PVT: the floor is x read twice and the result written, and in the backward pass x and its
    gradient read twice, and a gradient written."""
    forward, backward = step_launches(64, 1, (56, 56), 4, batch=8, dtype=dtype)
    size = 8 * 56 * 56 * 64 * dtype.itemsize
    moved = [sum(launch.num_bytes() for launch in launches) for launches in (forward, backward)]
    assert 3 * size < moved[0] < most[0] * 3 * size
    assert 5 * size < moved[1] < most[1] * 5 * size


# Widths of each size of a tile, each for one of the GPUs.
COMPILED = [
    ('pvt 1', 80), ('pvt 3', 86), ('swin 2', 89), ('swin-l 4', 90), ('vit-b', 100), ('vit-h', 80), ('narrow heads', 86),
    ('wide heads', 89), ('large cells', 90),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'capability'), COMPILED)
def test_kernels_compile_without_spills(name, capability, tmp_path, monkeypatch):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    forward, backward = step_launches(*WIDTHS[name], dtype=torch.bfloat16)
    for launch in forward + backward[1:]:
        kernel = compiled(launch, capability)
        used = resources(kernel)
        assert used['STACK'] == used['LOCAL'] == 0, (launch.kernel.__name__, used)
        assert kernel.metadata.shared <= 99 * 1024  # of the smallest of these GPUs


@pytest.fixture
def said(monkeypatch):
    lines = []
    replace._log_once.cache_clear()
    monkeypatch.setattr(replace, 'print_log', lambda text, *_: lines.append(text))
    yield lines
    replace._log_once.cache_clear()


def test_what_is_replaced(said):
    hooked, own, wide = DTN(8, 2), type('Own', (DTN,), {})(8, 2), DTN(8192, 2)
    hooked.register_forward_hook(lambda *_: None)
    others = [DTN(8, 2, positions='uniform'), hooked, own, wide, nn.LayerNorm(8)]
    model = nn.Sequential(DTN(8, 2), *others)
    kinds, state, parameters = [*map(type, others)], model.state_dict(), [*model.parameters()]
    assert optimize(model) is model and said == ['mmlape.gpu.optimize: 1 x DTN']
    assert type(model[0]) is replace.DTN and [*map(type, model[1:])] == kinds
    assert [*model.state_dict()] == [*state]
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    optimize(model)
    assert said[1:] == ['mmlape.gpu.optimize: nothing replaced']
    assert mmlape.gpu.optimize is optimize
    assert type(pickle.loads(pickle.dumps(model[0]))) is type(deepcopy(model[0])) is replace.DTN


def test_calls_for_pytorchs_operators(said, monkeypatch):
    """The reason is said once; with C++ for a CPU inside, that is used."""
    norm = DTN(8, 2)
    fast = optimize(deepcopy(norm))
    mask = torch.arange(12)[None] > 4
    with recorded() as launches:
        for layout, dtype in ((Layout((3, 4)), torch.float32), (Layout((3, 4), mask=mask), None)):
            tokens = torch.randn(1, 12, 8, dtype=dtype)
            for _ in range(2):
                assert torch.equal(fast(tokens, layout), norm(tokens, layout))
        monkeypatch.setattr(replace, 'DEVICES', ('cpu',))
        tokens = torch.randn(1, 12, 8)
        torch.func.vmap(lambda each: fast(each, (3, 4)))(tokens[None])
        torch.export.export(fast, (tokens, (3, 4)))
        fast.double()(tokens.double(), (3, 4))
    assert not launches
    reasons = ['tokens are on cpu', 'there is a mask', 'tokens are torch.float64']
    assert said[1:] == [
        f'mmlape.gpu.optimize: DTN runs in PyTorch where {each}' for each in reasons
    ]


@pytest.mark.parametrize('wrong', [dict(C=12), dict(tokens=7), dict(heads=3), dict(device='meta')])
def test_kernels_read_no_other_memory(wrong):
    """PyTorch's operators refuse such tensors too; a GPU would not."""
    sizes = dict(C=8, tokens=6, heads=2, device='cpu') | wrong
    x = torch.zeros(1, sizes['tokens'], sizes['C'], device=sizes['device'])
    parameters = torch.zeros(2, 3), torch.zeros(2), None, torch.zeros(8), torch.zeros(8)
    options = [2, 3, 1, 0, sizes['heads']], 1e-5, True, 0.0, 0.0
    with recorded() as launches, pytest.raises(ValueError, match='do not fit'):
        gpu_dtn.dtn._init_fn(x, *parameters, *options)
    assert not launches


def test_without_triton(said, monkeypatch):
    monkeypatch.setattr(replace, 'HAS_TRITON', False)
    norm = DTN(8, 2)
    assert type(optimize(norm)) is DTN
    assert said == ['mmlape.gpu.optimize: nothing to do, triton is not installed']


def test_the_hook():
    class Runner:
        model = nn.Sequential(DTN(8, 2))

    hook = HOOKS.build(dict(type='mmlape.GpuHook'))
    hook.before_run(Runner)
    assert type(Runner.model[0]) is replace.DTN and hook.priority == 'VERY_HIGH'

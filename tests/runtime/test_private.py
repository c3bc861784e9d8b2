"""Private names of PyTorch do what mmlape uses them for. Gradients and products: tests of what calls them."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.flop_counter import FlopCounterMode

import mmlape
from mmlape.runtime import private

PACKAGE = Path(mmlape.__file__).parent
PRIVATE = re.compile(
    r'torch\._[a-zA-Z]|torch\.\w+\._[a-z]|torch\.ops\.(aten|mkldnn)\._?\w*backward|torch\.ops\.mkldnn'
    r'|_(forward|backward)(_pre)?_hooks\b|_current_level|_is_fsdp|_inductor|nn\.modules\.module\._'
)
# What PyTorch documents under a name with an underscore, or that a file must be read with.
ALLOWED = {'torch._foreach', 'torch._utils'}


def test_no_other_file_uses_one():
    found = []
    for path in PACKAGE.rglob('*.py'):
        if path.name != 'private.py':
            for line in path.read_text(encoding='utf-8').splitlines():
                if PRIVATE.search(line) and not any(name in line for name in ALLOWED):
                    found.append(f'{path.relative_to(PACKAGE)}: {line.strip()}')
    assert found == []


def test_in_transform():
    seen = []
    torch.vmap(lambda x: (seen.append(private.in_transform()), x)[1])(torch.ones(2))
    torch.func.grad(lambda x: (seen.append(private.in_transform()), x)[1])(torch.tensor(1.0))
    assert seen == [True, True] and not private.in_transform()


def test_num_dispatch_modes():
    assert not private.num_dispatch_modes()
    with FlopCounterMode(display=False):
        assert private.num_dispatch_modes()
    with private.FakeTensorMode() as mode:
        assert private.num_dispatch_modes() and type(torch.empty(0)) is not torch.Tensor
        with private.unset_fake_temporarily():
            assert type(torch.empty(0)) is torch.Tensor
    assert isinstance(mode, private.FakeTensorMode)


def test_in_forward_ad():
    assert not private.in_forward_ad()
    with torch.autograd.forward_ad.dual_level():
        assert private.in_forward_ad()


@pytest.mark.parametrize(
    'register',
    [
        'register_forward_hook',
        'register_forward_pre_hook',
        'register_full_backward_hook',
        'register_full_backward_pre_hook',
    ],
)
def test_has_hooks(register):
    module = nn.Linear(2, 2)
    assert not private.has_hooks(module)
    handle = getattr(module, register)(lambda *_: None)
    assert private.has_hooks(module)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert private.has_hooks(module)
    handle.remove()


def test_is_managed_by_fsdp(process_group):
    from torch.distributed.fsdp import fully_shard

    module = nn.Linear(2, 2)
    assert not private.is_managed_by_fsdp(module)
    fully_shard(module, mesh=init_device_mesh('cpu', (1,)))
    assert private.is_managed_by_fsdp(module)


def test_options_of_mode():
    assert private.options_of_mode('max-autotune-no-cudagraphs', True)['max_autotune']


def test_has_onednn_linear():
    assert private.has_onednn_linear()
    with torch.backends.mkldnn.flags(enabled=False):
        assert not private.has_onednn_linear()


def test_attention_on_a_cpu():
    """The name under which FLOPs of it are counted."""
    query = torch.randn(1, 2, 3, 4)
    with torch.profiler.profile() as profile, torch.no_grad():
        F.scaled_dot_product_attention(query, query, query)
    name = str(private.ATTENTION_ON_A_CPU)
    assert name.replace('.', '::') in {event.key for event in profile.key_averages()}


def test_storage_address():
    tensor, other = torch.zeros(2, 3), torch.zeros(2, 3)
    assert private.storage_address(tensor) == private.storage_address(tensor[1])
    assert private.storage_address(tensor) != private.storage_address(other)


def test_convolutions():
    class Names(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    with Names():
        nn.Conv2d(1, 1, 1)(torch.zeros(1, 1, 2, 2)).sum().backward()
    assert set(private.CONVOLUTIONS) <= {*seen}


@pytest.mark.slow
def test_a_compiled_package(tmp_path):
    layer = nn.Linear(3, 2).eval()
    with torch.no_grad():
        program = torch.export.export(layer, (torch.ones(1, 3),))
        run = private.compiled_package(program, str(tmp_path / 'layer.pt2'), dict(a='b'))
        torch.testing.assert_close(run(torch.ones(1, 3)), layer(torch.ones(1, 3)))

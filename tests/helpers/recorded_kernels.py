"""Triton kernels without a GPU: what DTN would launch, and the kernels compiled for a GPU that is not there."""

import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from mmlape.gpu import dtn as gpu_dtn

POINTERS = {torch.float32: '*fp32', torch.float16: '*fp16', torch.bfloat16: '*bf16'}


class Launch(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    args: tuple
    constants: dict[str, Any]

    def num_bytes(self):
        """Of all tensors, each counted once; what is read again is in the cache."""
        tensors = [each for each in self.args if isinstance(each, torch.Tensor)]
        return sum(each.numel() * each.element_size() for each in tensors)


@contextmanager
def recorded(run=False):
    """A list of launches; without ``run``, nothing else happens."""
    launches, launch = [], gpu_dtn._launch

    def record(kernel, grid, *args, **constants):
        launches.append(Launch(kernel, grid, args, constants))
        if run:
            launch(kernel, grid, *args, **constants)

    with mock.patch.object(gpu_dtn, '_launch', record):
        yield launches


def step_launches(
    channels, heads, grid, pool=1, prefix=0, batch=2, dtype=torch.float32, stabilize=True
):
    """Launches of a forward pass and of a backward pass, by tensors without memory."""

    def empty(*shape, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device='meta')

    x = empty(batch, prefix + grid[0] * grid[1], channels, dtype=dtype)
    parameters = empty(heads, 3), empty(heads), empty(heads), empty(channels)
    options = [*grid, pool, prefix, heads], 1e-5, stabilize, 0.0, 0.0
    with recorded() as forward:
        y, *statistics = gpu_dtn.dtn._init_fn(x, *parameters, empty(channels), *options)
    with recorded() as backward:
        gpu_dtn._backward._init_fn(y, x, *parameters, statistics, *options)
    return forward, backward


def compiled(launch, capability):
    """The kernel of a launch for a GPU of this capability, as Triton's launcher would specialise it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = dict(launch.constants)
    options = {'num_warps': constants.pop('num_warps')} if 'num_warps' in constants else {}
    signature, attributes = {}, {}
    for place, (name, value) in enumerate(zip(launch.kernel.arg_names, launch.args, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            attributes[(place,)] = [['tt.divisibility', 16]]
        elif value is None:
            constants[name] = None
        else:
            signature[name] = 'fp32' if isinstance(value, float) else 'i32'
    signature.update(dict.fromkeys(constants, 'constexpr'))
    source = ASTSource(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)


def resources(kernel):
    """``REG``, ``STACK``, ``LOCAL``, ... of a compiled kernel, by NVIDIA's tool."""
    import triton

    tool = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, 'kernel.cubin')
        Path(file).write_bytes(kernel.asm['cubin'])
        done = subprocess.run(
            [tool, '--dump-resource-usage', file], capture_output=True, text=True, check=True
        )
    return {name: int(count) for name, count in re.findall(r'(\w+):(\d+)', done.stdout)}

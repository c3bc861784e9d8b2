"""Python, PyTorch, the OpenMMLab packages and their compiled operators."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmlape import stack

from .check import ERROR, OK, WARNING, Check, ask

if TYPE_CHECKING:
    from .machine import Machine

TIMM = (1, 0, 3)
_OPERATORS = """
import torch
from mmcv.ops import RoIAlign, nms
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction, multi_scale_deformable_attn_pytorch
def try_on(device):
    boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], device=device)
    kept = nms(boxes, torch.tensor([.9, .8, .7], device=device), 0.5)[1].tolist()
    if kept != [0, 2]:
        return f'nms keeps {kept}, not [0, 2]'
    pooled = RoIAlign(2)(torch.ones(1, 1, 8, 8, device=device), torch.tensor([[0., 0, 0, 4, 4]], device=device))
    if not torch.allclose(pooled, torch.ones_like(pooled)):
        return 'RoIAlign of ones is not one'
    value = torch.rand(1, 16, 2, 8, device=device)
    shapes = torch.tensor([[4, 4]], device=device)
    places, weights = torch.rand(1, 5, 2, 1, 4, 2, device=device), torch.rand(1, 5, 2, 1, 4, device=device)
    wanted = multi_scale_deformable_attn_pytorch(value, shapes, places, weights)
    if device != 'cpu':
        start = torch.zeros(1, dtype=torch.long, device=device)
        found = MultiScaleDeformableAttnFunction.apply(value, shapes, start, places, weights, 64)
        if not torch.allclose(found, wanted, atol=1e-4):
            return 'the deformable attention differs from its definition'
for device in ['cpu', *(['cuda'] if torch.cuda.is_available() else [])]:
    try:
        answer[device] = try_on(device) or 'ok'
    except Exception as error:
        answer[device] = str(error).strip().splitlines()[0]
"""
_BUILD = Path(__file__).resolve().parent.parent / 'ops' / 'build.py'
_OWN_OPERATORS = """
import ctypes, runpy, torch
own = runpy.run_path(path)
try:
    answer['found'] = 'switched off'
    if own['is_wanted']():
        ctypes.CDLL(str(own['build']()))
        answer['found'] = 'compiled'
except Exception as error:
    answer['found'] = str(error).strip().splitlines()[0]
"""


def package_checks(machine: Machine) -> list[Callable[[], Any]]:
    """In the order in which they are shown."""
    return [
        _python,
        partial(_torch, machine),
        partial(_torch_holes, machine),
        partial(_torchvision, machine),
        partial(_numpy, machine),
        _timm,
        *[partial(_openmmlab, package) for package in stack.PACKAGES],
        _family,
        _operators,
        _own_operators,
        _toolboxes,
    ]


def _python() -> Check:
    name, version = 'Python', platform.python_version()
    found = f'{version} on {platform.system()} {platform.machine()}'
    if sys.version_info >= (3, 13):
        return Check(name, WARNING, found, 'tested with 3.10 to 3.12')
    return Check(name, OK, found)


def _torch(machine: Machine) -> Check:
    try:
        stack.check_torch()
    except ImportError as error:
        return Check('torch', ERROR, *_split(error))
    facts = machine.torch
    if facts is None:
        return Check(
            'torch',
            ERROR,
            f'cannot be imported: {machine.why_no_torch}',
            f'install it again; {stack.HELP}',
        )
    built = f'built for CUDA {facts["cuda"]}' if facts['cuda'] else 'built for CPUs'
    return Check('torch', OK, f'{facts["version"]}, {built}')


def _torch_holes(machine: Machine) -> list[Check]:
    if machine.torch is None:
        return []
    version = machine.torch['version']
    fault = stack.weights_only_fault(version)
    if fault is None:
        return []
    return [
        Check(
            'torch, safety', WARNING, f'{version} has {fault}, although it reads files with weights_only=True',
            'torch >= 2.10 is mended; until then take .safetensors, or only files whose origin you trust',
        )
    ]  # fmt: skip


def _torchvision(machine: Machine) -> Check:
    name, facts = 'torchvision', machine.torch or {}
    version = _distribution('torchvision')
    if version is None:
        return Check(
            name, WARNING, 'not installed', 'mmdet and mmpretrain need it: pip install torchvision'
        )
    if facts.get('torchvision'):
        advice = 'install the torchvision of your torch: pip install --force-reinstall torchvision'
        return Check(name, ERROR, f'{version} does not work: {facts["torchvision"]}', advice)
    return Check(name, OK, version)


def _numpy(machine: Machine) -> Check:
    version = _distribution('numpy')
    if version is None:
        return Check('numpy', ERROR, 'not installed', 'pip install numpy')
    if (machine.torch or {}).get('numpy'):
        why = f'{version} does not work with torch: {(machine.torch or {})["numpy"]}'
        return Check(
            'numpy', ERROR, why, "this torch was built for an older one: pip install 'numpy<2'"
        )
    return Check('numpy', OK, version)


def _timm() -> Check:
    version = _distribution('timm')
    if version is None or stack.numbers(version) < TIMM:
        found = f'{version} is too old' if version else 'not installed'
        return Check('timm', ERROR, found, "pip install 'timm>=1.0.3'")
    return Check('timm', OK, version)


def _openmmlab(package: stack.Package) -> Check:
    """Is it there, is it one that is tested, and is it there once?"""
    name, versions = package.module, stack.metadata_versions(package)
    families = set(versions) if len(versions) == 1 else set()
    version = stack.found_version(package)
    if version is None:
        state = ERROR if package.required else OK
        note = '' if package.required else ', which its configs alone need'
        advice = f'{package.advice(families)}; {stack.HELP}' if package.required else ''
        return Check(name, state, f'not installed{note}', advice)
    if len(versions) == 2:
        both = [package.original[0], package.onedl[0]]
        found = f'{version}: {" and ".join(both)} are both installed, one over the other'
        advice = f'pip uninstall -y {" ".join(both)}, then {package.advice(set())}'
        return Check(name, ERROR, found, advice)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error', UserWarning)
            stack.check_version(package, version, families)
    except ImportError as error:
        return Check(name, ERROR, *_split(error))
    except UserWarning as warning:
        return Check(name, WARNING, str(warning), 'if something fails, take the tested one')
    family = {'onedl': f'maintained, {package.onedl[0]}', 'original': 'original'}.get(
        next(iter(versions), ''), 'of unknown origin'
    )
    tested = version in (package.original[1], package.onedl[1])
    return Check(name, OK, f'{version} ({family}{"" if tested else ", not a tested version"})')


def _family() -> list[Check]:
    """All of one family."""
    found = {
        package.module: next(iter(versions))
        for package in stack.PACKAGES
        if len(versions := stack.metadata_versions(package)) == 1
    }
    if len(set(found.values())) < 2:
        return []
    parts = [
        f'{" and ".join(m for m, f in found.items() if f == family)} {word}'
        for family, word in (('onedl', 'maintained'), ('original', 'original'))
    ]
    advice = 'tested are the maintained packages together, and the original ones together (docs/install.md)'
    return [Check('families', WARNING, f'mixed: {"; ".join(parts)}', advice)]


def _operators() -> Check:
    """mmcv's compiled operators, by calling them in a process that may crash."""
    name = 'mmcv operators'
    mmcv = next(package for package in stack.PACKAGES if package.module == 'mmcv')
    if stack.found_version(mmcv) is None:
        return Check(name, ERROR, 'there is no mmcv', mmcv.advice(set()))
    try:
        stack.check_operators(mmcv, set(stack.metadata_versions(mmcv)))
    except ImportError as error:
        return Check(name, ERROR, *_split(error))
    answer, why = ask(_OPERATORS)
    again = (
        f'pip uninstall it, then MMCV_WITH_OPS=1 {mmcv.advice(set(stack.metadata_versions(mmcv)))}'
    )
    if answer is None:
        if 'undefined symbol' in why:
            why = f'compiled for another torch ({why.rpartition("/")[2]})'
        return Check(name, ERROR, why, f'compile mmcv again: {again}; {stack.HELP}')
    broken = {device: text for device, text in answer.items() if text != 'ok'}
    if broken:
        advice = f'compile mmcv {"with CUDA " if "cuda" in broken else ""}again: {again} (docs/install.md, GPUs)'
        return Check(name, ERROR, '; '.join(f'{d}: {t}' for d, t in broken.items()), advice)
    if stack.stands_in():
        found = (
            "torchvision's NMS and RoIAlign stand in for them, as without a C++ compiler; all others (soft NMS, "
            'deformable convolution and, on GPUs, deformable attention among them) raise NotImplementedError'
        )
        advice = 'to have them, install a C++ compiler and call make env again (docs/install.md)'
        return Check(name, WARNING, found, advice)
    where = {'cpu': 'the CPU', 'cuda': 'the GPU'}
    return Check(
        name,
        OK,
        f'NMS, RoIAlign, deformable attention work on {" and ".join(where[d] for d in answer)}',
    )


def _own_operators() -> Check:
    """Those for CPUs, which are compiled here if they can be."""
    name = 'mmlape operators'
    answer, why = ask(f'path = {str(_BUILD)!r}{_OWN_OPERATORS}')
    found = why if answer is None else answer['found']
    if found in ('compiled', 'switched off'):
        return Check(name, OK, f'attention, deformable attention and DTN for CPUs: {found}')
    advice = 'on CPUs their slower PyTorch forms run; docs/install.md, the operators for CPUs'
    return Check(name, WARNING, found, advice)


def _toolboxes() -> list[Check]:
    """Those that are installed can be imported."""
    there = [p.module for p in stack.PACKAGES if not p.required and stack.found_version(p)]
    if not there:
        advice = ' or '.join(
            p.advice(set()) for p in stack.PACKAGES if p.module in ('mmdet', 'mmseg')
        )
        return [
            Check('toolboxes', WARNING, 'none of mmdet, mmseg and mmpretrain is installed', advice)
        ]
    code = ''.join(
        f'try:\n    import {name}.apis\n    answer[{name!r}] = ""\n'
        f'except Exception as error:\n    answer[{name!r}] = (str(error).strip().splitlines() or [repr(error)])[0]\n'
        for name in there
    )
    answer, why = ask(code)
    if answer is None:
        return [Check('toolboxes', ERROR, f'importing {", ".join(there)}: {why}', stack.HELP)]
    broken = [
        Check(f'{name}, import', ERROR, text, f'its version does not fit the others; {stack.HELP}')
        for name, text in answer.items()
        if text
    ]
    fine = [name for name, text in answer.items() if not text]
    return [
        *([Check('toolboxes', OK, f'{", ".join(fine)} can be imported')] if fine else []),
        *broken,
    ]


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _split(error: ImportError) -> tuple[str, str]:
    """What is wrong, and what to do, of one of the messages of :mod:`mmlape.stack`."""
    found, _, advice = str(error).partition(': ')
    return found, advice

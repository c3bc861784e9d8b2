"""Advice for errors whose cause is not in this package: lacking or broken packages, configs, memory, disks.

No slow imports: it must also work where PyTorch does not.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .checks import did_you_mean
from .compatibility import PACKAGES, metadata_versions, stack_problem

_DOCTOR = '`mmlape doctor` says what to install'
TRY = '; `mmlape doctor CONFIG` tries one step'
# Errors by their class and message, and what to do.
_CURES = {
    r'torchvision::|torchvision.*(undefined symbol|was built|different CUDA)': (
        f'torchvision does not work with this torch: {_DOCTOR}'
    ),
    r'undefined symbol|DLL load failed': f'a compiled package does not fit this torch: {_DOCTOR}',
    r'OutOfMemoryError|CUDA out of memory': (
        'the GPU has too little memory: fewer images per step (--batch of `mmlape fit`, '
        'train_dataloader.batch_size), --amp-dtype bf16, or model.backbone.with_cp=True in --cfg-options; '
        '`mmlape estimate CONFIG` counts what a step needs'
    ),
    r"MemoryError|can't allocate memory|not enough memory": (
        'this machine has too little memory: fewer or smaller images per step, or fewer processes that load them '
        '(--workers of `mmlape fit`, train_dataloader.num_workers)'
    ),
    r'gloo/transport.*Connection (closed|reset)|ncclRemoteError': (
        'another process of the training has ended, or its machine is lost; what it said last may say why'
    ),
    r'DataLoader worker .*(killed by signal|exited unexpectedly)': (
        'a process that loads images was killed, as by a lack of memory: fewer of them (--workers of `mmlape fit`, '
        'train_dataloader.num_workers), and in a container more --shm-size'
    ),
}
_REGISTRY = re.compile(r"(\S+) is not in the (\S+)::(\w+) registry")
_CHANNELS = (
    re.compile(r'expected input.* to have (\d+) channels, but got (\d+)'),
    re.compile(r'normalized_shape=\[(\d+)\].* got input of size\[.*?(\d+)\]'),
)
_PRODUCT = re.compile(r'mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x')


def explained(error: BaseException) -> str | None:
    """One line that says what went wrong and what to do about it; None for an error that may be a fault of ours."""
    if isinstance(error, ImportError) and (problem := stack_problem()):
        return problem
    if missing := missing_package(error):
        return missing
    for each in _chain(error):
        text = ' '.join(f'{type(each).__name__}: {each}'.split())
        if isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT):
            return f'{each}: free some space, or write to another disk'
        if isinstance(each, OSError) and any(
            'SemLock' in frame.f_code.co_names for frame in _frames(each)
        ):
            return f'processes cannot share memory: nothing can be written into /dev/shm ({each})'
        for pattern, cure in _CURES.items():
            if re.search(pattern, text):
                return f'{cure} ({_short(text)})'
        if answer := _unknown_type(text) or _wrong_channels(each, text) or _wrong_option(each):
            return answer
    return None


def missing_package(error: BaseException) -> str | None:
    """Return which package is not installed and how to install it; None if the error has another reason."""
    for each in _chain(error):  # MMEngine wraps errors of `custom_imports`
        if isinstance(each, ModuleNotFoundError) and 'pip install' in str(each):
            return str(each)  # one of ours, which names an extra
        for package in PACKAGES:
            if isinstance(each, ModuleNotFoundError) and each.name == package.module:
                families = {family for known in PACKAGES for family in metadata_versions(known)}
                return f'this needs {package.module}, which is not installed: {package.advice(families)}'
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _short(text: str) -> str:
    return text if len(text) <= 160 else f'{text[:157]}...'


def _unknown_type(text: str) -> str | None:
    """A ``type`` that MMEngine does not find: ours without the prefix, or a misspelt one."""
    found = _REGISTRY.search(text)
    if found is None:
        return None
    name, scope, kind = found[1].strip('\'"'), found[2].strip('\'"'), found[3]
    known: set[str] = set()
    from . import registry  # MMEngine is there: it has said so

    for each in vars(registry).values():
        if getattr(each, 'scope', '') == 'mmlape' and getattr(each, 'name', '') == kind:
            known |= {f'mmlape.{own}' for own in {**each.module_dict, **each.by_name}}
    if f'mmlape.{name}' in known:
        return (
            f'type={name!r} is not in the {scope}::{kind} registry: write type={f"mmlape.{name}"!r}'
        )
    hint = did_you_mean(f'mmlape.{name}', known)
    return f'type={name!r} is not in the {scope}::{kind} registry{hint or TRY}'


def _frames(error: BaseException) -> Iterator[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _calls(error: BaseException) -> list[tuple[str, Mapping[str, Any]]]:
    """Parts of a model that were called when ``error`` was raised, by name, with the variables of the calls."""
    frames = [frame.f_locals for frame in _frames(error)]
    calls = [
        (each.get('self'), each) for each in frames if hasattr(each.get('self'), 'named_modules')
    ]
    names = {id(part): name for name, part in calls[0][0].named_modules()} if calls else {}
    found = [(names.get(id(owner), ''), values) for owner, values in calls]
    return [(name.removeprefix('module.'), values) for name, values in found if name]


def place_of(error: BaseException) -> str | None:
    """The innermost part of a model that was called when ``error`` was raised: ``'neck.lateral_convs.0.conv'``."""
    return next((name for name, _ in reversed(_calls(error))), None)


def _maps_for(error: BaseException, part: str) -> list[int]:
    """Channels of the maps that a neck or head was called with."""
    for values in [values for name, values in _calls(error) if name == part]:
        for value in values.values():
            if (
                isinstance(value, (tuple, list))
                and value
                and all(getattr(each, 'ndim', 0) == 4 for each in value)
            ):
                return [each.shape[1] for each in value]
    return []


def _wrong_channels(error: BaseException, text: str) -> str | None:
    """Layers of a head or neck that were made for other maps than they get."""
    found = [match.groups() for match in (each.search(text) for each in _CHANNELS) if match]
    found += [match.groups()[::-1] for match in [_PRODUCT.search(text)] if match]
    found += [('another number of', '')] * isinstance(error, AssertionError)  # of upstream's necks
    place = place_of(error)
    part = re.match(r'\w+(\.\d+(?=\.))?', place or '')
    if not found or part is None:
        return None
    takes, gets = found[0]
    maps = _maps_for(error, part[0])
    if not gets and not maps:
        return None
    right = f': the maps have {maps}' if maps else ''
    wrong = f'takes {takes} channels and gets {gets}' if gets else 'takes another number of maps'
    return f'{place} {wrong}: correct in_channels of model.{part[0]} in the config{right}{TRY}'


def _wrong_option(error: BaseException) -> str | None:
    """An option that a class of the config does not have: misspelt, or left over from the base."""
    kinds = [
        f.f_locals.get('obj_type') for f in _frames(error) if f.f_code.co_name == 'build_from_cfg'
    ]
    if not kinds or not isinstance(error, TypeError) or 'keyword argument' not in str(error):
        return None
    name = kinds[-1] if isinstance(kinds[-1], str) else getattr(kinds[-1], '__name__', kinds[-1])
    said = str(error) if 'did you mean' in str(error) else str(error).partition(';')[0]
    return f'type={name!r}: {said}; if it comes from the _base_, begin the dict with _delete_=True'

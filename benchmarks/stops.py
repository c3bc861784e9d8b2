"""How many functions of ours an option passes on its way from a config to the module that it describes.

python -m benchmarks.stops
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import mmlape
from mmlape.backbones import VisionTransformer
from mmlape.registry import MODELS

ROOT = str(Path(mmlape.__file__).parent)
ARCH = dict(embed_dims=16, depth=2, num_heads=4)
# A part for each option, and an option of it that is followed.
PARTS = {
    'norm_cfg': ('mmlape.DTN', 'eps'),
    'joining': ('mmlape.LaPE', 'eps'),
    'attention_position': ('mmlape.RotaryPosition', 'temperature'),
}


class Followed(float):
    """A number that is known again."""


def stops(option: str) -> list[str]:
    """Functions of ours through which an option passes until the first module is built of it.

    Counted are those that have returned the config or something with it, and then those that are running when the
    module is built, except the function that builds it. Looking at it (checks) does not count.
    """
    kind, name = PARTS[option]
    value, passed = Followed(1.0), {}
    target = MODELS.get(kind).__init__.__code__

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if event == 'return' and _is_ours(frame) and _holds(argument, value):
            passed.setdefault(_title(frame), None)
        if event == 'call' and frame.f_code is target:
            sys.setprofile(None)
            running, caller = [], frame.f_back
            while caller is not None:
                running += [_title(caller)] if _is_ours(caller) else []
                caller = caller.f_back
            passed.update(dict.fromkeys(reversed(running[1:])))

    config = dict(type=kind, **{name: value})
    sys.setprofile(trace)
    try:
        VisionTransformer(ARCH, 32, **{option: config})  # type: ignore[misc]  # one of three options
    finally:
        sys.setprofile(None)
    return list(passed)


def _is_ours(frame: FrameType) -> bool:
    """A function of the package; comprehensions are parts of one."""
    return frame.f_code.co_filename.startswith(ROOT) and not frame.f_code.co_name.startswith('<')


def _title(frame: FrameType) -> str:
    file = Path(frame.f_code.co_filename).relative_to(ROOT)
    return f'{file}: {getattr(frame.f_code, "co_qualname", frame.f_code.co_name)}'


def _holds(found: Any, value: Followed) -> bool:
    """Whether the value is somewhere in what a function returned."""
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        found = vars(found)
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return any(_holds(each, value) for each in found)
    return found is value


if __name__ == '__main__':
    for each in PARTS:
        found = stops(each)
        sys.stdout.write('\n    '.join([f'{each}: {len(found)}', *found]) + '\n')

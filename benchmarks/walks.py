"""How far a reader walks through mmlape: Python calls, files and moves between files of a pass, and of a construction.

    python -m benchmarks.walks [--out FILE]

Counted are calls of functions whose code is in ``mmlape/`` (resumed generators too), the files that they are in, and
how often one call is in another file than the call before. The counts are the same on every machine;
tests/test_walks.py holds them to their limits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mmlape
from mmlape.registry import MODELS

PACKAGE = str(Path(mmlape.__file__).parent)
RECORD = Path(__file__).parent / 'records' / 'walks.json'
NETWORKS = {
    'LaPE ViT-Ti': dict(
        type='mmlape.VisionTransformer', arch='deit-tiny', joining=dict(type='mmlape.LaPE')
    ),
    'PVT-Ti DTN': dict(
        type='mmlape.PyramidVisionTransformer', arch='tiny', norm_cfg=dict(type='mmlape.DTN')
    ),
}


def walk(call: Callable[[], Any]) -> dict[str, int]:
    """Calls of mmlape's functions, their files and moves between these, of ``call()``."""
    visited: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == 'call' and frame.f_code.co_filename.startswith(PACKAGE):
            visited.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    moves = sum(one != other for one, other in itertools.pairwise(visited))
    return dict(calls=len(visited), files=len(set(visited)), moves=moves)


def of_pass(config: dict) -> dict[str, int]:
    """An inference pass on an image of 224 x 224; what is cached by grid is there."""
    model, image = MODELS.build(dict(config)).eval(), torch.zeros(1, 3, 224, 224)
    with torch.no_grad():
        model(image)
        return walk(lambda: model(image))


def of_construction(config: dict) -> dict[str, int]:
    """``MODELS.build(config)``, not the first one of the process."""
    MODELS.build(dict(config))
    return walk(lambda: MODELS.build(dict(config)))


def main() -> None:
    parser = argparse.ArgumentParser('python -m benchmarks.walks', description=__doc__)
    parser.add_argument('--out', type=Path, default=RECORD, help='default: %(default)s')
    options = parser.parse_args()
    found = {f'{name}, a pass': of_pass(config) for name, config in NETWORKS.items()}
    found |= {f'{name}, built': of_construction(config) for name, config in NETWORKS.items()}
    print('| what | calls | files | moves |\n|---|---|---|---|')
    for name, counts in found.items():
        print(f'| {name} | {" | ".join(map(str, counts.values()))} |')
    options.out.write_text(json.dumps(found, indent=2) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()

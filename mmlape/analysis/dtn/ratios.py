"""The course of DTN's ratios during a training, from what ``mmlape.DTNRatioHook`` logged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.logging import print_log

from mmlape.engine.dtn_ratio_hook import RATIO_PREFIX, RATIOS

SCALARS = 'scalars.json'


@dataclass(frozen=True)
class RatioCourse:
    """Ratios of every layer that has some.

    Attributes:
        steps: ``(S,)``, iterations done, ascending.
        values: ``(S, heads)`` by ``(layer, 'mean' or 'var')``; NaN where a record lacks it.
    """

    steps: np.ndarray
    values: dict[tuple[str, str], np.ndarray]

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in the order of the network."""
        return list(dict.fromkeys(layer for layer, _ in self.values))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``: ``steps``, and ``<layer>/<mean or var>`` for each."""
        return {'steps': self.steps} | {'/'.join(key): value for key, value in self.values.items()}


def read_ratios(paths: Sequence[str | Path]) -> RatioCourse:
    """Read the ratios that a run has logged.

    Args:
        paths: ``scalars.json`` of a run, its folder ``vis_data``, or a work folder (all runs in it, so that a resumed
            training is one course). Where two files know the same iteration, the later run counts, and what an earlier
            one did after the place where it was resumed is dropped.

    Raises:
        FileNotFoundError: If a path does not exist.
        ValueError: If a folder holds no ``scalars.json``, a line is no record, or there are no ratios.
    """
    files = [file for path in map(Path, paths) for file in _files_of(path)]
    records: dict[int, dict[tuple[str, str, int], float]] = {}
    for file in files:
        found = _read(file)
        if found:
            first = min(found)
            records = {step: record for step, record in records.items() if step < first} | found
    if not records:
        listed = ', '.join(repr(str(file)) for file in files)
        raise ValueError(
            f"no ratios are logged in {listed}: train with custom_hooks=[dict(type='mmlape.DTNRatioHook')]"
        )
    steps = sorted(records)
    names = list(dict.fromkeys(name for step in steps for name in records[step]))
    values = {}
    for layer, kind, _head in names:
        heads = sorted(head for *place, head in names if place == [layer, kind])
        values[layer, kind] = np.array(
            [[records[step].get((layer, kind, head), np.nan) for head in heads] for step in steps]
        )
    return RatioCourse(np.asarray(steps), values)


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f'there is no file or folder {str(path)!r}')
    # Folders of runs are named by the time of their start.
    found = sorted(path.rglob(SCALARS))
    if not found:
        raise ValueError(f'there is no {SCALARS} in the folder {str(path)!r}')
    return found


def _read(file: Path) -> dict[int, dict[tuple[str, str, int], float]]:
    """Ratios by layer, kind and head, by step."""
    records: dict[int, dict[tuple[str, str, int], float]] = {}
    lines = file.read_text(encoding='utf-8').splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            ratios = _ratios_of(record)
            if ratios:
                records.setdefault(int(record['step']), {}).update(ratios)
        except (ValueError, KeyError, AttributeError) as error:
            if number < len(lines):
                raise ValueError(f'line {number} of {str(file)!r} is no record of a run') from error
            # As an interrupted run leaves it.
            print_log(f'{file}: the last line is cut and left out', logger='current')
    return records


def _ratios_of(record: dict[str, float]) -> dict[tuple[str, str, int], float]:
    found = {}
    for name, value in record.items():
        if name.startswith(RATIO_PREFIX + '/'):
            layer, kind, head = name.removeprefix(RATIO_PREFIX + '/').rsplit('/', 2)
            if kind in RATIOS:
                found[layer, kind, int(head)] = float(value)
    return found

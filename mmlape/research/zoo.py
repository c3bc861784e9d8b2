"""The model zoo: tables of a page from metafiles and a record of measurements."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config

from mmlape.research.analysis import StepMemory, training_size
from mmlape.research.analysis.complexity import Complexity

__all__ = ['Row', 'Zoo', 'read_reports', 'read_rows', 'write_measured']

# No published figures to compare with, or measured by another tool.
_LEFT_OUT = ('demo', 'imagenet', 'cifar', 'ablations', 'listops', 'dino')
# Metafiles have all published figures; the page shows only these.
_SHOWN = ('box AP', 'mask AP', 'PQ', 'mIoU', 'mDice', 'Top 1 Accuracy')
_PACKAGES = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg')
START, END = (
    '<!-- tables: written by tools/developers/zoo_table.py -->',
    '<!-- end of the tables -->',
)


@dataclass(frozen=True)
class Row:
    """One entry of a metafile: a config, its data and its published results.

    Attributes:
        name: Of the config, without its ending.
        collection: Name of the method.
        path: The config.
        metafile: Where the entry is.
        metadata: ``Training Data``, ``Epochs`` or ``Iterations``, ``Batch Size``, ``Parameters``, ``FLOPs``.
        results: Each with ``Task``, ``Dataset``, ``Metrics`` and, where they are an author's, ``Published``.
    """

    name: str
    collection: str
    path: Path
    metafile: Path
    metadata: dict[str, Any]
    results: list[dict[str, Any]]

    def metrics(self, published: bool) -> str:
        """Main figures, published or our own, ``box AP 45.6, mask AP 40.7``; empty if there are none."""
        results = [result for result in self.results if ('Published' in result) == published]
        values = [pair for result in results for pair in (result.get('Metrics') or {}).items()]
        return ', '.join(f'{metric} {value}' for metric, value in values if metric in _SHOWN)

    def source(self) -> str:
        """Sources of the published figures."""
        sources = [result['Published'] for result in self.results if 'Published' in result]
        return '; '.join(dict.fromkeys(sources))


def read_rows(root: Path) -> list[Row]:
    """The rows of all metafiles that ``root/model-index.yml`` names, in their order.

    Raises:
        FileNotFoundError: If a metafile or a config does not exist.
    """
    index = yaml.safe_load((root / 'model-index.yml').read_text(encoding='utf-8'))
    rows = []
    for name in index['Import']:
        metafile = root / name
        if metafile.parent.name in _LEFT_OUT:
            continue
        for entry in yaml.safe_load(metafile.read_text(encoding='utf-8'))['Models']:
            path = root / entry['Config']
            if not path.is_file():
                raise FileNotFoundError(f'{name} names {entry["Config"]}, which does not exist')
            rows.append(
                Row(
                    entry['Name'],
                    entry['In Collection'],
                    path,
                    metafile,
                    entry['Metadata'],
                    entry.get('Results') or [],
                )
            )
    return rows


class Zoo:
    """Rows with their measurements.

    Args:
        rows: From :func:`read_rows`.
        record: The JSON file of :meth:`save`; need not exist yet.
        reports: From :func:`read_reports`.
    """

    def __init__(
        self, rows: Iterable[Row], record: Path, reports: dict[str, list[str]] | None = None
    ) -> None:
        self.rows = list(rows)
        self.reports = reports or {}
        self.path = record
        content = json.loads(record.read_text(encoding='utf-8')) if record.is_file() else {}
        self.versions: dict[str, str] = content.get('versions', {})
        self.measured: dict[str, dict[str, Any]] = content.get('models', {})

    def put(self, row: Row, complexity: Complexity, memory: StepMemory) -> None:
        """Store a measurement and the digest of the measured model."""
        config = Config.fromfile(row.path)
        self.versions = _versions()
        size = list(memory.image_size)
        step = dict(bytes=memory.total, images=memory.batch_size, image_size=size)
        self.measured[row.name] = {**complexity._asdict(), 'step': step, 'model': digest(config)}

    def save(self) -> None:
        """Write the record without rows that no longer exist."""
        models = {
            row.name: self.measured[row.name] for row in self.rows if row.name in self.measured
        }
        lines = ',\n'.join(f'  {json.dumps(n)}: {json.dumps(models[n])}' for n in sorted(models))
        text = f'{{\n "versions": {json.dumps(self.versions)},\n "models": {{\n{lines}\n }}\n}}\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text, encoding='utf-8')

    def problems(self) -> list[str]:
        """Missing or outdated entries of the record; empty if there are none."""
        found = []
        for row in self.rows:
            measured = self.measured.get(row.name)
            if measured is None:
                found.append(f'{row.name} has not been measured')
                continue
            config = Config.fromfile(row.path)
            if measured['model'] != digest(config):
                found.append(f'{row.name} has another model than the one that was measured')
            images, size = config.train_dataloader.batch_size, list(training_size(config))
            if [images, size] != [measured['step']['images'], measured['step']['image_size']]:
                found.append(f'{row.name} has other batches than those that were measured')
            for key in ('Parameters', 'FLOPs'):
                if row.metadata.get(key) != measured[key.lower()]:
                    found.append(
                        f'{row.metafile.parent.name}/metafile.yml says {key} '
                        f'{row.metadata.get(key)} of {row.name}, measured: {measured[key.lower()]}'
                    )
        unknown = set(self.measured) - {row.name for row in self.rows}
        return found + [f'{name} was measured but is not a row' for name in sorted(unknown)]

    def page(self, path: Path) -> str:
        """The text of the page with new tables between its marks, of the rows that its tables have."""
        before, rest = path.read_text(encoding='utf-8').split(START)
        written, after = rest.split(END)
        names = re.findall(r'^\| \[(.+?)\]', written, re.MULTILINE)
        shown = [row for row in self.rows if row.name in names]
        versions = ', '.join(f'{name} {version}' for name, version in self.versions.items())
        parts = [
            f'{START}\n\n{len(shown)} of {len(self.rows)} configs, measured with {versions}.\n'
        ]
        for collection in dict.fromkeys(row.collection for row in shown):
            rows = [row for row in shown if row.collection == collection]
            readme = os.path.relpath(rows[0].path.with_name('README.md'), path.parent)
            parts.append(
                f'\n## {collection}\n\nAll rows, weights and recipes: [README]({readme}).\n\n'
            )
            parts.append(self._table(rows, path.parent))
        return ''.join([before, *parts, '\n', END, after])

    def _table(self, rows: list[Row], folder: Path) -> str:
        head = ['config', 'parameters (M)', 'FLOPs (G)', 'GB', 'published', 'ours']
        lines = []
        for row in rows:
            link = os.path.relpath(row.path, folder)
            figures = ('', '', '')
            if measured := self.measured.get(row.name):
                figures = (
                    f'{measured["parameters"] / 1e6:.1f} '
                    f'({measured["backbone_parameters"] / 1e6:.1f})',
                    f'{measured["flops"] / 1e9:.0f} ({measured["backbone_flops"] / 1e9:.0f})',
                    '; '.join([_memory(**measured['step']), *self.reports.get(row.name, [])]),
                )
            published = row.metrics(published=True)
            lines.append(
                [
                    f'[{row.name}]({link})',
                    *figures,
                    f'{published} ({row.source()})' if published else '',
                    row.metrics(published=False),
                ]
            )
        kept = [column for column, cells in enumerate(zip(*lines, strict=True)) if any(cells)]
        table = [head, ['---'] * len(head), *lines]
        return ''.join(f'| {" | ".join(line[i] or "-" for i in kept)} |\n' for line in table)


def _memory(bytes: int, images: int, image_size: Sequence[int]) -> str:
    height, width = image_size
    return f'{bytes / 1e9:.1f} ({images}, {height} x {width})'


def read_reports(root: Path) -> dict[str, list[str]]:
    """Read what reports of ``make test-gpu`` say of a training step, by the name of the row."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob('benchmarks/records/gpu_*.json')):
        report = json.loads(path.read_text(encoding='utf-8'))
        for each in report['results']:
            figures = each['figures']
            if 'measured, GB' in figures:
                said = f'{figures["measured, GB"]:.1f} GB'
                if speed := figures.get('images per second'):
                    said += f', {speed:.1f} images/s'
                name = each['case'].rpartition('/')[2]
                found.setdefault(name, []).append(f'{report["machine"]["device"]}: {said}')
    return found


def write_measured(metafile: Path, measured: dict[str, dict[str, Any]]) -> None:
    """Set ``Parameters`` and ``FLOPs`` of a metafile's entries; keep the rest of the layout.

    Raises:
        ValueError: If an entry does not have each field exactly once.
    """
    head, *entries = re.split(r'(?m)^(?=  - Name: )', metafile.read_text(encoding='utf-8'))
    written = []
    for entry in entries:
        name = entry.splitlines()[0].removeprefix('  - Name: ')
        for key in ('Parameters', 'FLOPs') if name in measured else ():
            # Whole numbers; those with a unit are as printed.
            figure = rf'\b{key}: \d+(?![\d.KMG])'
            entry, count = re.subn(figure, f'{key}: {measured[name][key.lower()]}', entry)
            if count != 1:
                raise ValueError(f'{metafile.name}: {name} must have one {key}, got {count}')
        written.append(entry)
    metafile.write_text(head + ''.join(written), encoding='utf-8')


def digest(config: Config) -> str:
    """A digest of a config's model, without its initial weights."""
    model = json.dumps(_without_weights(config.model.to_dict()), sort_keys=True, default=str)
    return hashlib.sha256(model.encode()).hexdigest()[:16]


def _without_weights(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_weights(value) for key, value in node.items() if key != 'init_cfg'}
    if isinstance(node, (list, tuple)):
        return [_without_weights(value) for value in node]
    return node


def _versions() -> dict[str, str]:
    found = {name: import_module(name).__version__ for name in _PACKAGES}
    return {'Python': platform.python_version(), **found}

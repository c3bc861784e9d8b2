"""One JSON file per finished run; a run with a valid record is skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmlape.atomic import atomic_write
from mmlape.research.demo.state import fingerprint


@dataclass(frozen=True)
class Run:
    """One training: a variant and a seed.

    Args:
        variant: Key of the variant.
        seed: The seed.
        settings: Fingerprint of everything else that the result depends on.
    """

    variant: str
    seed: int
    settings: str

    @property
    def name(self) -> str:
        return f'{self.variant}_seed{self.seed}'


class Job(NamedTuple):
    """A run with everything that its process needs."""

    run: Run
    config: Path
    data_root: Path
    work_dir: Path
    iterations: int | None


class Records:
    """The finished runs of a folder.

    Args:
        folder: Where the files are; made when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, run: Run) -> Path:
        return self.folder / f'{run.name}.json'

    def get(self, run: Run) -> dict[str, Any] | None:
        """The results; None if there is no file, it is damaged, or its settings differ."""
        try:
            record = json.loads(self.path(run).read_text(encoding='utf-8'))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(record, dict) or record.get('settings') != run.settings:
            return None
        return record

    def put(self, run: Run, measured: dict[str, Any]) -> None:
        """Save the results."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {
            'variant': run.variant,
            'seed': run.seed,
            'settings': run.settings,
            **measured,
        }
        text = json.dumps(record, indent=2, sort_keys=True) + '\n'
        atomic_write(self.path(run), text.encode())


def settings_of(config: dict, data: str) -> str:
    """Fingerprint of a run's config, wherever it is run, and of its data."""
    config = dict(config)
    config.pop('work_dir')
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        config[loader] = {
            **config[loader],
            'dataset': {**config[loader]['dataset'], 'data_root': ''},
        }
    return fingerprint(config, data)

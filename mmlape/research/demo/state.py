"""The completed steps of a task, saved on disk so that the demo can resume."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmlape.atomic import atomic_write
from mmlape.training.last_checkpoint import last_complete_checkpoint

STATE_FILE = 'state.json'


def fingerprint(*parts: Any) -> str:
    """A short hash of settings; values that JSON does not support are hashed as text."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class State:
    """Results of a task in ``folder/state.json``, written atomically at every change.

    Args:
        folder: The task's folder. It is emptied when it holds results of other settings.
        settings: Fingerprint of everything that the results depend on.
        say: Prints the message.
    """

    def __init__(self, folder: Path, settings: str, say: Callable[[str], None]) -> None:
        self.file = folder / STATE_FILE
        self.values: dict[str, Any] = self._read()
        if self.values.get('settings') != settings:
            if self.values:
                say(f'  Settings or data have changed since {folder} was written: starting over.')
                shutil.rmtree(folder)
            self.values = {'settings': settings}
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def put(self, **values: Any) -> None:
        self.values.update(values)
        text = json.dumps(self.values, indent=2, sort_keys=True) + '\n'
        atomic_write(self.file, text.encode())

    def _read(self) -> dict[str, Any]:
        try:
            values = json.loads(self.file.read_text(encoding='utf-8'))
        except FileNotFoundError:
            return {}
        except ValueError:
            return {'settings': 'unreadable'}
        return values if isinstance(values, dict) else {'settings': 'unreadable'}


def last_checkpoint(folder: Path, say: Callable[[str], None]) -> tuple[Path | None, int]:
    """The newest complete checkpoint and its iteration, else ``(None, 0)``."""
    found, notes = last_complete_checkpoint(str(folder))
    for note in notes:
        say(f'  {note}')
    if found is None:
        return None, 0
    return Path(found), int(Path(found).stem.removeprefix('iter_'))

"""What has been measured of one model: a JSON file that is there whole, and that a stopped run goes on from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmlape.whole_files import sha256_of, write_whole

__all__ = ['Record', 'identity_of', 'read_record']

_KIND = 'mmlape robustness'
# Of a config: what a result depends on. Where and by how many processes it is measured is nothing of the kind.
_DECIDING = ('model', 'test_evaluator', 'test_cfg')


def identity_of(cfg: Config, checkpoint: str, **further: Any) -> dict[str, Any]:
    """What a record is of: results of anything else must not be mixed with it.

    Args:
        cfg: The config.
        checkpoint: A file, of which the content counts, or an address.
        further: What else decides, by names that the user will understand.
    """
    config = cfg.to_dict()
    deciding = [config.get(name) for name in _DECIDING] + [config['test_dataloader']['dataset']]
    text = json.dumps(deciding, sort_keys=True, default=str)
    path = Path(checkpoint)
    digest = sha256_of(path) if path.is_file() else checkpoint
    return {
        'config': hashlib.sha256(text.encode()).hexdigest()[:16],
        'checkpoint': digest[:16] if path.is_file() else digest,
        **further,
    }


class Record:
    """The results of one model, and the file that holds them.

    Args:
        path: The file. What it holds is gone on from.
        identity: What the results are of (:func:`identity_of`).
        about: What tables say of it: ``name``, ``imagenet``.

    Raises:
        ValueError: The file is of another config, checkpoint or seed, or no such record.
    """

    def __init__(self, path: Path, identity: dict[str, Any], about: dict[str, Any]) -> None:
        self.path, self.identity, self.about = path, identity, about
        self.results: dict[str, dict[str, float]] = {}
        if path.exists():
            content = read_record(path)
            there = content['identity']
            other = [key for key in identity if identity[key] != there.get(key)]
            if other:
                raise ValueError(
                    f'{path} holds results of another {other[0]} ({there.get(other[0])}, now '
                    f'{identity[other[0]]}): name another --work-dir, or remove the file'
                )
            self.results = content['results']

    def put(self, key: str, measured: dict[str, float]) -> None:
        """Keep what was measured; it is on the disk when this returns."""
        self.results[key] = measured
        content = dict(kind=_KIND, identity=self.identity, **self.about, results=self.results)
        write_whole(self.path, (json.dumps(content, indent=1) + '\n').encode())


def read_record(path: Path) -> dict[str, Any]:
    """A record's content: ``name``, ``imagenet``, ``identity`` and ``results``.

    Raises:
        ValueError: There is no such file, or it is no record.
    """
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise ValueError(f'there is no record {path}') from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get('kind') != _KIND:
        raise ValueError(f'{path} is no record of `mmlape robustness`')
    return content

"""Long ListOps as a data set of MMEngine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from mmlape.checks import check_bool, check_positive_int
from mmlape.registry import DATASETS

from .list_ops import END, HEAD, IDS


@DATASETS.register_module()
class ListOps(BaseDataset):
    """Long ListOps, of files as :func:`~mmlape.datasets.build_list_ops` writes them or of the published release, whose
    parentheses are passed over. A pipeline gets ``img``, token ids ``(1, length, 1)``, and ``gt_label``, the result, as
    from any classification data set; MMPretrain's preprocessor pads batches with 0, the id of padding.

    Ids are 1 to 10 for the digits 0 to 9, 11 to 14 for the operators and 15 for the closing bracket: a vocabulary of
    16.

    Args:
        brackets: Whether closing brackets are there. Default True. The published benchmark reads words alone: its
            models see no brackets, and cannot tell where the arguments of an operator end.
        max_length: What is longer is cut off. Default 2000.
        options: Of MMEngine's ``BaseDataset`` (``ann_file``, ``data_root``, ``pipeline``, ``indices``, ...).

    Raises:
        ValueError: If a value is out of range, or a line of the file is none of ListOps.
    """

    METAINFO = dict(classes=tuple(map(str, range(10))))

    def __init__(self, brackets: bool = True, max_length: int = 2000, **options: Any) -> None:
        self.brackets = check_bool('brackets', brackets)
        self.max_length = check_positive_int('max_length', max_length)
        super().__init__(**options)

    def load_data_list(self) -> list[dict]:
        """``img`` and ``gt_label`` of every line."""
        path = Path(self.ann_file)
        lines = path.read_text(encoding='utf-8').splitlines()
        if not lines or lines[0].strip() != HEAD:
            raise ValueError(f'{path} is no file of ListOps: its first line must be {HEAD!r}')
        return [
            self._read(line, f'{path}, line {number}') for number, line in enumerate(lines[1:], 2)
        ]

    def _read(self, line: str, where: str) -> dict:
        source, tab, target = line.partition('\t')
        tokens = [token for token in source.split() if token not in '()']
        unknown = [token for token in tokens if token not in IDS]
        if not tab or not tokens or unknown or target.strip() not in self.METAINFO['classes']:
            raise ValueError(
                f'{where}: expected tokens of {[*IDS]}, a tab and a digit, got '
                f'{unknown[0] if unknown else line[-80:]!r}'
            )
        if not self.brackets:
            tokens = [token for token in tokens if token != END]
        ids = np.array([IDS[token] for token in tokens[: self.max_length]], dtype=np.uint8)
        return dict(img=ids.reshape(1, -1, 1), gt_label=int(target))

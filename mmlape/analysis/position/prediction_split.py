"""What position does to the predictions of a classifier, image by image (Gabor position encoding, Table 2)."""

from __future__ import annotations

import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmlape.analysis.results import Result
from mmlape.checks import check_option

# In the order of the table: right or wrong without position, and with it.
KINDS = ('ignored', 'mislead', 'correct', 'useless')


@dataclass(frozen=True)
class PredictionSplit(Result):
    """Images by what position does to their classification.

    ==================  ================  ==================
    (Table 2)           with it: right    with it: wrong
    ==================  ================  ==================
    without it: right   ignored           mislead
    without it: wrong   correct           useless
    ==================  ================  ==================

    Attributes:
        kinds: ``(images,)``, indices into ``KINDS``.
    """

    kinds: np.ndarray

    def counts(self) -> dict[str, int]:
        """Number of images of each kind."""
        return {kind: int((self.kinds == index).sum()) for index, kind in enumerate(KINDS)}

    def images(self, kind: str) -> np.ndarray:
        """Indices of the images of a kind.

        Raises:
            ValueError: If there is no such kind.
        """
        return np.flatnonzero(self.kinds == KINDS.index(check_option('kind', kind, KINDS)))


@dataclass(frozen=True)
class Predictions:
    """What a classifier said of the images of a data set.

    Attributes:
        names: Of the images, in the order of the data set; their number where they have no names.
        labels: ``(images,)``, true classes.
        predicted: ``(images,)``, the class with the highest score.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    predicted: np.ndarray


def split_predictions(
    without: Sequence[int] | np.ndarray,
    with_position: Sequence[int] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
) -> PredictionSplit:
    """Split images by whether two classifiers are right about them (Table 2).

    Args:
        without: Class ``(images,)`` that the classifier without position predicts.
        with_position: The same of the one with position.
        labels: True classes.

    Raises:
        ValueError: If there is no image, or the three have different lengths or several axes.
        TypeError: If they hold something other than integers.
    """
    given = dict(without=without, with_position=with_position, labels=labels)
    arrays = {name: np.asarray(values) for name, values in given.items()}
    shapes = {name: values.shape for name, values in arrays.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1:
        raise ValueError(f'predictions and labels must be one class for each image, got {shapes}')
    if not len(arrays['labels']):
        raise ValueError('there must be at least one image')
    for name, values in arrays.items():
        if not np.issubdtype(values.dtype, np.integer):
            raise TypeError(f'{name} must hold class indices, got {values.dtype}')
    wrong = {name: arrays[name] != arrays['labels'] for name in ('without', 'with_position')}
    return PredictionSplit(2 * wrong['without'] + wrong['with_position'])


def read_predictions(path: str | Path) -> Predictions:
    """Read what ``mmlape test CONFIG CHECKPOINT --out FILE.pkl`` has written of a classifier, or the same as JSON.

    JSON is a list with ``{"gt_label": 3, "pred_label": 5, "img_path": "a.jpg"}`` for each image, its path optional.
    Pickles are read without running anything that is in them.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'there is no file of predictions {str(path)!r}')
    try:
        with path.open('rb') as file:
            content = json.load(file) if path.suffix == '.json' else _DataAlone(file).load()
    except Exception as error:  # of JSON, pickle, torch: whatever is wrong, it is not ours
        raise ValueError(f'{str(path)!r} cannot be read as predictions: {error}') from error
    if not isinstance(content, list) or not content:
        raise ValueError(f'{str(path)!r} must hold a list with an entry for each image')
    names = [
        str(entry.get('img_path', number)) if isinstance(entry, Mapping) else str(number)
        for number, entry in enumerate(content)
    ]
    labels, predicted = (
        np.array([_class(entry, key, path) for entry in content])
        for key in ('gt_label', 'pred_label')
    )
    return Predictions(tuple(names), labels, predicted)


def compare_predictions(without: Predictions, with_position: Predictions) -> PredictionSplit:
    """Split the images of two files of :func:`read_predictions`.

    Raises:
        ValueError: If they are not of the same images with the same true classes, in the same order.
    """
    if without.names != with_position.names:
        raise ValueError(
            f'predictions must be of the same images in the same order, got {len(without.names)} and '
            f'{len(with_position.names)}, which differ'
        )
    if not np.array_equal(without.labels, with_position.labels):
        raise ValueError('predictions must have the same true classes (gt_label)')
    return split_predictions(without.predicted, with_position.predicted, without.labels)


def _class(entry: Any, key: str, path: Path) -> int:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    found = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if found.size != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f'{str(path)!r}: every image must have one class as {key}, got {value!r}. Is it of a classifier, and of '
            'a data set with labels?'
        )
    return int(found.reshape(()))


def _tensor_of_bytes(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


def _bytes_of_text(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


class _DataAlone(pickle.Unpickler):
    """Reads dicts, lists, numbers, texts and tensors, and calls nothing else."""

    _KNOWN = {  # functions that make tensors
        ('collections', 'OrderedDict'): OrderedDict,
        ('_codecs', 'encode'): _bytes_of_text,
        ('torch._utils', '_rebuild_tensor_v2'): torch._utils._rebuild_tensor_v2,
        ('torch.storage', '_load_from_bytes'): _tensor_of_bytes,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f'it refers to {module}.{name}, which is no data')
        return self._KNOWN[module, name]

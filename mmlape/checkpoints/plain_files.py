"""Pickled and YAML files as data. MMEngine's ``load`` runs what such a file names, and configs name such files: the
``ann_file`` of a data set, or the ``class_weight`` of a loss."""

from __future__ import annotations

import io
import pickle
import sys
from collections import OrderedDict
from typing import IO, Any

import numpy as np
import torch
import yaml
from mmengine.fileio import PickleHandler, YamlHandler, register_handler
from mmengine.structures import BaseDataElement

from .reading import TRUST, trusts_pickles
from .report import CheckpointError

# What pickled data are made of: functions that make arrays, tensors and containers, and their types.
_NUMPY = ('multiarray._reconstruct', 'multiarray.scalar', 'numeric._frombuffer')
_CALLED = {
    ('collections', 'OrderedDict'): OrderedDict,
    ('_codecs', 'encode'): str.encode,
    ('torch._utils', '_rebuild_tensor_v2'): torch._utils._rebuild_tensor_v2,
    ('torch.storage', '_load_from_bytes'): lambda content: torch.load(
        io.BytesIO(content), weights_only=True
    ),
    **{('builtins', kind.__name__): kind for kind in (set, frozenset, bytearray, complex, range, slice)},
    **{('torch', kind.__name__): kind for kind in (torch.Size, torch.device)},
    **{('numpy', kind.__name__): kind for kind in (np.ndarray, np.dtype)},
}  # fmt: skip
# Of Python 2, which the protocols up to 2 write.
_OLD_NAMES = {'__builtin__': 'builtins', 'copy_reg': 'copyreg'}


class PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, numbers, texts, arrays, tensors and MMEngine's data elements, and calls nothing else.

    Raises:
        UnpicklingError: If anything else is named.
    """

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the file stands for; nothing is imported."""
        module = _OLD_NAMES.get(module, module)
        name = 'range' if (module, name) == ('builtins', 'xrange') else name
        if (module, name) in _CALLED:
            return _CALLED[module, name]
        found = getattr(sys.modules.get(module), name, None)
        if module.startswith(('numpy.core.', 'numpy._core.')):
            if f'{module.rpartition(".")[2]}.{name}' in _NUMPY:
                return found
        elif isinstance(found, torch.dtype) or (
            isinstance(found, type) and issubclass(found, BaseDataElement)
        ):
            return found
        raise pickle.UnpicklingError(f'it refers to {module}.{name}, which is not data')


class PlainPickles(PickleHandler):
    """MMEngine's reader of pickled files, by :class:`PlainUnpickler` unless the user trusts pickles.

    Raises:
        CheckpointError: If a file holds more than data.
    """

    def load_from_fileobj(self, file: IO[bytes], **options: Any) -> Any:
        """The data in a file."""
        if trusts_pickles():
            return super().load_from_fileobj(file, **options)
        try:
            return PlainUnpickler(file, **options).load()
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f'a pickled file is refused: {error} ({TRUST}=1 runs what it names)'
            ) from None


class PlainYaml(YamlHandler):
    """MMEngine's reader of YAML files, by YAML's safe loader."""

    def load_from_fileobj(self, file: IO[str], **options: Any) -> Any:
        """The data in a file."""
        return yaml.load(file, **{**options, 'Loader': yaml.SafeLoader})


def read_data_files_plainly() -> None:
    """Let MMEngine's ``load`` read pickled and YAML files of this process as data."""
    register_handler(['pickle', 'pkl'])(PlainPickles)
    register_handler(['yaml', 'yml'])(PlainYaml)

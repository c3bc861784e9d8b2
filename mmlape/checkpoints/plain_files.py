"""Pickled files as data: predictions that ``mmlape test --out`` has saved."""

from __future__ import annotations

import io
import pickle
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement

# Names in pickled data: functions that make arrays, tensors and containers, and their types.
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
# Names of Python 2, which the protocols up to 2 write.
_OLD_NAMES = {'__builtin__': 'builtins', 'copy_reg': 'copyreg'}


class PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, numbers, texts, arrays, tensors and MMEngine's data elements, and calls nothing else.

    Raises:
        UnpicklingError: If anything else is named.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name in the file stands for; nothing is imported."""
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

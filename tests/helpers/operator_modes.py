"""Counts what a GPU would run, and how often a program would wait for it, without one."""

import sys
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# They need values on the host: a number, or the size of the result.
WAITING = {'_local_scalar_dense', 'nonzero', 'masked_select', '_unique2', 'unique_dim'}


class Work(TorchDispatchMode):
    """Operators by name: ``runs``, and ``waits`` for values on the host. ``waits_in`` counts those of these that files
    of a folder ask for. A mask as an index waits, as ``nonzero`` does.

    On fake tensors, whose values nobody knows, numbers are 0.
    """

    def __init__(self, folder='mmlape', fake=False):
        super().__init__()
        self.folder, self.fake = folder, fake
        self.runs, self.waits, self.waits_in = Counter(), Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in WAITING or (name.startswith('index') and _has_mask(args[1:2])):
            self.waits[name] += 1
            if self._asks():
                self.waits_in[name] += 1
        elif not func.is_view and func.namespace != 'prim':
            self.runs[name] += 1
        if self.fake and name == '_local_scalar_dense':
            return 0.0
        return func(*args, **(kwargs or {}))

    def _asks(self):
        frame = sys._getframe()
        while frame is not None and '/torch/autograd/' not in frame.f_code.co_filename:
            if f'/{self.folder}/' in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False  # the backward pass of others, which a hook may call


def _has_mask(indices):
    return any(
        isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8)
        for each in tree_leaves(indices)
    )

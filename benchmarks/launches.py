"""Count what launches kernels on a GPU: operators of a forward and a backward pass, ours and others'.

    python -m benchmarks.launches [--only pvt] [--operators] [--out FILE]

No GPU is needed: fake tensors, which have a device and a shape but no values, take the branches and autocast's rules of
a GPU. Each call of an operator counts as one, although some launch several kernels (the backward pass of LayerNorm:
two). Views launch none, but a GPU that is waiting for the next kernel waits for them too: they are counted apart. What
is cached per grid is in the cache. ``tests/test_launches.py`` compares ours with the record.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mmlape.gpu import replace
from mmlape.layout import GridCache
from mmlape.registry import MODELS

from . import cases
from .__main__ import quieten
from .cases import KERNELS, OURS, Case
from .side_by_side import taken_for_eager

RECORD = Path(__file__).parent / 'records' / 'launches.json'
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
NO_KERNEL = {
    'empty', 'empty_like', 'empty_strided', 'new_empty', 'new_empty_strided', '_unsafe_view', 'promote_types'
}  # fmt: skip
PARTS = ('forward', 'backward', 'views')
# MMCV's backward kernel adds to gradients, which are filled with zeros before. DTN's: mmlape/gpu/dtn.py.
SEVERAL = {'deformable_sampling_on_gpu_backward': 2, 'dtn_gpu': 4, 'dtn_gpu_backward': 5}


def vit_with_lape() -> Case:
    """DeiT-Ti with default joining, and with LaPE."""
    network = dict(type='mmlape.VisionTransformer', arch='deit-tiny')
    models = {
        'default joining': MODELS.build(dict(network)),
        OURS: MODELS.build(dict(network, joining=dict(type='mmlape.LaPE'))),
    }
    return cases.of_images(models, (512, 512), 1, alike=[])


CASES: dict[str, Callable[[], Case]] = {
    **{name: case for name, case in cases.CASES.items() if name != 'pvt-small 800 x 1216'},
    'vit-tiny 512, LaPE': vit_with_lape,
    'pvt-small 512, DTN': partial(cases.pvt_dtn, 512, 512),
}


def build(name: str) -> Case:
    """A case, on the CPU, without what is for CPUs."""
    with mock.patch.object(cases, 'optimize', lambda model, **_: model):
        case = CASES[name]()
    cases.add_kernels(case)
    return case


def count(case: Case, model: nn.Module, dtype: torch.dtype) -> dict[str, Counter[str]]:
    """Operators of the ``forward`` and of the ``backward`` pass of training, and ``views`` of both, by name."""
    found: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    model.train()  # upstream's return nothing
    state = dict(chain(model.named_parameters(), model.named_buffers()))
    with FakeTensorMode(), Launches(found['views']) as launches, eager_on_a_gpu(launches):
        state, (first, *others) = tree_map_only(Tensor, _on_gpu, (state, case.inputs))
        first.requires_grad_(case.input_grad)
        with _autocast(dtype), launches.counted(found['forward']):
            outputs = torch.func.functional_call(model, state, (first, *others))
        outputs = tree_leaves(outputs)
        grads = [torch.ones_like(each) for each in outputs]
        with torch.no_grad(), launches.counted(found['backward']):
            run_backward(outputs, grads)
    return found


class Launches(TorchDispatchMode):
    """Adds operators by name to ``counts``, unless that is None, and those without a kernel to ``views``."""

    def __init__(self, views: Counter[str]) -> None:
        super().__init__()
        self.views = views
        self.counts: Counter[str] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        space, name = func._schema.name.split('::')
        if self.counts is not None and space != 'prim':
            launches = not func.is_view and name not in NO_KERNEL
            (self.counts if launches else self.views)[name] += SEVERAL.get(name, 1)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def counted(self, counts: Counter[str] | None) -> Iterator[None]:
        """Add what runs inside to other counts."""
        self.counts, before = counts, self.counts
        try:
            yield
        finally:
            self.counts = before


@contextmanager
def eager_on_a_gpu(launches: Launches) -> Iterator[None]:
    """Take the branches that an ordinary step takes, in which no mode counts or fakes."""

    def cached(_cache: GridCache, _key: Any, make: Callable[[], Any]) -> Any:
        with launches.counted(None):
            return make()

    with ExitStack() as stack:
        patch = mock.patch.object
        stack.enter_context(patch(GridCache, 'get', cached))
        stack.enter_context(patch(F, 'scaled_dot_product_attention', attention_on_a_gpu))
        for name, module in list(sys.modules.items()):
            if name.startswith('mmlape.') and hasattr(module, 'can_cache'):
                stack.enter_context(patch(module, 'can_cache', lambda: True))
        # A mode sees MMCV's sampling only as an operator; an eager step calls it as a function.
        stack.enter_context(taken_for_eager(but='mmlape.layers.deformable'))
        stack.enter_context(patch(replace, 'is_tracing', lambda: False))
        yield


def _on_gpu(tensor: Tensor) -> Tensor:
    """A leaf like it, on the fake GPU."""
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device='cuda')
    return there.requires_grad_(tensor.requires_grad)


@contextmanager
def _autocast(dtype: torch.dtype) -> Iterator[None]:
    """Autocast as ``torch.autocast('cuda', dtype)``, which switches itself off without a GPU."""
    torch.set_autocast_dtype('cuda', dtype)
    torch.set_autocast_enabled('cuda', dtype is not torch.float32)
    try:
        yield
    finally:
        torch.set_autocast_enabled('cuda', False)
        torch.clear_autocast_cache()


def attention_on_a_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``scaled_dot_product_attention`` by the kernels that PyTorch chooses on a GPU, for which it asks the driver."""
    tensors = [query, key, value, attn_mask]
    if torch.is_autocast_enabled('cuda'):
        dtype = torch.get_autocast_dtype('cuda')
        tensors = [None if each is None else each.to(dtype) for each in tensors]
    query, key, value, bias = tensors
    options = (dropout_p, is_causal)
    if bias is None and query.dtype != torch.float32:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention
        return kernel(query, key, value, *options, scale=scale)[0]
    if bias is not None:
        *steps, step = bias.stride()
        columns = bias.shape[-1]
        if step != 1 or any(each % 8 for each in steps):
            bias = F.pad(bias, (0, 8 - columns % 8))[..., :columns]
        bias = bias.expand(*query.shape[:3], columns)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, bias, True, *options, scale=scale)[0]


def run_backward(outputs: list[Tensor], grads: list[Tensor]) -> None:
    """Call the nodes of a graph as autograd's engine does, which for a GPU asks the driver."""
    uses: Counter[Any] = Counter()
    nodes = list(dict.fromkeys(each.grad_fn for each in outputs))
    known = {None, *nodes}
    for node in nodes:  # grows
        for child, _ in node.next_functions:
            uses[child] += 1
            if child not in known:
                known.add(child)
                nodes.append(child)
    given: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    for output, grad in zip(outputs, grads):
        _add(given, output.grad_fn, output.output_nr, grad)
    ready = [node for node in {*given} if not uses[node]]
    # Checkpoints recompute once per backward pass, which they know by its number.
    with mock.patch.object(torch._C, '_current_graph_task_id', return_value=0):
        while ready:
            node = max(ready, key=lambda each: each._sequence_nr())  # last run goes first
            ready.remove(node)
            found = _gradients(node, given.pop(node, {}))
            for (child, index), grad in zip(node.next_functions, found):
                if child is not None and grad is not None:
                    _add(given, child, index, grad)
                uses[child] -= 1
                if child is not None and not uses[child]:
                    ready.append(child)


def _add(given: dict[Any, dict[int, Tensor]], node: Any, index: int, grad: Tensor) -> None:
    """Add a gradient of one use of a tensor to those of others, in its shape and dtype."""
    expected = node._input_metadata[index]
    if grad.shape != (*expected.shape,):
        grad = grad.sum_to_size(expected.shape)
    grad = grad.to(expected.dtype)
    before = given[node].get(index)
    given[node][index] = grad if before is None else before + grad


def _gradients(node: Any, given: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients of what a node read, from those of what it made."""
    if not given:
        return (None,) * len(node.next_functions)
    if not node.next_functions:
        _keep(node.variable, given[0])
        return ()
    grads = [given.get(index) for index in range(len(node._input_metadata))]
    found = (node.apply if isinstance(node, BackwardCFunction) else node)(*grads)
    return found if isinstance(found, tuple) else (found,)


def _keep(leaf: Tensor, grad: Tensor) -> None:
    """Copy a gradient that is not laid out in memory as its leaf."""
    strides = zip(grad.shape, grad.stride(), leaf.stride())
    if any(side > 1 and own != expected for side, own, expected in strides):
        torch.empty_like(leaf).copy_(grad)


def main() -> int:
    summary = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser('python -m benchmarks.launches', description=summary)
    parser.add_argument('--only', default='', metavar='SUBSTRING', help='cases with it in the name')
    parser.add_argument('--operators', action='store_true', help='print how often each is called')
    parser.add_argument('--out', type=Path, default=RECORD, help='default: %(default)s')
    options = parser.parse_args()
    quieten()
    record: dict[str, dict] = {}
    if options.only and options.out.is_file():
        record = json.loads(options.out.read_text(encoding='utf-8'))
    print('| what | whose | float32: forward + backward, views | bfloat16 |\n|---|---|---|---|')
    for name in (each for each in CASES if options.only in each):
        case, record[name] = build(name), {}
        for whose, model in case.models.items():
            found = {dtype: count(case, model, each) for dtype, each in DTYPES.items()}
            record[name][whose] = {dtype: totals(parts) for dtype, parts in found.items()}
            cells = [
                '{forward} + {backward}, {views}'.format(**each)
                for each in record[name][whose].values()
            ]
            print(f'| {name} | {whose} | {" | ".join(cells)} |', flush=True)
            for dtype, part in product(DTYPES, PARTS) if options.operators else ():
                print(dtype, part, dict(found[dtype][part].most_common()))
    options.out.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    return 0


def page_table(record: dict[str, dict]) -> str:
    """The table of docs/speed.md: operators forward + backward, theirs -> ours -> DTN's kernels; like rows once."""
    rows: dict[tuple[str, ...], str] = {}
    for name, models in record.items():
        for other in [each for each in models if each not in (OURS, KERNELS)]:
            all_forms = [models[each] for each in (other, OURS, KERNELS) if each in models]
            cells = (
                ' -> '.join('{forward} + {backward}'.format(**each[dtype]) for each in all_forms)
                for dtype in DTYPES
            )
            rows.setdefault((other, *cells), name)
    head = f'| what | compared with | {" | ".join(DTYPES)} |\n|---|---|{"---|" * len(DTYPES)}'
    return '\n'.join([head, *(f'| {" | ".join([name, *cells])} |' for cells, name in rows.items())])


def totals(parts: dict[str, Counter[str]]) -> dict[str, int]:
    """The number of each part."""
    return {part: sum(counts.values()) for part, counts in parts.items()}


if __name__ == '__main__':
    sys.exit(main())

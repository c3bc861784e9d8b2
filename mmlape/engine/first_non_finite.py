"""Where the first value that is not finite appears in a forward or a backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .plain_data import tensors_in

__all__ = ['FirstNonFinite', 'describe', 'first_of']


def describe(name: str, tensor: Tensor) -> str | None:
    """``'inputs[0]: nan at (2, 17, 3), 12 of 27648 values'``; None if all values are finite."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    bad = ~tensor.detach().isfinite()
    number = int(bad.sum())
    if not number:
        return None
    place = tuple(bad.nonzero()[0].tolist())
    value = tensor.detach()[place].item()
    at = f' at {place}' if place else ''
    return f'{name}: {value}{at}, {number} of {tensor.numel()} values'


def first_of(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The first of these tensors that is not finite, described."""
    return next((text for name, tensor in named if (text := describe(name, tensor))), None)


class FirstNonFinite:
    """Watches a model: ``with FirstNonFinite(model) as watch: ...``, then ``watch.forward`` and ``watch.backward``.

    What a module gets and returns is looked at, in the order in which it is computed; a value that appears between two
    modules belongs to the code of the module around them. Keyword arguments named ``...mask...`` may hold infinity.

    Args:
        model: Any module, not compiled.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = {part: name for name, part in model.named_modules()}
        self.forward: str | None = None
        self.backward: str | None = None
        self._running: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self._before: str | None = None
        self._watching = True

    def __enter__(self) -> FirstNonFinite:
        for part in self.names:
            self._handles.append(part.register_forward_pre_hook(self._enter, with_kwargs=True))
            self._handles.append(part.register_forward_hook(self._leave))
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def backward_begins(self) -> None:
        """From now on only gradients are looked at: blocks that are recomputed run forward again."""
        self._watching = False

    def _say(self, part: nn.Module) -> str:
        kind = type(part).__name__
        return f'{self.names[part]} ({kind})' if self.names[part] else f'the model itself ({kind})'

    def _enter(self, part: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if not self._watching or self.forward:
            return
        given = dict(enumerate(args)) | {k: v for k, v in kwargs.items() if 'mask' not in k}
        found = first_of((f'argument {path}', t) for path, t in tensors_in(given))
        if found:
            around = f'in the code of {self._say(self._running[-1])}, ' if self._running else ''
            self.forward = f'{around}before {self._say(part)} was called with it ({found})'
        self._running.append(part)

    def _leave(self, part: nn.Module, args: tuple, output: Any) -> None:
        if not self._watching or self.forward:
            return
        self._running.pop()
        outputs = list(tensors_in(output))
        found = first_of((f'output {path}'.rstrip(), tensor) for path, tensor in outputs)
        if found:
            inside = ', after the modules in it' if any(True for _ in part.children()) else ''
            self.forward = f'in {self._say(part)}{inside} ({found}); what it was given is finite'
        for path, tensor in outputs:
            if tensor.requires_grad:
                tensor.register_hook(self._arrives(f'output {path}'.rstrip(), self._say(part)))

    def _arrives(self, name: str, part: str) -> Callable[[Tensor], None]:
        def look(gradient: Tensor) -> None:
            if self.backward is None:
                found = describe(f'gradient of its {name}', gradient)
                if found:
                    after = (
                        f'; the last fine one was that of {self._before}' if self._before else ''
                    )
                    self.backward = f'in what is computed from {part} ({found}){after}'
                self._before = part

        return look


def gradients_of(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradients are not finite."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
    ]

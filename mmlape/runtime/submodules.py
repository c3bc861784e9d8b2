"""Replace modules of a model in their parents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def as_class(module: nn.Module, kind: type[nn.Module]) -> Any:
    """An instance of ``kind``, a subclass of the module's class, with the same attributes and submodules."""
    made = kind.__new__(kind)
    made.__dict__.update(vars(module))
    return made


def replace_submodules(
    model: nn.Module,
    replacement: Callable[[nn.Module], nn.Module | None],
    except_in: type[nn.Module] | tuple[()] = (),
) -> nn.Module:
    """Replace submodules in their parents. A module with several parents gets one replacement.

    Args:
        model: Changed in place.
        replacement: Called with a module, returns what replaces it, or None. Children of a module come after it, as
            children of its replacement.
        except_in: Children of modules of this class stay. Default: of none.

    Returns:
        The model, or its replacement.
    """
    made: dict[nn.Module, nn.Module] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        parent = model.get_submodule(path.rpartition('.')[0]) if path else None
        if isinstance(parent, except_in):
            continue
        if module not in made:
            new = replacement(module)
            if new is None:
                continue
            made[module] = new
        if parent is None:
            model = made[module]
        else:
            setattr(parent, path.rpartition('.')[2], made[module])
    return model

"""State-dict names that differ from where a parameter lives."""

from __future__ import annotations

from functools import partial

from torch import nn


def alias_state_dict(module: nn.Module, names: dict[str, str]) -> None:
    """Save and load parameters of ``module`` under other names.

    Published weights keep some parameters elsewhere than our modules do. With ``names = {'pos_embed':
    'position.embedding.pos_embed'}``, ``state_dict()`` writes ``pos_embed``, and loading reads either name. Inside
    PyTorch's FSDP, which looks for its own names, nothing is renamed.

    Args:
        module: Whose state dict is meant; a prefix from its parents is respected.
        names: Name in the state dict to name in the module.
    """
    # Functions of this module, not closures: a model stays picklable.
    module.register_state_dict_post_hook(partial(_rename_saved, names))
    module.register_load_state_dict_pre_hook(partial(_rename_loaded, names))


def _rename_saved(
    names: dict[str, str], module: nn.Module, state: dict, prefix: str, metadata: dict
) -> None:
    if getattr(module, '_is_fsdp_managed_module', False):
        return  # FSDP gathers shards by the names that it knows; loading reads those as well
    for theirs, ours in names.items():
        if prefix + ours in state:
            state[prefix + theirs] = state.pop(prefix + ours)


def _rename_loaded(
    names: dict[str, str], module: nn.Module, state: dict, prefix: str, *_: object
) -> None:
    for theirs, ours in names.items():
        if prefix + theirs in state:
            state[prefix + ours] = state.pop(prefix + theirs)

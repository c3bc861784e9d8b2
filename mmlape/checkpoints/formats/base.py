"""Base class of checkpoint formats, which describes our own names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor, nn

from mmlape.backbones import AdapterBackbone, EoMT, StagedTransformer, VisionTransformer

State = dict[str, Tensor]
Renames = tuple[tuple[str, str | Callable[[re.Match], str]], ...]
Reasons = tuple[tuple[str, str], ...]

# A network without these computes something else, even if all other weights fit.
LAYER_SCALE = (r'\.ls[12]\.gamma$', 'a layer scale (layer_scale=True)')
_OWN: Reasons = (
    LAYER_SCALE,
    (r'\bposition\d?\.joining\.', 'norms of a joining (LaPE)'),
    (r'\.(ratio_mean|ratio_var|positions)\.', 'DTN'),
    (r'\.attn\.position\.', 'a position inside the attention'),
    (r'\bnorm_pre\.', 'a norm before the first layer (pre_norm=True)'),
    (r'\.lora_[A-Za-z]', 'LoRA (lora=dict(...), or merge it first)'),
)
_OF_A_STAGE = re.compile(r'(?:patch_embed|pos_embed|position|inside|block|norm)(\d)\b')


def renamed(name: str, renames: Renames) -> str:
    """``name`` after each pair of a regular expression and its replacement, in order."""
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name


def numbered(template: str, offset: int) -> Callable[[re.Match], str]:
    """A replacement: ``template`` with the first group of the match, a number, plus ``offset``."""
    return lambda found: template.format(int(found[1]) + offset)


def has(names: Iterable[str], pattern: str) -> bool:
    """Whether any name contains the regular expression."""
    return any(re.search(pattern, name) for name in names)


class Format:
    """Our own names, for our own checkpoints; the base of the other formats.

    Attributes:
        network: The class that the format describes as a whole. Default any of ours, or the ViT of an adapter.
        renames: Pairs of a regular expression over a foreign name and its replacement, as ``re.sub`` takes them.
        values: Pairs of a regular expression over one of our names and a function that converts its tensor.
        may_leave: Pairs of a regular expression over one of our names, and why an entry of that name that the model has
            no place for may be left out.
        must_place: Pairs of a regular expression over one of our names, and what the source has then: a model without
            any such entry is another network.
        others: Pairs of a regular expression over a foreign name, and the source whose format such a file has instead.
        added: Regular expression over our names, of entries that are added to the model's present values. Default none.
        prefix_rows: Whether a position table has a row for each class and distillation token beside it. False: it may
            have none. Default True.
        leaves_others: Whether any other entry may be left out; otherwise it shows another network. Default True.
    """

    network: type[nn.Module] | None = None
    renames: Renames = ()
    values: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = ()
    may_leave: Reasons = (
        (r'\bpos_embed\d*$|\bposition\d?\.embedding\.', 'the model has another position'),
    )
    must_place: Reasons = _OWN
    others: Reasons = ()
    added: str | None = None
    prefix_rows = True
    leaves_others = True

    def check_beside(self, checkpoint: Path, model: nn.Module | None) -> None:
        """Compare ``model``, a backbone, with what lies beside the file or folder ``checkpoint``. Default nothing.

        Raises:
            ValueError: If the file is of another network.
        """

    def whole(self, state: State, model: nn.Module) -> State:
        """``state`` under the names of a whole ``model``: its backbone's begin with ``backbone.``. Default as it is."""
        return state

    def part(self, model: nn.Module, state: State) -> str:
        """Name of the submodule of a backbone that ``state`` describes, '' for the whole backbone.

        Raises:
            ValueError: If the format cannot describe ``model``.
        """
        plain = self.network in (None, VisionTransformer)
        if plain and isinstance(model, (AdapterBackbone, EoMT)) and not has(state, r'^vit\.'):
            return 'vit'
        if self.network is None or isinstance(model, self.network):
            return ''
        raise ValueError(
            f'this source describes a {self.network.__name__}, the model is a {type(model).__name__}'
        )

    def rename(self, state: State) -> State:
        """Names of the described part of the model to tensors."""
        ours = {renamed(name, self.renames): tensor for name, tensor in state.items()}
        for pattern, convert in self.values:
            ours.update({k: convert(v) for k, v in ours.items() if re.search(pattern, k)})
        return ours

    def problems(self, model: nn.Module, state: State) -> list[str]:
        """Why renamed entries cannot be those of ``model``, the described part. Default nothing."""
        return []

    def leave(self, name: str, model: nn.Module) -> tuple[str, str]:
        """Why the renamed entry ``name``, which ``model`` has no place for, may be left out, and the problem; one of
        them is ''."""
        stage = _OF_A_STAGE.match(name)
        if stage and int(stage[1]) > getattr(model, 'num_stages', 0) > 0:
            return 'stages after the last output are not built', ''
        for pattern, what in self.must_place:
            if re.search(pattern, name) and not has(model.state_dict(), pattern):
                return '', f'the source has {what}, which the model does not have'
        for pattern, why in self.may_leave:
            if re.search(pattern, name):
                return why, ''
        if not self.leaves_others:
            return '', 'the source has entries that this model has no place for'
        problem = ''
        if isinstance(model, StagedTransformer):
            for built, sizes in zip(model.stages(), model.stage_sizes(model.arch)):
                layer = re.match(rf'{re.escape(built.name)}\.(\d+)\.', name)
                if layer and int(layer[1]) >= sizes['depth']:
                    problem = f'the source has more layers than {built.name!r}, {sizes["depth"]}'
                elif layer and int(layer[1]) < len(built.blocks):
                    problem = 'the source has entries in its layers that those of this model have no place for'
        return '' if problem else 'the model has no such entry', problem

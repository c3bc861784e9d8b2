"""What every backbone shares: initial weights, frozen layers, layer depths, outputs, names in the state dict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mmengine.model import BaseModule, initialize
from torch import nn

from mmlape.checks import check_option
from mmlape.position import PlanKeeper
from mmlape.runtime.private import is_managed_by_fsdp

from .builder import build_part
from .spec import layers_of_units
from .stage import OUTPUTS, Part, Stage


class Backbone(BaseModule):
    """MMEngine's ``BaseModule`` with four guarantees.

    * ``init_cfg`` is applied after the children have initialised themselves. MMEngine does so for its own
      ``Pretrained`` only; ``mmlape.Pretrained`` would be overwritten by children that initialise themselves.
    * The modules that :meth:`frozen_modules` names have no gradient and stay in eval mode through ``train()``.
    * :meth:`stages` says what its transformer is made of: pictures, layer-wise learning rates, FSDP, freezing and
      classifiers ask it, and know no names.
    * :meth:`get_layer_depth` says how deep a parameter sits, which layer-wise learning rates need.
    """

    init_cfg: dict | list[dict] | None

    def stages(self) -> list[Stage]:
        """The stages of the transformer, in order.

        Raises:
            NotImplementedError: If the class does not say.
        """
        raise NotImplementedError(
            f'{type(self).__name__} must answer stages(): the stages of its transformer, '
            'as in `return self.vit.stages()`'
        )

    def layer_parts(self) -> Sequence[Sequence[Part]]:
        """What belongs to each depth: at 0 the stem, at ``i + 1`` layer ``i``, counted through all stages.

        What enters before layer i has depth i. A part may contain parts of greater depth, which count there. What is
        named nowhere (the output norm, say) is deepest.
        """
        parts: list[list[Part]] = [[]]
        stages = self.stages()
        for stage in stages:
            start = len(parts) - 1
            parts[start] += stage.before()
            parts += [[*stage.serving(layer)] for layer in range(len(stage.blocks))]
            parts[start + stage.prefix_after] += stage.prefix
            if stage.norm is not None and stage is not stages[-1]:
                parts[-1].append(stage.norm)
        return parts

    def parameter_depths(self) -> tuple[dict[nn.Parameter, int], int]:
        """Depth of each parameter, and the number of depths: layers + 2, the stem and the deepest included."""
        parts = self.layer_parts()
        depths = dict.fromkeys(self.parameters(), len(parts))
        for depth, members in enumerate(parts):
            for member in members:
                own = [member] if isinstance(member, nn.Parameter) else member.parameters()
                depths.update(dict.fromkeys(own, depth))
        return depths, len(parts) + 1

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Depth of a parameter and the number of depths, as layer-decay constructors of MMPretrain ask for them.

        Args:
            param_name: Name of the parameter in the whole model.
            prefix: What comes before this backbone's names, e.g. ``'backbone.'``. A name without it (a head's) has
                the greatest depth. Default ``''``.

        Raises:
            ValueError: If the backbone has no such parameter.
        """
        depths, count = self.parameter_depths()
        if not param_name.startswith(prefix):
            return count - 1, count
        try:
            parameter = self.get_parameter(param_name[len(prefix) :])
        except AttributeError as error:
            raise ValueError(f'{type(self).__name__} has no parameter {param_name!r}') from error
        return depths[parameter], count

    def switch_to_deploy(self) -> None:
        """Fold position for good: what parameters make for a grid is computed when the grid is first seen, and kept.

        Parameters stay, without gradients, and must not change any more; outputs are the same to the bit.
        """
        self.eval().requires_grad_(False)
        for module in self.modules():
            if isinstance(module, PlanKeeper):
                module.switch_to_deploy()

    def frozen_modules(self) -> list[nn.Module]:
        """Modules that are not trained. Default none."""
        return []

    def freeze(self) -> None:
        """Switch gradients off for :meth:`frozen_modules`; to be called at the end of a constructor."""
        for module in self.frozen_modules():
            module.requires_grad_(False)

    def init_weights(self) -> None:
        """Initialise the children, then apply ``init_cfg``."""
        init_cfg, self.init_cfg = self.init_cfg, None
        first_call = not self.is_init
        super().init_weights()
        self.init_cfg = init_cfg
        if init_cfg and first_call:
            initialize(self, init_cfg)

    def train(self, mode: bool = True) -> Backbone:
        """Switch between training and evaluation; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        return self


if TYPE_CHECKING:
    from .network import StagedTransformer


def frozen_parts(network: StagedTransformer) -> list[nn.Module]:
    """The first ``frozen_stages`` layers or stages with what serves them, and what makes the first tokens."""
    if network.frozen_stages < 0:
        return []
    counts, stages = _frozen_layers(network), network.stages()
    if counts == [len(stage.blocks) for stage in stages]:
        return list(network.children())
    frozen = [
        module
        for number, (stage, count) in enumerate(zip(stages, counts))
        if count or not number
        for module in (*stage.up_to(count), network.norm_of_map(number) if count else None)
        if module is not None
    ]
    return [*frozen, network.drop_after_position] if network.counts == 'layers' else frozen


def frozen_tokens(network: StagedTransformer) -> list[nn.Parameter]:
    """Prefix tokens that have joined by the last frozen layer."""
    if network.frozen_stages < 0:
        return []
    count, first = _frozen_layers(network)[-1], network.num_stages == 1
    if (count or first) and count >= network.prefix_after:
        return [getattr(network, name) for name in network.prefix_names]
    return []


def _frozen_layers(network: StagedTransformer) -> list[int]:
    """Number of first layers of each stage that are frozen."""
    depths = [len(stage.blocks) for stage in network.stages()]
    return layers_of_units(network.frozen_stages, depths, network.counts)


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
    if is_managed_by_fsdp(module):
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


# Positions, tokens and level embeddings by the names that our modules and upstream's give them.
EXEMPT_NAMES = (
    'pos_embed',
    'absolute_pos_embed',
    'relative_position_bias_table',
    'level_embed',
    'layer_position',
    'cls_token',
    'dist_token',
    'reg_token',
    'mask_token',
    'cls_emb',
)


def exempt_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Paths below which nothing decays, and the module that says so in its ``no_weight_decay``: a tuple of names of its
    children, ``('',)`` for all of it. Positions, joinings and DTN have one."""
    for path, module in model.named_modules(remove_duplicate=False):
        names = getattr(module, 'no_weight_decay', None)
        for name in names if isinstance(names, tuple) else ():
            yield '.'.join(part for part in (path, name) if part), module


def exempt_parameters(model: nn.Module) -> set[str]:
    """Names of parameters that do not decay, norms and biases apart, about which optimizers have rules of their own."""
    roots = tuple(f'{path}.' if path else '' for path, _ in exempt_modules(model))
    return {
        name
        for name, _ in model.named_parameters()
        if f'{name}.'.startswith(roots) or name.rpartition('.')[2] in EXEMPT_NAMES
    }


# Tokens that an out_type cannot do without.
_NEEDED = {'cls_token': ('cls_token',), 'cls_and_dist': ('cls_token', 'dist_token')}
# Of which prefix tokens are a part.
READ_PREFIX = ('featmap_and_prefix', 'raw', 'cls_token', 'cls_and_dist')
# With a value for every token; the others are for classifiers, as poolings with parameters are.
DENSE = ('featmap', 'featmap_and_prefix', 'raw')


def check_out_type(out_type: str | dict, prefix_names: Collection[str]) -> str | dict:
    """Return ``out_type`` if it is known and the tokens that it names are among ``prefix_names``.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(out_type, dict):
        return out_type
    check_option('out_type', out_type, (*OUTPUTS, 'pooled'))
    missing = [name for name in _NEEDED.get(out_type, ()) if name not in prefix_names]
    if missing:
        raise ValueError(
            f'out_type={out_type!r} needs {" and ".join(f"with_{name}=True" for name in missing)}, '
            'and outputs (out_indices) of layers that these tokens have joined'
        )
    return out_type


def check_vector(out_type: str | dict, out_indices: tuple[int, ...], num_stages: int) -> None:
    """Raise ValueError if a classifier's ``out_type`` is asked of other stages than the last."""
    if out_type not in DENSE and out_indices != (num_stages - 1,):
        raise ValueError(
            f'out_type={out_type!r} is for a classifier, which sees the last stage alone: '
            f'out_indices must be {num_stages - 1}, got {out_indices}'
        )


def build_pooling(out_type: str | dict, embed_dims: int) -> nn.Module | None:
    """The pooling with parameters that an ``out_type`` is the config of, or None for one of :data:`OUTPUTS`."""
    if not isinstance(out_type, dict):
        return None
    return build_part('out_type', out_type, dict(embed_dims=embed_dims))

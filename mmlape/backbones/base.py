"""Base class of all backbones: frozen modules, layer depths, weight decay, names in the state dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar

from mmengine.model import BaseModule, initialize
from torch import nn

from mmlape.layers.lora import merge_lora
from mmlape.position import PlanCachingModule

from .builder import build_part
from .published import NETWORK
from .stage import Part, Stage


class Backbone(BaseModule):
    """MMEngine's ``BaseModule`` with the stages of its transformer.

    * :meth:`stages` lists the parts of the transformer: pictures, layer-wise learning rates, FSDP, freezing and
      classifiers read it instead of names.
    * :meth:`get_layer_depth` is the depth of a parameter for layer-wise learning rates.
    * ``published``: options of published configs, and what to write instead.
    * ``init_cfg`` is applied after the children have initialised themselves. MMEngine does so only for its own
      ``Pretrained``; children would overwrite ``mmlape.Pretrained``.
    """

    published: ClassVar[Mapping[str, str]] = NETWORK
    init_cfg: dict | list[dict] | None

    def stages(self) -> list[Stage]:
        """The stages of the transformer, in order."""
        raise NotImplementedError(
            f'{type(self).__name__} must answer stages(): the stages of its transformer, '
            'as in `return self.vit.stages()`'
        )

    def parameter_depths(self) -> tuple[dict[nn.Parameter, int], int]:
        """Depth of each parameter, and the number of depths: layers of all stages + 2.

        The stem has depth 0, layer ``i`` has ``i + 1``, what enters before it ``i``. Parameters that no stage lists
        (the output norm, an adapter) are deepest.
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
            prefix: Prefix of this backbone's names, e.g. ``'backbone.'``. A name without it (a head's) is deepest.

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
        """Freeze the model and cache position per grid: what parameters make for a grid is computed only once. LoRA's
        updates are merged into the weights.

        Parameters must not change afterwards; outputs are the same up to rounding.
        """
        merge_lora(self.eval().requires_grad_(False))
        for module in self.modules():
            if isinstance(module, PlanCachingModule):
                module.switch_to_deploy()

    def frozen_modules(self) -> list[nn.Module]:
        """Modules that are not trained: without gradients, and in evaluation mode through ``train()``. Default none."""
        return []

    def freeze(self) -> None:
        """Switch gradients off for :meth:`frozen_modules`; call it at the end of a constructor."""
        for module in self.frozen_modules():
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Backbone:
        """Switch between training and evaluation; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        return self

    def init_weights(self) -> None:
        """Initialise the children, then apply ``init_cfg``."""
        init_cfg, self.init_cfg = self.init_cfg, None
        first_call = not self.is_init
        super().init_weights()
        self.init_cfg = init_cfg
        if init_cfg and first_call:
            initialize(self, init_cfg)


def alias_state_dict(module: nn.Module, names: dict[str, str]) -> None:
    """Save and load parameters of ``module`` under the names of published weights.

    With ``names = {'pos_embed': 'position.embedding.pos_embed'}``, ``state_dict()`` writes ``pos_embed``, and loading
    reads either name.
    """
    # Functions of this module instead of closures, so that a model can be pickled.
    module.register_state_dict_post_hook(partial(_rename_saved, names))
    module.register_load_state_dict_pre_hook(partial(_rename_loaded, names))


def _rename_saved(
    names: dict[str, str], module: nn.Module, state: dict, prefix: str, metadata: dict
) -> None:
    for theirs, ours in names.items():
        if prefix + ours in state:
            state[prefix + theirs] = state.pop(prefix + ours)


def _rename_loaded(
    names: dict[str, str], module: nn.Module, state: dict, prefix: str, *_: object
) -> None:
    for theirs, ours in names.items():
        if prefix + theirs in state:
            state[prefix + ours] = state.pop(prefix + theirs)


# Names of positions, tokens and level embeddings, ours and upstream's.
EXEMPT_NAMES = (
    'pos_embed',
    'absolute_pos_embed',
    'relative_position_bias_table',
    'level_embed',
    'cls_token',
    'dist_token',
    'reg_token',
    'mask_token',
    'cls_emb',
)


def exempt_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Paths without weight decay, and their module, which lists them in ``no_weight_decay``: ``('',)`` for itself."""
    for path, module in model.named_modules(remove_duplicate=False):
        names = getattr(module, 'no_weight_decay', None)
        for name in names if isinstance(names, tuple) else ():
            yield '.'.join(part for part in (path, name) if part), module


def exempt_parameters(model: nn.Module) -> set[str]:
    """Names of parameters without weight decay, besides norms and biases, for which optimizers have their own rules."""
    roots = tuple(f'{path}.' if path else '' for path, _ in exempt_modules(model))
    return {
        name
        for name, _ in model.named_parameters()
        if f'{name}.'.startswith(roots) or name.rpartition('.')[2] in EXEMPT_NAMES
    }


# The out_types with a value for every token; the others are for classifiers, as poolings with parameters are.
DENSE = ('featmap', 'featmap_and_prefix', 'featmap_and_cls', 'raw')


def build_pooling(out_type: str | dict, embed_dims: int) -> nn.Module | None:
    """The pooling with parameters whose config an ``out_type`` is, or None for the name of one without."""
    if not isinstance(out_type, dict):
        return None
    return build_part('out_type', out_type, dict(embed_dims=embed_dims))

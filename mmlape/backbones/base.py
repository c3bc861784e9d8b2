"""What every backbone shares: weights from elsewhere are loaded last, frozen parts stay frozen, layers are numbered."""

from __future__ import annotations

from collections.abc import Sequence

from mmengine.model import BaseModule, initialize
from torch import nn

from mmlape.position import PlanKeeper

from .stage import Part, Stage


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

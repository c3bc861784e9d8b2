"""How a position embedding joins a network: the joining methods, LaPE among them, and the plan for each layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mmlape.checks import check_eps, check_layers, check_option, check_positive_int
from mmlape.layout import Grid, GridCache, Layout
from mmlape.registry import MODELS
from mmlape.runtime.private import layer_norm_backward

from .embeddings import MergedPosition

Plan = TypeVar('Plan')


class PositionPlan(NamedTuple):
    """Where position is added. Every entry is ``(1, P + H * W, C)``, or None for nothing.

    Attributes:
        stem: Added to the tokens once, before the first layer.
        stream: Per layer, added to the residual stream that enters the layer.
        attention: Per layer, added to the normalised tokens that enter its attention.
        carried: The position after the last layer, for the next stage; None where tokens carry it.
    """

    stem: Tensor | None
    stream: tuple[Tensor | None, ...]
    attention: tuple[Tensor | None, ...]
    carried: Tensor | None = None

    @classmethod
    def nothing(cls, depth: int) -> PositionPlan:
        """The plan of ``depth`` layers without position."""
        return cls(None, (None,) * depth, (None,) * depth)


class PlanCachingModule(nn.Module):
    """A module that derives a plan from its parameters and a layout.

    It does so in every pass, since parameters change in ways that a module cannot see (optimizers, averages of weights,
    ``functional_call``); after :meth:`switch_to_deploy` once per layout.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: GridCache | None = None
        self.register_load_state_dict_post_hook(_forget)

    def switch_to_deploy(self) -> None:
        """Cache plans (as many as fit into 32 MiB), but not those of a merged position; parameters must not change any
        more.

        Loading, moving and converting the module clear the cache.
        """
        self._store = GridCache()

    def planned(self, key: Hashable, compute: Callable[[], Plan]) -> Plan:
        """``compute()``; of a deployed module, the cached result for ``key``."""
        if self._store is None:
            return compute()
        # Plans have another dtype under autocast.
        autocast = tuple(
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
            for device in ('cpu', 'cuda')
        )
        with torch.no_grad():
            return self._store.get((key, *autocast), compute)

    def _apply(self, *args, **kwargs) -> PlanCachingModule:
        # Called by .to(), .half(), .cuda().
        _forget(self)
        return super()._apply(*args, **kwargs)


def _forget(keeper: PlanCachingModule, _: object = None) -> None:
    if keeper._store is not None:
        keeper._store.clear()


class RowNorm(nn.LayerNorm):
    """LayerNorm of rows that may be constant: rows with a variance below ``eps`` have the gradients of centring only.

    Gradients of dividing by their standard deviation would be ``1 / sqrt(eps)`` times as large.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """``(1, N, C)`` to the same shape."""
        if not rows.requires_grad or torch.jit.is_tracing():  # TorchScript holds no Function
            return super().forward(rows)
        return _RowNorm.apply(rows, self.weight, self.bias, self.eps)[0]


class _RowNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        return torch.native_layer_norm(rows, rows.shape[-1:], weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        rows, weight, bias, ctx.eps = inputs
        _, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)  # no zeros for theirs
        ctx.save_for_backward(rows, weight, bias, mean, rstd)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, bias, mean, rstd = ctx.saved_tensors
        rstd = rstd.masked_fill(rstd > (2 * ctx.eps) ** -0.5, 1)
        # Autocast on a GPU computed the norm of half-precision rows in float32. Autograd casts their gradient back.
        gradients = layer_norm_backward(
            gradient, rows.to(gradient.dtype), mean, rstd, weight, bias, ctx.needs_input_grad[:3]
        )
        return *gradients, None


class PositionNorm(nn.Module):
    """``scale * Norm(w) + shift`` with any of its parts; ``gain`` is the size of the scale: 0 for none, 1 for a scalar,
    ``C`` for one per channel."""

    def __init__(self, embed_dims: int, normalise: bool, gain: int, bias: bool, eps: float) -> None:
        super().__init__()
        self.norm = RowNorm(embed_dims, eps=eps, elementwise_affine=False) if normalise else None
        self.weight = nn.Parameter(torch.ones(gain)) if gain else None
        self.bias = nn.Parameter(torch.zeros(embed_dims)) if bias else None

    def forward(self, position: Tensor) -> Tensor:
        """``(1, N, C)`` to the same shape."""
        if self.norm is not None:
            position = self.norm(position)
        if self.weight is not None:
            position = position * self.weight
        return position if self.bias is None else position + self.bias


# The rows of ICCV Table 8, the last being LaPE itself.
POSITION_NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    'identity': lambda dims, eps: PositionNorm(dims, False, 0, False, eps),
    'scalar_gain': lambda dims, eps: PositionNorm(dims, False, 1, False, eps),
    'channel_gain': lambda dims, eps: PositionNorm(dims, False, dims, False, eps),
    'channel_gain_bias': lambda dims, eps: PositionNorm(dims, False, dims, True, eps),
    'norm': lambda dims, eps: PositionNorm(dims, True, 0, False, eps),
    'norm_scalar_gain': lambda dims, eps: PositionNorm(dims, True, 1, False, eps),
    'norm_channel_gain': lambda dims, eps: PositionNorm(dims, True, dims, False, eps),
    'norm_channel_gain_bias': lambda dims, eps: RowNorm(dims, eps=eps),
}


class Joining(nn.Module, ABC):
    """Turns a position embedding into a :class:`PositionPlan`.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of transformer layers ``L``.

    Attributes:
        num_tables: Embeddings ``K`` that it needs. Default 1.
        table_per_layer: They are one for each layer, in order. Default False.
        carries: Its plans have ``carried``, which a merged position of the next stage needs. Default False.
    """

    num_tables = 1
    table_per_layer = False
    carries: ClassVar[bool] = False
    no_weight_decay: ClassVar[tuple[str, ...]] = ('',)

    def __init__(self, embed_dims: int, depth: int) -> None:
        super().__init__()
        self.embed_dims = check_positive_int('embed_dims', embed_dims)
        self.depth = check_positive_int('depth', depth)
        self._nothing: tuple[None, ...] = (None,) * self.depth

    @abstractmethod
    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan for an embedding of shape ``(K, P + H * W, C)``."""

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """Modules of layer ``layer`` only, frozen together with its block."""
        return []


@MODELS.register_module()
class DefaultJoining(Joining):
    """Adds the embedding to the tokens once, before the first layer (LaPE, ICCV 2023, eq. 2)."""

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with ``stem`` only."""
        return PositionPlan(embedding, self._nothing, self._nothing)


@MODELS.register_module()
class SharedJoining(Joining):
    """Adds the same embedding to the stream before every layer (LaPE, ICCV 2023, section 4.5, "shared PE")."""

    carries = True

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with the same ``stream`` entry for each layer."""
        return PositionPlan(None, (embedding,) * self.depth, self._nothing, embedding)


@MODELS.register_module()
class UnsharedJoining(Joining):
    """Adds an embedding of its own to the stream before every layer (LaPE, ICCV 2023, section 4.5, "unshared PE").

    The position has one table per layer. A fixed embedding has one for all: then this equals :class:`SharedJoining`.
    """

    table_per_layer = True

    def __init__(self, embed_dims: int, depth: int) -> None:
        super().__init__(embed_dims, depth)
        self.num_tables = self.depth

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with one ``stream`` entry for each layer, from ``(L, N, C)`` or ``(1, N, C)``."""
        return PositionPlan(None, embedding.expand(self.depth, -1, -1).split(1), self._nothing)


@MODELS.register_module()
class LaPE(Joining):
    r"""Layer-adaptive Position Embedding (ICCV 2023, eq. 8-11).

    Tokens start without position. Each layer's attention reads :math:`LN_{x,l}(x_l) + LN_{\omega,l}(\omega_l)` with a
    LayerNorm of its own for the position, which goes from layer to layer: :math:`\omega_0 = \omega`,
    :math:`\omega_{l+1} = LN_{\omega,l}(\omega_l)`. This adds ``2 * C`` parameters for each layer.

    Args:
        embed_dims, depth: As in :class:`Joining`.
        progressive: True for the ICCV form above. False for the arXiv v1 form, "LaPE (sharing PE)" of ICCV Table 7, in
            which every layer normalises the same :math:`\omega`. Default True.
        layers: Layers that receive the position: None (default) for all, ``eta`` for the first ``eta`` (arXiv v1,
            Table 6), or a list of 0-based indices.
        norm: How a layer transforms its position, a row of ICCV Table 8 (arXiv v1, Table 5): ``'identity'``,
            ``'scalar_gain'``, ``'channel_gain'``, ``'channel_gain_bias'``, ``'norm'``, ``'norm_scalar_gain'``,
            ``'norm_channel_gain'``, or ``'norm_channel_gain_bias'`` (default), the LayerNorm of LaPE.
        eps: Added to the variance. Default None: that of the config of the first layer's norm, else 1e-6.

    Gradients of (nearly) constant rows of :math:`\omega`, with a variance below ``eps``, are those of centring only, so
    that a prefix row that starts at zero is learned: else they would grow by ``1 / sqrt(eps)`` per layer.

    Raises:
        ValueError: If ``layers`` are not different layers, ``norm`` is unknown, or ``eps`` is not above 0.
    """

    carries = True

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        progressive: bool = True,
        layers: int | Sequence[int] | None = None,
        norm: str = 'norm_channel_gain_bias',
        eps: float | None = None,
    ) -> None:
        super().__init__(embed_dims, depth)
        self.progressive = progressive
        self.layers = check_layers('layers', layers, self.depth)
        make = POSITION_NORMS[check_option('norm', norm, POSITION_NORMS)]
        self.eps = check_eps(1e-6 if eps is None else eps)
        self.norms = nn.ModuleList(make(self.embed_dims, self.eps) for _ in self.layers)

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with one ``attention`` entry for each layer named."""
        attention: list[Tensor | None] = list(self._nothing)
        position = embedding
        for layer, norm in zip(self.layers, self.norms):
            attention[layer] = normed = norm(position)
            if self.progressive:
                position = normed
        return PositionPlan(None, self._nothing, tuple(attention), position)

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """The norm of ``layer``."""
        return [norm for index, norm in zip(self.layers, self.norms) if index == layer]


class JoinedPosition(PlanCachingModule):
    """The position embedding of a stage and its joining method, from their configs: layouts to :class:`PositionPlan`.

    Args:
        embed_dims, grid, num_prefix_tokens: As in :class:`~mmlape.position.PositionEmbedding`.
        depth: Number of layers.
        position, joining: Configs.
    """

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        grid: Grid,
        num_prefix_tokens: int,
        position: dict,
        joining: dict,
    ) -> None:
        super().__init__()
        self.depth = depth
        self.joining = MODELS.build(dict(joining, embed_dims=embed_dims, depth=depth))
        self.embedding = MODELS.build(
            dict(
                position,
                embed_dims=embed_dims,
                grid=grid,
                num_prefix_tokens=num_prefix_tokens,
                num_tables=self.joining.num_tables,
            )
        )

    def forward(
        self,
        layout: Layout | Grid,
        before: Tensor | None = None,
        merge: Callable[[Tensor], tuple[Tensor, Layout]] | None = None,
    ) -> PositionPlan:
        """The plan for a layout or grid ``(H, W)``; it always has the rows of all prefix tokens.

        Args:
            layout: Of the tokens.
            before: Carried position of the stage before, ``(1, C', H', W')``, for a
                :class:`~mmlape.position.MergedPosition`. Default None.
            merge: The stem, which turns such a map into tokens. Default None.
        """
        grid = layout.grid if isinstance(layout, Layout) else (layout[0], layout[1])
        if not isinstance(self.embedding, MergedPosition):
            return self.planned(grid, lambda: self.joining(self.embedding(grid)))
        if before is None or merge is None:
            return PositionPlan.nothing(self.depth)
        # Not cached: it depends on the grids of all stages before.
        plan = self.joining(merge(before)[0])
        # The tokens of a warm start carry the first stage's position themselves.
        return plan._replace(stem=None) if isinstance(self.joining, LaPEWarmStart) else plan


@MODELS.register_module()
class LaPEWarmStart(LaPE):
    r"""LaPE's position branch on top of a network that was trained with default joining (DeiT, AugReg, DINOv2).

    No LaPE weights were published, and LaPE changes the first forward pass of default-joined weights: its tokens start
    without position. Here the stem keeps the position that the weights were trained with, and each layer's attention
    gets the layer-adaptive position on top, through values that start at zero:

    .. math:: x_0 = a + \omega, \qquad x'_l = MSA_l(LN_{x,l}(x_l) + p_l), \qquad p_l = 0 \text{ at step } 0

    so the first output is bitwise the checkpoint's, and :math:`p_l` is learned in fine-tuning. Two constructions:

    * ``'affine'``: :math:`p_l = \gamma_l \odot Norm(\omega) + \beta_l` with :math:`\gamma_l = \beta_l = 0`: LaPE's own
      LayerNorms, ``2 * C`` parameters per layer. Every layer reads the same :math:`\omega` (the arXiv form), since a
      chain through zeros would have no gradient.
    * ``'gate'``: :math:`p_l = g_l \odot \omega_{l+1}`, with :math:`\omega_{l+1} = LN_{\omega,l}(\omega_l)` as in ICCV
      eq. 11 from LayerNorms that start as usual, and a gate per channel :math:`g_l = 0`: progressive, ``3 * C`` per
      layer.

    After short fine-tuning the two do not differ measurably (docs/position.md); the default is the smaller one.

    Args:
        embed_dims, depth, layers, eps: As in :class:`LaPE`.
        construction: ``'affine'`` (default) or ``'gate'``.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        construction: str = 'affine',
        layers: int | Sequence[int] | None = None,
        eps: float | None = None,
    ) -> None:
        gated = check_option('construction', construction, ('affine', 'gate')) == 'gate'
        super().__init__(embed_dims, depth, progressive=gated, layers=layers, eps=eps)
        gain, count = POSITION_NORMS['channel_gain'], len(self.layers) if gated else 0
        self.gates = nn.ModuleList(gain(embed_dims, self.eps) for _ in range(count))
        for scale in self.gates if gated else self.norms:
            nn.init.zeros_(scale.get_parameter('weight'))

    def forward(self, embedding: Tensor) -> PositionPlan:
        """Plan with ``stem`` and one ``attention`` entry for each layer named."""
        plan = super().forward(embedding)
        attention = list(plan.attention)
        for layer, gate in zip(self.layers, self.gates):
            attention[layer] = gate(attention[layer])
        return plan._replace(stem=embedding, attention=tuple(attention))

    def layer_modules(self, layer: int) -> list[nn.Module]:
        """The norm of ``layer``, and its gate."""
        gates = [gate for index, gate in zip(self.layers, self.gates) if index == layer]
        return super().layer_modules(layer) + gates


POSITIONS: dict[str, dict] = {
    'learned': dict(type='mmlape.LearnedPosition'),
    'sinusoidal_1d': dict(type='mmlape.SinusoidalPosition', axes=1),
    'sinusoidal_2d': dict(type='mmlape.SinusoidalPosition', axes=2),
    'gabor': dict(type='mmlape.GaborPosition'),
    'none': dict(type='mmlape.NoPosition'),
}
# The rows of LaPE (ICCV 2023), Table 7.
JOININGS: dict[str, dict] = {
    'default': dict(type='mmlape.DefaultJoining'),
    'shared': dict(type='mmlape.SharedJoining'),
    'unshared': dict(type='mmlape.UnsharedJoining'),
    'lape_sharing': dict(type='mmlape.LaPE', progressive=False),
    'lape': dict(type='mmlape.LaPE'),
}

"""Dynamic token normalization (DTN, ICLR 2022) for any grid, without a T x T map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_option, check_positive_int, check_rate
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast

from .base import TokenNorm
from .dtn_maps import BandedMap, LearnedMap, UniformMap, Windows
from .dtn_plain import DTNOptions, PlainDTN


@MODELS.register_module()
class DTN(TokenNorm):
    """Normalises tokens by their own statistics and those of the tokens around them, head by head (eq. 4-7).

    For token i, head h and each of its channels, ``y = weight (x - mu) / sqrt(var + eps) + bias`` with

        mu  = r_mean mu_token + (1 - r_mean) P_h x
        var = r_var var_token + (1 - r_var) (P_h x^2 - (P_h x)^2)

    where ``mu_token``, ``var_token`` are LayerNorm's, over all channels, and row i of ``P_h`` weighs all tokens by
    their offset from i. ``P_h`` is applied as a row and a column factor (:mod:`mmlape.norm.dtn_maps`), which is exact
    and takes O(B C T (H + W)) time and O(H^2 + W^2) memory. With ``r = 1`` DTN is LayerNorm, with ``r = 0`` and a
    uniform map InstanceNorm (both for ``stabilize=False``).

    Prefix tokens (class, distillation) get a plain LayerNorm with the same ``weight``, ``bias`` and ``eps``, and take
    no part in the statistics of others. Nor does padding: with a mask m, ``P x`` becomes ``P (m x) / P m`` (a token's
    map that lies on padding but for some 1e-18 becomes uniform over present tokens); pooled cells are means of present
    tokens, and empty cells do not count. Statistics are computed in float32 at least.

    Args:
        num_features: Channels ``C``.
        num_heads: Heads ``G``; must divide ``C``. Preferably a square number, see ``position_init``.
        pool: Statistics across tokens are taken between cells of ``pool x pool`` averaged tokens, and the tokens of a
            cell share them. The last row and column of cells may hold fewer tokens. Default 1;
            published: 4 and 2 in the first stages of PVT and Swin.
        variance_only: The mean is the token's own: ``ratio_mean`` fixed to 1. Default False.
        stabilize: Divide each head of each token by its root mean square first, and use the unbiased variance for
            ``var_token``, as the published models do. False for eq. 4-5 as written. Default True.
        ratio_mean: Share ``r_mean`` of the token's own mean: ``'learned'`` (default; a sigmoid per head, initially 0.5)
            or a fixed number from 0 to 1.
        ratio_var: The same for the variance.
        positions: ``'learned'`` for eq. 6 (default), ``'uniform'`` for equal weights of all tokens, ``'banded'`` for
            equal weights of the ``band x band`` cells around.
        position_init: For learned positions, ``'local'`` for eq. 7 as in the paper (default), ``'random'`` as in the
            published training code, whose network initialisation overwrites eq. 7 (section 4.3: 72.7, not 73.2 top-1).
            Eq. 7 reaches the first ``floor(sqrt(G))^2`` heads; the others start at random.
        band: Odd number of cells along each axis; for banded positions, and only for them.
        eps: Added to the variance, and to the mean square of a head. Default 1e-5, as published.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range, or ``num_heads`` does not divide ``num_features``.
    """

    mixes_tokens = True
    depends_on_position = True
    by_head = True
    no_weight_decay = ('ratio_mean', 'ratio_var', 'positions')

    def __init__(
        self,
        num_features: int,
        num_heads: int,
        pool: int = 1,
        variance_only: bool = False,
        stabilize: bool = True,
        ratio_mean: str | float = 'learned',
        ratio_var: str | float = 'learned',
        positions: str = 'learned',
        position_init: str = 'local',
        band: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(num_features, eps)
        self.num_heads = check_positive_int('num_heads', num_heads)
        if self.num_features % num_heads:
            raise ValueError(
                f'num_heads must divide num_features, got num_heads={num_heads}, num_features={num_features}; where '
                'norm_cfg has no num_heads, they are those that the network has for DTN, or those of its attention'
            )
        self.pool = check_positive_int('pool', pool)
        self.stabilize = stabilize
        if variance_only:
            if ratio_mean not in ('learned', 1):
                raise ValueError(
                    f'variance_only fixes ratio_mean to 1, got ratio_mean={ratio_mean!r}'
                )
            ratio_mean = 1.0
        self.ratio_mean = _build_ratio('ratio_mean', ratio_mean, num_heads)
        self.ratio_var = _build_ratio('ratio_var', ratio_var, num_heads)
        self.positions = _build_positions(positions, num_heads, position_init, band)
        self.normalise = PlainDTN()

    def forward(self, tokens: Tensor, grid: Layout | Grid | None = None) -> Tensor:
        """Normalise ``(B, P + H * W, C)``, see :meth:`TokenNorm.forward`. A sequence has the grid ``(1, T)``; None is
        accepted for a square number of tokens without prefix.

        Raises:
            ValueError: If the tokens do not fill the grid, or there is no grid and their number is not a square.
        """
        layout = Layout.of(tokens, grid)
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        with without_autocast(tokens.device):
            weight, bias = self.weight.to(dtype), self.bias.to(dtype)
            # Without gradients, PyTorch's FLOP counter cannot follow views of parameters.
            if not torch.is_grad_enabled():
                weight, bias = weight.detach(), bias.detach()
            if not layout.num_prefix:
                return self._normalise(tokens.to(dtype), layout, weight, bias).to(tokens.dtype)
            prefix, cells = layout.split(tokens)
            cells = self._normalise(cells.to(dtype), layout, weight, bias)
            shape = (self.num_features,)
            prefix = F.layer_norm(prefix.to(dtype), shape, weight, bias, self.eps)
            return layout.join(prefix, cells).to(tokens.dtype)

    def axis_maps(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Factors of the positional maps for a grid of tokens, in cells where ``pool`` is not 1.

        Returns:
            ``P_y`` ``(G or 1, A, A)`` and ``P_x`` ``(G or 1, E, E)`` over ``A x E`` cells; ``P[(y, x), (v, u)] =
            P_y[y, v] P_x[x, u]`` is the weight with which cell (v, u) enters the statistics of cell (y, x).
        """
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        return self.positions(Layout(grid).pooled(self.pool), self.weight.device, dtype)

    def extra_repr(self) -> str:
        return (
            f'{self.num_features}, num_heads={self.num_heads}, pool={self.pool}, '
            f'stabilize={self.stabilize}, eps={self.eps}'
        )

    def _normalise(self, tokens: Tensor, layout: Layout, weight: Tensor, bias: Tensor) -> Tensor:
        """Normalise cells ``(B, H * W, C)``, all in the dtype of the statistics."""
        windows = Windows.of(layout, self.pool)
        by_head = (self.num_heads, -1)
        x = tokens.unflatten(2, by_head)
        out = self.normalise(
            x,
            *self.positions(windows.cells, x.device, x.dtype),
            self.ratio_mean(x),
            self.ratio_var(x),
            weight.view(by_head),
            bias.view(by_head),
            DTNOptions(windows, self.eps, self.stabilize),
            layout.mask,
        )
        return out.flatten(2)


class Ratio(nn.Module):
    """The share of each head: ``value``, or by default a learned ``sigmoid(omega)``, ``omega`` initially 0 (Algorithm
    1)."""

    omega: nn.Parameter

    def __init__(self, num_heads: int, value: float | None = None) -> None:
        super().__init__()
        self.num_heads, self.value = num_heads, value
        learned = nn.Parameter(torch.zeros(num_heads)) if value is None else None
        self.register_parameter('omega', learned)

    def forward(self, like: Tensor) -> Tensor:
        """``(G, 1)`` in the dtype of ``like``, a fixed share on its device."""
        if self.value is not None:
            return like.new_full((self.num_heads, 1), self.value)
        return self.omega.to(like.dtype).sigmoid().unsqueeze(1)

    def extra_repr(self) -> str:
        return 'learned' if self.value is None else str(self.value)


def _build_ratio(name: str, value: str | float, num_heads: int) -> nn.Module:
    if value == 'learned':
        return Ratio(num_heads)
    if isinstance(value, str):
        raise ValueError(f"{name} must be 'learned' or a number from 0 to 1, got {value!r}")
    return Ratio(num_heads, check_rate(name, value, with_one=True))


def _build_positions(name: str, num_heads: int, init: str, band: int | None) -> nn.Module:
    check_option('positions', name, ('learned', 'uniform', 'banded'))
    if (band is not None) != (name == 'banded'):
        raise ValueError(f"band goes with positions='banded', got band={band}, positions={name!r}")
    if init != 'local' and name != 'learned':
        raise ValueError(
            f"position_init goes with positions='learned', got position_init={init!r}, positions={name!r}"
        )
    if name == 'learned':
        return LearnedMap(num_heads, init)
    return UniformMap() if band is None else BandedMap(band)

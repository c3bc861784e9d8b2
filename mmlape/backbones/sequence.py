"""A transformer for sequences of tokens (Long Range Arena)."""

from __future__ import annotations

from torch import nn
from typing_extensions import Unpack

from mmlape.layout import Grid
from mmlape.registry import MODELS

from .network import NetworkOptions, StagedTransformer
from .spec import UNSET, Parts
from .vit import PlainTransformer

SEQUENCE_ARCHS: dict[str, dict] = {
    'lra-listops': dict(
        embed_dims=512,
        depth=6,
        num_heads=8,
        mlp_ratio=4,
        img_size=(1, 2000),
        # Eq. 7 reaches 4 of 8 heads. Maps that start at random look at one end of a sequence, where its padding is.
        norm_places={'mmlape.DTN': dict(num_heads=4)},
    ),
}


@MODELS.register_module()
class SequenceTransformer(PlainTransformer):
    """The encoder of Long-Range Arena (ICLR 2021), on which DTN (ICLR 2022, Table 4) compares norms: one stage, counted
    by layers, of token ids ``(B, 1, 1, T)`` of any length, padded at the end.

    Attention and norms that mix tokens mask padding, see :class:`~mmlape.layers.TokenEmbed`; DTN's ``P x`` becomes
    ``P (m x) / P m``. Options are those of :class:`StagedTransformer`, with

    * ``arch``: ``'lra-listops'`` (default), or a dict with ``embed_dims``, ``depth``, ``num_heads`` and ``mlp_ratio``
      (4 if left out).
    * ``attention``: ``mmlape.Attention`` without a bias by default; ``dict(type='mmlape.BigBirdAttention')``,
      ``dict(type='mmlape.LSHAttention')``.
    * ``img_size``: ``(1, T)`` of a stored table of positions, ``(1, 2000)`` in the named architecture.
    * ``position``: sinusoids along the sequence by default. ``prefix``: a class token, before the first layer whatever
      the norm.
    * ``norm_cfg``: of all layers and the output; DTN applies a LayerNorm to the class token, which has no place. In the
      named architecture it has 4 heads, all of which eq. 7 reaches; else those of the attention.
    * ``vocab_size`` (16), ``padding_id`` (0), ``with_cls_token``, ``num_registers``, ``prefix_after``,
      ``qkv_bias`` (False), ``proj_bias`` (True; False in Long-Range Arena).
    """

    archs, default_arch = SEQUENCE_ARCHS, 'lra-listops'
    parts = dict(
        StagedTransformer.parts,
        stem=dict(type='mmlape.TokenEmbed', in_channels=1),
        attention=dict(type='mmlape.Attention', qkv_bias=False),
        position=dict(type='mmlape.SinusoidalPosition'),
        prefix=dict(cls_token=True, after=0),
    )
    norm_covers_output = True
    pooling = 'cls_token'

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        vocab_size: int = UNSET,
        padding_id: int | None = UNSET,
        with_cls_token: bool = UNSET,
        num_registers: int = UNSET,
        prefix_after: int | None = UNSET,
        qkv_bias: bool = UNSET,
        proj_bias: bool = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(
            stem=dict(vocab_size=vocab_size, padding_id=padding_id),
            prefix=dict(cls_token=with_cls_token, registers=num_registers, after=prefix_after),
            attention=dict(qkv_bias=qkv_bias, proj_bias=proj_bias),
        )
        super().__init__(arch, img_size, own, **common)

    def init_parameters(self) -> None:
        """Long-Range Arena's initial values: linear layers by Xavier's uniform law, a class token of zeros."""
        super().init_parameters()
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # Queries, keys and values are three matrices there: as one, each would have 0.71 of the scale.
                for weight in module.weight.chunk(3 if name.endswith('qkv') else 1):
                    nn.init.xavier_uniform_(weight)
        for name in self.prefix_names:
            nn.init.zeros_(getattr(self, name))

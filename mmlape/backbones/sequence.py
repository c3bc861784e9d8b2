"""A transformer for sequences of tokens (Long Range Arena)."""

from __future__ import annotations

from torch import nn

from mmlape.registry import MODELS

from .network import StagedTransformer
from .vit import PlainTransformer

SEQUENCE_ARCHS: dict[str, dict] = {
    'lra-listops': dict(embed_dims=512, depth=6, num_heads=8, mlp_ratio=4, img_size=(1, 2000)),
}


@MODELS.register_module()
class SequenceTransformer(PlainTransformer):
    """The encoder of Long-Range Arena (ICLR 2021), with which DTN (ICLR 2022, Table 4) compares norms: one stage,
    counted by layers, of sequences ``(B, 1, 1, T)`` of token ids of any length, padded at the end.

    What mixes tokens (attention, and norms that do) leaves padding out, see :class:`~mmlape.layers.TokenEmbed`: padding
    changes no token that is there; DTN's ``P x`` becomes ``P (m x) / P m``. Options are those of
    :class:`~mmlape.backbones.StagedTransformer`, with

    * ``arch``: ``'lra-listops'`` (default), or a dict with ``embed_dims``, ``depth``, ``num_heads`` and ``mlp_ratio``
      (4 if left out).
    * ``attention``: ``mmlape.Attention`` without a bias by default; ``dict(type='mmlape.BigBirdAttention')``,
      ``dict(type='mmlape.LSHAttention')``.
    * ``img_size``: ``(1, T)`` of a stored table of positions, ``(1, 2000)`` in the named architecture.
    * ``position``: sinusoids of the place in the sequence by default. ``prefix``: a class token, first, which joins
      before the first layer whatever the norm.
    * ``norm_cfg``: of all layers and the output, DTN too; the class token, which is nowhere, gets a LayerNorm from it.
    * ``out_indices``: -1 by default, the last layer; ``final_norm``: True.
    * Short names: ``vocab_size`` (16), ``padding_id`` (0), ``with_cls_token``, ``num_registers``, ``prefix_after``,
      ``qkv_bias`` (False).
    """

    archs, default_arch = SEQUENCE_ARCHS, 'lra-listops'
    parts = dict(
        StagedTransformer.parts,
        stem=dict(type='mmlape.TokenEmbed', in_channels=1),
        attention=dict(type='mmlape.Attention', qkv_bias=False),
        position=dict(type='mmlape.SinusoidalPosition'),
        prefix=dict(cls_token=True, after=0),
    )
    short = dict(
        vocab_size='stem.vocab_size',
        padding_id='stem.padding_id',
        with_cls_token='prefix.cls_token',
        num_registers='prefix.registers',
        prefix_after='prefix.after',
        qkv_bias='attention.qkv_bias',
    )
    norm_covers_output = True
    pooling = 'cls_token'

    def init_parameters(self) -> None:
        """Long-Range Arena's initial values: linear layers by Xavier's uniform law, a class token of zeros."""
        super().init_parameters()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        for name in self.prefix_names:
            nn.init.zeros_(getattr(self, name))

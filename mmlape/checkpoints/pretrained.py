"""``init_cfg=dict(type='mmlape.Pretrained', ...)``: weights from elsewhere into any backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from mmengine.dist import barrier, is_main_process
from torch import nn

from mmlape.checks import check_option, check_rate
from mmlape.registry import WEIGHT_INITIALIZERS

from .convert import convert
from .formats import FORMATS
from .reading import read_checkpoint


@WEIGHT_INITIALIZERS.register_module()
class Pretrained:
    """Loads weights from elsewhere into a backbone and accounts for every entry.

    Args:
        source: Format of the weights: ``'timm'``, ``'deit'``, ``'lape'``, ``'pvt'``, ``'dtn'``, ``'vit_adapter'``, or
            ``'mmlape'``.
        checkpoint: Path or http(s) address of a checkpoint. Files are read with ``weights_only=True``.
        model: Name of a timm model whose published weights are taken; for ``source='timm'`` in place of
            ``checkpoint``.
        min_matched: Least share of the values that must come from the checkpoint, else it fails. Default 0.95.
        source_grid: Grid of the position table where it is not square.

    Raises:
        ValueError: If the source is unknown, not exactly one of ``checkpoint`` and ``model`` is given, or (when
            applied) too little matched.
        FileNotFoundError: When applied, if there is no such file.
    """

    def __init__(
        self,
        source: str,
        checkpoint: str | None = None,
        model: str | None = None,
        min_matched: float = 0.95,
        source_grid: int | tuple[int, int] | None = None,
    ) -> None:
        self.source = check_option('source', source, FORMATS)
        if (checkpoint is None) == (model is None) or (model is not None and source != 'timm'):
            raise ValueError(
                "give either checkpoint=<path or address> or, with source='timm', model=<timm name>; "
                f'got source={source!r}, checkpoint={checkpoint!r}, model={model!r}'
            )
        self.checkpoint = checkpoint
        self.model = model
        self.min_matched = check_rate('min_matched', min_matched, with_one=True)
        self.source_grid = source_grid

    def __call__(self, module: nn.Module) -> None:
        """Load into ``module``, one of our backbones."""
        state = convert(
            self._read(),
            self.source,
            module,
            min_matched=self.min_matched,
            source_grid=self.source_grid,
        )
        module.load_state_dict(state, strict=True)

    def _read(self) -> dict[str, Any]:
        # The main process downloads first; the others then find the file.
        if not is_main_process():
            barrier()
        try:
            return self._read_here()
        finally:
            if is_main_process():
                barrier()

    def _read_here(self) -> dict[str, Any]:
        if self.model is not None:
            return timm.create_model(self.model, pretrained=True).state_dict()
        if self.checkpoint.startswith(('http://', 'https://')):
            return torch.hub.load_state_dict_from_url(
                self.checkpoint, map_location='cpu', weights_only=True
            )
        path = Path(self.checkpoint).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f'init_cfg names the checkpoint {self.checkpoint!r}: no such file'
            )
        return read_checkpoint(path)

"""The backbone of any config, with the weights of any checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import DefaultScope
from torch import nn

from mmlape.checkpoints.conversion import BACKBONE, State, convert, tensors_of
from mmlape.checkpoints.matching import match, misfits
from mmlape.checkpoints.reading import read_checkpoint


def load_backbone(
    config: str | Path | Config,
    checkpoint: str | Path | None = None,
    source: str | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Build only the backbone of a detector's or a segmentor's config, in evaluation mode on the CPU.

    Args:
        config: A config with ``model.backbone``, of MMDetection, MMSegmentation or neither.
        checkpoint: File with weights: a whole model's (names beginning with ``backbone.``; the rest is left aside) or a
            backbone's. They must fit strictly. Default None: initial values.
        source: Format of a checkpoint from elsewhere, see :func:`~mmlape.checkpoints.convert`: ``'timm'``, ``'deit'``,
            ... Default None: our own names.
        pretrained: Without a checkpoint, apply the config's own ``init_cfg``. Default False.
        seed: Of the initial values. Default 0.

    Raises:
        FileNotFoundError: If the config or the checkpoint does not exist.
        ValueError: If the config has no backbone, or the checkpoint does not fit.
        TypeError: If the checkpoint holds something that is no tensor among its weights.
    """
    if checkpoint is None and source is not None:
        raise ValueError(f'source={source!r} is the format of a checkpoint, but none is given')
    if checkpoint is not None and pretrained:
        raise ValueError('give either a checkpoint or pretrained=True, not both')
    backbone = _build(config, seed)
    if checkpoint is not None:
        state = tensors_of(read_checkpoint(checkpoint))
        if source is None:
            _load_own(backbone, state, str(checkpoint))
        else:
            backbone.load_state_dict(convert(state, source, backbone), strict=True)
    elif pretrained:
        backbone.init_weights()
    backbone.eval()  # some upstream backbones return nothing here
    return backbone


def _build(config: str | Path | Config, seed: int) -> BaseModule:
    if not isinstance(config, Config):
        if not Path(config).is_file():
            raise FileNotFoundError(f'there is no config {str(config)!r}')
        config = Config.fromfile(config)
    options = config.get('model', {}).get('backbone')
    if options is None:
        raise ValueError(f'the config {config.filename!r} has no model.backbone')
    # By its own prefix if it has one: a backbone of ours then needs no toolbox.
    prefix = str(options.get('type')).rpartition('.')[0]
    scope = prefix or config.get('default_scope') or 'mmlape'
    with torch.random.fork_rng(devices=[]), DefaultScope.overwrite_default_scope(scope):
        torch.manual_seed(seed)
        return ROOT_MODELS.build(options)


def _load_own(backbone: nn.Module, state: State, where: str) -> None:
    """Load what of a state dict is the backbone's, if it fits strictly."""
    start = f'{BACKBONE}.'
    part = {name.removeprefix(start): state[name] for name in state if name.startswith(start)}
    report = match(backbone, part or state, where)
    found = report.problems or misfits(report)
    if found:
        raise ValueError(
            f'{where!r} does not fit the {type(backbone).__name__} of the config: {"; ".join(found)}\n'
            'Is it the checkpoint of this config? One from elsewhere needs its format (source).'
        )

"""``init_cfg=dict(type='mmlape.Pretrained', ...)``: weights from elsewhere into any backbone or whole model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import nn

from mmlape.backbones.base import Backbone
from mmlape.checks import check_grid, check_option, check_rate, check_type
from mmlape.registry import WEIGHT_INITIALIZERS

from .conversion import BACKBONE, convert_with_report
from .files import download_checkpoint, main_process_first
from .formats import FORMATS
from .formats.timm_models import check_timm_name, read_timm
from .hub import HUB, hub_folder
from .reading import read_checkpoint
from .report import LoadReport


@WEIGHT_INITIALIZERS.register_module()
class Pretrained:
    """Loads weights from elsewhere into a backbone, or a whole detector or segmentor, and accounts for every entry.

    In the ``init_cfg`` of a backbone (or of the ``vit`` of an adapter) it takes the backbone's entries; in that of a
    whole model also those of necks and heads (of classifiers, timm's head too). What it has loaded is not initialised
    anew afterwards.

    Args:
        source: Format of the weights, a name of :data:`~mmlape.checkpoints.FORMATS`.
        checkpoint: Path or http(s) address of a checkpoint: ``.safetensors``, or what ``torch.save`` wrote, which is
            read with ``weights_only=True``; or of the ``.index.json`` of several; or a folder with one of these; or
            ``hf://OWNER/NAME``, such a folder on the Hugging Face hub.
        model: Name of a timm model whose published weights are taken; for ``source='timm'`` instead of
            ``checkpoint``. Default None: without a ``checkpoint`` too, the name that the backbone has as ``arch``.
        min_matched: Least share of the values that must come from the checkpoint, else it fails; of every part of a
            whole model. Default 0.95.
        source_grid: Grid of the position table, as in :func:`~mmlape.checkpoints.convert`.
        key: Which of several state dicts in the checkpoint, such as ``'state_dict_ema'``. Default None: the first.
        prefix: Only entries whose names begin so, such as ``'student.backbone.'``. Default all.

    Raises:
        ValueError: If the source or the timm model is unknown, not exactly one of ``checkpoint`` and ``model`` is
            given, and the ``arch`` does not stand for the latter, or (when applied) the weights do not fit, or too
            little matched.
        FileNotFoundError: When applied, if there is no such file.
        ConnectionError: When applied, if it cannot be downloaded.
    """

    def __init__(
        self,
        source: str,
        checkpoint: str | None = None,
        model: str | None = None,
        min_matched: float = 0.95,
        source_grid: int | tuple[int, int] | None = None,
        key: str | None = None,
        prefix: str = '',
    ) -> None:
        self.source = check_option('source', source, FORMATS)
        both = checkpoint is not None and model is not None
        if both or (source != 'timm' and checkpoint is None):
            raise ValueError(
                "give either checkpoint=<path or address> or, with source='timm', model=<timm name>; "
                f'got source={source!r}, checkpoint={checkpoint!r}, model={model!r}'
            )
        check_type('checkpoint', checkpoint, str | None)
        self.checkpoint = checkpoint
        self.model = None if model is None else check_timm_name(model)
        self.min_matched = check_rate('min_matched', min_matched, with_one=True)
        self.source_grid = None if source_grid is None else check_grid('source_grid', source_grid)
        check_type('key', key, str | None)
        check_type('prefix', prefix, str)
        self.key, self.prefix = key, prefix

    def __call__(self, module: nn.Module) -> LoadReport:
        """Read the weights, and load them into ``module``: one of our backbones, or a model with one."""
        _refuse_late_initialisation(module)
        return self.load(module, self.read(module))

    def load(self, module: nn.Module, checkpoint: Mapping[str, Any]) -> LoadReport:
        """Load what was read into ``module``; returns the account, which is logged too."""
        state, report = convert_with_report(
            checkpoint,
            self.source,
            module,
            source_grid=self.source_grid,
            key=self.key,
            prefix=self.prefix,
        )
        report.demand(self.min_matched)
        print_log(str(report), logger='current', level=logging.INFO)
        if not isinstance(module, Backbone):
            _initialise_the_rest(module, report)
        # Load only the entries taken: the others have been initialised since the conversion.
        taken = {name: state[name] for name in report.taken}
        module.load_state_dict({**module.state_dict(), **taken}, strict=True)
        return report

    def read(self, module: nn.Module | None = None) -> dict[str, Any]:
        """The checkpoint, or the state dict of the timm model, which must be such as ``module``."""
        backbone = getattr(module, BACKBONE, module)
        with main_process_first():
            if self.checkpoint is None:
                return read_timm(self.model or _timm_arch(backbone), backbone)
            if self.checkpoint.startswith(('http://', 'https://')):
                return read_checkpoint(download_checkpoint(self.checkpoint))
            path = Path(self.checkpoint).expanduser()
            if self.checkpoint.startswith(HUB):
                path = hub_folder(self.checkpoint)
            state = read_checkpoint(path)
        FORMATS[self.source].check_beside(path, backbone)
        return state


def _timm_arch(module: nn.Module | None) -> str:
    """The timm name that a backbone, or the ViT of an adapter, has as ``arch``; ValueError if it has another."""
    name = getattr(getattr(module, 'vit', module), 'arch_name', None)
    if name is None or not timm.is_model(name):
        raise ValueError(
            "source='timm' without model or checkpoint takes the weights of the model that the backbone has as arch, "
            f'which timm does not know: {name!r}'
        )
    return check_timm_name(name)


def _refuse_late_initialisation(module: nn.Module) -> None:
    """Refuse (ValueError) a model that initialises parameters after its ``init_cfg`` was applied."""
    own = type(module).__dict__.get('init_weights') or getattr(type(module), 'init_weights', None)
    known = (BaseModule.init_weights, Backbone.init_weights)
    # MMEngine marks a model that is being initialised.
    if isinstance(module, BaseModule) and own not in known and hasattr(module, '_params_init_info'):
        raise ValueError(
            f'a {type(module).__name__} initialises its parameters after init_cfg, so that the '
            'weights would be lost: convert them with `mmlape convert` and '
            'name the result in load_from'
        )


def _initialise_the_rest(module: nn.Module, report: LoadReport) -> None:
    """Let those children initialise themselves in which something stays fresh; none of them does so again.

    MMEngine applies an ``init_cfg`` first and initialises the children then, which would overwrite what was loaded. The
    weights that parts of ``module`` would start from are not read: those of the whole take their place.
    """
    for name, child in module.named_children():
        init_weights = getattr(child, 'init_weights', None)
        if init_weights is None or getattr(child, 'is_init', False):
            continue
        if any(entry.startswith(f'{name}.') for entry in report.fresh):
            for path, part in child.named_modules(prefix=name):
                config = getattr(part, 'init_cfg', None)
                if isinstance(config, dict) and str(config.get('type')).endswith('Pretrained'):
                    part.init_cfg = None
                    what = 'not read, since the whole model is loaded: init_cfg of'
                    print_log(f'{what} {path}: {config}', logger='current')
            init_weights()
        child.is_init = True  # type: ignore[assignment]  # MMEngine's mark, of a bool

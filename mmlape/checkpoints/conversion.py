"""Conversion of a foreign state dict to one that our model loads strictly."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.logging import print_log
from timm.layers import LayerScale
from torch import Tensor, nn

from mmlape.checks import check_option
from mmlape.layers import PatchEmbed
from mmlape.layers.lora import row_lengths
from mmlape.norm import DTN
from mmlape.position.joining import Joining

from .contents import config_text_of
from .formats import FORMATS
from .formats.base import Format, State, has
from .matching import fitters, other_shape, problems_of
from .report import ContentError, LoadReport, listed
from .strangers import img_size_of

BACKBONE = 'backbone'
# What files keep weights under.
_KEYS = ('state_dict', 'model', 'module', 'teacher', 'state_dict_ema')
_MOST_PREFIX_ROWS = 9  # class, distillation and register tokens
# Layers in which no bias is the same as a bias of zeros.
_WITH_BIAS = (nn.Linear, nn.Conv2d, nn.LayerNorm)


def convert(
    state_dict: Mapping[str, Any],
    source: str,
    model: nn.Module,
    *,
    min_matched: float = 0.95,
    source_grid: int | tuple[int, int] | None = None,
    key: str | None = None,
    prefix: str = '',
) -> State:
    """Convert a foreign state dict for ``model.load_state_dict(..., strict=True)``.

    Position tables are resized to the model's pre-training grid, patch kernels to its patch size. Entries that the
    source lacks (LaPE's norms in an ordinary DeiT file, the adapter around a ViT) keep the model's present values. All
    of it is logged.

    Args:
        state_dict: Names to tensors, or a checkpoint that holds them: see :func:`tensors_of`.
        source: A name of :data:`~mmlape.checkpoints.FORMATS`; docs/weights.md says what each reads.
        model: One of our backbones, which takes the ``backbone.`` entries of a whole model's checkpoint; or a whole
            detector or segmentor with a ``backbone`` of ours, which takes its other parts too. A ViT's weights may go
            into a ``ViTAdapter``, then its ``vit`` receives them.
        min_matched: Least share of the values that must come from the source, of the part of a backbone that the source
            describes, and of every part of a whole model. Default 0.95.
        source_grid: Grid (height, width) of the source's position table in tokens; needed where it is not square, nor
            the model's, nor in the checkpoint's own config.
        key, prefix: Which part of the checkpoint, as in :func:`tensors_of`.

    Returns:
        A state dict with all names of ``model``.

    Raises:
        ValueError: If the source is unknown, does not describe such a model or has what the model has not; if a shape
            of the backbone does not fit, or less than ``min_matched`` of the values came from it.
        ContentError: A ``TypeError``, if ``state_dict`` holds something that is not a tensor with a name.
    """
    state, report = convert_with_report(
        state_dict, source, model, source_grid=source_grid, key=key, prefix=prefix
    )
    report.demand(min_matched)
    print_log(str(report), logger='current', level=logging.INFO)
    return state


def convert_with_report(
    state_dict: Mapping[str, Any],
    source: str,
    model: nn.Module,
    *,
    source_grid: int | tuple[int, int] | None = None,
    key: str | None = None,
    prefix: str = '',
) -> tuple[State, LoadReport]:
    """Convert as :func:`convert`, but without its log and refusals (:meth:`LoadReport.demand`); return the state dict
    and the report."""
    form = FORMATS[check_option('source', source, FORMATS)]
    report = LoadReport(source, type(model).__name__, whole=is_whole_model(model))
    conversion = _Conversion(form, tensors_of(state_dict, key, prefix), model, report)
    if source_grid is None:
        source_grid = _saved_grid(state_dict, conversion.described, conversion.foreign)
    return conversion.run(source_grid), report


def _saved_grid(
    checkpoint: Mapping[str, Any], backbone: nn.Module, state: State
) -> tuple[int, int] | None:
    """The grid of the first position table by the image size in the checkpoint's own config, if the table agrees."""
    text = config_text_of(checkpoint)
    size = None if text is None else img_size_of(text)
    stems = [part for part in backbone.modules() if isinstance(part, PatchEmbed)]
    rows = [t.shape[1] for name, t in state.items() if 'pos_embed' in name and t.ndim == 3]
    if size is None or not stems or not rows:
        return None
    height, width = (side // step for side, step in zip(size, stems[0].stride, strict=True))
    beside = rows[0] - height * width
    return (height, width) if height and width and 0 <= beside <= _MOST_PREFIX_ROWS else None


def tensors_of(checkpoint: Mapping[str, Any], key: str | None = None, prefix: str = '') -> State:
    """The tensors of a checkpoint, without what wrappers add to their names.

    Args:
        checkpoint: Names to tensors, or what holds them under one of ``state_dict``, ``model``, ``module``, ``teacher``
            and ``state_dict_ema``, of which the first is taken.
        key: Take what is under this name instead; of several inside of each other, with dots between. Default None.
        prefix: Only the entries whose names begin so, without it. Default ``teacher.`` where there are such entries and
            none of a ``backbone.``, else all.

    Raises:
        ValueError: If nothing is under ``key``, or no name begins with ``prefix``.
        ContentError: A ``TypeError``, if something else than named tensors is there.
    """
    content: Any = checkpoint
    for part in key.split('.') if key else ():
        known = [name for name, value in content.items() if isinstance(value, Mapping)]
        if part not in known:
            raise ValueError(f'key must be one of {known}, got {key!r}')
        content = content[part]
    while inner := [name for name in _KEYS if isinstance(content.get(name), Mapping)]:
        averaged = [name for name in inner[1:] if name in ('teacher', 'state_dict_ema')]
        if averaged and key is None:
            print_log(
                f'the weights under {inner[0]!r} are taken; averaged ones are under {averaged[0]!r}: '
                f'key={averaged[0]!r} takes them',
                logger='current',
            )
        content = content[inner[0]]
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ContentError(
                f'the state dict holds {name!r}, a {type(tensor).__name__}, not a named tensor'
            )
    # Of torch.compile, and of distributed training.
    state = {re.sub(r'\b_orig_mod\.', '', k).removeprefix('module.'): v for k, v in content.items()}
    if not prefix and has(state, r'^teacher\.') and not has(state, r'^backbone\.'):
        prefix = 'teacher.'
    found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    if not found and state:
        starts = sorted({name.partition('.')[0] for name in state})
        raise ValueError(f'prefix must begin a name: of {listed(starts)}, got {prefix!r}')
    return found


def is_whole_model(model: nn.Module) -> bool:
    """Whether a model has a backbone and is none."""
    return isinstance(getattr(model, BACKBONE, None), nn.Module)


def holds_more_than_a_backbone(state: State, model: nn.Module) -> bool:
    """Whether a state dict is that of a whole model with any other part that a whole ``model`` has too."""
    others = {name for name in model.state_dict() if not _of_backbone(name)}
    return any(map(_of_backbone, state)) and not others.isdisjoint(state)


def _of_backbone(name: str) -> bool:
    return name.startswith(f'{BACKBONE}.')


class _Conversion:
    """One conversion: ``foreign`` holds what is still to be placed, under the model's names."""

    def __init__(self, form: Format, state: State, model: nn.Module, report: LoadReport) -> None:
        self.model, self.report = model, report
        if report.whole:
            state = form.whole(state, model)
            if not holds_more_than_a_backbone(state, model):
                raise ValueError(
                    f'the checkpoint has a backbone at most, the model is a whole {report.model}: '
                    'give this init_cfg to the backbone (model.backbone, or its vit)'
                )
        self.others: State = {}
        if any(map(_of_backbone, state)):
            self.others = {k: v for k, v in state.items() if not _of_backbone(k)}
            state = {k.partition('.')[2]: v for k, v in state.items() if _of_backbone(k)}
        other = next((name for start, name in form.others if has(state, start)), None)
        self.form = FORMATS[other] if other else form
        backbone = model.get_submodule(BACKBONE) if report.whole else model
        part = self.form.part(backbone, state)
        self.described = backbone.get_submodule(part)
        self.prefix = ''.join(f'{n}.' for n in (BACKBONE * report.whole, part) if n)
        report.part = self.prefix
        ours = self.form.rename(state)
        self.foreign = {self.prefix + name: value for name, value in ours.items()}
        report.problems += self.form.problems(self.described, ours)
        report.problems += problems_of({**self.foreign, **self.others}, model.state_dict())

    def _fitters(self, source_grid: int | tuple[int, int] | None) -> dict[int, Any]:
        names = {name.removeprefix(self.prefix) for name in self.foreign}
        tokens = len(names & {'cls_token', 'dist_token'})
        # Files with registers have added its row to the class token.
        with_rows = self.form.prefix_rows and 'pos_embed' in names and 'reg_token' not in names
        return fitters(self.model, source_grid, tokens, with_rows)

    def run(self, source_grid: int | tuple[int, int] | None) -> State:
        """Place every entry, and report it; returns the model's state dict."""
        report, fits = self.report, self._fitters(source_grid)
        if report.whole:
            self.foreign.update(self.others)
        # Parts that published weights lack.
        ours = {
            f'{place}.': f'of {type(part).__name__}, '
            for place, part in self.model.named_modules()
            if isinstance(part, (DTN, Joining, LayerScale))
        }
        converted = dict(self.model.state_dict())
        for name, value in self.model.state_dict(keep_vars=True).items():
            other_part = report.whole and not _of_backbone(name)
            if not (name.startswith(self.prefix) or other_part):
                report.fresh[name] = f'outside of what {report.source!r} describes'
                continue
            owner, _, change = name.partition('.lora_')
            if change and name not in self.foreign and change != 'magnitude_vector':
                report.fresh[name] = 'of LoRA, not in the source'
                continue
            report.sizes[name] = value.numel()
            if change and name not in self.foreign:
                converted[name] = row_lengths(converted[f'{owner}.weight'])
                report.filled[name] = 'lengths of the rows of the weight, from which DoRA starts'
            elif name in self.foreign:
                tensor, how = self.foreign.pop(name), ''
                if id(value) in fits:
                    tensor, how = fits[id(value)](tensor)
                if tensor.shape != value.shape:
                    report.fresh[name] = other_shape(tensor.shape, value.shape)
                    if not other_part:
                        report.problems.append(report.fresh[name].replace('it', name, 1))
                    continue
                if self.form.added and re.match(self.form.added, name.removeprefix(self.prefix)):
                    tensor, how = tensor + value.detach().to(tensor), 'a difference, added'
                converted[name] = tensor.to(value.dtype)
                report.matched += [] if how else [name]
                report.resized.update({name: how} if how else {})
            elif self._lacks_bias(name):
                converted[name] = torch.zeros_like(value)
                report.filled[name] = 'zeros, the source has no bias here'
            else:
                owner = next((what for place, what in ours.items() if name.startswith(place)), '')
                report.fresh[name] = f'{owner}not in the source'
        self._report_the_rest()
        return converted

    def _lacks_bias(self, name: str) -> bool:
        """Whether an entry is the bias of a layer of which the source had the weight."""
        owner, _, kind = name.rpartition('.')
        return (
            kind == 'bias'
            and f'{owner}.weight' in self.report.taken
            and isinstance(self.model.get_submodule(owner), _WITH_BIAS)
        )

    def _report_the_rest(self) -> None:
        """Report what of the source was not placed."""
        report = self.report
        problems: dict[str, list[str]] = {}
        for name in sorted(self.foreign):
            if not name.startswith(self.prefix):
                report.left_out[name] = 'the model has no such entry'
                continue
            bare = name.removeprefix(self.prefix)
            if self._lacks_bias(name) and not self.foreign[name].any():
                why, problem = 'zeros, as in the model without it', ''
            else:
                why, problem = self.form.leave(bare, self.described)
            name = f'{BACKBONE}.{bare}' if report.whole else bare
            report.left_out[name] = why or problem
            if problem:
                problems.setdefault(problem, []).append(name)
        report.problems += [f'{problem}: {listed(names)}' for problem, names in problems.items()]
        if not report.whole:
            report.left_out.update(dict.fromkeys(sorted(self.others), 'outside of the backbone'))

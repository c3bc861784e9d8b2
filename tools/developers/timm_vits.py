"""Comparison of timm's plain Vision Transformers with our networks, name by name: which have equal outputs.

    python tools/developers/timm_vits.py [--names PATTERN ...] [--check]

Builds each of timm's models and ours with 2 layers of 48 channels and random weights, loads timm's into ours, and
compares the tokens of two sizes of images. Writes the table of the page, or with --check fails if it differs.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import timm
import torch
from timm.models import beit, deit, eva, naflexvit, vision_transformer, vision_transformer_relpos
from torch import nn

from mmlape.backbones.timm_archs import CLASSES, UnlikeOursError, describe
from mmlape.checkpoints import convert_with_report
from mmlape.registry import MODELS

PAGE = Path(__file__).resolve().parents[2] / 'configs' / 'foundation' / 'README.md'
BEGIN, END = '<!-- names: begin -->\n', '<!-- names: end -->'
EQUAL = 'equal'
TOLERANCE = 1e-4
_MODULES = (vision_transformer, eva, beit, vision_transformer_relpos, deit, naflexvit)
# Sizes, which do not change the computation, and options that only matter in training.
_SIZES = ('img_size', 'embed_dim', 'depth', 'num_heads', 'num_kv_heads', 'mlp_ratio')
_SMALL: dict[str, Any] = dict(depth=2, embed_dim=48, num_heads=4, num_classes=0)


def names() -> list[str]:
    """timm's models of the classes in question, without the tags of their weights."""
    listed = sorted(
        {name for module in _MODULES for name in timm.list_models(module=_short(module))}
    )
    return [name for name in listed if class_and_options(name)[0] in CLASSES]


def class_and_options(name: str) -> tuple[str, dict[str, Any]]:
    """Class and options of a timm model, without building it."""
    found: dict[str, Any] = {}

    def note(cls: type, variant: str, pretrained: bool, **options: Any) -> nn.Module:
        cfg = options.pop('cfg', None)  # only NaFlex has it
        found.update(cls=cls.__name__, options={**(vars(cfg) if cfg else {}), **options})
        return nn.Module()

    with mock.patch.multiple(_module_of(name), build_model_with_cfg=note):
        timm.model_entrypoint(name)()
    options = found['options']
    kept = {k: v for k, v in options.items() if not k.startswith(('pretrained', 'feature'))}
    return found['cls'], kept


def network_key(name: str) -> str:
    """Return what a name's network computes, as text: names with the same text share a comparison."""
    cls, options = class_and_options(name)
    rest = sorted((key, repr(value)) for key, value in options.items() if key not in _SIZES)
    shared_keys = isinstance(options.get('num_kv_heads'), tuple)
    return f'{cls} {shared_keys} {rest}'


def compare(name: str, seed: int = 0) -> str:
    """``'equal'``, or why a timm model and ours are not."""
    torch.manual_seed(seed)
    options = dict(_SMALL)
    if isinstance(class_and_options(name)[1].get('num_kv_heads'), tuple):
        options['num_kv_heads'] = (4, 2)
    height, width = _patch_of(timm.create_model(name, **options))
    theirs: Any = timm.create_model(name, **options, img_size=(4 * height, 4 * width)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    try:
        arch = describe(theirs)
    except UnlikeOursError as error:
        return str(error)
    ours = MODELS.build(dict(type='mmlape.VisionTransformer', arch=arch, out_type='raw')).eval()
    state, report = convert_with_report(theirs.state_dict(), 'timm', ours)
    report.demand(1)
    ours.load_state_dict(state)
    for rows, columns in ((4, 4), (3, 6)):
        size = (rows * height, columns * width)
        if hasattr(theirs, 'set_input_size'):
            theirs.set_input_size(size)
        image = torch.randn(2, 3, *size)
        with torch.no_grad():
            expected, found = theirs.forward_features(image), ours(image)[0]
        if expected.std() < 0.05 or not torch.allclose(found, expected, atol=TOLERANCE, rtol=0):
            return f'outputs differ by {(found - expected).abs().max():.1g} at {rows} x {columns} patches'
    return EQUAL


def table(results: dict[str, str]) -> str:
    """The lines of the page: a table of names that differ, then the equal names."""
    equal = [name for name, result in results.items() if result == EQUAL]
    others = [f'| `{name}` | {result} |' for name, result in results.items() if result != EQUAL]
    lines = [f'{len(equal)} of {len(results)} names of timm {timm.__version__} are equal.']
    if others:
        lines += ['', 'These are not:', '', '| timm | difference |', '|---|---|', *others]
    lines += ['', 'Equal:', '', '```text', *textwrap.wrap(' '.join(equal), 118), '```', '']
    return '\n'.join(lines)


def read_results(page: Path) -> dict[str, str]:
    """The results on the page, by name."""
    text = split_page(page)[1]
    differing = dict(re.findall(r'^\| `(\w+)` \| (.+) \|$', text, re.MULTILINE))
    equal = text.partition('```text')[2].partition('```')[0].split()
    return dict(sorted({**differing, **dict.fromkeys(equal, EQUAL)}.items()))


def split_page(page: Path) -> tuple[str, str, str]:
    """The text before the table, the table, and the text after it."""
    before, _, rest = page.read_text(encoding='utf-8').partition(BEGIN)
    found, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f'{page} has no lines {BEGIN.strip()} and {END}')
    return before + BEGIN, found, end + after


def _patch_of(model: Any) -> tuple[int, int]:
    embed = getattr(model, 'embeds', None)
    return (model.patch_embed if embed is None else embed).patch_size


def _short(module: Any) -> str:
    return module.__name__.rpartition('.')[2]


def _module_of(name: str) -> Any:
    return sys.modules[timm.model_entrypoint(name).__module__]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare timm's plain ViTs with ours.")
    parser.add_argument(
        '--names', nargs='+', metavar='PATTERN', help='only these names; write no page'
    )
    parser.add_argument(
        '--check', action='store_true', help='write nothing; fail if the page differs'
    )
    options = parser.parse_args()
    wanted = [n for n in names() if any(fnmatch(n, p) for p in options.names or ['*'])]
    if not wanted:
        raise SystemExit(
            f'no plain Vision Transformer of timm is named {" or ".join(options.names)}'
        )
    results: dict[str, str] = {}
    cases: dict[str, str] = {}
    for name in wanted:
        key = network_key(name)
        if key not in cases:  # what computes the same is compared once
            cases[key] = compare(name)
        results[name] = cases[key]
        print(f'{name}: {results[name]}')
    if options.names:
        return 0
    before, found, after = split_page(PAGE)
    if options.check:
        return int(found != table(results))
    PAGE.write_text(before + table(results) + after, encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())

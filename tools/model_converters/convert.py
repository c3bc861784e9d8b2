"""Convert foreign weights for a config and report every entry.

    mmlape convert SOURCE WEIGHTS OUT --config CONFIG

SOURCE is a format (timm, transformers, deit, lape, pvt, dtn, vit_adapter, mmseg, mmpretrain, mmlape), WEIGHTS a file, a
folder with one, an http(s) address or, for timm, the name of a model. The checkpoint of a whole detector or segmentor
gives a file for ``load_from`` and ``tools/test.py`` with the config, that of a backbone a file for
``init_cfg=dict(type='mmlape.Pretrained', source='mmlape', checkpoint=OUT)``. OUT ends in .pth or .safetensors.
See `mmlape docs weights`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmlape import __version__
from mmlape.checkpoints.formats import FORMATS
from mmlape.checks import check_target, existing_checkpoint
from mmlape.cli import usage
from mmlape.cli.arguments import CONFIG, NEW_FILE, RATE, SEED, ConfigOptions, Parser, at_least
from mmlape.cli.pictures import overridden_config, run
from mmlape.shipped import find_config

if TYPE_CHECKING:
    from mmengine.config import Config
    from torch import nn

# Suffixes of files: a timm model's name may have a dot too.
FILES = ('.pth', '.pt', '.bin', '.tar', '.safetensors', '.json')


def parse_arguments() -> argparse.Namespace:
    parser = Parser(
        'convert', 'Convert foreign weights for a config.', 'timm deit_tiny_patch16_224 deit.pth --config my_config.py',
        'mmseg old.pth new.safetensors --config my_config.py --force',
    )  # fmt: skip
    parser.add_argument('source', choices=sorted(FORMATS), help='format of the weights')
    parser.add_argument(
        'weights', help='file, folder with one, http(s) address, or name of a timm model'
    )
    parser.add_argument('out', type=NEW_FILE, help='file to write: .pth or .safetensors')
    parser.add_argument(
        '--config',
        type=CONFIG,
        required=True,
        help='config of the model or backbone: a file, or a name',
    )
    parser.add_argument(
        '--min-matched',
        type=RATE,
        default=0.95,
        metavar='SHARE',
        help='minimum share of the values of each part that the weights must provide (default 0.95)',
    )
    parser.add_argument(
        '--source-grid',
        type=at_least(1),
        nargs=2,
        metavar=('H', 'W'),
        help='grid of the position table, if it is not square',
    )
    parser.add_argument(
        '--key', help='which of several state dicts in the file, such as state_dict_ema'
    )
    parser.add_argument(
        '--prefix',
        default='',
        help='only entries whose names begin so, such as student.backbone.',
    )
    parser.add_argument('--force', action='store_true', help='overwrite OUT if it exists')
    parser.add_argument(
        '--seed', type=SEED, default=0, help='seed of entries that stay fresh (default 0)'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=ConfigOptions, help='override the config, key=value'
    )
    options = parser.parse_args()
    with usage():
        options.out = check_target(options.out, options.force)
        options.config = find_config(options.config)
        if options.source != 'timm' or Path(options.weights).suffix in FILES:
            existing_checkpoint(os.path.expanduser(options.weights))
    return options


def build(config: Config) -> nn.Module:
    """The model of a config, with initial values and no weights read."""
    from mmengine.registry import MODELS, DefaultScope

    if config.get('model') is None:
        raise ValueError(f'the config {config.filename!r} has no model')
    with DefaultScope.overwrite_default_scope(config.get('default_scope') or 'mmlape'):
        return MODELS.build(config.model)


def backbone_of(model: nn.Module, config: Config) -> nn.Module:
    """The backbone of a model, or the model itself if it is a backbone."""
    from mmlape.backbones import Backbone
    from mmlape.checkpoints.conversion import BACKBONE

    backbone = getattr(model, BACKBONE, model)
    if not isinstance(backbone, Backbone):
        raise ValueError(
            f'the backbone of {config.filename!r} is a {type(backbone).__name__}, none of ours'
        )
    return backbone


def origin(options: argparse.Namespace) -> dict[str, str]:
    """The arguments of ``Pretrained`` that say where the weights are."""
    import timm

    path = Path(options.weights)
    a_file = path.suffix in FILES or '://' in options.weights or path.expanduser().is_file()
    a_file |= path.expanduser().is_dir() and not timm.is_model(options.weights)
    return {'checkpoint' if a_file or options.source != 'timm' else 'model': options.weights}


def description(options: argparse.Namespace, report: str, checkpoint: Mapping[str, Any]) -> dict:
    """Make the file's metadata; names of classes are where MMDetection 3 and MMSegmentation 1 look for them."""
    meta = dict(
        mmlape_version=__version__,
        source=options.source,
        weights=Path(options.weights).name,
        config=Path(options.config).name,
        report=report,
    )
    theirs = checkpoint.get('meta')
    if isinstance(theirs, Mapping):
        named = {key.lower(): theirs[key] for key in ('CLASSES', 'PALETTE') if theirs.get(key)}
        if named or 'dataset_meta' in theirs:
            meta['dataset_meta'] = theirs.get('dataset_meta', named)
    return meta


def main() -> None:
    options = parse_arguments()
    import torch
    from mmengine.logging import MMLogger

    from mmlape.checkpoints import Pretrained
    from mmlape.checkpoints.conversion import (
        holds_more_than_a_backbone,
        is_whole_model,
        tensors_of,
    )
    from mmlape.checkpoints.files import write_checkpoint

    config = overridden_config(options)
    grid = tuple(options.source_grid) if options.source_grid else None
    weights = Pretrained(
        options.source,
        **origin(options),
        min_matched=options.min_matched,
        source_grid=grid,
        key=options.key,
        prefix=options.prefix,
    )
    # Print only the report, not the origin of every parameter.
    MMLogger.get_instance('convert', log_level='ERROR')
    torch.manual_seed(options.seed)
    model = build(config)
    checkpoint = weights.read(model)
    state = tensors_of(checkpoint, options.key, options.prefix)
    whole = is_whole_model(model) and holds_more_than_a_backbone(state, model)
    model = model if whole else backbone_of(model, config)
    if FORMATS[options.source].added:  # differences to what the ViT starts from
        vit = getattr(model, 'backbone', model).vit
        if not vit.init_cfg:
            raise ValueError(
                f'{options.source} needs init_cfg in the vit of the config: the weights to add to'
            )
        vit.init_weights()
    report = weights.load(model, checkpoint)
    print(report)
    state = model.state_dict()
    if not whole:
        state = {name.removeprefix(report.part): state[name] for name in report.sizes}
    path = write_checkpoint(
        options.out, state, description(options, str(report), checkpoint), options.force
    )
    size = path.stat().st_size / 2**20
    print(f'{path}: {len(state)} entries, {size:.1f} MiB, {use(path, whole, report.part)}')


def use(path: Path, whole: bool, part: str) -> str:
    """How to load the written file."""
    if whole and path.suffix == '.pth':
        return f"for load_from='{path}' or tools/test.py"
    where = 'of the model' if whole else "of the backbone's vit" if part else 'of the backbone'
    return (
        f"for init_cfg=dict(type='mmlape.Pretrained', source='mmlape', checkpoint='{path}') {where}"
    )


if __name__ == '__main__':
    run(main)

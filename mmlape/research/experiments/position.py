"""The experiment on position: every embedding with every joining method, position in the attention, and LaPE's chain in
a pyramid."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from mmlape import position
from mmlape.position import POSITIONS
from mmlape.research.datasets import build_digit_cells

from .chance import pixel_counts, without_position
from .study import Study, run_study
from .table import about_runs, markdown_table, score_of

EMBEDDINGS = {name: config for name, config in POSITIONS.items() if name != 'none'}
JOININGS = {
    'lape_progressive' if name == 'lape' else name: config
    for name, config in position.JOININGS.items()
}
NONE = POSITIONS['none']
# A fixed embedding has one table for all layers, so unshared equals shared.
SAME = {('sinusoidal_1d', 'unshared'), ('sinusoidal_2d', 'unshared')}
# Two stages, on grids of 8 x 8 and 4 x 4; without a bias in the windows, so that only the position differs.
SWIN = dict(
    type='mmlape.SwinTransformer',
    arch=dict(embed_dims=32, depths=[2, 2, 2, 2], num_heads=[2, 4, 4, 4], window_size=4),
    img_size=32,
    out_indices=1,
    attention_position=False,
)
COLUMNS = {
    'learned': 'learned',
    'sinusoidal_1d': '1-D sinusoidal',
    'sinusoidal_2d': '2-D sinusoidal',
    'gabor': 'Gabor',
}
ROWS = {
    'default': 'default',
    'shared': 'shared',
    'unshared': 'unshared',
    'lape_sharing': 'LaPE, sharing (arXiv)',
    'lape_progressive': 'LaPE, progressive (ICCV)',
}
SINGLE = {
    'none': 'no position',
    'relative': 'relative bias',
    'relative-layer_norm': "relative bias with LaPE's LayerNorm",
}
PYRAMID = {
    'swin-none': 'no position',
    'swin-default': 'learned, default',
    'swin-lape_by_stage': 'learned, LaPE with a chain and a table for each stage',
    'swin-lape_carried': 'learned, LaPE with one chain carried through merging',
}
CHANCE = {
    'background': 'chance: background everywhere',
    'one_kind': 'floor: digit known, always the most frequent kind',
    'even_guess': 'floor: digit known, kind guessed evenly',
    'odd_row': 'half: digit known, and whether the row is odd',
}


def _variants() -> dict[str, dict[str, Any]]:
    """Changes of the backbone by the variant's name; those with a ``type`` are another backbone."""
    default, lape, learned = JOININGS['default'], JOININGS['lape_progressive'], POSITIONS['learned']
    plain = dict(position=NONE, joining=default, attention_position=None)
    variants: dict[str, dict[str, Any]] = {'none': plain}
    for joining, method in JOININGS.items():
        for embedding, config in EMBEDDINGS.items():
            if (embedding, joining) not in SAME:
                variants[f'{joining}-{embedding}'] = {
                    **plain,
                    'position': config,
                    'joining': method,
                }
    for key, normed in (('relative', False), ('relative-layer_norm', True)):
        bias = dict(type='mmlape.RelativePositionBias', layer_norm=normed)
        variants[key] = {**plain, 'attention_position': bias}
    return {
        **variants,
        'swin-none': dict(SWIN, position=False, joining=None),
        'swin-default': dict(SWIN, position=learned, joining=default),
        'swin-lape_by_stage': dict(SWIN, position=[learned] * 4, joining=lape),
        'swin-lape_carried': dict(SWIN, position=learned, joining=lape),
    }


VARIANTS = _variants()


def change(cfg: Config, variant: str) -> None:
    """Change the shipped config into that of a variant."""
    changes = copy.deepcopy(VARIANTS[variant])
    if 'type' in changes:
        cfg.model.backbone = ConfigDict(changes)
    else:
        cfg.model.backbone.update(changes)


def chance(data_root: Path) -> dict[str, dict[str, float]]:
    """Scores of predictors without position."""
    return without_position(pixel_counts(data_root, 'val'))


def markdown(results: dict[str, Any]) -> str:
    """All tables of mIoU, and a line about the runs.

    Args:
        results: ``runs``, a list of records with ``variant``, ``seed``, ``mIoU`` and so on; ``chance``, the scores of
            predictors without position.
    """
    runs = results['runs']
    by_joining = [
        [title, *(_cell(runs, joining, embedding) for embedding in COLUMNS)]
        for joining, title in ROWS.items()
    ]
    guesses = [
        [title, *(f'{results["chance"][key][metric]:.3f}' for metric in ('mIoU', 'mAcc'))]
        for key, title in CHANCE.items()
    ]
    single, pyramid = (
        [[title, score_of(runs, key), score_of(runs, key, 'mAcc')] for key, title in titles.items()]
        for titles in (SINGLE, PYRAMID)
    )
    scores = ['mIoU', 'mean class accuracy']
    lines = markdown_table(['joining', *COLUMNS.values()], by_joining)
    lines += ['', *markdown_table(['', *scores], guesses + single)]
    lines += ['', *markdown_table(['Swin of two stages', *scores], pyramid)]
    return '\n'.join([*lines, '', about_runs(runs, VARIANTS, 'variant')]) + '\n'


def _cell(runs: list[dict], joining: str, embedding: str) -> str:
    if (embedding, joining) in SAME:
        return '= shared'
    return score_of(runs, f'{joining}-{embedding}')


STUDY = Study(
    config='configs/experiments/segmenter_vit-micro_mask_digit-cells.py',
    page='docs/evidence.md',
    figures='benchmarks/records/experiment_position.json',
    build=build_digit_cells,
    marker='digit_cells.json',
    variants=VARIANTS,
    change=change,
    metrics=dict(mIoU='mIoU', mAcc='mAcc', aAcc='aAcc'),
    others=('position_parameters',),
    chance=chance,
    markdown=markdown,
)
run_experiment = partial(run_study, STUDY)

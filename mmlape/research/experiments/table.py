"""Mean and standard deviation over seeds, as Markdown."""

from __future__ import annotations

from typing import Any

import numpy as np

from .variants import SAME, VARIANTS

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
SWIN = {
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
START, END = '<!-- table: written by the command -->', '<!-- end of the table -->'


def markdown(results: dict[str, Any]) -> str:
    """All tables of mIoU, and a line about the runs.

    Args:
        results: ``runs``, a list of records with ``variant``, ``seed``, ``mIoU`` and so on; ``chance``, the scores of
            predictors without position.
    """
    runs = results['runs']
    joined = [
        [title, *(_cell(runs, joining, embedding) for embedding in COLUMNS)]
        for joining, title in ROWS.items()
    ]
    lines = markdown_table(['joining', *COLUMNS.values()], joined)
    single = [
        [title, f'{results["chance"][key]["mIoU"]:.3f}', f'{results["chance"][key]["mAcc"]:.3f}']
        for key, title in CHANCE.items()
    ]
    single += [
        [title, score_of(runs, key), score_of(runs, key, 'mAcc')] for key, title in SINGLE.items()
    ]
    score_table = ['mIoU', 'mean class accuracy']
    lines += ['', *markdown_table(['', *score_table], single)]
    swin = [
        [title, score_of(runs, key), score_of(runs, key, 'mAcc')] for key, title in SWIN.items()
    ]
    lines += ['', *markdown_table(['Swin of two stages', *score_table], swin), '', *_summary(runs)]
    return '\n'.join(lines) + '\n'


def replace_table(page: str, table: str, start: str = START, end: str = END) -> str:
    """Replace the text between two marks of a page.

    Raises:
        ValueError: If the page does not have the two marks once each.
    """
    if page.count(start) != 1 or page.count(end) != 1:
        raise ValueError(f'the page must hold {start!r} and {end!r} once each')
    before, rest = page.split(start)
    return f'{before}{start}\n\n{table}\n{end}{rest.split(end)[1]}'


def _cell(runs: list[dict], joining: str, embedding: str) -> str:
    if (embedding, joining) in SAME:
        return '= shared'
    return score_of(runs, f'{joining}-{embedding}')


def score_of(runs: list[dict], variant: str, metric: str = 'mIoU') -> str:
    """Mean and standard deviation over the seeds of a variant."""
    values = [run[metric] for run in runs if run['variant'] == variant]
    if not values:
        return '-'
    if len(values) == 1:
        return f'{values[0]:.3f}'
    return f'{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}'


def markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ['---'] * len(head), *rows]
    return [f'| {" | ".join(line)} |' for line in lines]


def _summary(runs: list[dict]) -> list[str]:
    """Seeds per variant and seconds per run."""
    counts = [sum(run['variant'] == variant for run in runs) for variant in VARIANTS]
    seeds = str(min(counts)) if min(counts) == max(counts) else f'{min(counts)} to {max(counts)}'
    if not runs:
        return ['No runs yet.']
    devices = ', '.join(sorted({run['device'] for run in runs}))
    iterations = ', '.join(str(n) for n in sorted({run['iterations'] for run in runs}))
    return [
        f'Seeds of each variant: {seeds}. {len(runs)} runs of {iterations} iterations on {devices}, '
        f'{np.median([run["seconds"] for run in runs]):.0f} s each (median).'
    ]

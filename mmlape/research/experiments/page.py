"""Tables of the documentation and the picture of docs/evidence.md, from the records alone."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from mmlape.apps.report import save_figure
from mmlape.atomic import atomic_write
from mmlape.research.analysis.figures import TEXT, add_key

from .evidence import current_runs
from .plan import EXPERIMENTS
from .recipes import DATA
from .statistics import Difference, difference_cells, differences, markdown
from .table import markdown_table, replace_table

PAGES = ('evidence.md', 'fine_tuning.md')
PICTURE = 'images/evidence-differences.png'
MARKS = '<!-- differences: written by the command -->', '<!-- end of differences -->'
NAMES = {
    'camvid': 'CamVid', 'nuclei': 'Nuclei', 'bccd': 'Blood cells', 'cifar10': 'CIFAR-10',
    'norm': 'by norm', 'position': 'by position', 'muon': 'with Muon',
    'light': 'with the recipe light', 'pretraining': 'before a transfer',
    'transfer': 'from weights of CIFAR-10',
    '10percent': 'with 10 % of its images', '30percent': 'with 30 % of its images',
    'default': 'default joining', 'LN': 'LayerNorm', '0.5x': 'half the size', '2x': 'twice the size',
    'corrupted': 'corrupted images', 'none': 'no position', 'IN': 'InstanceNorm', 'BN': 'BatchNorm', 'RMS': 'RMSNorm',
}  # fmt: skip


def write_pages(docs: Path, records: Path) -> None:
    """Write the tables that a page has a place for, and the picture of all differences; ValueError without a record."""
    if not any(records.glob('evidence_*.json')):
        raise ValueError(f'{records} has no record, so the pages stay as they are')
    for page in (docs / name for name in PAGES):
        text = page.read_text(encoding='utf-8')
        for name, experiment in EXPERIMENTS.items():
            start, end = f'<!-- {name}: written by the command -->', f'<!-- end of {name} -->'
            if start in text:
                runs = current_runs(records / f'evidence_{name}.json', experiment)
                table = markdown(experiment, runs)
                text = replace_table(text, table, start, end)
        if MARKS[0] in text:
            text = replace_table(text, differences_table(records), *MARKS)
        atomic_write(page, text.encode())
    if found := all_differences(records):
        save_figure(draw_differences(found), docs / PICTURE)


def differences_table(records: Path) -> str:
    """Differences from the baseline of all experiments, a row for each variant, and what they cost."""
    head = ['experiment', 'compared', 'of', 'difference', 'interval', 'better', 'limit', 'seeds']
    rows, hours = [], []
    for name, experiment in EXPERIMENTS.items():
        runs = current_runs(records / f'evidence_{name}.json', experiment)
        if not experiment.baseline or not runs:
            continue
        hours.append(f'{name} {sum(run["processor_seconds"] for run in runs) / 3600:.1f}')
        measure = DATA[experiment.data].measure
        for variant, found in differences(experiment, runs, '').items():
            rows.append(
                [name, f'{variant} - {experiment.baseline}', measure, *difference_cells(found)]
            )
    lines = [*markdown_table(head, rows), '', f'Hours of one core: {", ".join(hours)}.']
    return '\n'.join(lines) + '\n'


def all_differences(records: Path) -> dict[str, dict[str, Difference]]:
    """Differences from the baseline by experiment and variant, also of other views of the images."""
    found = {}
    for name, experiment in EXPERIMENTS.items():
        runs = current_runs(records / f'evidence_{name}.json', experiment)
        by_name = {
            f'{variant}, {view}' if view else variant: each
            for view in ('', *experiment.views)
            for variant, each in differences(experiment, runs, view).items()
        }
        if experiment.baseline and by_name:
            baseline = NAMES.get(experiment.baseline, experiment.baseline)
            found[f'{name_of(name)}: {DATA[experiment.data].measure}, compared with {baseline}'] = {
                ', '.join(NAMES.get(part, part) for part in each.split(', ')): one
                for each, one in by_name.items()
            }
    return found


def name_of(experiment: str) -> str:
    """An experiment for people: ``'cifar10-muon'`` is ``'CIFAR-10 with Muon'``."""
    data, _, rest = experiment.partition('-')
    return ' '.join(filter(None, (NAMES.get(data, data), NAMES.get(rest, rest))))


def draw_differences(found: dict[str, dict[str, Difference]]) -> Figure:
    """A panel for each experiment: differences in percentage points with their intervals, blue where the difference
    exceeds its limit too."""
    rows = [len(each) for each in found.values()]
    figure = Figure(figsize=(7, sum(0.4 + 0.2 * n for n in rows) + 0.6), layout='constrained')
    axes = figure.subplots(len(found), 1, squeeze=False, sharex=True, height_ratios=rows)
    marks = {}
    for place, (title, each) in zip(axes[:, 0], found.items(), strict=True):
        for height, one in enumerate(each.values()):
            exceeds = one.low * one.high > 0 and abs(one.mean) > one.limit
            style = dict(fmt='s', color='tab:blue') if exceeds else dict(fmt='o', color='grey')
            error = [[one.mean - one.low], [one.high - one.mean]]
            marks[exceeds] = place.errorbar(
                one.mean, height, xerr=error, ms=4, lw=1, capsize=2, **style
            )
        place.axvline(0, color='black', linewidth=0.8)
        place.tick_params(labelsize=TEXT)
        place.set_yticks(range(len(each)), list(each))
        place.set_ylim(len(each) - 0.5, -0.5)
        place.set_title(title, fontsize=TEXT, pad=3)
    axes[-1, 0].set_xlabel('difference in points, with its interval', fontsize=TEXT)
    names = {False: 'within the limit of the t-test', True: 'beyond it, with an interval without 0'}
    add_key(figure, **{names[exceeds]: mark for exceeds, mark in marks.items()})
    return figure

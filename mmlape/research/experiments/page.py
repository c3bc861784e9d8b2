"""Tables of the documentation and the picture of docs/evidence.md, from the records alone."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from mmlape.apps.report import save_figure
from mmlape.atomic import atomic_write

from .evidence import current_runs
from .plan import EXPERIMENTS
from .recipes import DATA
from .statistics import Difference, difference_cells, differences, markdown
from .table import markdown_table, replace_table

PAGES = ('evidence.md', 'fine_tuning.md')
PICTURE = 'images/evidence-differences.png'
MARKS = '<!-- differences: written by the command -->', '<!-- end of differences -->'
# Their tables are in the page of fine-tuning.
ELSEWHERE = ('camvid-tuning', 'nuclei-tuning')


def write_pages(docs: Path, records: Path) -> None:
    """Write the tables that a page has a place for, and the picture of all differences."""
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
    """Differences from the baseline of all experiments, a row for each variant."""
    head = ['experiment', 'compared', 'of', 'difference', 'interval', 'better', 'limit', 'seeds']
    rows = []
    for name, experiment in EXPERIMENTS.items():
        runs = current_runs(records / f'evidence_{name}.json', experiment)
        if not experiment.baseline or not runs or name in ELSEWHERE:
            continue
        measure = DATA[experiment.data].measure
        for variant, found in differences(experiment, runs, '').items():
            rows.append(
                [name, f'{variant} - {experiment.baseline}', measure, *difference_cells(found)]
            )
    return '\n'.join(markdown_table(head, rows)) + '\n'


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
            title = f'{name}: {DATA[experiment.data].measure} minus {experiment.baseline}'
            found[title] = by_name
    return found


def draw_differences(found: dict[str, dict[str, Difference]]) -> Figure:
    """A panel for each experiment: differences in percentage points with their intervals, blue where the difference
    exceeds its limit too."""
    rows = [len(each) for each in found.values()]
    figure = Figure(figsize=(6, sum(0.35 + 0.16 * count for count in rows)), layout='constrained')
    axes = figure.subplots(len(found), 1, squeeze=False, sharex=True, height_ratios=rows)
    for place, (title, each) in zip(axes[:, 0], found.items(), strict=True):
        for height, one in enumerate(each.values()):
            color = 'tab:blue' if one.low * one.high > 0 and abs(one.mean) > one.limit else 'grey'
            error = [[one.mean - one.low], [one.high - one.mean]]
            place.errorbar(
                one.mean, height, xerr=error, fmt='o', ms=3, lw=1, capsize=2, color=color
            )
        place.axvline(0, color='black', linewidth=0.8)
        place.tick_params(labelsize=7)
        place.set_yticks(range(len(each)), list(each))
        place.set_ylim(len(each) - 0.5, -0.5)
        place.set_title(title, fontsize=8, pad=3)
    return figure

"""The report of ``make test-gpu``: a page for people, and the same with every figure as JSON."""

import itertools
import json
import subprocess
from collections import Counter
from operator import itemgetter
from pathlib import Path
from shutil import which

import torch

from benchmarks import side_by_side

MANY = 20  # cases of a test, of which the page has a line for each type of numbers


def machine(device: str) -> dict:
    """The machine, versions and commit, and the GPUs with their driver."""
    found = side_by_side.machine()
    if device == 'cuda':
        asked = ['--query-gpu=name,driver_version,memory.total', '--format=csv,noheader']
        said = ''
        if tool := which('nvidia-smi'):
            said = subprocess.run([tool, *asked], capture_output=True, text=True).stdout
        found.update(
            gpus=said.splitlines(),
            gpus_visible=torch.cuda.device_count(),
            capability='.'.join(map(str, torch.cuda.get_device_capability())),
            cuda=torch.version.cuda,
            cudnn=torch.backends.cudnn.version(),
            nccl='.'.join(map(str, torch.cuda.nccl.version())),
        )
    return found


def write_report(path: Path, record: dict) -> Path:
    """Write ``path`` with the suffixes ``.json`` and ``.md``; the latter's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix('.json').write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')
    page = path.with_suffix('.md')
    page.write_text(markdown(record), encoding='utf-8')
    return page


def markdown(record: dict) -> str:
    """The page. Results of a test stand one after the other."""
    results, facts = record['results'], record['machine']
    lines = [f'# make test-gpu on {facts["device"]}', '']
    lines += [f'{counted(results)} in {record["seconds"]} s', '', '| | |', '|---|---|']
    facts = {**facts, **facts['versions']}
    lines += [f'| {name} | {said(facts[name])} |' for name in facts if name != 'versions']
    if failed := [each for each in results if each['outcome'] == 'failed']:
        lines += ['', '## What failed', '', '| test | why |', '|---|---|']
        lines += [f'| {each["test"]} | {said(each["why"])} |' for each in failed]
    for title, cases in itertools.groupby(results, itemgetter('title')):
        lines += ['', f'## {title}', '', *table(list(cases))]
    return '\n'.join(lines) + '\n'


def table(cases: list[dict]) -> list[str]:
    """A line for each case; of many, one for all whose names begin alike."""
    if len(cases) > MANY:
        groups = itertools.groupby(cases, lambda each: each['case'].partition('-')[0])
        cases = [summarised(name, list(group)) for name, group in groups]
    names = list(dict.fromkeys(name for each in cases for name in each['figures']))
    lines = [f'| {" | ".join(["case", "outcome", *names, "s"])} |', '|---' * (len(names) + 3) + '|']
    for each in cases:
        outcome = f'{each["outcome"]}: {each["why"]}' if each['why'] else each['outcome']
        figures = [each['figures'].get(name, '') for name in names]
        cells = [each['case'], outcome, *figures, each['seconds']]
        lines.append(f'| {" | ".join(map(said, cells))} |')
    return lines


def summarised(name: str, cases: list[dict]) -> dict:
    """One for several cases: how many passed, and the largest of each figure with its case."""
    figures = {}
    for key in dict.fromkeys(key for each in cases for key in each['figures']):
        having = [each for each in cases if key in each['figures']]
        worst = max(having, key=lambda each: each['figures'][key])
        figures[key] = f'{said(worst["figures"][key])} ({worst["case"].partition("-")[2]})'
    seconds = round(sum(each['seconds'] for each in cases), 1)
    return dict(case=name, outcome=counted(cases), why='', figures=figures, seconds=seconds)


def counted(cases: list[dict]) -> str:
    """How many passed, failed, or were skipped."""
    counts = Counter(each['outcome'] for each in cases)
    return ', '.join(f'{counts[kind]} {kind}' for kind in counts)


def said(value: object) -> str:
    """A cell of a table."""
    if isinstance(value, list):
        return ', '.join(map(str, value))
    text = f'{value:.3g}' if isinstance(value, float) else str(value)
    return text.replace('|', '\\|').replace('\n', ' ')

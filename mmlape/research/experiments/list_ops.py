"""The experiment on norms and short ListOps."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from mmlape.research.datasets import build_list_ops
from mmlape.research.datasets.list_ops import HEAD

from .study import Study, run_study
from .table import about_runs, markdown_table, score_of

NORMS = {
    'LN': dict(type='mmlape.LN', eps=1e-6),
    'BN': dict(type='mmlape.TokenBN'),
    'IN': dict(type='mmlape.TokenIN'),
    'GN': dict(type='mmlape.TokenGN', num_groups='heads'),
    'ScaleNorm': dict(type='mmlape.ScaleNorm'),
    'DTN': dict(type='mmlape.DTN'),
}


def build(root: Path) -> Path:
    """Build the data: expressions of 10 to 200 tokens."""
    return build_list_ops(root, num_train=8000, num_val=1000, num_test=1000, length=(10, 200))


def change(cfg: Config, variant: str) -> None:
    """Change the norm of the shipped config."""
    cfg.model.backbone.norm_cfg = ConfigDict(NORMS[variant])


def chance(data_root: Path) -> dict[str, float]:
    """Validation accuracy of always predicting the most frequent result of the training set, and of the most frequent
    result for the first operator."""
    train_lines, val_lines = (
        [line.split('\t') for line in path.read_text(encoding='utf-8').splitlines() if line != HEAD]
        for path in (data_root / 'annotations' / f'basic_{split}.tsv' for split in ('train', 'val'))
    )
    counts: dict[str, Counter] = defaultdict(Counter)
    for source, target in train_lines:
        for known in ('', source.split()[0]):
            counts[known][target] += 1
    best = {known: counter.most_common(1)[0][0] for known, counter in counts.items()}
    right = [
        (target == best[''], target == best.get(source.split()[0], best['']))
        for source, target in val_lines
    ]
    always, by_operator = (sum(column) / len(right) for column in zip(*right))
    return {'always': always, 'first_operator': by_operator}


def markdown(results: dict[str, Any]) -> str:
    """The table of accuracies, and a line about the runs."""
    runs = results['runs']
    rows = [
        ['chance: always the most frequent result', f'{results["chance"]["always"]:.3f}', ''],
        ['the first operator known', f'{results["chance"]["first_operator"]:.3f}', ''],
    ]
    for norm in NORMS:
        seconds = [run['seconds'] for run in runs if run['variant'] == norm]
        mean = f'{sum(seconds) / len(seconds):.0f}' if seconds else '-'
        rows.append([norm, score_of(runs, norm, 'accuracy'), mean])
    lines = markdown_table(['norm', 'accuracy', 'seconds of a run'], rows)
    return '\n'.join([*lines, '', about_runs(runs, NORMS, 'norm')]) + '\n'


STUDY = Study(
    config='configs/listops/listops-short_transformer-micro.py',
    page='configs/listops/README.md',
    figures='benchmarks/records/experiment_list_ops.json',
    build=build,
    marker='list_ops.json',
    variants=NORMS,
    change=change,
    metrics=dict(accuracy='accuracy/top1'),
    others=('parameters',),
    chance=chance,
    markdown=markdown,
)
run_experiment = partial(run_study, STUDY)

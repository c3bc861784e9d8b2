"""Names that moved or were removed, and what to write instead: one table for ``mmlape migrate`` and the CHANGELOG."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What a config or script may hold (a regular expression without groups), and what to write instead.
RENAMED: dict[str, str] = {
    r'mmlape\.HungProcessHook': 'remove it: a hang ends by env_cfg.dist_cfg.timeout (docs/cluster.md)',
    r'default_hooks\.hung|\bhung=dict': 'remove it: a hang ends by env_cfg.dist_cfg.timeout (docs/cluster.md)',
    r'\bmax_files\b': 'remove it: mmlape.StopAtNonFiniteHook writes no files',
    r'mmlape replay': 'remove it: the error of mmlape.StopAtNonFiniteHook names iteration, loss and module',
    r'mmlape\.pretraining\.timm_models': 'mmlape.timm_models',
    r'mmlape\.engine': 'mmlape.training',
    r'mmlape\.launch': 'mmlape.cli',
    r'mmlape\.ops': 'mmlape.cpu',
    r'mmlape\.(?:compiled|recompute|autocast)\b': 'mmlape.runtime',
    r'mmlape\.kept': 'mmlape.layout',
    r'mmlape\.(?:whole_files|file_backend)': 'mmlape.atomic',
    r'mmlape\.stack': 'mmlape.compatibility',
    r'mmlape\.(?:shipped|overrides)': 'mmlape.cli',
    r'mmlape\.signatures': 'mmlape.checks',
    r'mmlape\.imports': 'remove it: names are imported on first use; mmlape.safe_loading(), mmlape.timm_models',
    r'mmlape\.checkpoints\.loader\b': 'mmlape.safe_loading()',
    r'mmlape\.layers\.ConvFFN': 'mmlape.layers.ConvMlp(embed_dims, hidden_dims)',
    r'mmlape\.layers\.StageEmbed': "mmlape.layers.PatchEmbed with norm_cfg=dict(type='mmlape.LN', eps=1e-5)",
    r'mmlape\.(?:analysis|backbones|layers|necks|norm|position|robustness)\.[a-z]\w*(?:\.\w+)+': (
        'import the name from mmlape.research.analysis, backbones, layers, necks, norm, position or robustness itself'
    ),
}


def renamed_names(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name and what to write instead, for each name of the table in a text."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in RENAMED.items():
            for found in re.finditer(pattern, line):
                yield number, found[0], instead

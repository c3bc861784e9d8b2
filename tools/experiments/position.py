"""Compare joining methods: train micro Segmenters on a task that requires position.

``make experiment-position`` runs it: every embedding with every joining method, three seeds each. Ctrl-C stops
it; the same command resumes with the unfinished runs. All output is in
``work_dirs/experiment_position`` and ``data/digit_cells`` of the clone, unless other folders are named. See
docs/evidence.md#position-where-it-decides.
"""

import sys

from mmlape.cli.experiments import parse_arguments, run


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(__doc__, 'experiment_position', 'digit_cells', arguments)
    return run('mmlape.research.experiments.position', options)


if __name__ == '__main__':
    sys.exit(main())

"""Compare norms on sequences: train micro Transformers on short ListOps, with each norm of DTN's Table 4.

Three seeds each. Ctrl-C stops it; the same command resumes with the unfinished runs. All output is in
``work_dirs/experiment_list_ops`` and ``data/list_ops_short`` of the clone, unless other folders are given. See
configs/listops/README.md.
"""

import sys

from mmlape.cli.experiments import parse_arguments, run


def main() -> int:
    options = parse_arguments(__doc__, 'experiment_list_ops', 'list_ops_short')
    return run('mmlape.research.experiments.list_ops', options)


if __name__ == '__main__':
    sys.exit(main())

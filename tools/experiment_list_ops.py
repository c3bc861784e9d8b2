"""Do norms differ on sequences? Train micro Transformers on short ListOps, with each norm of DTN's Table 4.

Three seeds each. It can be stopped at any time; the same command goes on with the runs that are not finished.
Everything it writes is in ``work_dirs/experiment_list_ops`` and ``data/list_ops_short`` of the clone, unless other
folders are named. See docs/listops.md.
"""

import sys

from experiment_position import parse_arguments, run

if __name__ == '__main__':
    names = (__doc__, 'experiment_list_ops', 'list_ops_short')
    sys.exit(run('experiments.list_ops', parse_arguments(None, *names)))

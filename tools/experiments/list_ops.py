"""Compare norms on sequences: train micro Transformers on short ListOps, with each norm of DTN's Table 4.

Three seeds each. Ctrl-C stops it; the same command resumes with the unfinished runs. All output is in
``work_dirs/experiment_list_ops`` and ``data/list_ops_short`` of the clone, unless other folders are given. See
`mmlape docs configs/listops`.
"""

from mmlape.cli.experiments import parser_of, run
from mmlape.shipped import output_folder

PARSER = parser_of(
    'list_ops',
    __doc__,
    only=dict(choices=('LN', 'BN', 'IN', 'GN', 'ScaleNorm', 'DTN')),
    data_root=dict(default=output_folder() / 'data/list_ops_short'),
)

if __name__ == '__main__':
    run(PARSER.parse_args)

"""Compare joining methods: train micro Segmenters on a task that requires position.

``make experiment-position`` runs it: every embedding with every joining method, three seeds each. Ctrl-C stops
it; the same command resumes with the unfinished runs. All output is in
``work_dirs/experiment_position`` and ``data/digit_cells`` of the clone, unless other folders are named. See
`mmlape docs evidence`.
"""

from mmlape.cli.experiments import parser_of, run
from mmlape.shipped import output_folder

PARSER = parser_of(
    'position', __doc__, data_root=dict(default=output_folder() / 'data/digit_cells')
)

if __name__ == '__main__':
    run(PARSER.parse_args)

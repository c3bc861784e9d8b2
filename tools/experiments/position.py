"""Compare joining methods: train micro Segmenters on a task that requires position.

``make experiment-position`` runs it: every embedding with every joining method, three seeds each. Ctrl-C stops
it; the same command resumes with the unfinished runs. All output is in
``work_dirs/experiment_position`` and ``data/digit_cells`` of the clone, unless other folders are named. See
`mmlape docs evidence`.
"""

from mmlape.cli.experiments import parser_of, run
from mmlape.shipped import output_folder

# Variants of mmlape/research/experiments/position.py, which imports PyTorch.
JOININGS = ('default', 'shared', 'lape_sharing', 'lape_progressive')
EMBEDDINGS = ('learned', 'sinusoidal_1d', 'sinusoidal_2d', 'gabor')
JOINED = [f'{joining}-{embedding}' for joining in JOININGS for embedding in EMBEDDINGS]
SINGLE = ('none', 'unshared-learned', 'unshared-gabor', 'relative', 'relative-layer_norm')
SWIN = ('swin-none', 'swin-default', 'swin-lape_by_stage', 'swin-lape_carried')

PARSER = parser_of(
    'position',
    __doc__,
    only=dict(choices=[*JOINED, *SINGLE, *SWIN]),
    data_root=dict(default=output_folder() / 'data/digit_cells'),
)

if __name__ == '__main__':
    run(PARSER.parse_args)

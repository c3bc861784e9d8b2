"""Compare the robustness of LaPE and DTN with their baselines: train small networks, test on corrupted images.

Networks of three groups, each trained with every seed, then tested under the 15 corruptions of ImageNet-C at five
severities: the demo's Segmenter with LaPE and with the default joining, the demo's RetinaNet with DTN and with
LayerNorm, and micro Segmenters on digit cells. Ctrl-C stops it; the same command resumes. All output is in
``work_dirs/experiment_robustness`` and ``data`` by default. See
`mmlape docs robustness`.
"""

from mmlape.cli.experiments import COUNT, parser_of, run
from mmlape.shipped import output_folder

PARSER = parser_of(
    'robustness',
    __doc__,
    only=dict(choices=('cells', 'segmentor', 'detector'), metavar=None),
    iterations=dict(help="of each training; default: the config's, 200 on digit cells"),
    images=dict(type=COUNT, default=40, help='validation images of each test (%(default)s)'),
    data_root=dict(default=output_folder() / 'data'),
    workers=None,
)

if __name__ == '__main__':
    run(PARSER.parse_args)

"""Train DINO (no labels) with a micro ViT with DTN on small images, and classify them by nearest neighbours.

``mmlape experiment dino`` trains ``dino_vit-micro-dtn_1xb64_digit-images`` with each seed, and compares the nearest
neighbours of the trained teacher with those of the same network before training. Everything it writes is in
``work_dirs/experiment_dino`` by default; seeds with a record are skipped. See
`mmlape docs configs/dino`.
"""

from mmlape.cli.arguments import at_least
from mmlape.cli.experiments import parser_of, run

PARSER = parser_of(
    'dino',
    __doc__,
    epochs=dict(type=at_least(4), help="of each run, of which 3 warm up; default: the config's"),
    **dict.fromkeys(('only', 'workers', 'iterations', 'data_root', 'table')),
)

if __name__ == '__main__':
    run(PARSER.parse_args)

"""Predict: boxes, masks or label maps for your own images and videos, by a checkpoint or work dir.

    mmlape predict MODEL SOURCE... [--config CONFIG | --trust] [--out FOLDER] [--score S] [--batch N] [--json] [--csv]
        [--tile SIDE [--overlap 0.2] [--global]] [--no-pictures] [--device DEVICE]

MODEL is a checkpoint with its config inside, as trainings save them, a work dir, or `nuclei`, which comes with the
package. SOURCE is an image, a video, a folder, a pattern, or - for names from the standard input. Files that cannot be
read or predicted are named at the end.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from mmlape import cli
from mmlape.apps.inference.names import folder_of_run
from mmlape.cli.arguments import (
    MODEL,
    NEW_FOLDER,
    RATE,
    RATE_BELOW_ONE,
    SOURCE,
    Parser,
    at_least,
    new_folder,
)
from mmlape.cpu.wait_policy import set_wait_policy


def parse_arguments():
    parser = Parser(
        'predict', 'Predict boxes, masks or label maps for images.', 'nuclei photos',
        'fits/cells/training slide.png --tile 640 --csv',
    )  # fmt: skip
    parser.add_argument(
        'model',
        type=MODEL,
        help='a checkpoint, a work dir (its best, else last checkpoint), or nuclei',
    )
    parser.add_argument(
        'source', type=SOURCE, nargs='+', help='image, video, folder, pattern; - reads names'
    )
    cli.add_config_of_model(parser)
    parser.add_argument(
        '--out', type=NEW_FOLDER, help='a new folder; default: predictions, predictions-2, ...'
    )
    parser.add_argument(
        '--score',
        '--conf',
        '--score-thr',
        type=RATE,
        help="minimum score of a box (that of the best F1 in the model's validation, else 0.3)",
    )
    parser.add_argument(
        '--tile', type=at_least(32), help='side of tiles in pixels, for large images'
    )
    parser.add_argument(
        '--overlap', type=RATE_BELOW_ONE, default=0.2, help='share of a tile (%(default)s)'
    )
    parser.add_argument(
        '--global', dest='with_whole', action='store_true',
        help='with tiles, look at the whole shrunken image too, for large objects',
    )  # fmt: skip
    parser.add_argument(
        '--batch', type=at_least(1), default=1, help='images or tiles per pass (%(default)s)'
    )
    parser.add_argument(
        '--json', action='store_true', help='write predictions.json (COCO, RLE masks)'
    )
    parser.add_argument('--csv', action='store_true', help='write predictions.csv, a line per box')
    parser.add_argument('--no-pictures', action='store_true', help='do not draw')
    cli.add_device(parser)
    options = parser.parse_args()
    overlap = options.overlap != parser.get_default('overlap')
    for given, option in (options.with_whole, '--global'), (overlap, '--overlap'):
        if given and not options.tile:
            parser.error(f'{option} goes with --tile')
    with cli.usage():
        options.out, options.earlier = folder_of_run(options.out)
        new_folder(str(options.out))
    return options


class Frames:
    """Frames of all sources in order, with their file's name; ``taken`` says of which source each one was, ``bad`` what
    could not be read or predicted."""

    def __init__(self, sources, read, check):
        self.sources, self.read, self.check, self.taken, self.bad = sources, read, check, [], []

    def __iter__(self):
        for source in self.sources:
            try:
                for number, image in enumerate(source.frames(self.read)):
                    self.check(str(source.path), image)
                    self.taken.append((source, number))
                    yield str(source.path), image
            except ValueError as error:
                self.bad.append(str(error))


def predict(options):
    """Predict and write; returns what could not be read or predicted."""
    from mmlape.apps.inference import load
    from mmlape.apps.inference.output import PredictionWriter
    from mmlape.apps.inference.progress import Progress
    from mmlape.apps.inference.sources import find_sources

    sources = find_sources(options.source, options.earlier)
    model = load(options.model, options.config, options.device, trust=options.trust)
    if not model.finds_boxes:
        given = dict(score=options.score is not None, json=options.json, csv=options.csv)
        if names := [name for name in given if given[name]]:
            raise ValueError(f'--{names[0]} is for boxes, and {options.model} is a segmentor')
    if options.score is None and (note := model.score_note()):
        print(note)
    frames = Frames(
        sources, model.read, partial(model.check, batch=options.batch, tile=options.tile)
    )
    results = model.predict(
        frames,
        options.batch,
        options.score,
        options.tile,
        options.overlap,
        options.with_whole,
    )
    writer = PredictionWriter(
        options.out, model.classes, not options.no_pictures, options.json, options.csv
    )
    progress = Progress(sources)
    together = 1 if options.tile else options.batch
    try:
        for number, (result, seconds) in enumerate(progress.timed(results, together)):
            if line := progress.line(*frames.taken[number], result, seconds):
                print(line, flush=True)
            writer.add(*frames.taken[number], result)
    finally:  # Ctrl-C keeps what there is
        writer.close()
    print(writer.summary())
    return frames.bad


def main():
    options = parse_arguments()
    set_wait_policy()
    os.environ.setdefault('OPENCV_FFMPEG_LOGLEVEL', '-8')  # broken videos are named by our messages
    with cli.weights_only():
        bad = predict(options)
    if bad:
        sys.exit(f'error: {len(bad)} of the sources could not be predicted: {"; ".join(bad)}')


if __name__ == '__main__':
    cli.run_program(main)

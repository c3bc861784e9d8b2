"""Share a model: a folder with weights, config, metrics and a model card, for a colleague or the Hugging Face hub.

    mmlape share MODEL FOLDER [--config CONFIG | --trust] [--data TEXT] [--license NAME] [--metrics FILE]
        [--delta SOURCE:PLACE]

MODEL is a checkpoint with its config inside, as trainings save them, a work dir (its best, else last checkpoint), or
`nuclei`. Metrics are those that the work dir's last validation, or that of its best checkpoint, has logged. What was
written is loaded once. See `mmlape docs predict`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

from mmlape import cli
from mmlape.apps.inference.names import on_hub
from mmlape.checkpoints.formats import FORMATS
from mmlape.cli.arguments import FILE, MODEL, NEW_FOLDER, Parser, checked
from mmlape.shipped import shipped_configs


def parse_arguments():
    parser = Parser(
        'share', 'Write a folder to share.', 'fits/cells/training shared/cells --license apache-2.0',
        'nuclei shared/nuclei',
    )  # fmt: skip
    parser.add_argument('model', type=MODEL, help='a checkpoint, a work dir, or nuclei')
    parser.add_argument('folder', type=NEW_FOLDER, help='the folder to write; new, or empty')
    cli.add_config_of_model(parser)
    parser.add_argument('--data', help='what it was trained on: a text for the card')
    parser.add_argument('--license', help="of the weights, as the hub has them: 'apache-2.0', ...")
    parser.add_argument('--metrics', type=FILE, help='JSON: figures by name (those in the logs)')
    parser.add_argument(
        '--delta', type=checked(delta), metavar='SOURCE:PLACE',
        help="write only differences to weights that must not be passed on, such as 'timm:vit_small_patch16_dinov3'",
    )  # fmt: skip
    options = parser.parse_args()
    if options.folder.exists() and (not options.folder.is_dir() or any(options.folder.iterdir())):
        parser.error(f'{str(options.folder)!r} exists already')
    with cli.usage():
        options.figures = read_metrics(options.metrics) if options.metrics else None
    return options


def delta(text):
    """Check the form of ``--delta``."""
    source, _, place = text.partition(':')
    if source not in FORMATS or not place:
        raise ValueError(
            f'{text!r} must be SOURCE:PLACE, the source of {", ".join(sorted(FORMATS))}'
        )
    return text


def logged_metrics(path):
    """Metrics that a work dir has logged of a checkpoint; of its best, else last one for the work dir itself."""
    from mmlape.apps.report import for_people, read_curves
    from mmlape.training.last_checkpoint import best_checkpoint

    folder = path if path.is_dir() else path.parent
    rows = [row for row in read_curves(folder) if 'loss' not in row]
    best = path if path.is_file() else best_checkpoint(folder)
    wanted = [best] if best else []
    steps = [int(number) for each in wanted for number in re.findall(r'\d+', each.stem)[-1:]]
    rows = [row for row in rows if not wanted or row['step'] in steps]
    return for_people((rows or [{}])[-1])


def read_metrics(path):
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'--metrics {path} cannot be read as JSON: {error}') from None
    if not (isinstance(found, dict) and all(type(each) in (int, float) for each in found.values())):
        raise ValueError(f'--metrics {path} must be an object of figures by name')
    return found


def command_of(folder):
    """The command that has filled a work dir: that of `mmlape fit` in its config, or the name of a shipped config."""
    configs = list(folder.glob('*.py')) if folder.is_dir() else []
    if len(configs) != 1:
        return None
    made_by = re.search(r'^made_by = (.+)$', configs[0].read_text(encoding='utf-8'), re.MULTILINE)
    shipped = {name.rpartition('/')[2] for name in shipped_configs()}
    if not made_by:
        return f'`mmlape train {configs[0].stem}`' if configs[0].stem in shipped else None
    return f'`{ast.literal_eval(made_by[1])}`'


def known_of(model):
    """Facts of a model for its card, its licence and metrics: of one that comes with the package, a shared folder, a
    work dir or a checkpoint there."""
    from mmlape.apps.inference.about import facts_of
    from mmlape.apps.inference.folders import METRICS, card_facts, shared_folder

    path, shared = Path(model), shared_folder(model)
    if shared:
        metrics = shared / METRICS
        known = read_metrics(metrics) if metrics.is_file() else {}
        return dict(card_facts(shared), metrics=known)
    if not path.exists():  # a name
        return facts_of(model)
    command = command_of(path if path.is_dir() else path.parent)
    return dict(metrics=logged_metrics(path), training=command)


def share(options):
    from mmlape.apps.inference import load
    from mmlape.checkpoints.deltas import is_file

    model = load(options.model, options.config, 'cpu', optimized=False, trust=options.trust)
    known = known_of(options.model)
    metrics = known.get('metrics', {}) if options.figures is None else options.figures
    known['data'] = options.data or known.get('data')
    facts = {name: known.get(name) or 'not stated' for name in ('data', 'training', 'limits')}
    license = options.license or known.get('license')
    model.save_folder(options.folder, metrics, facts, license, options.delta)
    if options.delta and is_file(options.delta):  # it must not be redistributed
        print(
            f'Users of {options.folder} copy {Path(options.delta.partition(":")[2]).name} into it.'
        )
    else:
        load(options.folder, None, 'cpu', optimized=False, trust=options.trust)
    size = sum(each.stat().st_size for each in options.folder.iterdir())
    print(f'{options.folder}: {size / 1e6:.1f} MB. Read README.md, complete it, then:')
    folder = shlex.quote(str(options.folder))
    print(f'  mmlape predict {folder} IMAGES')
    print(f'  hf upload {on_hub(options.folder.name)} {folder}   # to the Hugging Face hub')


def main():
    options = parse_arguments()
    with cli.weights_only():
        share(options)


if __name__ == '__main__':
    cli.run_program(main)

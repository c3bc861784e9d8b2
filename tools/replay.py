"""Run a training step again that stopped at NaN or infinity, and say in which module the first such value appears.

    python tools/replay.py FILE [--config CONFIG] [--device cuda] [--trust]

FILE is ``nan_<iteration>.pth``, which ``mmlape.StopAtNonFiniteHook`` has written into the work dir. See
docs/training.md.
"""

import argparse
import sys

from mmlape import launch


def parse_arguments():
    parser = argparse.ArgumentParser(description='Run a training step again that failed.')
    parser.add_argument('file', help='nan_<iteration>.pth of a work dir')
    parser.add_argument('--config', help='build the model from this one, not from the one in FILE')
    parser.add_argument('--device', default='cpu', help='default: cpu')
    parser.add_argument(
        '--trust', action='store_true',
        help='the config in FILE may name any class or function, which is then called',
    )  # fmt: skip
    return parser.parse_args()


def say(text):
    sys.stdout.write(f'{text}\n')


def report(capture, found):
    what = {'input': 'an input', 'loss': 'the loss', 'gradients': 'a gradient'}[capture['kind']]
    where = f'process {capture["rank"]} of {capture["processes"]}'
    say(f'iteration {capture["iteration"]}, {where}: stopped because {what} was not finite')
    for name, value in found.losses.items():
        before = found.before.get(name)
        note = '' if before is None else f'   in the run: {before!r}'
        say(f'  {name:<32} {value!r}{note}')
    if found.error:
        say(f'the forward pass fails: {found.error}')
    elif found.before:
        same = (
            'the same as in the run, bit for bit' if found.is_same else 'NOT the same as in the run'
        )
        say(f'The losses are {same}.')
    say(f'The first value that is not finite appears {found.origin}')
    if found.gradients:
        shown = ', '.join(found.gradients[:5])
        more = f' and {len(found.gradients) - 5} more' if len(found.gradients) > 5 else ''
        say(f'Parameters with such gradients: {shown}{more}')


def main():
    options = parse_arguments()
    import torch
    from mmengine.config import Config

    from mmlape.engine.capture import read_capture
    from mmlape.engine.replay import build_captured_model, replay

    with launch.stop_with_message():
        capture = read_capture(options.file)
        config = Config.fromfile(launch.find_config(options.config)) if options.config else None
        device = torch.device(options.device)
        model = build_captured_model(capture, config, options.trust)
        found = replay(capture, model, device)
    report(capture, found)


if __name__ == '__main__':
    main()

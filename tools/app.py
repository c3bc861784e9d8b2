"""Try a model in the browser: boxes and masks or a label map, the attention of a token, the correlation of positions.

    mmlape app MODEL [--config CONFIG | --trust] [--example IMAGE] [--host 127.0.0.1] [--allow-host NAME]
        [--port 7860] [--device DEVICE]

MODEL is a checkpoint with its config inside, as trainings save them, a work dir, a shared folder, OWNER/NAME of the
Hugging Face hub, or `nuclei`. The page is for this machine alone unless --host says otherwise, and answers to
localhost, addresses and --allow-host; it asks no other host.
Files of users are deleted after half an hour, and at the end. It needs the extra `app`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from mmlape import cli
from mmlape.cli.arguments import FILE, MODEL, Parser, at_least


def parse_arguments():
    parser = Parser(
        'app', 'Try a model in the browser.', 'nuclei', 'fits/cells/training --port 8000'
    )
    parser.add_argument(
        'model', type=MODEL, help='a checkpoint, a work dir, a shared folder, or nuclei'
    )
    cli.add_config_of_model(parser)
    parser.add_argument(
        '--example', type=FILE, action='append', default=[], metavar='IMAGE',
        help='an image that the page offers to try; may be repeated',
    )  # fmt: skip
    parser.add_argument(
        '--host', default='127.0.0.1',
        help='address to listen on; 0.0.0.0 lets other machines in, without a password (%(default)s)',
    )  # fmt: skip
    parser.add_argument(
        '--allow-host', action='append', default=[], metavar='NAME',
        help='a name by which browsers reach this machine, besides localhost and addresses; may be repeated',
    )  # fmt: skip
    parser.add_argument(
        '--port', type=at_least(1, 65535), default=7860, help='default: %(default)s'
    )
    cli.add_device(parser)
    options = parser.parse_args()
    with cli.usage():
        options.socket = listening(options.host, options.port)
    return options


def listening(host, port):
    """Take the port before the model is loaded: it may be in use."""
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ValueError(
            f'--host {host} --port {port}: {getattr(error, "strerror", error)}'
        ) from None


def serve(options, folder):
    # Read when gradio is imported.
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED='False', GRADIO_TEMP_DIR=folder, HF_HUB_DISABLE_TELEMETRY='1'
    )
    try:
        import uvicorn

        from mmlape.apps.app import application, drawn_nuclei
    except ImportError as error:
        raise ValueError(f"install 'mmlape[app]': {error}") from None
    from PIL import Image

    from mmlape.apps.inference import load
    from mmlape.research.analysis import ModelPanels

    # Not optimized: attention can then be recorded.
    model = load(
        options.model, options.config, options.device, optimized=False, trust=options.trust
    )
    if note := model.score_note('the slider'):
        print(note)
    host = f'[{options.host}]' if ':' in options.host else options.host
    print(f'http://{host}:{options.port}  (Ctrl-C ends it)', flush=True)
    examples = [*map(str, options.example)]
    if options.model == 'nuclei' and not examples:
        examples = [str(Path(folder, 'drawn.png'))]
        Image.fromarray(drawn_nuclei()).save(examples[0])
    hosts = options.host, *options.allow_host
    title = '/'.join(Path(options.model).parts[-3:])
    app = application(model, title, ModelPanels(model), hosts, examples)
    uvicorn.Server(uvicorn.Config(app, log_level='warning')).run([options.socket])


def main():
    options = parse_arguments()
    with cli.weights_only(), tempfile.TemporaryDirectory() as folder:
        serve(options, folder)


if __name__ == '__main__':
    cli.run_program(main)

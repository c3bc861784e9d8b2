"""Export a detector or segmentor to an ONNX file that runs without mmlape, and compare it with PyTorch.

    mmlape export MODEL OUT.onnx [--config CONFIG | --trust] [--size HEIGHTxWIDTH ...] [--dynamic batch,size]
        [--max-boxes K] [--half | --int8 FOLDER] [--to onnx,pt2] [--images FOLDER] [--tolerance T]

MODEL is a checkpoint with its config inside, as trainings save them, a work dir, or `nuclei`, which comes with the
package. The file holds all from an image's pixels to the answer: boxes, scores, labels and masks, or a label map. Exit
status 1 if its answers differ from PyTorch's by more than the tolerance. See `mmlape docs export`.
"""

from __future__ import annotations

import argparse
import copy
import sys

from mmlape import cli
from mmlape.apps.export import formats
from mmlape.cli.arguments import ABOVE_ZERO, IMAGE_FOLDER, MODEL, NEW_FILE, Parser, at_least


def parse_arguments():
    parser = Parser(
        'export', 'Export a detector or segmentor.', 'nuclei nuclei.onnx',
        'fits/cells/training cells.onnx --size 640x640 --half',
    )  # fmt: skip
    parser.add_argument('model', type=MODEL, help='a checkpoint, a work dir, or nuclei')
    suffixes = ' or '.join(form.suffix for form in formats.FORMATS.values())
    abouts = '; '.join(f'{name}: {form.about}' for name, form in formats.FORMATS.items())
    parser.add_argument('out', type=NEW_FILE, help=f'the file to write, {suffixes}')
    parser.add_argument(
        '--to', type=file_formats, default=['onnx'], metavar=','.join(formats.FORMATS),
        help=f'formats; OUT is the first, the others lie beside it (onnx). {abouts}',
    )  # fmt: skip
    cli.add_config_of_model(parser)
    parser.add_argument(
        '--size', '--imgsz', action='append', type=size_of, metavar='HEIGHTxWIDTH',
        help="input of the file (the config's test size); several write a file each, OUT-HEIGHTxWIDTH.onnx",
    )  # fmt: skip
    parser.add_argument(
        '--dynamic', type=dynamic_axes, default={'batch'}, metavar='batch,size',
        help='what may vary: batch (default), batch,size, size or none',
    )  # fmt: skip
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument('--half', action='store_true', help='weights in float16')
    kind.add_argument(
        '--int8',
        type=IMAGE_FOLDER,
        metavar='FOLDER',
        help='eight bits, calibrated on images of a folder',
    )
    parser.add_argument(
        '--max-boxes', type=at_least(1), metavar='K',
        help="boxes of a file: fewer are faster, since masks are computed for all (the config's max_per_img)",
    )  # fmt: skip
    parser.add_argument('--pt2', action='store_true', help='write OUT.pt2 too, as --to onnx,pt2')
    parser.add_argument(
        '--images', type=IMAGE_FOLDER, help='folder of images to compare on (made ones)'
    )
    parser.add_argument(
        '--tolerance', type=ABOVE_ZERO, help='largest difference (1e-3; --half 3e-2; --int8 none)'
    )
    options = parser.parse_args()
    if options.pt2 and 'pt2' not in options.to:
        options.to.append('pt2')
    precision = '--half' if options.half else '--int8' if options.int8 else None
    with cli.usage():
        formats.check_formats(options.to, options.out, precision)
    return options


def size_of(text):
    sides = text.lower().split('x')
    if len(sides) != 2 or not all(side.isdecimal() and int(side) >= 32 for side in sides):
        raise argparse.ArgumentTypeError(
            f'must be HEIGHTxWIDTH, each at least 32, such as 512x640, got {text!r}'
        )
    return int(sides[0]), int(sides[1])


def file_formats(text):
    names = list(dict.fromkeys(name.strip() for name in text.split(',')))
    if unknown := [name for name in names if name not in formats.FORMATS]:
        known = ', '.join(formats.FORMATS)
        raise argparse.ArgumentTypeError(f"must be of {known}, got '{unknown[0]}'")
    return names


def dynamic_axes(text):
    names = {name for name in text.split(',') if name != 'none'}
    if names - {'batch', 'size'}:
        raise argparse.ArgumentTypeError(f"must be of batch, size and none, got '{text}'")
    return names


def compared_sizes(size, dynamic):
    """Shapes (images, height, width) to compare on: three sizes if any goes, and two batches."""
    sizes = [size]
    if 'size' in dynamic:
        sizes += [(size[0] + 5, size[1] + 7), (size[1] + 3, size[0] + 9)]
    batches = (1, 2) if 'batch' in dynamic else (1,)
    return [(count, *each) for each in sizes for count in batches]


def image_files(folder):
    """The images in a folder, without videos."""
    from mmlape.apps.inference.sources import find_sources

    return [each.path for each in find_sources([str(folder)]) if not each.is_video]


def read_images(model, folder, shapes):
    """Batches for the shapes from the images of a folder, or made ones."""
    import cv2
    import numpy as np

    from mmlape.apps.export.settings import dark_background
    from mmlape.apps.export.verify import made_images

    dark = dark_background(model.cfg)
    files = [] if folder is None else image_files(folder)
    for number, (count, height, width) in enumerate(shapes):
        if not files:
            yield made_images(count, (height, width), number, model.loader)
            continue
        chosen = [model.read(files[(number + k) % len(files)]) for k in range(count)]
        if dark is not None:
            chosen = [dark.transform(dict(img=image))['img'] for image in chosen]
        if model.loader is None:
            chosen = [image[..., ::-1] for image in chosen]  # BGR
        else:  # OpenCV resizes no integers of 32 bits
            chosen = [image.astype(np.float32) for image in chosen]
        shape = (height, width, chosen[0].shape[2])
        resized = [cv2.resize(image, (width, height)).reshape(shape) for image in chosen]
        yield np.stack(resized).transpose(0, 3, 1, 2).astype(np.float32)


def job_of(options, model, size):
    """The export for one size."""
    from mmlape.apps.export import settings
    from mmlape.apps.export.network import Network

    network = Network(copy.deepcopy(model.model), model.loader)
    any_size = 'size' in options.dynamic
    size = size or settings.default_size(model.cfg, network.divisor, any_size)
    least = network.least
    if any_size and least and any(side < limit for side, limit in zip(size, least)):
        raise ValueError(
            f'--size {size[0]}x{size[1]} --dynamic size: this model takes images of at least {least[0]}x{least[1]}, '
            'to which a runtime pads smaller ones'
        )
    known = settings.runtime_settings(
        model.cfg, network, model.classes, None if any_size else size, model.score
    )
    images = None
    if options.int8:
        count = min(100, len(image_files(options.int8)))
        images = read_images(model, options.int8, [(1, *size)] * count)
    return formats.Job(
        network, size, 'batch' in options.dynamic, any_size, known, options.half, images
    )


def export(options, model, size, out):
    """Write the files of one size; whether they answer as PyTorch does."""
    from mmlape.apps.export import verify

    job = job_of(options, model, size)
    runs = {}
    for name in options.to:
        form = formats.FORMATS[name]
        path = out.with_suffix(form.suffix)
        runs[path] = form.write(job, path)
    usual = 1e-1 if options.int8 else 3e-2 if options.half else 1e-3
    tolerance = usual if options.tolerance is None else options.tolerance
    outputs, good = job.network.outputs, True
    for path, run in runs.items():
        print(f'{path}: {path.stat().st_size / 1e6:.1f} MB, outputs {", ".join(outputs)}')
        images = read_images(model, options.images, compared_sizes(job.size, options.dynamic))
        arguments = (model.model, run, outputs, images, model.scope, tolerance, model.loader)
        for difference in verify.compare(*arguments):
            print(f'  {difference}')
            # With eight bits, differences are only printed unless a tolerance is given.
            free = options.int8 and options.tolerance is None
            good &= bool(free) or difference.within(tolerance)
    return good


def main():
    options = parse_arguments()
    with cli.weights_only():
        from mmlape.apps.export.network import limit_boxes
        from mmlape.apps.export.settings import steps_left_out
        from mmlape.apps.inference import load

        options.out.parent.mkdir(parents=True, exist_ok=True)
        model = load(options.model, options.config, 'cpu', optimized=False, trust=options.trust)
        if note := model.score_note('--score of the runtime'):
            print(note)
        if steps := steps_left_out(model.cfg):
            print(
                f'not in the file, and its runtime must do it to an image first: {", ".join(steps)} '
                'of the test pipeline'
            )
        if options.max_boxes:
            limit_boxes(model.model, options.max_boxes)
        sizes = options.size or [None]
        good = True
        for size in sizes:
            several = len(sizes) > 1
            name = (
                f'{options.out.stem}-{size[0]}x{size[1]}{options.out.suffix}' if several else None
            )
            good &= export(
                options, model, size, options.out.with_name(name) if name else options.out
            )
    if not good:
        sys.exit('error: the file does not answer as PyTorch does')


if __name__ == '__main__':
    cli.run_program(main)

"""Boxes, masks or label maps of images by a file of `mmlape export`, without torch and without mmlape.

    pip install numpy onnxruntime pillow
    python predict.py MODEL.onnx IMAGE... [--score S] [--out FOLDER]

NumPy and onnxruntime compute; Pillow reads and writes image files.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageOps


def weights(count, first, last, size):
    """Matrix ``(count, size)`` of linear interpolation at the centres of ``count`` cells, from ``size`` samples
    that lie evenly between two coordinates; they fade out beyond the outer ones."""
    places = (np.arange(count) + 0.5 - first) / (last - first) * size - 0.5
    return np.maximum(1 - np.abs(places[:, None] - np.arange(size)), 0).astype(np.float32)


def resize(image, height, width):
    """``(H, W, ...)`` to another size, bilinear."""
    rows, columns = (
        weights(height, 0, height, image.shape[0]),
        weights(width, 0, width, image.shape[1]),
    )
    rows, columns = (
        each / each.sum(axis=1, keepdims=True) for each in (rows, columns)
    )  # no fading
    image = np.tensordot(rows, image.astype(np.float32), 1)
    return np.moveaxis(np.tensordot(columns, image, (1, 1)), 0, 1)


class Model:
    """A file of `mmlape export`."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
        about = self.session.get_modelmeta().custom_metadata_map['mmlape']
        self.settings = json.loads(about)
        self.classes = self.settings['classes']

    def predict(self, image, score=None):
        """What is in an image ``(H, W, C)``: RGB, uint8, or of ``settings['channels']`` as in its file; boxes of at
        least this score, by default the file's.

        A dict with `boxes` (N, 4), x1, y1, x2, y2 in pixels, `scores`, `labels` and, if the model has masks, `masks`
        (N, H, W); or with `label_map` (H, W); or with `panoptic` (H, W), label + 1000 * number of the instance.
        """
        if self.settings.get('brightest') is not None:
            image = _with_dark_background(image, self.settings['brightest'])
        if self.settings['outputs'] == ['logits']:
            return dict(label_map=self._label_map(image))
        height, width = image.shape[:2]
        rows, columns = self._size_of(height, width)
        found = self._run(self._resized(image, rows, columns))
        if 'panoptic' in found:
            return dict(panoptic=_nearest(found['panoptic'][:rows, :columns], height, width))
        kept = found['scores'] >= (self.settings.get('score', 0.3) if score is None else score)
        found = {name: value[kept] for name, value in found.items()}
        scale = np.array([width / columns, height / rows] * 2, np.float32)
        limit = np.array([width, height] * 2, np.float32)
        found['boxes'] = np.clip(found['boxes'] * scale, 0, limit)
        if 'masks' in found:
            if found['masks'].dtype == bool:
                masks = [_nearest(each[:rows, :columns], height, width) for each in found['masks']]
            else:
                pairs = zip(found['masks'], found['boxes'])
                masks = [_paste(mask, box, height, width) for mask, box in pairs]
            found['masks'] = np.stack(masks) if masks else np.zeros((0, height, width), bool)
        return found

    def _size_of(self, height, width):
        """Rows and columns of the resized image."""
        size, scale = self.settings['size'], self.settings['scale']
        if size and not self.settings['windows']:
            if scale and not self.settings['keep_ratio']:
                return size
            factor = min(size[0] / height, size[1] / width)
            if not scale:
                factor = min(factor, 1)
        elif not scale:
            return height, width
        elif not self.settings['keep_ratio']:
            return scale[1], scale[0]
        else:
            factor = min(scale[0] / max(height, width), scale[1] / min(height, width))
        return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))

    def _resized(self, image, rows, columns):
        """The image in another size; 8 bits stay whole numbers."""
        resized = resize(image, rows, columns)
        return resized if self.settings.get('channels') else resized.round()

    def _run(self, image):
        """The outputs for one image, which is padded where the file has one size or a least one."""
        least = self.settings.get('least') or (0, 0)
        rows, columns = self.settings['size'] or map(max, image.shape[:2], least)
        padded = np.full(
            (rows, columns, len(self.settings['fill'])), self.settings['fill'], np.float32
        )
        padded[: image.shape[0], : image.shape[1]] = image
        outputs = self.session.run(None, {'image': padded.transpose(2, 0, 1)[None]})
        return {name: each[0] for name, each in zip(self.settings['outputs'], outputs)}

    def _label_map(self, image):
        """Labels where the mean of the logits of all windows is highest."""
        height, width = image.shape[:2]
        rows, columns = self._size_of(height, width)
        resized = self._resized(image, rows, columns)
        multiple = self.settings.get('multiple', 1)
        if rows % multiple or columns % multiple:
            rows, columns = (-(-side // multiple) * multiple for side in (rows, columns))
            resized = self._resized(resized, rows, columns)
        windows = self.settings['windows'] or dict(crop=(rows, columns), stride=(rows, columns))
        crop, stride = windows['crop'], windows['stride']
        total = np.zeros((rows, columns, len(self.classes)), np.float32)
        for y in _starts(rows, crop[0], stride[0]):
            for x in _starts(columns, crop[1], stride[1]):
                window = resized[y : y + crop[0], x : x + crop[1]]
                high, wide = window.shape[:2]
                logits = self._run(window)['logits'][:, :high, :wide]
                total[y : y + high, x : x + wide] += logits.transpose(1, 2, 0)
        seen = np.outer(
            *(_times_seen(side, c, s) for side, c, s in zip((rows, columns), crop, stride))
        )
        return resize(total / seen[..., None], height, width).argmax(axis=2)


def _with_dark_background(image, brightest):
    """Grey, as mmlape.DarkBackground makes an image."""
    grey = image.mean(axis=2, keepdims=True).round()
    return np.repeat(255 - grey if grey.mean() > brightest else grey, 3, axis=2)


def _starts(side, crop, stride):
    """Where windows begin, so that the last one ends with the image."""
    count = max(side - crop + stride - 1, 0) // stride + 1
    return [max(min(k * stride + crop, side) - crop, 0) for k in range(count)]


def _times_seen(side, crop, stride):
    seen = np.zeros(side, np.float32)
    for start in _starts(side, crop, stride):
        seen[start : start + crop] += 1
    return seen


def _nearest(values, height, width):
    rows = (np.arange(height) * values.shape[0] / height).astype(int)
    return values[rows[:, None], (np.arange(width) * values.shape[1] / width).astype(int)]


def _paste(mask, box, height, width):
    """A mask of probabilities within a box, in the image."""
    rows = weights(height, box[1], max(box[3], box[1] + 1e-3), mask.shape[0])
    columns = weights(width, box[0], max(box[2], box[0] + 1e-3), mask.shape[1])
    return rows @ mask @ columns.T >= 0.5


def draw(image, found, classes):
    """The image with what was found, RGB, uint8."""
    palette = np.random.default_rng(0).integers(40, 256, (1 + max(len(classes), 256), 3))
    picture = image.astype(np.float32)
    if 'boxes' not in found:
        ids = found.get('label_map', found.get('panoptic')).astype(int)
        return (
            picture * 0.5 + palette[(ids % 1000 + ids // 1000 * 7) % len(palette)] * 0.5
        ).astype(np.uint8)
    for mask, label in zip(found.get('masks', []), found['labels']):
        picture[mask] = picture[mask] * 0.5 + palette[label] * 0.5
    canvas = Image.fromarray(picture.astype(np.uint8))
    pen = ImageDraw.Draw(canvas)
    for box, label, score in zip(found['boxes'], found['labels'], found['scores']):
        colour = tuple(int(each) for each in palette[label])
        pen.rectangle(box.tolist(), outline=colour)
        pen.text((box[0] + 2, box[1]), f'{classes[label]} {score:.2f}', fill=colour)
    return np.asarray(canvas)


def read(path, channels=None):
    """An image file, ``(H, W, 3)``, RGB, uint8; of 16 bits the upper 8, as MMCV reads them. For a model of other
    images, as it is, ``(H, W, channels)``: an array (.npy), or what Pillow opens."""
    if channels:
        pixels = np.load(path) if path.suffix == '.npy' else np.asarray(Image.open(path))
        return pixels.reshape(*pixels.shape[:2], channels)
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith('I'):  # Pillow would clip all values above 255
        values = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
    return np.asarray(image.convert('RGB'))


def shown(image):
    """An image to draw on, RGB, uint8: of other channels or bits the first three, or the first one, stretched."""
    if image.dtype == np.uint8 and image.shape[2] == 3:
        return image
    picture = image[..., :3] if image.shape[2] >= 3 else image[..., [0, 0, 0]]
    low, high = np.nanpercentile(picture, (1, 99), axis=(0, 1))
    share = (picture - low) / np.maximum(high - low, 1e-12)
    return (255 * np.nan_to_num(share).clip(0, 1)).astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model')
    parser.add_argument('images', nargs='+', type=Path)
    parser.add_argument('--score', type=float, help="minimum score of a box (the file's)")
    parser.add_argument('--out', type=Path, default=Path('drawn'))
    options = parser.parse_args()
    targets = [options.out / f'{path.stem}.png' for path in options.images]
    if len({*targets}) < len(targets):
        parser.error('two images have the same name: give them one by one, with another --out each')
    if {path.resolve() for path in options.images} & {path.resolve() for path in targets}:
        parser.error(f'--out {options.out} would overwrite an image')
    model = Model(options.model)
    options.out.mkdir(parents=True, exist_ok=True)
    for path, target in zip(options.images, targets):
        image = read(path, model.settings.get('channels'))
        found = model.predict(image, options.score)
        Image.fromarray(draw(shown(image), found, model.classes)).save(target)
        print(f'{path}: {len(found["boxes"])} boxes' if 'boxes' in found else str(path))


if __name__ == '__main__':
    main()

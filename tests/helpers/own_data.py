"""Small data sets of one's own: images, COCO files, label maps."""

import json

import numpy as np
from PIL import Image

SIZE = (40, 24)  # width and height
BOX = [10.0, 4.0, 12.0, 8.0]


def image(path, size=SIZE, grey=90):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', size, (grey,) * 3).save(path)


def coco(path, names, boxes=True, masks=False, categories=('cat', 'dog')):
    """A COCO file of one box per image; the classes take turns."""
    polygon = [[10.0, 4.0, 22.0, 4.0, 22.0, 12.0]]
    box = dict(bbox=BOX, area=96.0, iscrowd=0, **(dict(segmentation=polygon) if masks else {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = dict(
        images=[dict(id=i, file_name=n, width=SIZE[0], height=SIZE[1]) for i, n in enumerate(names)],
        annotations=[
            dict(box, id=i + 1, image_id=i, category_id=i % 2 + 1) for i in range(len(names) if boxes else 0)
        ],
        categories=[dict(id=i, name=name) for i, name in enumerate(categories, 1)],
    )  # fmt: skip
    path.write_text(json.dumps(content))


def names(count, start=0):
    return [f'{number}.jpg' for number in range(start, start + count)]


def label_map(path, values, palette=None):
    """Of indices, or of colours in a third dimension; ``palette``: colours of the indices."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = Image.fromarray(np.array(values, np.uint8))
    if palette is not None:
        written.putpalette(np.array(palette, np.uint8).tobytes())
    written.save(path)

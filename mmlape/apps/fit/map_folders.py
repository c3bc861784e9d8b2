"""Where label maps are: folders of images and of label maps, by part."""

from __future__ import annotations

from pathlib import Path

from mmlape.apps.inference.reading import IMAGES, below

from .folders import IMAGE_FOLDERS, part_of

_MAP_FOLDERS = (
    'annotations',
    'masks',
    'mask',
    'labels',
    'label',
    'label_maps',
    'SegmentationClass',
)


def read_label_maps(root: Path) -> dict[str, tuple[Path, Path]]:
    """Folders of images and of label maps, by ``'train'`` and ``'val'``; {} if there are none."""
    parts = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if (part := part_of(folder.name)) and (pair := _pair(folder)):
            parts[part] = pair
    if not parts and (pair := _pair(root)):
        images, maps = pair
        below = {part_of(path.name): path for path in images.iterdir() if path.is_dir()}
        inside = {part: (path, maps / path.name) for part, path in below.items() if part}
        parts = {part: pair for part, pair in inside.items() if pair[1].is_dir()} or {'train': pair}
    parts.pop('test', None)
    return {part: pair for part, pair in parts.items() if all(map(_has_images, pair))}


def _pair(folder: Path) -> tuple[Path, Path] | None:
    """The image folder and the folder of label maps in a folder."""
    images, maps = (
        next((path for name in names if _has_images(path := folder / name)), None)
        for names in (IMAGE_FOLDERS, _MAP_FOLDERS)
    )
    return (images, maps) if images and maps else None


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGES for path in below(folder)[0])

"""Composes one digit scene: a crop of a photograph with handwritten digits pasted onto it.

Shapes: ``S`` is the image side in pixels, ``T`` the side of one digit tile, ``K`` the digits that ended up in a scene.
"""

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

# A digit's ink ramps from transparent to opaque between these two values of the (0..1) scanned intensity;
# what is more than half opaque belongs to its mask.
INK_RANGE = (0.3, 0.55)
PLACEMENT_TRIALS = 20
GREY_TRIALS = 32
# Digits are drawn like chalk: light grey levels, on photographs whose brightness is multiplied by a factor below 1.
GREY_RANGE = (130, 255)
BRIGHTNESS = (0.35, 0.65)


@dataclass(frozen=True)
class DigitBank:
    """The digit images that a split may use.

    Args:
        images: ``(D, 8, 8)`` float array, intensities in 0..1.
        targets: ``(D,)`` integer array, the digit 0..9 that each image shows.
        indices: ``(D,)`` integer array, each image's index in scikit-learn's ``load_digits``.
    """

    images: np.ndarray
    targets: np.ndarray
    indices: np.ndarray


@dataclass(frozen=True)
class PhotoRegion:
    """The part of a photograph that a split may use.

    Args:
        name: The photograph's file name in scikit-learn.
        pixels: ``(H, W, 3)`` uint8 array, RGB, of the region alone.
        left: The column of the whole photograph at which the region begins.
    """

    name: str
    pixels: np.ndarray
    left: int


@dataclass(frozen=True)
class SceneStyle:
    """How scenes look; see :func:`mmlape.datasets.build_digit_scenes` for every field."""

    image_size: int
    digits_per_image: tuple[int, int]
    digit_size: tuple[int, int]
    min_visible: float
    min_contrast: float
    crop_side: tuple[int, int]


@dataclass
class Scene:
    """A finished scene.

    Args:
        image: ``(S, S, 3)`` uint8 array, RGB.
        owner: ``(S, S)`` int16 array, the number 0..K-1 of the instance that is seen at a pixel, -1 for background.
        digits: The digit 0..9 of each of the K instances.
        indices: The index in ``load_digits`` of each of the K instances.
        photo: The photograph's file name.
        crop: ``(x, y, width, height)`` of the background in the whole photograph, in pixels.
    """

    image: np.ndarray
    owner: np.ndarray
    digits: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    photo: str = ''
    crop: tuple[int, int, int, int] = (0, 0, 0, 0)


def paint_scene(
    rng: np.random.Generator, bank: DigitBank, regions: list[PhotoRegion], style: SceneStyle
) -> Scene:
    """Draw one scene; the same generator state gives the same scene.

    A digit that finds no place in ``PLACEMENT_TRIALS`` trials without hiding too much of another one is left out, so a
    scene may hold fewer digits than were drawn for it, but always at least one.
    """
    region = regions[rng.integers(len(regions))]
    image, crop = paint_background(rng, region, style.image_size, style.crop_side)
    owner = np.full((style.image_size, style.image_size), -1, dtype=np.int16)
    scene = Scene(image=image, owner=owner, photo=region.name, crop=crop)
    full_areas: list[int] = []
    levels: list[float] = []
    low, high = style.digits_per_image
    for _ in range(rng.integers(low, high + 1)):
        chosen = rng.integers(len(bank.indices))
        alpha = ink_opacity(
            bank.images[chosen], int(rng.integers(style.digit_size[0], style.digit_size[1] + 1))
        )
        place = _find_place(rng, alpha, owner, full_areas, style.min_visible)
        if place is None:
            continue
        _paste(rng, image, owner, alpha, place, levels, style.min_contrast)
        full_areas.append(int((alpha > 0.5).sum()))
        scene.digits.append(int(bank.targets[chosen]))
        scene.indices.append(int(bank.indices[chosen]))
    return scene


def paint_background(
    rng: np.random.Generator, region: PhotoRegion, image_size: int, crop_side: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """A square crop of the region, resized to ``(S, S, 3)``, darkened, at times mirrored left to right.

    Args:
        rng: Decides on the crop.
        region: What it is cut from.
        image_size: ``S`` in pixels.
        crop_side: Smallest and largest side of the crop in pixels.

    Returns:
        The image, RGB uint8, and ``(x, y, width, height)`` of the crop in the whole photograph.
    """
    height, width = region.pixels.shape[:2]
    side = int(rng.integers(crop_side[0], crop_side[1] + 1))
    x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    # The crop is cut before it is resized, so that no pixel from beyond it is blended in.
    crop = Image.fromarray(region.pixels[y : y + side, x : x + side])
    image = np.asarray(crop.resize((image_size, image_size), Image.Resampling.BILINEAR))
    if rng.random() < 0.5:
        image = image[:, ::-1]
    image = np.clip(image * rng.uniform(*BRIGHTNESS), 0, 255).astype(np.uint8)
    return image, (region.left + x, y, side, side)


def ink_opacity(digit: np.ndarray, size: int) -> np.ndarray:
    """``(8, 8)`` intensities to ``(T, T)`` opacities in 0..1, ``T = size``."""
    scan = Image.fromarray(digit.astype(np.float32))
    smooth = np.asarray(scan.resize((size, size), Image.Resampling.BICUBIC))
    return np.clip((smooth - INK_RANGE[0]) / (INK_RANGE[1] - INK_RANGE[0]), 0, 1)


def _find_place(
    rng: np.random.Generator,
    alpha: np.ndarray,
    owner: np.ndarray,
    full_areas: list[int],
    min_visible: float,
) -> tuple[int, int] | None:
    """The top left corner ``(x, y)`` of a tile that leaves enough of the digits below it visible, or None."""
    room, size = owner.shape[0] - alpha.shape[0] + 1, alpha.shape[0]
    visible = np.bincount(owner[owner >= 0], minlength=len(full_areas))
    for _ in range(PLACEMENT_TRIALS):
        x, y = int(rng.integers(room)), int(rng.integers(room))
        below = owner[y : y + size, x : x + size][alpha > 0.5]
        hidden = np.bincount(below[below >= 0], minlength=len(full_areas))
        if (visible - hidden >= min_visible * np.asarray(full_areas)).all():
            return x, y
    return None


def _paste(
    rng: np.random.Generator,
    image: np.ndarray,
    owner: np.ndarray,
    alpha: np.ndarray,
    place: tuple[int, int],
    levels: list[float],
    min_contrast: float,
) -> None:
    """Blend one digit into ``image`` and enter it into ``owner`` and ``levels``, all in place."""
    (x, y), size = place, alpha.shape[0]
    tile, tile_owner = image[y : y + size, x : x + size], owner[y : y + size, x : x + size]
    ink = alpha > 0.5
    # Digits that touch or overlap must differ too, or nobody could tell where one ends.
    unlike = [(float(tile[ink].mean()), min_contrast)]
    unlike += [
        (levels[other], min_contrast / 2) for other in np.unique(tile_owner[tile_owner >= 0])
    ]
    level = _grey_level(rng, unlike)
    opacity = alpha[..., None]
    tile[:] = np.round(opacity * level + (1 - opacity) * tile).astype(np.uint8)
    tile_owner[ink] = len(levels)
    levels.append(level)


def _grey_level(rng: np.random.Generator, unlike: list[tuple[float, float]]) -> float:
    """The first of some random levels that keeps the wanted distance from every ``(level, distance)``, or the best."""
    candidates = rng.uniform(*GREY_RANGE, GREY_TRIALS)
    margins = np.min([np.abs(candidates - level) - distance for level, distance in unlike], axis=0)
    enough = np.flatnonzero(margins >= 0)
    return float(candidates[enough[0] if len(enough) else margins.argmax()])

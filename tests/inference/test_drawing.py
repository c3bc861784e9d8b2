"""Colours, texts, lines and legends of pictures."""

from dataclasses import replace

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from mmdet.datasets import CocoDataset
from mmseg.datasets import ADE20KDataset, BaseSegDataset
from skimage.color import deltaE_ciede2000, rgb2lab

from mmlape.apps.inference import Result, drawing, fonts
from mmlape.apps.inference.colours import colours_of, ink_on, is_by_instance, separated

# What people without green cones see of linear RGB (Vienot, Brettel and Mollon 1999), and without red ones.
GREENBLIND = [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]
REDBLIND = [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]
NUCLEI = ('nucleus',)


def result(boxes=(), classes=('cat', 'dog'), size=(400, 900), **options):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    image = np.zeros((*size, 3), np.uint8)
    options.setdefault('scores', np.full(len(boxes), 0.5, np.float32))
    options.setdefault('labels', np.arange(len(boxes)) % len(classes))
    return Result(image, 'a', classes, boxes=boxes, **options)


def linear(colours):
    parts = np.asarray(colours) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize(
    ('view', 'least', 'of_neighbours'),
    [(np.eye(3), 15, 30), (GREENBLIND, 6, 15), (REDBLIND, 6, 15)],
)
def test_colours_of_ours_are_far_apart(view, least, of_neighbours):
    """CIEDE2000 distances of any two of 20, and of neighbours in the list, also for colour-blind readers."""
    light = (linear(separated(20)) @ np.transpose(view)).clip(0, 1)
    seen = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    lab = rgb2lab(seen)
    distances = deltaE_ciede2000(lab[:, None], lab[None])
    assert distances[np.triu_indices(20, 1)].min() > least
    assert distances.diagonal(1).min() > of_neighbours
    assert (separated(150)[:20] == separated(20)).all() and len(
        np.unique(separated(150), axis=0)
    ) == 150


def test_texts_have_contrast_on_every_colour():
    coco, ade = CocoDataset.METAINFO['palette'], ADE20KDataset.METAINFO['palette']
    for colour in [*separated(150).tolist(), *coco, *ade]:
        light = sorted(linear([colour, ink_on(colour)]) @ (0.2126, 0.7152, 0.0722))
        assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5, colour


def test_only_a_palette_of_these_classes_is_used():
    coco = CocoDataset.METAINFO
    others = [f'class {number}' for number in range(80)]
    own = [(1, 2, 3), (4, 5, 6)]
    random = BaseSegDataset(metainfo=dict(classes=('a', 'b')), lazy_init=True).metainfo['palette']
    assert colours_of(coco['classes'], coco['palette']).tolist() == [*map(list, coco['palette'])]
    assert colours_of(('a', 'b'), own).tolist() == [*map(list, own)]
    assert colours_of(('Background', 'a')).tolist() == [[0, 0, 0], separated(2)[1].tolist()]
    assert colours_of(NUCLEI, own[:1]).tolist() == [[1, 2, 3]]
    for classes, palette in (
        (others, coco['palette']), (('a', 'b'), coco['palette']), (('a', 'b'), random),
        (('a', 'b'), own[:1]), (('a', 'b'), 'random'), (('a', 'b'), None),
    ):  # fmt: skip
        assert (colours_of(classes, palette) == separated(len(classes))).all()


def test_objects_of_a_single_class_have_their_own_colours():
    boxes = [[10, 50, 110, 150], [200, 50, 300, 150]]
    found = result(boxes, NUCLEI)
    drawn = found.picture()
    colours = [drawn[150, left].tolist() for left in (50, 250)]
    assert colours == separated(20)[:2, ::-1].tolist() and is_by_instance(NUCLEI)
    assert drawn.shape == found.image.shape, 'no legend'
    drawn = drawing.draw(found, frame=True)  # numbers change from frame to frame
    assert drawn[150, 50].tolist() == drawn[150, 250].tolist() == colours[0]


def test_names_of_classes_are_drawn_in_any_script():
    boxes = [[5, 30, 60, 50]]
    pictures = [
        result(boxes, (name, 'b'), (60, 90)).picture()
        for name in ('Fl\u00e4che', 'Fl\u00f6che', 'Fl?che')
    ]
    assert len({picture.tobytes() for picture in pictures}) == 3


@pytest.fixture
def font_of_cells(tmp_path, monkeypatch):
    """A font with the letter of cells in Chinese alone, after one that cannot be read."""
    builder, pen = FontBuilder(1000), TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 900), (900, 900), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    glyph = pen.glyph()
    builder.setupGlyphOrder(['.notdef', 'cell'])
    builder.setupCharacterMap({0x7EC6: 'cell'})
    builder.setupGlyf({'.notdef': TTGlyphPen(None).glyph(), 'cell': glyph})
    builder.setupHorizontalMetrics({'.notdef': (500, 0), 'cell': (1000, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupOS2()
    builder.setupNameTable(dict(familyName='Cells', styleName='Regular'))
    builder.setupPost()
    builder.save(tmp_path / 'sans.ttf')
    (tmp_path / 'a-sans.ttf').write_bytes(b'no font')
    files = [str(tmp_path / name) for name in ('sans.ttf', 'a-sans.ttf')]
    for function in (fonts.drawable, fonts._fonts, fonts._runs, fonts._font_with):
        function.cache_clear()
    monkeypatch.setattr(fonts.font_manager, 'findSystemFonts', lambda: files)
    yield files
    for function in (fonts.drawable, fonts._fonts, fonts._runs, fonts._font_with):
        function.cache_clear()


def test_characters_of_another_font(font_of_cells, monkeypatch):
    lines = []
    monkeypatch.setattr(fonts, 'print_log', lambda line, **_: lines.append(line))
    assert fonts.drawable(('\u7ec6 a', 'b')) == ('\u7ec6 a', 'b') and not lines
    picture = np.full((40, 60, 3), 255, np.uint8)
    fonts.write(picture, (0, 0), '\u7ec6', 20, (9, 9, 9))
    assert (picture[:, :18] == 9).all(2).sum() == pytest.approx(18 * 18, abs=40)
    names = ('a', '\u80de', '\ud55c')
    for _ in range(2):
        assert fonts.drawable(names) == ('a', 'class 1', 'class 2')
    (line,) = lines
    assert (
        "'\u80de', which pictures call 'class 1' (2 such names)" in line
        and 'fonts-noto-cjk' in line
    )


def test_truth_has_no_scores():
    boxes = [[100, 100, 300, 300]]
    assert drawing._texts(result(boxes)) == ['cat 0.50'] and drawing._texts(
        result(boxes, NUCLEI)
    ) == ['0.50']
    truth = result(boxes, scores=np.zeros(0))
    assert drawing._texts(truth) == ['cat'] and drawing._texts(replace(truth, classes=NUCLEI)) == [
        ''
    ]
    assert truth.picture().any()


def test_lines_and_texts_fit_the_objects():
    """Nuclei of a large image have lines of a pixel and no text; large objects of one have large letters."""
    corners = np.array(
        [[x, y, x + 20, y + 20] for x in range(9, 5900, 60) for y in range(9, 3900, 60)]
    )
    drawn = result(corners, NUCLEI, (4000, 6000)).picture()
    assert drawn.any(2).sum() == 80 * len(corners)
    sizes = []
    for size, side in (((4000, 6000), 1500), ((400, 900), 150), ((400, 900), 50)):
        box = [side, side, 2 * side, 2 * side]
        drawn = result([box], NUCLEI, size).picture()
        middle = drawn[:, side * 3 // 2 + side // 3].any(1)
        text = drawn[: side - 1, side].any(1)
        sizes.append((int(middle.sum()) // 2, int(text.sum()) // 10))
    assert sizes == [(3, 14), (2, 2), (1, 1)]


def places(texts, boxes, **options):
    """Where a picture has its texts, in order; None where there is none."""
    found, write = [], drawing.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, 'write', lambda *given: (found.append(given[1:3]), write(*given)))
        result(boxes, **options).picture()
    at = {text: place for place, text in found}
    return [at.get(text) for text in texts]


def test_a_text_without_room_is_moved():
    """Above its box, else below, beside or inside, where it hides no other; it is never left out."""
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    boxes = [[300, 100, 400, 200], [300, 0, 400, 80], [296, 90, 396, 190], [0, 0, 900, 400]]
    texts = ['0.90', '0.80', '0.70', '0.60']
    found = places(texts, boxes, classes=NUCLEI, scores=scores)
    beside = pytest.approx(369, abs=1)  # the width of a text depends on Pillow's layout engine
    assert found == [(300, 85), (300, 0), (beside, 75), (0, 0)]
    areas = [(*place, place[0] + 27, place[1] + 15) for place in found]
    for k, (left, top, right, bottom) in enumerate(areas):
        for x1, y1, x2, y2 in areas[:k]:
            assert right <= x1 or x2 <= left or bottom <= y1 or y2 <= top


def test_texts_hide_nothing_in_a_crowd():
    """Of boxes side by side, those that have room get a text."""
    side = 45
    boxes = [[x, y, x + side, y + side] for y in range(0, 300, 46) for x in range(0, 600, 46)]
    boxes[0] = [840, 340, 885, 385]
    scores = np.linspace(0.99, 0.02, len(boxes))
    texts = [f'{score:.2f}' for score in scores]
    found = places(texts, boxes, classes=NUCLEI, scores=scores)
    assert found[0] == (840, 325) and found.count(None) < len(boxes)
    areas = np.array([(*place, place[0] + 27, place[1] + 15) for place in found if place])
    own = np.array([place is not None for place in found]).nonzero()[0]
    covered = drawing._covered(np.array(boxes), areas)
    covered[np.arange(len(own)), own] = 0
    assert covered.max() <= 0.1


def test_a_legend_names_the_classes_in_the_picture():
    names = ('road', 'tree', 'sky')
    labels = np.zeros((400, 900), np.uint8)
    labels[:, 300:] = 2
    found = result(classes=names, label_map=labels)
    assert [entry.name for entry in drawing._present(found)] == ['road', 'sky']
    drawn = found.picture()
    assert drawn.shape[0] > 400 and drawn.shape[1] == 900
    for colour in separated(3)[[0, 2], ::-1]:
        assert (drawn[400:] == colour).all(2).any()
    assert not (drawn[400:] == separated(3)[1, ::-1]).all(2).any()
    labels[0, 0] = 255
    assert drawing._present(found)[-1] == ('not labelled', None)
    narrow = result([[1, 1, 30, 90]], ('a rather long name', 'b'), (3000, 40)).picture()
    assert narrow.shape[1] > 100 and not (narrow[:3000, 40:] != 255).any()


def test_frames_of_a_video_have_one_size():
    names = tuple(f'class number {number}' for number in range(150))
    labels = np.zeros((400, 900), np.uint8)
    empty = result(classes=names)
    full = replace(empty, label_map=np.arange(150).repeat(2400).reshape(400, 900))
    few = replace(empty, label_map=labels)
    assert len({drawing.draw(each, frame=True).shape for each in (full, few)}) == 1
    assert drawing.draw(full, frame=True).shape[0] <= 500 < full.picture().shape[0]
    both = result([[1, 1, 50, 50]] * 2, labels=[0, 1])
    second = replace(both, labels=np.array([1, 1]))
    of_both, of_second = (drawing.draw(each, frame=True)[400:] for each in (both, second))
    place = (of_both == separated(2)[1, ::-1]).all(2)
    assert place.any() and (of_second[place] == separated(2)[1, ::-1]).all(), (
        'one place for a class'
    )
    assert of_both.shape == of_second.shape == drawing.draw(result(), frame=True)[400:].shape


def test_truth_and_prediction_share_a_legend():
    left = result([[10, 10, 300, 300]], ('a', 'b', 'c'), labels=[0], scores=np.zeros(0))
    right = result([[10, 10, 300, 300]], ('a', 'b', 'c'), labels=[2])
    drawn = drawing.side_by_side(left, right, longest=450)
    assert drawn.shape[1] == 2 * 450 + 8
    found = [(drawn[200:] == colour).all(2).any() for colour in separated(3)[:, ::-1]]
    assert found == [True, False, True]

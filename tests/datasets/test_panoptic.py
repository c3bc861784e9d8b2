"""Panoptic maps and panoptic quality, against values computed by hand; no panopticapi here."""

import json
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from config_utils import use_scope
from mmdet.evaluation.functional import panoptic_utils
from mmdet.utils import register_all_modules
from mmengine.config import ConfigDict
from mmengine.registry import DATASETS, METRICS, TRANSFORMS
from PIL import Image

from mmlape.research.datasets import panoptic
from mmlape.research.datasets.panoptic import count_matches, rgb_to_ids

CLASSES = ('cat', 'dog', 'sky')
META = dict(classes=CLASSES, thing_classes=CLASSES[:2], stuff_classes=CLASSES[2:])
CATEGORIES = [
    dict(id=10 * number, name=name, isthing=int(name != 'sky'))
    for number, name in enumerate(CLASSES, 1)
]
CAT, DOG, SKY, NOTHING = range(4)
THING = 1000  # instances of things
# Ids that need each byte of a pixel.
BIG, CROWD, HEAVEN = 5 + 256 * 7 + 65536 * 9, 300, 70_000


@pytest.fixture(autouse=True)
def scope():
    register_all_modules(init_default_scope=False)
    use_scope('mmdet')


def picture() -> tuple[np.ndarray, np.ndarray]:
    """10 x 12 pixels, by rows: a cat in 0-3, a dog's half and a crowd of dogs in 4-5, sky in 6-8, void in 9."""
    truth = np.zeros((10, 12), dtype=np.int32)
    truth[:4], truth[4:6, :6], truth[4:6, 6:], truth[6:9] = BIG, 2, CROWD, HEAVEN
    predicted = np.full((10, 12), NOTHING)
    predicted[1:4] = CAT + THING  # 36 of 48 pixels: 0.75
    predicted[4:6, 8:] = DOG + 2 * THING  # in the crowd: not an error
    predicted[7:] = SKY  # 24 of 36, and a row of void: 2 / 3
    predicted[0] = CAT + 2 * THING  # an error
    return truth, predicted


SEGMENTS = {BIG: (CAT, False), 2: (DOG, False), CROWD: (DOG, True), HEAVEN: (SKY, False)}
EXPECTED = [[0.75, 1, 1, 0], [0, 0, 0, 1], [2 / 3, 1, 0, 0]]


def test_matches_by_hand():
    """IoU, true positives, false positives, false negatives."""
    truth, predicted = picture()
    np.testing.assert_allclose(count_matches(truth, SEGMENTS, predicted, 3), EXPECTED)


def test_half_is_not_enough():
    """An IoU of 0.5 is an error twice; so is a prediction of which just half is void."""
    truth = np.repeat([[1, 0]], 3, axis=0).repeat(4, axis=1)
    half = np.full_like(truth, CAT)
    half[:, 2:] = NOTHING
    assert count_matches(truth, {1: (CAT, False)}, half, 3)[CAT].tolist() == [0, 0, 1, 1]
    crossing = np.full_like(truth, DOG)
    assert count_matches(truth, {1: (CAT, False)}, crossing, 3)[DOG].tolist() == [0, 0, 1, 0]
    crossing[:, 0] = NOTHING  # three of seven columns are a cat
    assert count_matches(truth, {1: (CAT, False)}, crossing, 3)[DOG].tolist() == [0, 0, 0, 0]
    # void does not count as part of a prediction
    assert count_matches(truth, {1: (CAT, False)}, truth * 0, 3)[CAT].tolist() == [1, 1, 0, 0]


class Counts(defaultdict):
    """What panopticapi counts in; the matching itself is in MMDetection."""

    def __init__(self) -> None:
        super().__init__(lambda: SimpleNamespace(iou=0.0, tp=0, fp=0, fn=0))


@pytest.mark.parametrize('seed', range(5))
def test_matches_are_those_of_mmdetection(seed, tmp_path, monkeypatch):
    """On random maps, with crowds and void in the truth and in the prediction."""
    rng = np.random.default_rng(seed)
    truth, guessed = rng.integers(0, 9, (2, 4, 5)).repeat(3, axis=1).repeat(2, axis=2)
    copied = rng.random(truth.shape) < 0.8
    guessed[copied] = truth[copied]
    labels = rng.integers(0, 3, 9)
    # MMDetection knows one crowd of each class.
    segments = {each: (int(labels[each]), each in (3, 4)) for each in range(1, 9)}
    segments[3], segments[4] = (CAT, True), (DOG, True)
    labels[3:5] = CAT, DOG
    predicted = np.where(guessed > 0, labels[guessed] + THING * guessed, NOTHING)
    for folder, ids in (('truth', truth), ('guess', guessed)):
        pixels = np.stack([ids, ids * 0, ids * 0], axis=-1).astype(np.uint8)
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels).save(tmp_path / folder / 'a.png')
    for name, value in dict(PQStat=Counts, rgb2id=rgb_to_ids, VOID=0, OFFSET=256**3).items():
        monkeypatch.setattr(panoptic_utils, name, value)
    infos = [
        [
            dict(
                id=each,
                category_id=label,
                iscrowd=int(crowd),
                area=int((ids == each).sum()),
            )
            for each, (label, crowd) in segments.items()
            if (ids == each).any()
        ]
        for ids in (truth, guessed)
    ]
    theirs = panoptic_utils.pq_compute_single_core(
        0,
        [tuple(dict(image_id=0, file_name='a.png', segments_info=info) for info in infos)],
        str(tmp_path / 'truth'),
        str(tmp_path / 'guess'),
        categories={0, 1, 2},
    )
    expected = [[theirs[k].iou, theirs[k].tp, theirs[k].fp, theirs[k].fn] for k in range(3)]
    assert np.sum(expected) > 3
    np.testing.assert_allclose(count_matches(truth, segments, predicted, 3), expected)


def write(root, number_of_images: int = 2) -> dict:
    """Copies of the picture, mirrored each second time; returns the options of the metric."""
    truth, _ = picture()
    (root / 'maps').mkdir(parents=True)
    (root / 'images').mkdir()
    content = dict(images=[], annotations=[], categories=CATEGORIES)
    for number in range(number_of_images):
        name = f'{number:03d}'
        shape = dict(height=10, width=12)
        content['images'].append(dict(shape, id=number, file_name=f'{name}.jpg'))
        pixels = np.stack([truth % 256, truth // 256 % 256, truth // 65536], axis=-1)
        Image.fromarray(pixels.astype(np.uint8)).save(root / 'maps' / f'{name}.png')
        Image.new('RGB', (12, 10)).save(root / 'images' / f'{name}.jpg')
        infos = []
        for each, (label, crowd) in SEGMENTS.items():
            y, x = np.nonzero(truth == each)
            box = [int(x.min()), int(y.min()), int(np.ptp(x)) + 1, int(np.ptp(y)) + 1]
            info = dict(id=each, category_id=10 * label + 10, iscrowd=int(crowd))
            infos.append(dict(info, bbox=box, area=len(x)))
        content['annotations'].append(
            dict(image_id=number, file_name=f'{name}.png', segments_info=infos)
        )
    (root / 'panoptic.json').write_text(json.dumps(content))
    return dict(ann_file=str(root / 'panoptic.json'), seg_prefix=str(root / 'maps'))


def metric(options: dict):
    built = METRICS.build(dict(options, type='mmlape.PanopticQuality'))
    built.dataset_meta = META
    return built


def sample(number: int, predicted: np.ndarray) -> dict:
    sem_seg = torch.from_numpy(predicted)[None]
    return dict(img_id=number, pred_panoptic_seg=dict(sem_seg=sem_seg))


def predictions() -> list[dict]:
    """Of two images: the picture's, and nothing."""
    predicted = picture()[1]
    return [sample(0, predicted), sample(1, np.full_like(predicted, NOTHING))]


# The second image misses a cat, a dog and the sky.
CAT_PQ, SKY_PQ = 0.75 / (1 + 0.5 + 0.5), (2 / 3) / (1 + 0.5)
QUALITY = dict(
    PQ=(CAT_PQ + SKY_PQ) / 3, SQ=(0.75 + 2 / 3) / 3, RQ=(1 / 2 + 1 / 1.5) / 3,
    PQ_th=CAT_PQ / 2, SQ_th=0.75 / 2, RQ_th=0.25,
    PQ_st=SKY_PQ, SQ_st=2 / 3, RQ_st=1 / 1.5,
)  # fmt: skip
QUALITY = {f'coco_panoptic/{name}': pytest.approx(100 * value) for name, value in QUALITY.items()}


def test_quality_of_two_images(tmp_path):
    """Classes first, then their mean."""
    measured = metric(write(tmp_path))
    for each in predictions():
        measured.process({}, [each])
    assert measured.evaluate(2) == QUALITY


def test_a_class_that_does_not_occur_is_not_counted(tmp_path):
    measured = metric(write(tmp_path))
    measured.categories['fox'] = dict(id=99, isthing=1)
    measured.dataset_meta = dict(META, classes=(*CLASSES, 'fox'))
    for each in predictions():
        each['pred_panoptic_seg']['sem_seg'][each['pred_panoptic_seg']['sem_seg'] == NOTHING] = 4
        measured.process({}, [each])
    assert measured.evaluate(2) == QUALITY


def test_categories_that_are_no_class_are_not_counted(tmp_path, monkeypatch):
    """Without stuff, its quality is not defined."""
    asked, get = [], panoptic.get
    monkeypatch.setattr(
        panoptic, 'get', lambda path, backend_args: (asked.append(backend_args), get(path))[1]
    )
    storage = dict(backend='local')
    measured = metric(dict(write(tmp_path), backend_args=storage))
    measured.dataset_meta = dict(classes=CLASSES[:2])
    measured.process({}, predictions()[:1])
    found = {name.rpartition('/')[2]: value for name, value in measured.evaluate(1).items()}
    assert found['PQ'] == found['PQ_th'] == pytest.approx(100 * 0.75 / 1.5 / 2)
    assert np.isnan([found[name] for name in ('PQ_st', 'SQ_st', 'RQ_st')]).all()
    assert asked == [storage] * 2


@pytest.mark.parametrize('left', ['with_bbox', 'with_label', 'with_mask', 'with_seg'])
def test_what_is_not_asked_for_is_not_loaded(left):
    built = TRANSFORMS.build({'type': 'mmlape.LoadPanopticMap', left: False})
    names = ('with_bbox', 'with_label', 'with_mask', 'with_seg')
    assert [name for name in names if not getattr(built, name)] == [left]


def _evaluate(rank: int, folder: str, options: dict) -> None:
    """A process of two, with its share of three images, of which the last is there to fill up."""
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2
    )
    measured = metric(options)
    both = predictions()
    measured.process({}, [both[rank]])
    measured.process({}, [sample(0, np.full((10, 12), NOTHING))] if rank else [both[0]])
    found = measured.evaluate(3)
    if rank == 0:
        with open(f'{folder}/found.json', 'w') as file:
            json.dump(found, file)
    torch.distributed.destroy_process_group()


def test_two_processes(tmp_path):
    """As one process with the same images; what fills up the last batch is dropped."""
    options = write(tmp_path)
    torch.multiprocessing.start_processes(
        _evaluate, (str(tmp_path), options), nprocs=2, start_method='fork'
    )
    alone = metric(options)
    for each in [*predictions(), predictions()[0]]:
        alone.process({}, [each])
    assert json.loads((tmp_path / 'found.json').read_text()) == alone.evaluate(3)


def test_mistakes(tmp_path):
    options = write(tmp_path)
    measured = metric(options)
    with pytest.raises(ValueError, match=r'000\.png has the size \(10, 12\), its prediction \(9'):
        measured.process({}, [sample(0, np.zeros((9, 12), dtype=int))])
    with pytest.raises(ValueError, match='has no image of id 7'):
        measured.process({}, [sample(7, picture()[1])])
    measured.dataset_meta = dict(classes=('cat', 'cow'))
    with pytest.raises(ValueError, match=r"cow.* must be categories of ann_file: \['cat', 'dog"):
        measured.process({}, [sample(0, picture()[1])])
    with pytest.raises(TypeError, match='seg_prefix'):
        metric(dict(options, seg_prefix=3))
    with pytest.raises(TypeError, match='with_mask'):
        TRANSFORMS.build(dict(type='mmlape.LoadPanopticMap', with_mask='yes'))


def test_maps_are_read_as_upstream_reads_them(tmp_path):
    """Through MMDetection's data set: masks of the things alone, 255 for void, in its types."""
    options = write(tmp_path)
    dataset = DATASETS.build(
        ConfigDict(
            type='CocoPanopticDataset',
            ann_file=options['ann_file'],
            data_prefix=dict(img=str(tmp_path / 'images'), seg=options['seg_prefix']),
            metainfo=META,
            pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type='mmlape.LoadPanopticMap'),
                dict(type='PackDetInputs'),
            ],
        )
    )
    item = dataset[1]['data_samples']
    truth, _ = picture()
    assert item.gt_instances.labels.tolist() == [CAT, DOG]
    assert item.gt_instances.bboxes.tensor.tolist() == [[0, 0, 12, 4], [0, 4, 6, 6]]
    masks = item.gt_instances.masks.masks
    np.testing.assert_array_equal(masks, [truth == BIG, truth == 2])
    expected = np.select([truth == key for key in SEGMENTS], [v[0] for v in SEGMENTS.values()], 255)
    np.testing.assert_array_equal(item.gt_sem_seg.sem_seg[0].numpy(), expected)


def test_ids():
    pixels = np.array([[[5, 7, 9], [255, 255, 255]]], dtype=np.uint8)
    assert rgb_to_ids(pixels).tolist() == [[BIG, 2**24 - 1]]

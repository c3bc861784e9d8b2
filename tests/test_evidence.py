"""Experiments on real images: configs of variants, measures, statistics, records, and a run of the command."""

import copy
import dataclasses
import io
import json
import shutil
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from config_utils import marked
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import save_checkpoint
from own_data import SIZE, coco, image, label_map, names
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tool_runs import REPO, Commands

from mmlape.apps.fit import find_data
from mmlape.apps.inference.results import MaskCrop, Result, read_picture
from mmlape.research.demo.workers import Report
from mmlape.research.experiments import evidence, kinds, plan, scores, statistics, study
from mmlape.research.experiments.page import MARKS, differences_table, write_pages
from mmlape.research.experiments.recipes import (
    DATA,
    DEFAULT,
    LAPE,
    PRETRAINING,
    Experiment,
    Recipe,
    Variant,
    rescaled,
    run_config,
)
from mmlape.research.experiments.small_images import CLASSES
from mmlape.research.experiments.table import replace_table
from mmlape.research.robustness import CORRUPTIONS

TINY = Recipe('micro-segmenter', dict(epochs=1, batch=4, size=32))
TINY_VARIANTS = {'no': Variant(DEFAULT), 'LaPE': Variant(LAPE)}
EXPERIMENT = Experiment(
    'camvid', 'Why?', TINY, TINY_VARIANTS, 'no', 2, None, ('0.5x', '2x', 'corrupted')
)
QUICK = {*plan.EXPERIMENTS} - {
    'nuclei-recipe', 'nuclei-kinds', 'nuclei-tuning', 'bccd-recipe', 'camvid-tuning',
}  # fmt: skip


@pytest.fixture
def maps(tmp_path):
    """Label maps of the classes of CamVid, in two parts and one that nobody trains on."""
    root = tmp_path / 'maps'
    for part, count in (('train', 4), ('val', 3), ('test', 2)):
        for number in range(count):
            image(root / 'images' / part / f'{number}.jpg', (40, 36))
            columns = (np.arange(40) * 11 // 40 + number) % 11
            label_map(root / 'annotations' / part / f'{number}.png', np.tile(columns, (36, 1)))
    return root


@pytest.mark.parametrize('name', marked(plan.EXPERIMENTS, QUICK))
def test_variants_of_an_experiment_differ_in_what_they_name(name, tmp_path, monkeypatch):
    experiment = plan.EXPERIMENTS[name]
    root = tmp_path / 'data'
    if DATA[experiment.data].task == 'classify':
        small_images(root, monkeypatch)
    elif DATA[experiment.data].task == 'segment':
        for part in ('train', 'val'):
            image(root / 'images' / part / '0.jpg')
            label_map(
                root / 'annotations' / part / '0.png', np.tile(np.arange(40) * 11 // 40, (24, 1))
            )
    else:
        for part in ('train', 'val'):
            coco(root / f'{part}.json', names(3), masks=True)
            for file in names(3):
                image(root / part / file)
    bare: dict[int, Config] = {}
    for variant, chosen in experiment.variants.items():
        cfg, _ = run_config(experiment, variant, 3, root, tmp_path / 'run')
        assert cfg.val_cfg is None and cfg.default_hooks.checkpoint.save_best is None
        assert cfg.randomness.seed == 3 and cfg.train_dataloader.num_workers == 0
        recipe = chosen.recipe or experiment.recipe
        if id(recipe) not in bare:
            plain = Experiment(experiment.data, '', recipe, {'x': Variant()}, seeds=1)
            bare[id(recipe)], _ = run_config(plain, 'x', 3, root, tmp_path / 'run')
        without = copy.deepcopy(bare[id(recipe)])
        for path, value in chosen.changes.items():
            path = path.replace('net.', f'{DATA[experiment.data].network}.')
            assert removed(cfg, path) == value
            removed(without, path)
        assert cfg.to_dict() == without.to_dict()


def small_images(root, monkeypatch):
    """CIFAR-10 with three images of each class for training, one for validation and two to test."""
    monkeypatch.setattr('mmlape.research.experiments.small_images.HELD_OUT', 1)
    for part, count in (('train', 4), ('test', 2)):
        for name in CLASSES:
            for number in range(count):
                image(root / part / name / f'{number:04}.jpg', (32, 32))


def removed(cfg: Config, path: str):
    """The value at a path, which is taken out; None if there was none."""
    *parents, last = path.split('.')
    for key in parents:
        cfg = cfg[key]
    return cfg.pop(last, None)


def detections(size, count, random, classes=('cat', 'dog')) -> Result:
    """Random boxes with rectangular masks."""
    height, width = size
    result = Result(np.zeros((height, width, 3), np.uint8), '', classes)
    corners = random.integers(0, [width - 8, height - 8], size=(count, 2))
    ends = np.minimum(corners + random.integers(4, 20, size=(count, 2)), [width, height])
    result.boxes = np.concatenate([corners, ends], axis=1).astype(np.float32)
    result.scores = np.sort(random.random(count).astype(np.float32))[::-1]
    result.labels = random.integers(0, 2, count)
    result.crops = [
        MaskCrop.of(np.ones((y2 - y1, x2 - x1), bool), x1, y1)
        for x1, y1, x2, y2 in result.boxes.astype(int).tolist()
    ]
    return result


def test_average_precision_of_a_sample_is_that_of_images_written_twice(tmp_path):
    """Truth and predictions of 5 images with odd ids in another order; against COCOeval on a file with copies."""
    random = np.random.default_rng(0)
    size, order = (37, 53), [9, 2, 30, 7, 4]
    sample = np.array([3, 3, 0, 1, 3])
    seen = [
        (detections(size, 6, random), detections(size, 30 if number != 7 else 0, random))
        for number in order
    ]
    for (truth, found), number in zip(seen, order, strict=True):
        truth.name = found.name = f'{number}.jpg'
        for mine, right in zip(range(0, len(found), 4), range(6), strict=False):  # some are right
            found.boxes[mine], found.labels[mine] = truth.boxes[right], truth.labels[right]
            found.crops[mine] = truth.crops[right]

    def file(copies, name):
        content = dict(
            images=[], annotations=[], categories=[dict(id=5, name='dog'), dict(id=8, name='cat')]
        )
        for new, place in copies:
            truth, height, width = seen[place][0], *size
            content['images'].append(
                dict(id=new, file_name=f'{new}.jpg', height=height, width=width)
            )
            for entry in scores._coco_entries(truth, new, dict(dog=5, cat=8)):
                area = entry['bbox'][2] * entry['bbox'][3]
                number = len(content['annotations']) + 1
                content['annotations'].append(dict(entry, id=number, area=area, iscrowd=0))
        (tmp_path / name).write_text(json.dumps(content))
        return COCO(tmp_path / name)

    with redirect_stdout(io.StringIO()):
        truth = file([(number, place) for place, number in enumerate(order)], 'all.json')
        copied = file([(100 + new, place) for new, place in enumerate(sample)], 'copies.json')
    found = [
        e
        for n, (_, r) in zip(order, seen, strict=True)
        for e in scores._coco_entries(r, n, dict(dog=5, cat=8))
    ]
    copies = [
        e for new, place in enumerate(sample)
        for e in scores._coco_entries(seen[place][1], 100 + new, dict(dog=5, cat=8))
    ]  # fmt: skip
    for kind in ('bbox', 'segm'):
        figures, again = scores._average_precision(truth, found, order, kind)
        assert figures['AP'] == pytest.approx(expected(truth, found, kind)) and figures['AP'] > 0.1
        assert again(np.arange(5)) == figures['AP']
        assert again(sample) == pytest.approx(expected(copied, copies, kind))
    part = find_part(tmp_path / 'all.json')
    metrics, sampled = scores._boxes(seen, part, np.stack([sample, np.arange(5)]))
    assert set(sampled) == {'box AP', 'mask AP', 'DSB AP'}
    for name, values in sampled.items():
        assert values[1] == pytest.approx(metrics[name])
    assert metrics['mask AP50'] >= metrics['mask AP']


def find_part(path: Path):
    return type('Part', (), dict(ann_file=str(path), images=''))


def expected(truth, found, kind) -> float:
    with redirect_stdout(io.StringIO()):
        plain = [
            {k: v for k, v in e.items() if k != 'segmentation' or kind == 'segm'} for e in found
        ]
        evaluation = COCOeval(truth, truth.loadRes(plain), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[0]


def test_a_detector_that_finds_nothing_scores_zero(tmp_path):
    coco(tmp_path / 'a.json', names(2), masks=True)
    empty = [
        (detections((24, 40), 0, np.random.default_rng(0)) for _ in range(2)) for _ in range(2)
    ]
    seen = [tuple(pair) for pair in empty]
    for number, pair in enumerate(seen):
        for each in pair:
            each.name = f'{number}.jpg'
    metrics, _ = scores._boxes(seen, find_part(tmp_path / 'a.json'), np.zeros((1, 2), int))
    assert metrics['box AP'] == metrics['mask AP'] == 0
    seen[0][0].crops = None  # as a truth without objects has it: the second image decides
    assert (
        'mask AP' in scores._boxes(seen, find_part(tmp_path / 'a.json'), np.zeros((1, 2), int))[0]
    )


def masks(*rectangles, score=1.0) -> Result:
    """Rectangles ``(left, top, right, bottom)`` in an image of 10 x 20, the best first."""
    result = Result(np.zeros((10, 20, 3), np.uint8), '', ['a'])
    result.boxes = np.array(rectangles, np.float32).reshape(-1, 4)
    result.scores = np.full(len(rectangles), score, np.float32)
    result.crops = [MaskCrop.of(np.ones((d - b, c - a), bool), a, b) for a, b, c, d in rectangles]
    return result


def test_the_data_science_bowls_measure_by_hand():
    truth = masks((0, 0, 5, 10), (10, 0, 20, 10))
    # The first has IoU 0.8, the second is cut to 70 of 100 pixels by a better one that hits nothing.
    found = masks((0, 0, 4, 10), (17, 0, 20, 10), (10, 0, 20, 10))
    by_threshold = scores._bowl(truth, found)
    assert by_threshold.tolist() == pytest.approx([2 / 3] * 4 + [1 / 4] * 2 + [0] * 4)
    assert (scores._bowl(truth, masks((0, 0, 5, 10), score=0.4)) == 0).all()
    assert (scores._bowl(masks(), masks()) == 1).all() and (scores._bowl(masks(), found) == 0).all()


def test_mean_iou_counts_classes_that_occur_and_leaves_ignored_pixels_out():
    def result(values):
        return Result(
            np.zeros((2, 3, 3), np.uint8), '', 'abc', label_map=np.array(values, np.uint8)
        )

    seen = [
        (result([[0, 0, 1], [255, 1, 1]]), result([[0, 1, 1], [2, 1, 1]])),
        (result([[0, 0, 0], [0, 0, 0]]), result([[2, 0, 0], [0, 0, 0]])),
    ]
    metrics, sampled = scores._label_maps(seen, np.array([[0, 0], [1, 1]]))
    assert metrics['mIoU'] == pytest.approx((6 / 8 + 3 / 4 + 0) / 3)
    assert metrics['pixel accuracy'] == pytest.approx(9 / 11)
    assert sampled['mIoU'] == pytest.approx([(1 / 2 + 3 / 4) / 2, (5 / 6 + 0) / 2])


def record(variant, seed, value, sampled=None):
    lists = [value] * 4 if sampled is None else sampled
    measures = ['mIoU', *(f'mIoU, {view}' for view in EXPERIMENT.views)]
    return dict(
        variant=variant, seed=seed, settings=evidence.settings_of(EXPERIMENT, variant), images=3,
        metrics=dict.fromkeys(measures, value), sampled=dict.fromkeys(measures, lists),
        step_seconds=0.1, parameters=10**6, saved_megabytes=20.0, processor_seconds=60, machine='here',
    )  # fmt: skip


def test_records_come_one_by_one_and_what_has_one_is_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(plan.EXPERIMENTS, 'tiny', EXPERIMENT)
    ran = []

    def run_jobs(function, jobs, workers):
        for number, job in enumerate(jobs):
            ran.append((job.variant, job.seed))
            assert job.folder.name == f'{job.variant}_seed{job.seed}_{job.settings[:6]}'
            if len(ran) == 3:
                raise KeyboardInterrupt
            yield Report('result', number, record(job.variant, job.seed, 50.0 + len(ran)))

    monkeypatch.setattr(study, 'run_jobs', run_jobs)
    cfg = Config(dict(model=dict(backbone={})))
    monkeypatch.setattr(evidence, 'run_config', lambda *_: (cfg, None))

    def run(**changes):
        usual = dict(name='tiny', only=None, seeds=None, workers=1, data=tmp_path, evaluate=None)
        modes = dict(list=False, table=False, write_docs=False)
        places = dict(records=tmp_path, work_dir=tmp_path)
        evidence.run_experiment(Namespace(**{**usual, **modes, **places, **changes}), tmp_path)
        return capsys.readouterr().out

    with pytest.raises(KeyboardInterrupt):
        run()
    assert ran == [('no', 0), ('LaPE', 0), ('no', 1)]
    ran[:] = [0] * 9
    out = run()
    assert ran[9:] == [('no', 1), ('LaPE', 1)] and '2 of 4 runs are to be done' in out
    assert 'about 0:00 for the other 1\n' in out and 'for the other 0' not in out
    assert '| LaPE | 56.50 ± 6.36 | 1.00 | 20 |' in out and '| LaPE | mIoU | +1.00 |' in out
    table = run(table=True)
    assert out.endswith(table) and 'Seeds 0, 1; 3 validation images' in table
    stored = json.loads((tmp_path / 'evidence_tiny.json').read_text())
    assert [(each['seed'], each['variant']) for each in stored] == [
        (0, 'LaPE'),
        (0, 'no'),
        (1, 'LaPE'),
        (1, 'no'),
    ]
    docs = tmp_path / 'docs'
    (docs / 'images').mkdir(parents=True)
    marks = '<!-- tiny: written by the command -->', '<!-- end of tiny -->'
    for page in ('evidence.md', 'fine_tuning.md'):
        (docs / page).write_text('\n'.join(['# Evidence', *marks, 'and more']))
    with pytest.raises(ValueError, match='no record, so the pages stay as they are'):
        write_pages(docs, docs)
    run(table=True, write_docs=True)
    for page in ('evidence.md', 'fine_tuning.md'):
        text = (docs / page).read_text()
        assert '| no | 55.50 ± 6.36 |' in text and text.endswith('and more')
    assert Image.open(docs / 'images/evidence-differences.png').width > 500
    cfg.model.backbone.init_cfg = dict(
        type='mmlape.Pretrained', source='mmlape', checkpoint='x.pth'
    )
    with pytest.raises(ValueError, match=r"there is no checkpoint 'x\.pth'"):
        run()


def test_pages_say_what_the_records_say():
    pages = [(REPO / 'docs' / name).read_text() for name in ('evidence.md', 'fine_tuning.md')]
    for name, experiment in plan.EXPERIMENTS.items():
        start, end = f'<!-- {name}: written by the command -->', f'<!-- end of {name} -->'
        path = REPO / f'benchmarks/records/evidence_{name}.json'
        runs = evidence.current_runs(path, experiment)
        assert len(runs) == len(evidence.read_runs(path))
        assert runs
        table = statistics.markdown(experiment, runs)
        for page in pages:
            assert start not in page or replace_table(page, table, start, end) == page
    table = differences_table(REPO / 'benchmarks/records')
    assert replace_table(pages[0], table, *MARKS) == pages[0]


def test_kinds_of_images_are_columns_where_nothing_is_compared():
    experiment = plan.EXPERIMENTS['nuclei-kinds']
    runs = evidence.current_runs(REPO / 'benchmarks/records/evidence_nuclei-kinds.json', experiment)
    head, _, row, *_ = statistics.markdown(experiment, runs).splitlines()
    assert head.startswith(
        '| variant | mask AP | mask AP, dark | mask AP, coloured | mask AP, inverted | parameters'
    )
    assert row.startswith('| samples | 45.97 | 49.05 | 9.70 | 1.07 | 2.28 |')


def test_records_of_other_settings_are_not_shown(tmp_path):
    path, experiment = tmp_path / 'a.json', plan.EXPERIMENTS['cifar10']
    settings = {name: evidence.settings_of(experiment, name) for name in experiment.variants}
    runs = [dict(variant=name, settings=each) for name, each in settings.items()]
    path.write_text(
        json.dumps([*runs, dict(variant='LaPE', settings='x'), dict(variant='gone', settings='y')])
    )
    assert evidence.current_runs(path, experiment) == runs


def test_limit_and_interval_by_hand():
    """Gaps of 1, 2 and 6 points, images that are alike: the interval is of the means of three drawn seeds."""

    def runs(**values):
        return [
            dict(seed=seed, metrics=dict(mIoU=value), sampled=dict(mIoU=[value] * 7))
            for seed, value in values.items()
        ]

    # Paired by seed, whatever their order; one seed is of the variant alone.
    ones, base = runs(c=58.0, a=51.0, d=0.0, b=53.0), runs(a=50.0, b=51.0, c=52.0)
    found = statistics.difference(ones, base, 'mIoU', 4)
    # s = sqrt(7); t(1 - 0.0125 / 2, 2) = 8.860
    assert found.mean == pytest.approx(3) and found.limit == pytest.approx(
        8.860 * (7 / 3) ** 0.5, rel=1e-3
    )
    assert (found.low, found.high) == (1.0, 6.0)  # all of one seed has a probability of 1 / 27
    assert found.better == pytest.approx(7.5 / 9) and found.seeds == 3
    with pytest.raises(ValueError, match='share 1 of the two seeds'):
        statistics.difference(runs(a=0.0, d=0.0), base, 'mIoU', 1)


def test_runs_of_another_experiment_are_shared_if_it_has_all_views(tmp_path, monkeypatch):
    variants = {'plain': Variant(DEFAULT), 'Gabor': Variant({'net.position': 'Gabor'})}
    other = Experiment('camvid', '', TINY, variants, 'plain', 2, None, ('2x',))
    monkeypatch.setitem(plan.EXPERIMENTS, 'tiny', EXPERIMENT)
    monkeypatch.setitem(plan.EXPERIMENTS, 'other', other)
    runs = [record('no', 0, 40.0), record('LaPE', 0, 50.0), record('no', 7, 60.0)]
    (tmp_path / 'evidence_tiny.json').write_text(json.dumps(runs))

    def shared(name, experiment):
        jobs = [
            evidence.Job(
                name, variant, seed, tmp_path, tmp_path, evidence.settings_of(experiment, variant)
            )
            for seed in range(2)
            for variant in experiment.variants
        ]
        return evidence._with_shared(jobs, tmp_path / f'evidence_{name}.json')

    assert shared('other', other) == [{**runs[0], 'variant': 'plain'}]
    (written := tmp_path / 'evidence_other.json').write_text(
        json.dumps([{**runs[0], 'variant': 'plain', 'settings': 'of before'}])
    )
    assert (
        shared('other', other) == evidence.read_runs(written) == [{**runs[0], 'variant': 'plain'}]
    )
    written.unlink()
    assert shared('tiny', EXPERIMENT) == runs
    more = dataclasses.replace(other, views=('4x',))
    monkeypatch.setitem(plan.EXPERIMENTS, 'other', more)
    assert shared('other', more) == []
    (tmp_path / 'evidence_other.json').write_text(json.dumps([{**runs[0], 'variant': 'plain'}]))
    assert len(shared('other', more)) == 1


def test_a_share_of_the_training_images_is_drawn_by_the_seed(tmp_path, monkeypatch):
    small_images(root := tmp_path / 'data', monkeypatch)
    experiment = plan.EXPERIMENTS['cifar10-30percent']
    chosen = {
        (variant, seed): run_config(experiment, variant, seed, root, tmp_path)[0]
        for variant, seed in (('default', 0), ('LaPE', 0), ('LaPE', 1))
    }
    of = {key: cfg.train_dataloader.dataset.indices for key, cfg in chosen.items()}
    assert of['default', 0] == of['LaPE', 0] != of['LaPE', 1] and len(of['LaPE', 1]) == 9
    assert 'indices' not in chosen['LaPE', 0].test_dataloader.dataset


def test_images_by_their_kind(tmp_path, monkeypatch):
    """A dark, a bright and a coloured image; the others are seen three times, and inverted is only the dark one."""
    root = tmp_path / 'data'
    for part in ('train', 'val'):
        coco(root / f'{part}.json', names(3), masks=True)
        for number, colour in enumerate(((20, 20, 20), (200, 200, 200), (200, 100, 180))):
            Image.new('RGB', SIZE, colour).save(make(root / part) / f'{number}.jpg')
    recipe = Recipe('micro-adapter', dict(epochs=1, size=64, rare_kinds=3))
    experiment = Experiment('nuclei', '', recipe, {'no': Variant(DEFAULT)}, seeds=1)
    cfg, data = run_config(experiment, 'no', 0, root, tmp_path / 'run')
    dataset = DATASETS.build(kinds.with_rare_kinds(cfg.train_dataloader.dataset, 3))
    seen = [Path(dataset.get_data_info(i)['img_path']).stem for i in range(len(dataset))]
    assert sorted(seen) == [*'0', *'111', *'222']
    dark = {**cfg.train_dataloader.dataset, 'indices': [0]}
    with pytest.raises(ValueError, match='all 1 training images are dark'):
        kinds.with_rare_kinds(dark, 3)
    pictures = [SimpleNamespace(name=path.name, image=read_picture(path))
                for path in sorted((root / 'val').iterdir())]  # fmt: skip
    monkeypatch.setattr(scores, 'truths', lambda *_: pictures)
    model = SimpleNamespace(predict=lambda image, score: [image])
    pairs = [(view, truth.name, found.mean()) for view in kinds.KINDS
             for truth, found in scores._seen(model, data, data.val, view)]  # fmt: skip
    assert [pair[:2] for pair in pairs] == [
        ('dark', '0.jpg'), ('coloured', '2.jpg'), ('inverted', '0.jpg'),
    ]  # fmt: skip
    assert [round(pair[2]) for pair in pairs] == [20, 160, 235]
    del pictures[2]
    with pytest.raises(ValueError, match="has no image for the view 'coloured'"):
        scores.score(model, data, data.val, 'coloured')


def test_a_network_starts_with_the_classifier_of_its_seed(tmp_path, maps, monkeypatch):
    small_images(root := tmp_path / 'cifar', monkeypatch)
    options = dict(only=None, seeds=1, workers=1, evaluate=None, write_docs=False, table=False)
    places = dict(data=maps, records=tmp_path, work_dir=tmp_path)
    with pytest.raises(ValueError, match='run `mmlape experiment cifar10-pretraining` first'):
        evidence.run_experiment(Namespace(name='camvid-transfer', **options, **places), tmp_path)
    jobs = {}
    for variant in plan.EXPERIMENTS[PRETRAINING].variants:
        job = jobs[variant] = evidence.job_of(PRETRAINING, variant, 3, root, tmp_path)
        cfg, _ = run_config(plan.EXPERIMENTS[PRETRAINING], variant, 3, root, job.folder)
        init_default_scope(cfg.default_scope)
        (classifier := MODELS.build(cfg.model)).init_weights()
        save_checkpoint(dict(state_dict=classifier.state_dict()), str(evidence.checkpoint_of(job)))
    for variant in plan.EXPERIMENTS['camvid-transfer'].variants:
        job = evidence.job_of('camvid-transfer', variant, 3, maps, tmp_path)
        cfg, _ = run_config(plan.EXPERIMENTS['camvid-transfer'], variant, 3, maps, job.folder)
        evidence.start_from_weights(cfg, job)
        (backbone := MODELS.build(cfg.model.backbone)).init_weights()
        weights = jobs['LaPE' if variant == 'LaPE' else 'default']
        state = torch.load(evidence.checkpoint_of(weights))['state_dict']
        own = backbone.vit.state_dict()
        taken = [name for name in own if f'backbone.{name}' in state]
        assert [name for name in own if name not in taken] == [
            name
            for name in own
            if variant == 'LaPE from default' and name.startswith('position.joining.')
        ]
        assert all(torch.equal(own[name], state[f'backbone.{name}']) for name in taken)

    # What others start from is trained again where it is lost, although its record is there.
    records = [dict(variant=job.variant, seed=3, settings=job.settings) for job in jobs.values()]
    (path := tmp_path / f'evidence_{PRETRAINING}.json').write_text(json.dumps(records))
    evidence.checkpoint_of(jobs['LaPE']).unlink()
    left = []
    monkeypatch.setattr(evidence, 'finished_jobs', lambda do, jobs, *_: left.extend(jobs) or ())
    evidence._run_missing([*jobs.values()], path, 1)
    assert left == [jobs['LaPE']]

    # What has its record needs no weights.
    transferred = plan.EXPERIMENTS['camvid-transfer'].variants
    done = [evidence.job_of('camvid-transfer', name, 0, maps, tmp_path) for name in transferred]
    records = [dict(variant=job.variant, seed=0, settings=job.settings) for job in done]
    path.with_name('evidence_camvid-transfer.json').write_text(json.dumps(records))
    evidence._run_missing(done, path.with_name('evidence_camvid-transfer.json'), 1)
    assert left == [jobs['LaPE']]


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize(
    ('task', 'name', 'words'),
    [('detect', 'nucleus', 'boxes of nucleus'), ('segment', 'cell', 'label maps of cell')],
)
def test_a_checkpoint_that_answers_something_else(task, name, words, monkeypatch):
    model = SimpleNamespace(finds_boxes=True, classes=('cell',))
    monkeypatch.setattr(evidence, 'Model', lambda *_: model)
    data = SimpleNamespace(task=task, classes=[name])
    with pytest.raises(ValueError, match=f'a.pth finds boxes of cell; the data have {words}'):
        evidence._scored(Path('a.pth'), None, data, None)


@pytest.mark.slow
def test_a_run_is_trained_scored_and_evaluated_again_by_the_command(
    tmp_path, maps, monkeypatch, capsys
):
    monkeypatch.setitem(plan.EXPERIMENTS, 'tiny', EXPERIMENT)
    job = evidence.Job('tiny', 'LaPE', 1, maps, tmp_path / 'run', 's')
    monkeypatch.setattr(evidence, 'CORRUPTIONS', CORRUPTIONS[:2])
    found = evidence.do(job, None)
    assert capsys.readouterr() == ('', '')  # all goes to the log
    assert found['images'] == 3 and found['epochs'] == 1 and found['step_seconds'] > 0
    assert found['saved_megabytes'] > 1  # of four crops
    assert len(found['sampled']['mIoU']) == scores.SAMPLES and 0 < found['metrics']['mIoU'] < 100
    for view in EXPERIMENT.views:
        assert (
            found['metrics'][f'mIoU, {view}'] > 0 and len(found['sampled'][f'mIoU, {view}']) == 400
        )
    seen = []
    monkeypatch.setattr(scores, 'corrupt', lambda image, *what: seen.append(what) or image)
    again = evidence.do(job, None)  # the training is over: it is only scored
    cfg, _ = run_config(EXPERIMENT, 'LaPE', 1, maps, tmp_path / 'run')
    sizes = [resize_of(each) for each in (rescaled(cfg, 0.5), rescaled(cfg, 2), cfg)]
    assert sizes == [(64, 16), (256, 64), (128, 32)]
    assert [name for name, *_ in seen] == list(CORRUPTIONS[:2])  # of the first of three images
    assert again['metrics'].pop('mIoU, corrupted') != found['metrics'].pop('mIoU, corrupted')
    for key in ('metrics', 'config', 'parameters'):
        assert found[key] == again[key]
    assert again['processor_seconds'] >= found['processor_seconds']
    call = Commands(tmp_path, monkeypatch, capsys)
    arguments = ('tiny', '--data', maps, '--evaluate', tmp_path / 'run/training/epoch_1.pth')
    out = call('experiment.py', *arguments)
    assert f'mIoU             {found["metrics"]["mIoU"]:.2f}' in out and '3 images' in out
    assert '2 images of ' in call('experiment.py', *arguments, '--part', 'test')
    missing = call.refused('experiment.py', *arguments, '--part', 'other')
    assert missing.startswith('error: --part other: ') and missing.endswith('does not exist')


def resize_of(cfg):
    steps = cfg.test_dataloader.dataset.pipeline
    return next(step.scale for step in steps if step.type == 'Resize')


@pytest.mark.slow
def test_a_classifier_is_trained_and_scored(tmp_path, monkeypatch, capsys):
    first = plan.STEPS['cifar10']['small']
    recipe = dataclasses.replace(first, options=dict(first.options, epochs=1))
    views = ('0.5x', 'corrupted')
    experiment = Experiment('cifar10', '', recipe, {'LaPE': Variant(LAPE)}, seeds=1, views=views)
    monkeypatch.setitem(plan.EXPERIMENTS, 'tiny', experiment)
    small_images(root := tmp_path / 'data', monkeypatch)
    job = evidence.Job('tiny', 'LaPE', 1, root, tmp_path / 'run', 's')
    found = evidence.do(job, None)
    assert found['images'] == 10 and len(found['sampled']['accuracy']) == scores.SAMPLES
    assert list(found["metrics"]) == [
        'accuracy',
        'accuracy, 0.5x',
        'accuracy, corrupted',
    ]
    assert 0.2e6 < found['parameters'] < 0.3e6
    call = Commands(tmp_path, monkeypatch, capsys)
    checkpoint = tmp_path / 'run/training/epoch_1.pth'
    arguments = ('tiny', '--data', root, '--trust', '--evaluate', checkpoint)
    assert f'{found["metrics"]["accuracy"]:.2f}' in call('experiment.py', *arguments)
    assert '20 images of ' in call('experiment.py', *arguments, '--part', 'test')
    (root / 'train/ship/0003.jpg').rename(root / 'train/0.jpg')
    (root / 'train/ship/0002.jpg').rename(root / 'train/1.jpg')
    (root / 'train/ship/0001.jpg').rename(root / 'train/2.jpg')
    with pytest.raises(ValueError, match='train/ship has 1 images'):
        run_config(experiment, 'LaPE', 0, root, tmp_path / 'run')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['x'], "there is no experiment 'x'"),
        ([], 'name an experiment, or give --list'),
        (['camvid-recipe', '--data', 'nowhere'], "there is no folder 'nowhere'"),
        (['camvid-recipe', '--seeds', '0'], '--seeds: must be at least 1, got 0'),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    records = ['--records', str(tmp_path)] if arguments else []
    assert message in Commands(tmp_path, monkeypatch, capsys).refused(
        'experiment.py', *arguments, *records
    )


def test_parts_beside_the_validation_part(maps, tmp_path):
    root = tmp_path / 'valerie/camvid'  # a folder above the data whose name begins like the part
    shutil.copytree(maps, root)
    data = find_data(root, tmp_path, classes=DATA['camvid'].classes)
    part = scores.part_named(data, 'test', root)
    assert part.images == str(root / 'images/test')
    assert part.label_maps == str(root / 'annotations/test')

"""Which data a config is tested on, and the folders of ImageNet-C and ImageNet-R."""

from pathlib import Path

import pytest
import torch
from config_utils import CONFIGS, use_scope, write_image
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, METRICS

from mmlape.research.robustness import (
    cells_of,
    clean,
    corrupted,
    published,
    renditions,
    synset_labels,
)

FOG = dict(corruption='fog', severity=2, seed=7, channel_order='bgr')
STEP = dict(type='mmlape.CorruptImage', **FOG)
CLASSIFIER = CONFIGS / 'imagenet/deit-t-lape_8xb128_in1k.py'
DETECTOR = CONFIGS / 'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes.py'
SEGMENTER = CONFIGS / 'lape/segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512.py'


def write_synsets(folder: Path) -> Path:
    for name in ('n01440764', 'n01443537', 'n02119789'):
        for suffix in ('jpg', 'JPEG', 'png'):
            write_image(folder / name / f'{suffix}.{suffix}', (40, 40))
    return folder


def types(pipeline) -> list[str]:
    return [step['type'] for step in pipeline]


@pytest.mark.parametrize(
    ('path', 'place'), [(CLASSIFIER, -2), (DETECTOR, 1), (SEGMENTER, 1)], ids=lambda p: str(p)[-30:]
)
def test_where_images_are_corrupted(path, place):
    """Classifiers: what the network sees, as ImageNet-C was made. Others: the image in the file."""
    cfg = Config.fromfile(path)
    before = repr(cfg)
    pipeline = corrupted(cfg, **FOG).dataloader.dataset.pipeline
    assert pipeline[place] == STEP
    assert [step for step in pipeline if step != STEP] == cfg.test_dataloader.dataset.pipeline
    assert repr(cfg) == before


def test_wrapped_and_joined_data_are_corrupted_once_each():
    cfg = Config.fromfile(DETECTOR)
    inner = cfg.test_dataloader.dataset
    joined = ConfigDict(type='ConcatDataset', datasets=[inner, ConfigDict(inner)])
    cfg.test_dataloader.dataset = ConfigDict(type='RepeatDataset', times=1, dataset=joined)
    cfg.test_dataloader.persistent_workers = True
    data = corrupted(cfg, **FOG).dataloader
    for part in data.dataset.dataset.datasets:
        assert types(part.pipeline).count('mmlape.CorruptImage') == 1
    assert data.persistent_workers is False


def test_a_pipeline_without_a_place_is_refused():
    cfg = Config.fromfile(DETECTOR)
    cfg.test_dataloader.dataset.pipeline = [dict(type='PackDetInputs')]
    with pytest.raises(ValueError, match=r"no step LoadImage..., got \['PackDetInputs'\]"):
        corrupted(cfg, **FOG)
    cfg.test_dataloader.dataset = dict(type='Own')
    with pytest.raises(ValueError, match=r'\(Own\) has no pipeline'):
        corrupted(cfg, **FOG)


def test_all_test_sets():
    cells = cells_of(Config.fromfile(DETECTOR), seed=0)
    assert len(cells) == 1 + 15 * 5
    assert [cell.test_set for cell in cells[:2]] == ['clean', 'gaussian_noise/1']
    assert cells[-1].data().dataloader.dataset.pipeline[1]['severity'] == 5
    few = cells_of(Config.fromfile(DETECTOR), ['fog', 'fog'], [3, 3])
    assert [cell.test_set for cell in few] == ['clean', 'fog/3']
    with pytest.raises(ValueError, match='seed must be at least 0, got -1'):
        cells_of(Config.fromfile(DETECTOR), seed=-1)
    with pytest.raises(ValueError, match='there is neither nowhere/fog/3 nor'):
        cells_of(Config.fromfile(DETECTOR), ['fog'], [3], imagenet_c=Path('nowhere'))


def test_the_published_images_are_not_cropped_again(tmp_path):
    cfg = Config.fromfile(CLASSIFIER)
    write_synsets(tmp_path / 'weather/fog/2')
    data = published(cfg, tmp_path, 'fog', 2)
    assert types(data.dataloader.dataset.pipeline) == ['LoadImageFromFile', 'Resize', 'PackInputs']
    assert data.dataloader.dataset.pipeline[1]['scale'] == (224, 224)
    assert data.evaluator == clean(cfg).evaluator
    squashed = Config.fromfile(CLASSIFIER)
    pipeline = squashed.test_dataloader.dataset.pipeline
    pipeline[1] = dict(type='Resize', scale=(248, 248))
    assert types(published(squashed, tmp_path, 'fog', 2).dataloader.dataset.pipeline) == types(
        data.dataloader.dataset.pipeline
    )
    use_scope('mmpretrain')
    dataset = DATASETS.build(data.dataloader.dataset)
    assert len(dataset) == 9 and dataset.metainfo['labels'] == [0, 1, 278]
    assert dataset[8]['inputs'].shape == (3, 224, 224)
    assert dataset[8]['data_samples'].gt_label.tolist() == [278]
    large = Config.fromfile(CLASSIFIER)
    for crop in ([dict(type='CenterCrop', crop_size=384)], []):  # by the crop, else by the size
        large.test_dataloader.dataset.pipeline[1:-1] = [
            dict(type='Resize', scale=(384, 384)), *crop,
        ]  # fmt: skip
        step = published(large, tmp_path, 'fog', 2).dataloader.dataset.pipeline[1]
        assert step['scale'] == (384, 384)
    with pytest.raises(ValueError, match=r'neither .*fog/3 nor .*weather/fog/3'):
        published(cfg, tmp_path, 'fog', 3)
    with pytest.raises(ValueError, match=r"--imagenet-c is for classifiers .*'mmdet'"):
        published(Config.fromfile(DETECTOR), tmp_path, 'fog', 2)


def test_renditions_are_scored_among_their_classes(tmp_path):
    data = renditions(Config.fromfile(CLASSIFIER), write_synsets(tmp_path / 'r'))
    use_scope('mmpretrain')
    dataset = DATASETS.build(data.dataloader.dataset)
    metric = METRICS.build(data.evaluator)
    metric.dataset_meta = dataset.metainfo
    scores = torch.zeros(1000)
    scores[500] = 9  # best of all, and of a class that the data do not have
    scores[278] = 1
    sample = dict(pred_score=scores)
    metric.process({}, [dict(sample, gt_label=torch.tensor([label])) for label in (278, 0)])
    assert metric.evaluate(2) == {'subset/top1': 50.0}
    for count in (10, 278):
        few = dict(pred_score=torch.zeros(count), gt_label=torch.tensor([0]))
        with pytest.raises(ValueError, match=f'labels up to 278, and the classifier {count} class'):
            metric.process({}, [few])
    metric.dataset_meta = {}
    with pytest.raises(ValueError, match='labels'):
        metric.process({}, [])


def test_synsets_have_imagenets_labels():
    labels = synset_labels()
    assert len(labels) == 1000 and sorted(labels.values()) == list(range(1000))
    assert (labels['n01440764'], labels['n02119789'], labels['n15075141']) == (0, 278, 999)


def test_folders_that_are_none(tmp_path):
    (tmp_path / 'animals/cats').mkdir(parents=True)
    (tmp_path / 'empty/n01440764').mkdir(parents=True)
    for name, words in (
        ('nowhere', 'there is no'),
        ('animals', 'not a synset of ImageNet-1k'),
        ('empty', 'holds no'),
    ):
        with pytest.raises(ValueError, match=words):
            DATASETS.build(dict(type='mmlape.SynsetFolder', folder=str(tmp_path / name)))

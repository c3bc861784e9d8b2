"""A head trained on kept features has the losses of one that is trained with the backbone; nothing kept is stale."""

import copy
import pickle
import random
import shutil

import mmdet.models  # noqa: F401
import numpy as np
import pytest
import torch
from config_utils import CLASSES, write_image, write_label_maps
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.registry import DefaultScope
from mmengine.runner import Runner, loops
from mmengine.structures import BaseDataElement
from torch import nn

from mmlape.training import cached_features
from mmlape.training.cached_features import FeatureCache, SeededViews, digest_of

CROP, VIEWS = (48, 80), 3
VIT = dict(
    type='mmlape.VisionTransformer', arch=dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2), img_size=64,
    joining=dict(type='mmlape.LaPE'), norm_cfg=dict(type='mmlape.DTN'), drop_path_rate=0.3, drop_rate=0.2,
    out_indices=[0, 1], frozen_stages=2,
)  # fmt: skip


class Losses(Hook):
    """Of all steps, and how often the backbone has computed before and in them."""

    def __init__(self):
        self.losses, self.passes, self.passes_before = [], 0, 0

    def before_train(self, runner):
        self.passes_before, self.passes = self.passes, 0

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append(outputs['loss'].item())


def segmentor(folder):
    write_label_maps(folder, size=(97, 71))
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations'),
        dict(type='RandomResize', scale=(160, 90), ratio_range=(0.3, 2.0), keep_ratio=True),
        dict(type='RandomCrop', crop_size=CROP, cat_max_ratio=0.75),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'),
        dict(type='PackSegInputs'),
    ]
    data = dict(
        type='BaseSegDataset', data_root=str(folder), metainfo=dict(classes=CLASSES), pipeline=pipeline,
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
    )  # fmt: skip
    model = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(
            type='SegDataPreProcessor', mean=[120.0] * 3, std=[60.0] * 3, bgr_to_rgb=True, size=CROP,
            pad_val=0, seg_pad_val=255,
        ),
        backbone=VIT,
        neck=dict(type='mmlape.MapNorms', in_channels=[24, 24], norm_cfg=dict(type='BN'), drop_rate=0.1),
        decode_head=dict(
            type='FCNHead', in_channels=24, in_index=1, channels=8, num_convs=1, num_classes=3,
            norm_cfg=dict(type='BN'), loss_decode=dict(type='CrossEntropyLoss'),
        ),
    )  # fmt: skip
    return dict(default_scope='mmseg', model=model, data=data)


def train(parts, folder, kept=None, workers=0, steps=20, resume=('ExactResumeHook',), **changes):
    """Train, with features in the folder ``kept``; the losses, and the runner."""
    parts = copy.deepcopy(parts)
    data = parts.pop('data')
    hooks = [dict(type='mmlape.CachedFeaturesHook', folder=str(kept))] if kept else []
    loader = dict(sampler=dict(type='InfiniteSampler'), batch_size=2, num_workers=workers)
    options = dict(
        **parts,
        train_dataloader=dict(
            loader, dataset=dict(type='mmlape.SeededViews', views=VIEWS, dataset=data)
        ),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=steps),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3)),
        custom_hooks=[*hooks, *(dict(type=f'mmlape.{name}') for name in resume)],
        work_dir=str(folder),
        experiment_name=f'{folder.parent.name}_{folder.name}',  # loggers live as long as the process
        randomness=dict(seed=3),
        log_level='WARNING',
    )
    cfg = Config(options)
    cfg.merge_from_dict(changes)
    runner = Runner.from_cfg(cfg)
    losses = Losses()
    block = next(
        part
        for name, part in runner.model.backbone.named_modules()
        if name.endswith(('.0.mlp', '1.0.mlp'))
    )
    block.register_forward_hook(lambda *_: setattr(losses, 'passes', losses.passes + 1))
    runner.register_hook(losses, priority='LOWEST')
    runner.train()
    return losses, runner


def test_same_losses(tmp_path):
    parts = segmentor(tmp_path / 'data')
    plain, ordinary = train(parts, tmp_path / 'plain')
    kept, runner = train(parts, tmp_path / 'kept', tmp_path / 'features', workers=2)
    assert plain.passes == 20 and kept.passes == 0 and kept.passes_before == 4 * VIEWS + 1
    np.testing.assert_allclose(kept.losses, plain.losses, rtol=1e-3)
    assert len({*kept.losses}) == 20
    again, _ = train(parts, tmp_path / 'again', tmp_path / 'features')
    assert again.passes_before == 0 and again.losses == kept.losses
    # After the training, the backbone computes as before, and checkpoints are ordinary.
    assert 'forward' not in vars(runner.model.backbone) and not runner.model._forward_pre_hooks
    assert runner.model.state_dict().keys() == ordinary.model.state_dict().keys()


def test_workers_that_were_started_before_the_cache(tmp_path, monkeypatch):
    """By MMEngine 0.10's loop, when it is built; no other hook makes its iterator anew."""
    iterator, begin = loops._InfiniteDataloaderIterator, loops._InfiniteDataloaderIterator.__init__

    def started(self, dataloader):
        begin(self, dataloader)
        self._iterator = iter(dataloader)

    monkeypatch.setattr(iterator, '__init__', started)
    kept, _ = train(segmentor(tmp_path), tmp_path / 'kept', tmp_path / 'features', 2, 3, resume=())
    assert kept.passes == 0 < kept.passes_before


def test_killed_while_it_computes(tmp_path, monkeypatch):
    parts, write = segmentor(tmp_path / 'data'), FeatureCache.write

    def stop(cache, view, *rest):
        if view == 7:
            raise KeyboardInterrupt
        write(cache, view, *rest)

    monkeypatch.setattr(FeatureCache, 'write', stop)
    with pytest.raises(KeyboardInterrupt):
        train(parts, tmp_path / 'one', tmp_path / 'features', steps=2)
    monkeypatch.undo()
    losses, _ = train(parts, tmp_path / 'two', tmp_path / 'features', steps=2)
    assert losses.passes_before == 4 * VIEWS - 7


def test_processes_share_the_work(tmp_path, monkeypatch):
    """The first makes the files; each computes every second view that is missing."""
    parts, kept = segmentor(tmp_path / 'data'), tmp_path / 'features'
    monkeypatch.setattr(cached_features, 'get_dist_info', lambda: (1, 2))
    with pytest.raises(FileNotFoundError, match=r'inputs\.npy'):
        train(parts, tmp_path / 'early', kept)
    for rank, left in ((0, [*range(1, 4 * VIEWS, 2)]), (1, [1, 5, 9])):
        monkeypatch.setattr(cached_features, 'get_dist_info', lambda rank=rank: (rank, 2))
        with pytest.raises(ValueError, match='was made of another image'):
            train(parts, tmp_path / f'rank{rank}', kept)
        (folder,) = kept.iterdir()
        assert FeatureCache(folder).missing() == left
    monkeypatch.undo()
    losses, _ = train(parts, tmp_path / 'alone', kept, steps=2)
    assert losses.passes_before == len(left) and len(losses.losses) == 2


def test_nothing_is_stale(tmp_path):
    parts, kept = segmentor(tmp_path / 'data'), tmp_path / 'features'
    train(parts, tmp_path / 'one', kept, steps=2)
    assert len([*kept.iterdir()]) == 1
    # Another weight, another backbone, other transforms: other folders.
    train(parts, tmp_path / 'two', kept, steps=2, **{'randomness.seed': 4})
    for number, changes in enumerate(
        (
            {'model.data_preprocessor.mean': [0.0] * 3},
            {'model.backbone.out_indices': [1, 0]},
            {'train_dataloader.dataset.seed': 1},
        )
    ):
        train(parts, tmp_path / f'other{number}', kept, steps=1, **changes)
        assert len([*kept.iterdir()]) == 3 + number
    # Another image: an error.
    write_image(tmp_path / 'data/images/train/0.jpg', (97, 71), 99)
    with pytest.raises(ValueError, match='was made of another image or by other transforms'):
        train(parts, tmp_path / 'four', kept, steps=12)


class Numbers(BaseDataset):
    """Samples are random numbers."""

    def load_data_list(self):
        return [{}, {}]

    def prepare_data(self, idx):
        return random_numbers()


def random_numbers():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_views_depend_on_seed_image_and_view_and_random_numbers_go_on():
    def seed():
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    def views(**options):
        data = SeededViews(Numbers(), views=2, **options)
        return [data[view] for view in range(len(data))]

    seed()
    wanted = [random_numbers(), random_numbers()]
    seed()
    first, found = random_numbers(), views()
    assert [first, random_numbers()] == wanted and found == views()
    assert len({*found, *views(seed=1)}) == 8
    assert all(len({*numbers}) == 8 for numbers in zip(*found, *views(seed=1), strict=True))


def test_more_than_ten_maps_keep_their_order(tmp_path):
    cache = FeatureCache(tmp_path)
    maps = [torch.full((1, 1, number + 1), float(number)).half() for number in range(12)]
    cache.make(2, [each.shape for each in maps])
    inputs = torch.zeros(3, 4, 5, dtype=torch.uint8)
    cache.write(1, digest_of(inputs), maps)
    assert cache.missing() == [0]
    assert all(map(torch.equal, cache.read(1, inputs), maps))
    # Data workers that are not forked get the cache by pickle: its folder, not what is in it.
    assert pickle.loads(pickle.dumps(cache)).missing() == [0] and len(pickle.dumps(cache)) < 500


def test_annotations_may_be_loaded_later(tmp_path):
    with DefaultScope.overwrite_default_scope('mmseg'):
        import mmseg.datasets  # noqa: F401

        data = dict(segmentor(tmp_path)['data'], lazy_init=True)
        views = SeededViews(data, views=2, lazy_init=True)
    assert not views._fully_initialized
    assert views[5]['inputs'].shape == (3, *CROP) and len(views) == 8


def test_nan_in_any_map(tmp_path):
    parts = segmentor(tmp_path / 'data')

    class Broken(Hook):
        def before_run(self, runner):
            runner.model.backbone.blocks[1].register_forward_hook(
                lambda module, inputs, output: output * float('nan')
            )

    with pytest.raises(ValueError, match='is NaN, or too large for float16'):
        train(parts, tmp_path / 'run', tmp_path / 'features', custom_hooks=[
            dict(type=Broken), dict(type='mmlape.CachedFeaturesHook', folder=str(tmp_path / 'f')),
        ])  # fmt: skip


AUGMENTED = dict(
    _delete_=True, type='mmdet.DetDataPreprocessor', batch_augments=[dict(type='ReLU')]
)


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'model.backbone.frozen_stages': 1}, 'this VisionTransformer trains '),
        ({'model.backbone.lora': dict(rank=2), 'model.backbone.frozen_stages': -1}, 'trains .*lora_A'),
        ({'model.data_preprocessor': AUGMENTED}, 'BatchFixedSizePad, got ReLU'),
        ({'train_dataloader.dataset.type': 'RepeatDataset'}, "needs .*'mmlape.SeededViews', got RepeatDataset"),
    ],
)  # fmt: skip
def test_refused(changes, words, tmp_path):
    parts = segmentor(tmp_path / 'data')
    if 'train_dataloader.dataset.type' in changes:
        changes['train_dataloader.dataset'] = dict(
            _delete_=True, type='RepeatDataset', times=2, dataset=parts['data']
        )
        del changes['train_dataloader.dataset.type']
    with pytest.raises(ValueError, match=words):
        train(parts, tmp_path / 'run', tmp_path / 'features', **changes)


def test_sizes_that_change(tmp_path):
    parts = segmentor(tmp_path / 'data')
    parts['data']['pipeline'] = [
        step for step in parts['data']['pipeline'] if step['type'] != 'RandomCrop'
    ]
    parts['model']['data_preprocessor'].update(size=None, size_divisor=32)
    with pytest.raises(ValueError, match='need views of one size, got maps'):
        train(parts, tmp_path / 'one', tmp_path / 'features')


def test_several_machines(tmp_path, monkeypatch):
    parts = segmentor(tmp_path / 'data')
    monkeypatch.setattr(cached_features, 'all_gather_object', lambda name: [name, 'other'])
    with pytest.raises(ValueError, match='processes of one machine, got 2'):
        train(parts, tmp_path / 'run', tmp_path / 'features')


def test_a_small_disk(tmp_path, monkeypatch):
    parts, usage = segmentor(tmp_path / 'data'), shutil.disk_usage
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage(path)._replace(free=18000))
    # 12 views of two maps (24, 3, 5) in float16 are 17280 bytes, and 95 % are used at most.
    with pytest.raises(ValueError, match=r'need 0\.00 GB, 0\.00 GB are free'):
        train(parts, tmp_path / 'one', tmp_path / 'features')


def test_a_batch_without_features_is_computed():
    replay = cached_features._Replay(lambda images: 'computed')
    sample = BaseDataElement(features=[torch.ones(2, 3, 4).half()])
    for samples, computed in (([sample, sample], False), ([BaseDataElement()], True), ([], True)):
        replay.before(nn.Linear(1, 1), (), dict(data_samples=samples))
        found = replay.forward(torch.zeros(2, 3, 8, 8))
        assert found == 'computed' if computed else found[0].shape == (2, 2, 3, 4)


def test_layers_in_training_mode():
    with pytest.raises(ValueError, match=r'this Sequential has in training mode 0$'):
        cached_features._check_frozen(nn.Sequential(nn.Dropout(), nn.Identity().eval()))

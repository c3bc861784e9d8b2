"""What the options of training and testing do to a config."""

import argparse
import inspect
import json
from pathlib import Path

import pytest
from mmdet.datasets.transforms import PackDetInputs
from mmdet.evaluation import CocoMetric
from mmengine.config import Config
from mmengine.optim import OptimWrapper

from mmlape.cli import (
    add_common_options,
    config_of,
    enable_amp,
    enable_lr_scaling,
    first_images,
    keep_predictions,
    options,
    show_predictions,
    use_tta,
)
from mmlape.cli.options import check_indices
from mmlape.shipped import find_config
from mmlape.training import CheckWeightsHook, ResumeCheckHook, check_config, existing_checkpoint
from mmlape.training.check_data import config_values
from mmlape.training.processes import set_resume

DEMO = 'segmenter_vit-micro-adapter-lape_mask_digit-scenes'


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_common_options(parser)
    return parser.parse_args(arguments)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'LOCAL_RANK'):
        monkeypatch.delenv(name, raising=False)


def test_work_dir_launcher_and_overrides(monkeypatch):
    cfg = config_of(parsed(DEMO, '--cfg-options', 'train_cfg.max_iters=3', 'env_cfg.b=[1,2]'))
    assert cfg.work_dir == f'work_dirs/{DEMO}'
    assert (cfg.launcher, cfg.train_cfg.max_iters, cfg.env_cfg.b) == ('none', 3, [1, 2])
    assert config_of(parsed(DEMO, '--work-dir', 'mine')).work_dir == 'mine'
    for name, value in dict(RANK='0', WORLD_SIZE='2', MASTER_ADDR='127.0.0.1').items():
        monkeypatch.setenv(name, value)
    assert config_of(parsed(DEMO)).launcher == 'pytorch'
    assert config_of(parsed(DEMO, '--launcher', 'none')).launcher == 'none'


@pytest.mark.parametrize(
    ('name', 'root', 'places'),
    [
        ('mask-rcnn_deit-t-adapter_fpn_1x_coco', 'data/coco', 5),  # with the evaluators' files
        ('segmenter_deit-t_mask_8xb1-160k_ade20k-512x512', 'data/ade', 3),
        ('deit-t-lape_8xb128_in1k', 'data/imagenet', 3),
        ('cct-7-3x1_1xb128_cifar100', 'data/cifar100', 3),
        (DEMO, 'data/digit_scenes', 3),
    ],
)
def test_data_elsewhere(name, root, places):
    cfg = config_of(parsed(name, '--data-root', 's3://shared/'))
    values = {k: v for k, v in config_values(cfg.to_dict()) if isinstance(v, str)}
    assert not [key for key, value in values.items() if value.startswith(root)]
    moved = {key: value for key, value in values.items() if value.startswith('s3://shared')}
    assert len([key for key in moved if '.' in key]) == places
    assert all('dataset.data_root' in key or 'ann_file' in key for key in moved if '.' in key)
    assert not any('//' in value.removeprefix('s3://') for value in moved.values())
    if root == 'data/coco':
        assert cfg.val_evaluator.ann_file == 's3://shared/annotations/instances_val2017.json'
    assert cfg.train_dataloader.dataset.data_root.rstrip('/') == 's3://shared'


def test_results_beside_the_data_stay_where_they_are(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(
        "model = dict()\ndata_root = 'd'\nwork_dir = 'd/fits'\nload_from = 'd/a.pth'\n"
        "train_dataloader = dict(dataset=dict(data_root='d'))\nval_evaluator = [dict(ann_file='d/a.json')]\n"
    )
    cfg = config_of(parsed(str(path), '--data-root', 's3://m'))
    assert (cfg.data_root, cfg.train_dataloader.dataset.data_root) == ('s3://m', 's3://m')
    assert cfg.val_evaluator[0].ann_file == 's3://m/a.json'
    assert (cfg.work_dir, cfg.load_from) == ('d/fits', 'd/a.pth')


def test_data_in_several_folders_or_none_stay(tmp_path):
    for text, what in (
        ('a = dict(data_root="x/")\nb = [dict(data_root="y")]\n', 'several: x, y'),
        ('a = dict(root="x")\n', 'none'),
    ):
        (tmp_path / 'config.py').write_text(f'model = dict()\n{text}')
        with pytest.raises(ValueError, match=f'--data-root .* this one has {what}'):
            config_of(parsed(str(tmp_path / 'config.py'), '--data-root', 's3://z'))


def test_the_place_of_a_process_on_its_machine(monkeypatch):
    config_of(parsed(DEMO, '--local-rank', '3'))
    assert options.os.environ['LOCAL_RANK'] == '3'
    config_of(parsed(DEMO, '--local_rank', '1'))
    assert options.os.environ['LOCAL_RANK'] == '3', 'what torchrun says comes first'


def with_gpu(monkeypatch, bf16=True):
    monkeypatch.setattr(options, 'get_device', lambda: 'cuda')
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    # As PyTorch: older GPUs have it by emulation, which is slow.
    answer = lambda including_emulation=True: bf16 or including_emulation  # noqa: E731
    monkeypatch.setattr('torch.cuda.is_bf16_supported', answer)


@pytest.mark.parametrize(
    ('dtype', 'name', 'scale'),
    [('fp16', 'float16', 'dynamic'), ('bf16', 'bfloat16', dict(enabled=False))],
)
@pytest.mark.parametrize('kind', ['OptimWrapper', OptimWrapper])
def test_mixed_precision(monkeypatch, dtype, name, scale, kind):
    with_gpu(monkeypatch)
    cfg = Config(dict(optim_wrapper=dict(type=kind, optimizer=dict(lr=1))))
    enable_amp(cfg, dtype)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert (cfg.optim_wrapper.dtype, cfg.optim_wrapper.loss_scale) == (name, scale)
    assert cfg.optim_wrapper.optimizer.lr == 1
    enable_amp(cfg, dtype)
    hooks = [dict(type='mmlape.Bfloat16Hook')] if dtype == 'bf16' else []
    assert cfg.get('custom_hooks', []) == hooks


def test_mixed_precision_that_cannot_be(monkeypatch):
    with_gpu(monkeypatch, bf16=False)
    for kind, words in dict(
        ApexOptimWrapper='ApexOptimWrapper', OptimWrapper='no bfloat16'
    ).items():
        with pytest.raises(ValueError, match=words):
            enable_amp(Config(dict(optim_wrapper=dict(type=kind))), 'bf16')
    monkeypatch.setattr(options, 'get_device', lambda: 'cpu')
    with pytest.raises(ValueError, match='needs a GPU'):
        enable_amp(Config(dict(optim_wrapper=dict(type='OptimWrapper'))), 'bf16')


def test_scaling():
    for wrong in (None, dict(), dict(base_batch_size=None), dict(enable=True)):
        with pytest.raises(ValueError, match='base_batch_size'):
            enable_lr_scaling(Config(dict(auto_scale_lr=wrong)))
    cfg = Config(dict(auto_scale_lr=dict(base_batch_size=16)))
    enable_lr_scaling(cfg)
    assert cfg.auto_scale_lr.enable


def test_a_missing_checkpoint_is_named_with_what_is_there(tmp_path):
    for name in ('epoch_1.pth', 'epoch_12.pth'):
        (tmp_path / name).write_bytes(b'')
    assert existing_checkpoint(str(tmp_path / 'epoch_1.pth')).endswith('epoch_1.pth')
    assert existing_checkpoint('https://host/x.pth') == 'https://host/x.pth'
    with pytest.raises(ValueError, match=r'no checkpoint .*epoch_11\.pth.* there are epoch_1'):
        existing_checkpoint(str(tmp_path / 'epoch_11.pth'))
    with pytest.raises(ValueError, match=r'there is no folder .*nowhere either'):
        existing_checkpoint(str(tmp_path / 'nowhere' / 'x.pth'))


def config(name):
    return Config.fromfile(find_config(name))


MASK_RCNN = 'mask-rcnn_deit-t-adapter_fpn_ms-3x_coco'
SEGMENTER = 'segmenter_deit-t_mask_8xb1-160k_ade20k-512x512'


def test_pictures():
    cfg = config(MASK_RCNN)
    show_predictions(cfg, False, 'pictures', 2)
    hook = cfg.default_hooks.visualization
    wanted = dict(type='mmlape.PictureHook', out_dir='pictures', show=False, wait_time=2)
    assert hook == wanted
    cfg = config(DEMO)  # has no such hook
    show_predictions(cfg, True, 'pictures', 3)
    assert cfg.default_hooks.visualization == dict(wanted, show=True, wait_time=3)
    cfg = Config(dict(default_hooks=dict(), default_scope='mmengine'))
    with pytest.raises(ValueError, match='visualization'):
        show_predictions(cfg, False, 'pictures', 2)


def test_predictions():
    with pytest.raises(ValueError, match=r'must end with \.pkl'):
        keep_predictions(config(MASK_RCNN), 'out.json')
    metric = keep_predictions(config(MASK_RCNN), 'out.pkl')
    assert metric == dict(type='mmdet.DumpDetResults', out_file_path='out.pkl')
    cfg = config(SEGMENTER)
    assert keep_predictions(cfg, 'maps') is None
    assert (cfg.test_evaluator.output_dir, cfg.test_evaluator.keep_results) == ('maps', True)


def test_augmentation_of_detectors_flips_and_merges_boxes():
    cfg = config(MASK_RCNN)
    before = list(cfg.test_dataloader.dataset.pipeline)
    use_tta(cfg)
    assert cfg.model.type == 'DetTTAModel' and cfg.model.module.type == 'MaskRCNN'
    *steps, last = cfg.test_dataloader.dataset.pipeline
    assert [step['type'] for step in steps] == [step['type'] for step in before[:-1]]
    flips, (pack,) = last['transforms']
    assert [flip['prob'] for flip in flips] == [0.0, 1.0], 'metrics take the truth from the first'
    assert {'flip', 'flip_direction', 'scale_factor', 'img_id'} <= set(pack['meta_keys'])
    assert cfg.test_evaluator.metric == 'bbox'
    assert cfg.model.module.roi_head.mask_head is None
    cfg = config(MASK_RCNN)
    cfg.test_dataloader.dataset.pipeline[-1].pop('meta_keys')
    use_tta(cfg)
    (_, (pack,)) = cfg.test_dataloader.dataset.pipeline[-1]['transforms']
    usual = inspect.signature(PackDetInputs).parameters['meta_keys'].default
    assert {*pack['meta_keys']} == {*usual, 'flip', 'flip_direction'}


def test_augmentation_of_a_toolbox_that_has_none():
    """That of segmentors is compared with upstream's in tests/test_base_configs.py."""
    with pytest.raises(ValueError, match='tta_pipeline'):
        use_tta(Config(dict(default_scope='mmpretrain')))


def coco(tmp_path, **dataset):
    """A config of three images with a box each, and its evaluator."""
    images = [dict(id=number, file_name=f'{number}.png') for number in (7, 3, 5)]
    boxes = [dict(id=number, image_id=number, bbox=[0, 0, 1, 1]) for number in (5, 7, 3)]
    path = tmp_path / 'all.json'
    path.write_text(json.dumps(dict(images=images, annotations=boxes, categories=[])))
    inner = dict(type='CocoDataset', ann_file='all.json', data_root=str(tmp_path), **dataset)
    loader = dict(dataset=dict(type='RepeatDataset', dataset=inner))
    evaluator = [dict(type='CocoMetric', ann_file=str(path)), dict(type='mmdet.DumpDetResults')]
    work_dir = str(tmp_path / 'run')
    return Config(dict(test_dataloader=loader, test_evaluator=evaluator, work_dir=work_dir))


def test_data_of_hooks_move_too():
    cfg = config_of(parsed('dino_vit-s_8xb64-100e_in1k', '--data-root', 's3://m'))
    roots = {v for k, v in config_values(cfg.to_dict()) if k.endswith('data_root')}
    assert roots == {'s3://m'} and cfg.custom_hooks[1].dataloader.dataset.data_root == 's3://m'


@pytest.mark.parametrize('panoptic', ['CocoPanopticMetric', 'mmlape.PanopticQuality'])
def test_the_first_images_are_what_the_metric_counts(panoptic, tmp_path):
    cfg = coco(tmp_path)
    first_images(cfg, 2)
    path = cfg.test_evaluator[0].ann_file
    assert cfg.test_dataloader.dataset.dataset.ann_file == path
    content = json.loads(Path(path).read_text())
    assert [image['id'] for image in content['images']] == [7, 3]
    assert [box['image_id'] for box in content['annotations']] == [7, 3]
    # Two files of the same images in another order: the data set's own decides which are the first.
    cfg = coco(tmp_path)
    dataset, box_metric = cfg.test_dataloader.dataset.dataset, cfg.test_evaluator[0]
    dataset.type = 'CocoPanopticDataset'
    whole = json.loads(Path(box_metric.ann_file).read_text())
    segments = dict(whole, images=whole['images'][::-1], annotations=[])
    (tmp_path / 'panoptic.json').write_text(json.dumps(segments))
    cfg.test_evaluator.append(dict(type=panoptic, ann_file=str(tmp_path / 'panoptic.json')))
    first_images(cfg, 2)
    shortened = cfg.test_evaluator[-1]['ann_file']
    assert dataset.ann_file == shortened != cfg.test_evaluator[0].ann_file
    wanted = {image['id'] for image in segments['images'][:2]}
    for path in (shortened, cfg.test_evaluator[0].ann_file):
        assert {image['id'] for image in json.loads(Path(path).read_text())['images']} == wanted
    in_python = coco(tmp_path)
    in_python.test_evaluator[0].type = CocoMetric  # as in a config in pure Python
    first_images(in_python, 2)
    assert in_python.test_evaluator[0].ann_file.endswith('annotations_2.json')
    maps = Config(
        dict(test_dataloader=dict(dataset=dict(type='A')), test_evaluator=dict(type='IoUMetric'))
    )
    first_images(maps, 2)
    assert maps.test_dataloader.dataset.indices == 2
    with pytest.raises(ValueError, match='--images must be at least 1'):
        first_images(maps, 0)
    several = coco(tmp_path)
    inner = several.test_dataloader.dataset.dataset
    several.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[inner, inner])
    several.default_scope = 'mmdet'
    with pytest.raises(ValueError, match=r'--images is for a config with one test data set.*has 2'):
        first_images(several, 1)
    with pytest.raises(ValueError, match='--tta is for a config with one test data set'):
        use_tta(several)


@pytest.mark.parametrize('split', ['val', 'test'])
def test_indices_that_the_metric_would_count_as_missed(split, tmp_path):
    def of_split(cfg):
        return Config(
            {f'{split}{key[4:]}': value for key, value in cfg.items() if key[:4] == 'test'}
        )

    whole, part = coco(tmp_path), coco(tmp_path, indices=2)
    check_indices(of_split(whole))
    words = rf'{split}_dataloader\.dataset\.indices leaves images out.*--images N'
    with pytest.raises(ValueError, match=words):
        check_indices(of_split(part))
    datasets = [cfg.test_dataloader.dataset for cfg in (whole, part)]
    part.test_dataloader.dataset = dict(type='ConcatDataset', datasets=datasets)
    with pytest.raises(ValueError, match=words):
        check_indices(of_split(part))
    part.test_evaluator = [dict(part.test_evaluator[0], type=CocoMetric)]
    with pytest.raises(ValueError, match=words):
        check_indices(of_split(part))
    part.test_evaluator = dict(type='IoUMetric')
    check_indices(of_split(part))


def test_hooks_that_are_classes_count_as_there():
    given = dict(type=CheckWeightsHook, allow_partial=True)
    cfg = Config(dict(default_hooks=dict(check_weights=given)))
    options.check_weights(cfg)
    assert cfg.default_hooks == dict(check_weights=given)
    cfg = Config(dict(custom_hooks=[dict(type=ResumeCheckHook)]))
    set_resume(cfg, None)
    assert len(cfg.custom_hooks) == 1
    cfg = Config(dict(default_hooks=dict(check_weights=dict(given, allow_partal=True))))
    with pytest.raises(TypeError, match='allow_partal'):
        check_config(cfg)

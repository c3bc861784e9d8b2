"""Misspelt names in config files are refused before a training; files' own variables are not."""

import ast
import json
import re

import pytest
from config_utils import CONFIGS
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS
from tiny_training import tiny_config
from torch import nn

from mmlape.training import check_config, check_custom_keys
from mmlape.training.check_names import names_read

BOX = dict(type='CocoDataset', metainfo=dict(classes=('a',)), filter_cfg=dict(min_size=1))
LOADER = dict(
    batch_size=1, num_workers=1, dataset=dict(BOX, data_prefix=dict(img='a')),
    sampler=dict(type='DefaultSampler', shuffle=True),
)  # fmt: skip
KEYS = {'backbone': dict(lr_mult=0.1), 'absolute_pos_embed': dict(decay_mult=0.0, wd_mult=0)}
ADAMW = dict(type='AdamW', lr=1e-3, weight_decay=0.1)
NMS = dict(type='nms', iou_threshold=0.5)
USUAL = dict(
    default_scope='mmdet',
    work_dir='work',
    load_from=None,
    model=dict(
        type='MaskRCNN',
        data_preprocessor=dict(type='SegDataPreProcessor', test_cfg=dict(size_divisor=32)),
        decode_head=dict(type='X', train_cfg=dict(num_points=3, assigner=dict(type='X', score_th=1))),
        train_cfg=dict(rpn=dict(allowed_border=-1, assigner=dict(type='X')), rcnn=dict(pos_weight=-1)),
        test_cfg=dict(
            rpn=dict(nms_pre=9, max_per_img=9, nms=NMS), rcnn=dict(score_thr=0.1), mode='slide',
            crop_size=(9, 9), stride=(9, 9),
        ),
    ),
    train_dataloader=LOADER,
    val_dataloader=dict(LOADER, dataset=dict(type='ConcatDataset', datasets=[BOX])),
    train_cfg=dict(by_epoch=True, max_epochs=12),
    val_cfg=dict(type='ValLoop'),
    val_evaluator=[dict(type='mmseg.IoUMetric', iou_metrics=['mIoU']), dict(type='CocoMetric')],
    test_evaluator=dict(type='MultiDatasetsEvaluator', metrics=[dict(type='CocoMetric')]),
    optim_wrapper=dict(
        type='AmpOptimWrapper', optimizer=ADAMW, clip_grad=dict(max_norm=1),
        paramwise_cfg=dict(norm_decay_mult=0, custom_keys=KEYS),
    ),
    param_scheduler=[dict(type='LinearLR', start_factor=0.1), dict(type='MultiStepLR', milestones=[8])],
    auto_scale_lr=dict(base_batch_size=16),
    env_cfg=dict(mp_cfg=dict(mp_start_method='fork'), dist_cfg=dict(backend='nccl')),
    randomness=dict(seed=0),
    log_processor=dict(window_size=50, custom_cfg=[dict(data_src='loss')]),
    visualizer=dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')]),
    default_hooks=dict(
        checkpoint=dict(type='CheckpointHook', interval=1), logger=dict(type='LoggerHook'),
        early=dict(type='mmlape.StopAtNonFiniteHook', priority='LOW'),
    ),
    custom_hooks=[dict(type='EMAHook', momentum=0.1, priority=49)],
    tta_model=dict(type='DetTTAModel', tta_cfg=dict(nms=NMS, max_per_img=100)),
)  # fmt: skip
# Names that are read, in dicts of the usual config; each is misspelt by a missing letter.
BELOW = """
    default_hooks.checkpoint default_hooks.param_scheduler default_hooks.sampler_seed default_hooks.check_weights
    default_hooks.visualization default_hooks.checkpoint.save_best default_hooks.checkpoint.max_keep_ckpts
    default_hooks.logger.interval custom_hooks.0.priority custom_hooks.0.begin_epoch train_cfg.max_epochs
    train_cfg.by_epoch val_cfg.fp16 env_cfg.cudnn_benchmark env_cfg.mp_cfg.mp_start_method env_cfg.dist_cfg.backend
    randomness.deterministic log_processor.window_size log_processor.custom_cfg.0.data_src
    auto_scale_lr.base_batch_size optim_wrapper.clip_grad.max_norm optim_wrapper.accumulative_counts
    optim_wrapper.optimizer.weight_decay optim_wrapper.paramwise_cfg.norm_decay_mult
    optim_wrapper.paramwise_cfg.custom_keys.backbone.lr_mult train_dataloader.batch_size
    train_dataloader.persistent_workers val_dataloader.drop_last train_dataloader.sampler.shuffle
    train_dataloader.dataset.metainfo.classes val_dataloader.dataset.datasets.0.metainfo.classes
    train_dataloader.dataset.filter_cfg.filter_empty_gt train_dataloader.dataset.data_prefix.img_path
    val_evaluator.0.iou_metrics val_evaluator.1.ann_file test_evaluator.metrics.0.classwise visualizer.vis_backends
    visualizer.vis_backends.0.save_dir param_scheduler.0.start_factor param_scheduler.1.milestones
    model.test_cfg.crop_size model.test_cfg.mode model.test_cfg.rpn.nms_pre model.test_cfg.rpn.nms.iou_threshold
    model.test_cfg.rcnn.mask_thr_binary model.train_cfg.rpn.allowed_border model.train_cfg.rpn_proposal
    model.decode_head.train_cfg.num_points model.data_preprocessor.test_cfg.size_divisor tta_model.tta_cfg.max_per_img
"""
TYPOS = {
    'Resume': 'resume', 'launcherr': 'launcher', 'cutsom_hooks': 'custom_hooks', 'auto_scale_ir': 'auto_scale_lr',
    'loadfrom': 'load_from', 'visualiser': 'visualizer', 'env_cfg.dist_cfg.time_out': 'timeout',
    'train_dataloader.dataset.metainfo.CLASSES': 'classes', 'train_dataloader.batchsize': 'batch_size',
}  # fmt: skip


def usual(path='', value=None, **options):
    """The usual config, with a value at a path."""
    config = Config({**USUAL, **options}).to_dict()  # copies, also of what is in it twice
    *above, name = path.split('.')
    part = config
    for key in above:
        part = part[int(key) if key.isdigit() else key]
    if path:
        part[name] = value
    return Config(config)


def without_a_letter(name):
    return name[: len(name) // 2] + name[len(name) // 2 + 1 :]


def test_misspelt_names():
    typos = dict(TYPOS)
    for path in [*BELOW.split(), *(name for name in names_read() if len(name) > 6)]:
        above, dot, right = path.rpartition('.')
        typos[f'{above}{dot}{without_a_letter(right)}'] = right
    assert len(typos) > 80
    for path, right in typos.items():
        words = f'{path}=7: there is no {path.rpartition(".")[2]!r}; did you mean {right!r}?'
        with pytest.raises(ValueError, match=f'^{re.escape(words)}$'):
            check_config(usual(path, 7))


# Where nothing else is read.
UNKNOWN = {
    'auto_scale_lr.base_batch': 'base_batch_size, enable',
    'env_cfg.seed': 'cudnn_benchmark, mp_cfg, dist_cfg, resource_limit',
    'optim_wrapper.paramwise_cfg.decay_rate': 'custom_keys, bias_lr_mult',
}


@pytest.mark.parametrize('path', UNKNOWN)
def test_names_that_nothing_reads(path):
    with pytest.raises(ValueError, match=f'{path}=7: there is no .*; there are {UNKNOWN[path]}'):
        check_config(usual(path, 7))


# Variables of shipped and upstream's configs, those most like a name that is read first.
OWN = """
    test_pipeline train_pipeline val_evaluator_abs val_evaluator_2 val_evaluator_full gallery_dataloader weak_pipeline
    pipeline load_pipeline knn_dataloader query_dataloader conv_cfg custom_keys options_cfg data_root data_from
    _data_root train_dataset train_pipeline_1e test_evaluator_Flickr30k val_dataset_all_val base_test_pipeline metrics
    vis_backends lr base_lr size classes metainfo img_scale image_size backend backend_args norm_cfg optimizer
    max_epochs max_iters max_epoch batch_size num_workers interval val_interval warmup checkpoint runner fp16
    resume_from data paramwise_cfg dataset_type num_classes crop_size tta_pipeline tta_model custom_imports
    find_unused_parameters runner_type sync_bn compile detector datasets vit adapter native options weights
"""


def test_variables_of_config_files():
    check_config(usual(**dict.fromkeys(OWN.split())))


@pytest.mark.parametrize(
    ('path', 'value'),
    [
        ('default_hooks.early_stopping', dict(type='EarlyStoppingHook', monitor='x')),
        ('default_hooks.own', dict(type='NotInstalled', intervall=1)),
        ('custom_hooks.0.update_buffers', True),  # of the averaged model
        ('train_dataloader.dataset.metainfo.class_weights', [1]),
        ('model.test_cfg.own_limit', 3),
        ('model.train_cfg.rpn.assigner.pos_iou', 1),  # a component checks its own
        ('optim_wrapper.paramwise_cfg.custom_keys.head', dict(lars_exclude=True)),
        ('optim_wrapper.constructor', 'mmdet.LearningRateDecayOptimizerConstructor'),
        ('optim_wrapper', dict(constructor='X', body=dict(optimizer=ADAMW), head=dict(optimizer=ADAMW))),
        ('train_cfg', dict(type='EpochBasedTrainLoop', max_epochs=2, dynamic_intervals=[(1, 1)])),
        ('param_scheduler', dict(body=[dict(type='PolyLR')], head=dict(type='PolyLR'))),
        ('randomness', dict(seed=None, diff_rank_seed=True, deterministic=True)),
        ('default_scope', 'mmengine'),
    ],
)  # fmt: skip
def test_names_that_are_meant(path, value):
    check_config(usual(path, value))


def test_variables_of_all_shipped_files():
    """Without running the files, which takes a minute; tests/test_configs.py checks the whole configs."""
    known, found = names_read(), set()
    for path in CONFIGS.rglob('*.py'):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            found |= {
                name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)
            }
    assert len(found - known) > 50
    check_config({'default_hooks': None, **dict.fromkeys(found - {'options', '_base_'})})


ITERATIONS = dict(type='IterBasedTrainLoop', max_iters=9)


@pytest.mark.parametrize('loop', [ITERATIONS, dict(by_epoch=False, max_iters=9)])
def test_schedules_by_epochs_in_a_training_by_iterations(loop):
    def check(**options):
        check_config(usual(train_cfg=loop, param_scheduler=[dict(options, type='LinearLR')]))

    for wrong in (dict(), dict(by_epoch=True)):
        with pytest.raises(ValueError, match=r'param_scheduler.0.by_epoch=True.* has no effect'):
            check(**wrong)
    check(by_epoch=False)
    check(by_epoch=True, convert_to_iter_based=True)
    check_config(usual(train_cfg=loop, param_scheduler=dict(type='ReduceOnPlateauLR')))
    check_config(usual(param_scheduler=[dict(type='LinearLR', by_epoch=False)]))


def test_priorities():
    for path in ('custom_hooks.0.priority', 'default_hooks.early.priority'):
        with pytest.raises(ValueError, match=f"{path}='VERY_HIHG' .*did you mean 'VERY_HIGH'"):
            check_config(usual(path, 'VERY_HIHG'))
        check_config(usual(path, 'very_low'))


def test_optimizers_of_a_toolbox():
    """They were unknown until the runner had set its scope."""
    check_config(
        usual('optim_wrapper.optimizer', dict(type='LARS', lr=1), default_scope='mmpretrain')
    )
    with pytest.raises(ValueError, match=r"'AdmW' is not a registered .*did you mean 'AdamW'"):
        check_config(usual('optim_wrapper.optimizer.type', 'AdmW', default_scope='mmpretrain'))


def network():
    return nn.ModuleDict(dict(backbone=nn.Sequential(nn.Linear(2, 2)), head=nn.LayerNorm(2)))


def test_custom_keys():
    for key, right in {
        'bakbone': 'backbone',
        'backbone.0.wieght': 'weight',
        'hed.bias': 'head',
    }.items():
        words = f"custom_keys names '{key}', which is in no name; did you mean '{right}'"
        wrapper = dict(
            optimizer=ADAMW, constructor='mmlape.MergedGroupsOptimizerConstructor',
            paramwise_cfg=dict(custom_keys={key: dict(lr_mult=1)}),
        )  # fmt: skip
        with pytest.raises(ValueError, match=words):
            build_optim_wrapper(network(), wrapper)
    check_custom_keys(None, network())
    fine = (
        'backbone',
        '.weight',
        'absolute_pos_embed',
        'relative_position_bias_table',
        'backbone.12',
    )
    assert check_custom_keys(dict(custom_keys=dict.fromkeys(fine)), network()) == [*fine[2:]]


def test_train_and_test_refuse_them_in_one_line(commands, tmp_path):
    def config(**options):
        path = tmp_path / 'config.json'
        path.write_text(json.dumps({**tiny_config('work').to_dict(), **options}))
        return path

    (tmp_path / 'a.pth').touch()
    wrong = config(load_frm='a.pth')
    line = "error: load_frm='a.pth': there is no 'load_frm'; did you mean 'load_from'?"
    assert commands.refused('train.py', wrong) == line
    assert commands.refused('test.py', wrong, 'a.pth') == line
    keys = dict(paramwise_cfg=dict(custom_keys=dict(bakbone=dict(lr_mult=0.1))))
    end = commands.refused('train.py', config(optim_wrapper=dict(optimizer=ADAMW, **keys)))
    assert (
        end == "error: custom_keys names 'bakbone', which is in no name; did you mean 'backbone'?"
    )
    # A test has no optimizer: only its checkpoint, an empty file, is wrong.
    unknown = config(optim_wrapper=dict(optimizer=dict(type='NotInstalled')))
    assert "'NotInstalled' is not a registered optimizer" in commands.refused('train.py', unknown)
    assert 'a.pth' in commands.refused('test.py', unknown, 'a.pth')


def test_the_usual_config_passes():
    check_config(usual())
    # Schedules of this name step after each validation, in trainings by iterations too.
    kinds = PARAM_SCHEDULERS.module_dict.values()
    named = {kind.__name__ for kind in kinds if getattr(kind, 'need_val_args', False)}
    assert named and all('ReduceOnPlateau' in name for name in named)

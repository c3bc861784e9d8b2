"""Wrong configurations are refused when the model, the runner or the config is built, by a message that names the
option, the value and what is accepted. Wrong types of every option are in test_checks.py."""

import math
import re
from functools import partial

import pytest
from config_utils import REPO
from mmengine.config import Config
from registered import ceit, compact, levit, pvt, swin, t2t, vit

from mmlape.backbones import VisionTransformer
from mmlape.checks import options_of
from mmlape.cli.options import merge_overrides
from mmlape.layers import Block, ConvMlp, LocallyEnhancedMlp, Mlp, NormedMlp, Stem, SwiGLU
from mmlape.layers.attention import AttentionLayer
from mmlape.position import AttentionPosition, Joining, PositionEmbedding
from mmlape.registry import HOOKS, MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmlape.training import check_config
from mmlape.training.load_image import LoadImage

NAN, INF = math.nan, math.inf
ARCH = dict(embed_dims=16, depth=2, num_heads=4, mlp_ratio=2)
PYRAMID = dict(
    embed_dims=[8] * 4, depths=[1] * 4, num_heads=[1] * 4, mlp_ratios=[2] * 4, sr_ratios=[2] * 4
)


def part(name, **options):
    return dict(options, type=f'mmlape.{name}')


def lape(**options):
    return dict(joining=part('LaPE', **options))


def norm(name, **options):
    return dict(norm_cfg=part(name, **options))


def inside(name, **options):
    return dict(attention_position=part(name, **options))


def arch(**sizes):
    return dict(arch=dict(ARCH, **sizes))


# What is wrong, and words of the message.
VIT = [
    (dict(num_registers=-1), 'registers must be at least 0, got -1'),
    (dict(patch_size=0), 'patch_size must be at least 1, got 0'),
    (dict(patch_size=[16]), r'patch_size must be an integer or a pair \(height, width\), got \[16\]'),
    (dict(img_size=-224), 'img_size must be at least 1, got -224'),
    (dict(in_channels=0), 'in_channels must be at least 1, got 0'),
    (dict(window_size=[7, 7, 7]), r'window_size must be one window, .* each of 2 layers, .*, got \[7, 7, 7\]'),
    (dict(drop_rate=1.5), r'drop_rate must be in \[0, 1\), got 1.5'),
    (dict(attn_drop_rate=-0.1), r'attn_drop_rate must be in \[0, 1\), got -0.1'),
    (dict(frozen_stages=3), 'frozen_stages must be -1 to 2, got 3'),
    (dict(out_indices=5), 'out_indices must be -2 to 1, got 5'),
    (dict(out_indices=[1, 1]), r'out_indices must name different layers, got \[1, 1\]'),
    (dict(out_type='featmaps'), "out_type must be one of .*got 'featmaps'; did you mean 'featmap'"),
    (dict(arch='deit-tiney'), "arch must be one of .*got 'deit-tiney'; did you mean 'deit-tiny'"),
    (arch(mlp_ratio=True), r"arch\['mlp_ratio'\] must be a number, got True"),
    (arch(mlp_ratio=0), r"arch\['mlp_ratio'\] must be finite and greater than 0, got 0"),
    (arch(embed_dims=0), r"arch\['embed_dims'\] must be at least 1, got 0"),
    (arch(depth='2'), r"arch\['depth'\] must be an integer, got '2'"),
    (arch(num_heads=3), 'num_heads must divide embed_dims, got num_heads=3, embed_dims=16'),
    (arch(dept=3), "arch must have the keys .*unknown .'dept'.*did you mean 'depth'"),
    (dict(position='learned'), "position must be a dict, a list, False or None, got 'learned'"),
    (dict(position=part('LearnedPositon')), "did you mean 'mmlape.LearnedPosition'"),
    (dict(position=part('SinusoidalPosition', other_grids='resise')), "other_grids must .*mean 'resize'"),
    (dict(joining=dict(progressive=True)), "joining must be a dict with a type, .*got {'progressive': True}"),
    (lape(eps=0), 'eps must be finite and greater than 0, got 0'),
    (lape(layers=3), 'layers must be 1 to 2, got 3'),
    (lape(layers=[0, 0]), r'layers must name different layers, at least one, got \[0, 0\]'),
    (lape(norms='norm'), "unexpected keyword argument 'norms'; did you mean 'norm'"),
    (norm('LN', eps=-1), 'eps must be finite and greater than 0, got -1'),
    (norm('Ln'), "'mmlape.Ln' is not registered .*did you mean 'mmlape.LN'"),
    (norm('DTN', pool=0), 'pool must be at least 1, got 0'),
    (norm('DTN', ratio_mean=1.5), r'ratio_mean must be in \[0, 1\], got 1.5'),
    (norm('DTN', ratio_var='learn'), "ratio_var must be 'learned' or a number from 0 to 1, got 'learn'"),
    (norm('DTN', band=3), "band goes with positions='banded', got band=3"),
    (norm('DTN', positions='banded', band=4), 'band must be odd .*got 4'),
    (norm('DTN', num_heads=3), 'num_heads must divide num_features, got num_heads=3.*where norm_cfg has no num_heads'),
    (dict(pre_norm=part('DTN')), 'pre_norm must be a norm of each token by itself'),
    (dict(stem=part('PatchEmbed', norm_cfg=part('DTN'))), 'norm_cfg needs num_heads here'),
    (norm('DTN', layers=3), 'norm_cfg layers must be 1 to 2, got 3'),
    (norm('DyT', alpha_init=0), 'alpha_init must be finite and greater than 0, got 0'),
    (norm('Derf', alpha_init='big'), 'alpha_init must be a number'),
    (norm('DyT', eps=1e-6), "unexpected keyword argument 'eps'"),
    (norm('PowerNorm', alpha_forward=2), r'alpha_forward must be in \[0, 1\], got 2'),
    (norm('PowerNorm', warmup_iters=-1), 'warmup_iters must be at least 0, got -1'),
    (norm('PowerNorm', num_groups=3), 'num_groups must divide num_features, got num_groups=3'),
    (inside('RelativePositionBias', eps=-1), 'eps must be finite and greater than 0, got -1'),
    (inside('RotaryPosition', temperature=0), 'temperature must be finite and greater than 0, got 0'),
    (inside('GaborAttention', channels=0), 'channels must be at least 1, got 0'),
    (dict(mlp=part('Mlp', ratio=NAN)), r"mlp\['ratio'\] must be finite and greater than 0, got nan"),
    (dict(prefix=dict(cls_tokens=True)), "prefix must have the keys .*did you mean 'cls_token'"),
    (dict(mlp=part('ConvMlp')), r'prefix tokens \(cls_token\) need .* no mmlape.ConvMlp in their stage, got'),
    (
        dict(inside('RotaryPosition'), attention=part('WideValueAttention')),
        'WideValueAttention takes a position that is added to scores.*got .*RotaryPosition',
    ),
    (
        dict(inside('RotaryPosition'), attention=part('DifferentialAttention')),
        'DifferentialAttention takes a position that is added to scores.*got .*RotaryPosition',
    ),
    (
        dict(attention=part('DifferentialAttention', layer=3)),
        'layer of mmlape.DifferentialAttention must be left out, the network sets it; got 3',
    ),
    (dict(prefix=dict(across_layers=part('LayerClassAttention')), with_cls_token=False), 'across_layers=.* class'),
    (dict(prefix=dict(across_layers=part('Foo'))), "'mmlape.Foo' is not registered"),
    (dict(prefix=dict(across_layers=dict(num_heads=2))), "across_layers must be a dict with the key 'type', got"),
    (dict(prefix=dict(across_layers=part('LayerClassAttention', num_layers=9)), out_type='raw'), 'num_layers .* got 9'),
    (dict(out_type=part('SequencePooling', embed_dims=3)), 'out_type: embed_dims .* must be left out.* got 3'),
    (dict(norm_cfg={}), "norm_cfg must be a dict with the key 'type', got {}"),
    (dict(norm_cfg=[{}, None]), "norm_cfg must be a dict with the key 'type', got {}"),
    (dict(block=part('Block', norm_cfg=part('LN'))), 'block: norm_cfg of mmlape.Block must be left out'),
    (dict(stem=part('ImageToTokens', norm_cfg={})), "norm_cfg must be a dict with the key 'type', got {}"),
    (dict(stem=part('ImageToTokens', norm_cfg=dict(type='Foo'))), "norm_cfg must name .* norm of maps.*got .*'Foo'"),
    (dict(mlp=part('LocallyEnhancedMlp', norm_cfg={})), "norm_cfg must be a dict with the key 'type', got {}"),
    (norm('DTN', positions='uniform', position_init='random'), "position_init goes with .*got position_init='random'"),
    (norm('LN', num_features=3), "num_features"),
    (dict(layer_scale=-1), 'layer_scale must be finite and at least 0, got -1'),
    (dict(pre_norm={}), "norm_cfg must be a dict with the key 'type', got {}"),
    (dict(pre_norm=part('TokenIN')), 'pre_norm must be a norm of each token'),
    (dict(attention=part('Attention', qk_norm=part('TokenBN'))), 'qk_norm must be a norm of each'),
    (dict(mlp=part('Mlp', act='gelo')), "act must be one of .*'gelu'"),
    (inside('RotaryPosition', coordinates='centred', offset=1.0), 'know no cells'),
    (inside('RotaryPosition', pairs='thirds'), 'pairs must be'),
    (dict(compile_blocks='inductor'), "compile_blocks must be True.* or a dict.*got 'inductor'"),
    (dict(compile_blocks=1), 'compile_blocks must be True.* or a dict.*got 1'),
    (dict(compile_blocks=None), 'compile_blocks must be True.* or a dict.*got None'),
    (dict(compile_blocks=dict(mod='default')), "did you mean 'mode'"),
    (dict(compile_blocks=dict(backend='egaer')), 'refuses compile_blocks=.*egaer'),
    (dict(compile_blocks=dict(mode='fastest')), 'refuses compile_blocks=.*fastest'),
    (dict(embed_dim=16), "unexpected keyword argument 'embed_dim'"),
]  # fmt: skip
PVT = [
    (dict(num_heads=3), 'num_heads must be a list of 4 values, got 3'),
    (dict(arch=dict(PYRAMID, sr_ratios=[8, 4, 2])), r"arch\['sr_ratios'\] must have one entry for each of 4 stages"),
    (dict(arch=dict(PYRAMID, mlp_ratios=[True] * 4)), r"arch\['mlp_ratios'\] must be a number, got True"),
    (dict(arch='b7'), r"arch must be one of \['b0', .*got 'b7'"),
]  # fmt: skip
ADAPTER = [
    (dict(deform_ratio=0), 'deform_ratio must be finite and greater than 0, got 0'),
    (dict(deform_ratio=0.01), 'deformable heads must divide the channels, got .* a ratio of 0.01'),
    (dict(cffn_ratio=-1), 'cffn_ratio must be finite and greater than 0, got -1'),
    (dict(conv_inplanes=0), 'conv_inplanes must be at least 1, got 0'),
    (dict(deform_num_heads=3), 'deformable heads must divide the channels, got 3 heads'),
    (dict(norm_cfg=dict(type='LN')), r'norm_cfg must be a norm of maps .*got .*LN'),
    (dict(norm_cfg=dict(type='BN', eps=-1)), 'eps must be finite and greater than 0, got -1'),
    (dict(norm_cfg={}), "norm_cfg must be a dict with the key 'type', got {}"),
    (dict(norm_cfg=dict(type='Foo')), "norm_cfg must name a registered norm of maps.*got .*'Foo'"),
    (dict(norm_cfg=part('LN2dd')), "did you mean 'mmlape.LN2d'"),
    (dict(vit=dict(arch=ARCH, img_size=32, out_type='raw')), "vit's out_type must be left out .*got 'raw'"),
    (dict(interaction_indexes=[[0, 1], [1, 1]]), r'must be pairs .*0\.\.1 .*e\.g\. \[\[0, 0\], \[1, 1\]\], got'),
    (dict(vit=dict(type='mmdet.ResNet', depth=18)), 'network of one stage, got ResNet'),
    (dict(vit=dict(arch=ARCH, img_size=32, out_indices=[0])), "vit's out_indices must name the last layer"),
    (dict(vit_feature='per_stage'), 'needs four interactions'),
    (dict(out_indices=[3, -1]), 'must name different maps'),
    (dict(compile_blocks=1), 'compile_blocks must be True.* or a dict.*got 1'),
]  # fmt: skip
LIGHT = [
    (dict(vit_layers=[0, 1]), r'must be three ascending layers of 0\.\.1 .*e\.g\. \[0, 1, 1\], got \[0, 1\]'),
    (dict(vit_layers=[0, 0, 0]), 'that end with the last'),
    (dict(vit_layers=[-1, 0, 1]), r'got \[-1, 0, 1\]'),
    (dict(vit_layers=[1, 0, 1]), 'three ascending layers'),
    (dict(vit_layers=3), 'vit_layers must be'),
    (dict(out_indices=[0, 1]), r'out_indices must have 3 \(stride 32\), .*got \[0, 1\]'),
    (dict(conv_inplanes=0), 'conv_inplanes must be at least 1, got 0'),
    (dict(interaction_indexes=[[0, 1]]), "unexpected keyword argument 'interaction_indexes'"),
    (dict(vit=dict(type='mmdet.ResNet', depth=18)), 'network of one stage, got ResNet'),
]  # fmt: skip
BEYOND = [
    ({'optim_wrapper.optimizer.lr': 0}, 'optim_wrapper.optimizer.lr must be finite and greater than 0, got 0'),
    ({'optim_wrapper.optimizer.lr': '1e-3'}, "lr must be a number, got '1e-3'"),
    ({'optim_wrapper.optimizer.weight_decay': -1}, 'weight_decay must be finite and at least 0, got -1'),
    (
        {'optim_wrapper.optimizer.type': 'AdmW'},
        "optim_wrapper.optimizer.type='AdmW' is not a registered optimizer; did you mean 'AdamW'",
    ),
    ({'train_dataloader.batch_size': '2'}, "train_dataloader.batch_size must be an integer, got '2'"),
    ({'train_cfg.val_interval': 1.5}, 'train_cfg.val_interval must be an integer, got 1.5'),
    ({'randomness.seed': '1'}, "randomness.seed must be an integer, got '1'"),
    ({'param_scheduler': [dict(type='LinearLR', start_factor=NAN)]}, 'param_scheduler.0.start_factor must be finite'),
    ({'custom_hooks.0.maxdecode': 1}, "'maxdecode'; did you mean 'max_decode'"),
    ({'resume': 'yes'}, "resume must be True or False, got 'yes'"),
    (
        {'train_dataloader.dataset.metainfo.classes': ('cat', 'dog', 'cat')},
        "train_dataloader.dataset.metainfo.classes must be different, 'cat' come twice",
    ),
]  # fmt: skip
# Of several optimizers.
SEVERAL = [
    ({'optim_wrapper.body.optimizer.lr': 0}, 'optim_wrapper.body.optimizer.lr must be finite .* got 0'),
    ({'optim_wrapper.head.optimizer.lr': '1e-3'}, "optim_wrapper.head.optimizer.lr must be a number, got '1e-3'"),
    ({'optim_wrapper.body.accumulative_counts': 0}, 'optim_wrapper.body.accumulative_counts must be at least 1, got 0'),
    ({'param_scheduler.body.power': NAN}, 'param_scheduler.body.power must be finite'),
    ({'param_scheduler.head.0.end': 0}, 'param_scheduler.head.0.end must be at least 1, got 0'),
]  # fmt: skip
MISSPELT = {
    'train_dataloder.batch_size': "no 'train_dataloder'; did you mean 'train_dataloader'",
    'train_dataloader.batchsize': "no 'batchsize'; did you mean 'train_dataloader.batch_size'",
    'train_dataloader.dataset.metainf.classes': "did you mean 'train_dataloader.dataset.metainfo'",
    'optim_wraper.optimizer.lr': "did you mean 'optim_wrapper'",
    'optim_wrapper.optimiser.lr': "did you mean 'optim_wrapper.optimizer'",
    'train_cfg.max_epoch': "did you mean 'train_cfg.max_epochs'",
    'default_hooks.checkpoint.intervall': "did you mean 'default_hooks.checkpoint.interval'",
    'default_hooks.chekpoint.interval': "did you mean 'default_hooks.checkpoint'",
    'model.backbne.with_cp': "did you mean 'model.backbone'",
    'max_epochs': "neither the config nor the runner has 'max_epochs'",
    'data_root': "only a name in the config file.*no effect; its value is that of train_dataloader",
    'data_rot': "neither the config nor the runner has 'data_rot'",
    'train_pipeline.0.type': "'train_pipeline' is only a name in the config file",
    'custom_hooks.3.interval': "custom_hooks is a list of 1 entries, 0 to 0; it has no '3'",
    'custom_hooks.interval': "custom_hooks is a list of 1 entries.*it has no 'interval'",
}
BUILT_HOOKS = [
    (part('CheckDataHook', max_decode=-1), 'max_decode must be at least 0, got -1'),
    (part('StopAtNonFiniteHook', max_skipped=-1), 'max_skipped must be at least 0, got -1'),
    (part('DTNRatioHook', interval=0), 'interval must be at least 1, got 0'),
    (part('CheckpointHook', intervall=3), "'intervall'; did you mean 'interval'"),
    (part('CheckpointHook', kwargs=3), "no option 'kwargs'; there are interval, by_epoch"),
    (part('CheckpointHook', max_keep_ckpts=-2), 'max_keep_ckpts must be at least -1, got -2'),
    (part('CheckpointHook', max_keep_ckpts=1.5), 'max_keep_ckpts'),
    (part('CheckpointHook', interval=0), 'interval must be positive'),
    (
        part('CheckpointHook', filename_tmpl='x'),
        "filename_tmpl must have a place for the number.*'x'",
    ),
    (part('CheckpointHook', out_dir=3), 'out_dir must be'),
    (part('CheckpointHook', backend_args=3), 'backend_args must be'),
    (part('CheckpointHook', save_best=3), 'save_best must be'),
    (part('CheckpointHook', rule='bigger'), "rule='bigger' is for save_best"),
    (part('CheckpointHook', rule='greatr', save_best='score'), "rule must be.*'greater'"),
    (part('CheckpointHook', greater_keys=3), 'greater_keys must be'),
    (part('CheckpointHook', less_keys=4), 'less_keys must be'),
    (part('CheckpointHook', save_begin=-1), 'save_begin'),
    (part('CheckpointHook', by_epoch='no'), 'by_epoch'),
    (part('DTNRatiosHook'), "did you mean 'mmlape.DTNRatioHook'"),
]
DECAY = [
    (dict(decay_rate=0), 'decay_rate must be finite and greater than 0, got 0'),
    (dict(decay_rate=1.5), 'decay_rate must be above 0 and at most 1, got 1.5'),
    (dict(decay_rate=NAN), 'decay_rate must be finite and greater than 0, got nan'),
    (dict(decay_rat=0.9), "one of .*got 'decay_rat'; did you mean 'decay_rate'"),
    (dict(decay_rate=0.9, norm_decay_mult=-1), 'norm_decay_mult must be finite and at least 0, got -1'),
]  # fmt: skip
# A part, what it is built with, the wrong options among it.
HEADS = dict(embed_dims=16, num_heads=4, grid=(4, 4))
LAYERS = [
    (part('SimpleFeaturePyramid', in_channels=2), 'in_channels must be at least 4, got 2'),
    (part('SimpleFeaturePyramid', in_channels=16, out_channels=0), 'out_channels must be at least 1, got 0'),
    (part('SimpleFeaturePyramid', in_channels=16, scales=[4, 3]), r'scales must be of \(4, 2, 1, 0.5\), got 3'),
    (part('SimpleFeaturePyramid', in_channels=16, scales=[]), 'scales must have at least one entry'),
    (part('SimpleFeaturePyramid', in_channels=16, num_outs=3), 'num_outs must be at least 4, got 3'),
    (part('SimpleFeaturePyramid', in_channels=16, norm_cfg=dict(type='LN')), 'norm_cfg must be a norm of maps'),
    (part('SimpleFeaturePyramid', in_channels=16, norm_cfg=dict(type='BN1d')), 'norm_cfg must be a norm of maps'),
    (part('SimpleFeaturePyramid', in_channels=16, norm_cfg=dict(type='GN')), 'needs num_groups that divide'),
    (part('SimpleFeaturePyramid', in_channels=16, norm_cfg=dict(type='GN', num_groups=0)), 'needs num_groups'),
    (part('WideValueAttention', embed_dims=16, num_heads=2, key_dims=4, value_ratio=0.2), 'leaves no channel'),
    (part('BigBirdAttention', embed_dims=16, num_heads=4, window=2), 'window must be odd'),
    (part('DifferentialAttention', embed_dims=12, num_heads=4), 'twice num_heads must divide embed_dims, got .*=8'),
    (part('DifferentialAttention', embed_dims=16, num_heads=4, layer=-1), 'layer must be at least 0, got -1'),
    (part('LSHAttention', embed_dims=16, num_heads=4, num_buckets=5), 'num_buckets must be even'),
    (part('AttentionPooling', embed_dims=16, num_heads=3), 'num_heads must divide embed_dims, got num_heads=3'),
    (part('TokenEmbed', in_channels=3), 'in_channels must be 1 to 1, got 3'),
    (part('TokenEmbed', padding_id=16), 'padding_id must be 0 to 15, got 16'),
    (part('ConvPoolStem', kernel_size=4), 'kernel_size must be odd, got 4'),
    (part('ImageToTokens', patch_size=6), 'patch_size must be a multiple of 4, got 6'),
    (part('ConvStem', embed_dims=12), 'embed_dims must be a multiple of 8 for 4 convolutions, got 12'),
    (part('PerformerTokens', in_channels=6, embed_dims=1), 'embed_dims must be at least 2'),
    (part('DTN', num_features=8, num_heads=2, variance_only=True, ratio_mean=0.5), 'variance_only fixes ratio_mean'),
    (part('DTN', num_features=8, num_heads=2, positions='banded'), 'band goes with'),
    (part('TokenGN', num_features=8, num_groups='heads'), "num_groups='heads' needs num_heads"),
    (part('SinusoidalPosition', embed_dims=7, grid=(2, 2)), 'embed_dims must be a multiple of 2, got 7'),
    (part('SinusoidalPosition', embed_dims=6, grid=(2, 2), axes=2), 'embed_dims must be a multiple of 4, got 6'),
    (part('GaborAttention', **HEADS, parts=None, value=None), 'there is no position left to add'),
    (part('GaborAttention', **HEADS, parts=None, query_key='LE'), "query_key needs parts, got query_key='LE'"),
    (part('GaborAttention', **HEADS, parts='2,3', channels=4), 'channels needs part 4, got channels=4'),
    (part('RelativePositionBias', **HEADS, prefix_scores=True, layer_norm=True), 'exclude one another'),
    (part('RotaryPosition', **dict(HEADS, num_heads=8)), 'the channels of a head must be a multiple of 4'),
    (part('RotaryPosition', **HEADS, reference=3), 'reference=3 is for rescale=True'),
    (part('RotaryPosition', **HEADS, coordinates='centred', rescale=True), 'rescale and offset must be left out'),
    (part('RotaryPosition', **HEADS, random=dict(shift=-0.1)), 'shift must be finite and at least 0, got -0.1'),
    (part('RotaryPosition', **HEADS, random=dict(jitter=0.5)), 'jitter must be finite and at least 1, got 0.5'),
    (part('RotaryPosition', **HEADS, random=dict(rescal=2)), "unexpected keyword argument 'rescal'.*rescale"),
]  # fmt: skip
# A micro network, and what does not go together in it.
TWO = part('SeveralBranchesBlock', num_branches=1)
LATER = dict(out_type='cls_token', prefix_after=1, out_indices=[0, 1])
ACROSS = dict(prefix=dict(cls_token=True, across_layers=part('LayerClassAttention')))
NETWORKS = [
    (vit(prefix_after=2), 'prefix_after must be 0 to 1, got 2'),
    (vit(prefix_after=1, with_cls_token=False), 'prefix_after=1 needs a class or distillation token'),
    (vit(**LATER), 'outputs .out_indices. of layers that these tokens have joined'),
    (vit(out_type='cls_token', with_cls_token=False), 'needs with_cls_token=True'),
    (vit(out_type='cls_and_dist'), 'needs with_dist_token=True'),
    (vit(arch=dict(embed_dims=24, depth=4)), r"missing \['num_heads'\]"),
    (vit(norm_cfg=dict(type='BN')), 'not a token norm'),
    (vit(norm_cfg=part('DTN', layers='10')), 'norm_cfg layers'),
    (vit(block=TWO), 'num_branches must be at least 2, got 1'),
    (pvt('V2', joining=part('LaPE')), 'nothing to join'),
    (pvt('V2', with_cls_token=True), "unexpected keyword argument 'with_cls_token'"),
    (pvt('V2', arch='tiny'), r"arch must be one of \['b0'"),
    (pvt(position=[None] * 3), 'position must have one entry'),
    (pvt(out_type='avg'), 'out_indices must be 3'),
    (pvt(with_cls_token=True, out_indices=[0, 1]), 'are those of the last stage, which is not built'),
    (pvt(with_cls_token=True, arch=dict(PYRAMID, depths=[1] * 4)), 'need attention without spatial reduction'),
    (pvt(**ACROSS, out_type='cls_token', out_indices=3), 'needs a network counted by layers'),
    (pvt(pre_norm=True), 'pre_norm=True is for networks counted by layers'),
    (ceit(stem=part('ImageToTokens', norm_cfg=part('LN'))), 'must be a norm of maps'),
    (compact(layer_scale=1), "unexpected keyword argument 'layer_scale'"),
    (levit(arch=dict(embed_dims=16, depths=[1] * 3, num_heads=[2] * 3, key_dims=4)), 'must be a list of 3 values'),
    (levit(position=[part('LearnedPosition'), *[part('MergedPosition')] * 2], joining=part('LaPE')),
     'batch norms would take statistics of positions'),
    (levit(window_size=7), "unexpected keyword argument 'window_size'"),
    (levit(attention_position=part('RotaryPosition')), 'a position that is added to scores'),
    (t2t(tokens='performer'), 'tokens must be a dict'),
    (t2t(tokens=part('PerformerToken')), 'PerformerTokens'),
    (swin(prefix=dict(cls_token=True)), 'need attention without'),
    (swin(position=part('LearnedPosition'), joining=part('UnsharedJoining')), 'a list with a position for every stage'),
    (swin(position=[part('MergedPosition')] * 4), 'position of the first stage must be its own'),
    (swin(position=part('LearnedPosition'), joining=[part('DefaultJoining')] + [part('LaPE')] * 3),
     'joining=.*LaPE.* of stage 2 receives no position'),
    (vit(attention_position=part('LearnedPosition')), 'attention_position must be a AttentionPosition'),
    (vit(position=part('RotaryPosition')), 'position must be a PositionEmbedding'),
    (vit(joining=part('LearnedPosition')), 'joining must be a Joining'),
]  # fmt: skip


MICRO = dict(arch=ARCH, img_size=32)
ADAPTED = part(
    'ViTAdapter', vit=MICRO, interaction_indexes=[[0, 0], [1, 1]], conv_inplanes=4, deform_num_heads=2
)  # fmt: skip
BASES = [
    (VIT, part('VisionTransformer', **MICRO)),
    (PVT, part('PyramidVisionTransformerV2', arch=PYRAMID, img_size=32)),
    (ADAPTER, ADAPTED),
    (LIGHT, part('LightViTAdapter', vit=MICRO)),
    (LAYERS, {}),
]
SGD = dict(optimizer=dict(type='SGD', lr=0.1, weight_decay=0.1))
DECAYED = part('LayerDecayOptimizerConstructor', optim_wrapper_cfg=SGD)
# All that is built by a registry: of which, with what, and words of the message.
BUILT = [
    *((MODELS, {**base, **options}, words) for table, base in BASES for options, words in table),
    *((HOOKS, config, words) for config, words in BUILT_HOOKS),
    *(
        (OPTIM_WRAPPER_CONSTRUCTORS, dict(DECAYED, paramwise_cfg=options), words)
        for options, words in DECAY
    ),
]


def refused(build, words):
    with pytest.raises((ValueError, TypeError), match=words):
        build()


# The text of a registry is a table of all of its classes, which takes long.
@pytest.mark.parametrize(('registry', 'config', 'words'), BUILT, ids=[case[2] for case in BUILT])
def test_models_parts_hooks_and_optimizers(registry, config, words):
    refused(lambda: registry.build(config), words)


# What the network sets itself, by the base class of a part.
SIZES = {
    'stem': (Stem, ('embed_dims', 'grid')),
    'position': (PositionEmbedding, ('embed_dims', 'grid', 'num_prefix_tokens', 'num_tables')),
    'joining': (Joining, ('embed_dims', 'depth')),
    'attention_position': (
        AttentionPosition,
        ('embed_dims', 'num_heads', 'grid', 'num_prefix_tokens', 'window_size'),
    ),
    'attention': (AttentionLayer, ('embed_dims', 'num_heads')),
    'mlp': ((Mlp, ConvMlp, LocallyEnhancedMlp, SwiGLU, NormedMlp), ('embed_dims', 'hidden_dims')),
    'block': (Block, ('embed_dims', 'attn', 'mlp', 'norm_cfg')),
}


def sizes():
    """The option, the part and the size for all registered parts that take it."""
    MODELS.import_from_location()
    for option, (base, names) in SIZES.items():
        for kind, cls in MODELS.module_dict.items():
            if issubclass(cls, base):
                taken = [name for name in names if name in options_of(cls)]
                if getattr(cls, 'shared', False) and 'window_size' in taken:
                    taken.remove('window_size')  # it serves layers of any
                yield from (pytest.param(option, kind, name) for name in taken)


@pytest.mark.parametrize(('option', 'kind', 'name'), list(sizes()))
def test_sizes_are_the_networks(option, kind, name):
    """They were overwritten in silence."""
    wrong = part(kind, **{name: 7 if name != 'grid' else (7, 7)})
    words = f'{option}: {name} of mmlape.{kind} must be left out, the network sets it; got'
    options = {'arch': ARCH, 'img_size': 32, 'with_cls_token': False, option: wrong}
    refused(lambda: MODELS.build(part('VisionTransformer', **options)), words)


@pytest.mark.parametrize('kind', ['VisionTransformer', 'SwinTransformer', 'ViTAdapter'])
def test_names_of_published_configs(kind):
    """The error of each says what to write, which is an option."""
    cls = MODELS.get(f'mmlape.{kind}')
    for name, here in cls.published.items():
        option, _, value = here.partition('=')
        if name not in options_of(cls):
            words = f'; here, write {here}' if here else '; leave it out'
            words = f'{kind} got an .* argument {name!r}{re.escape(words)}$'
            refused(partial(cls, **{name: 1}), words)
        if kind in ('VisionTransformer', 'ViTAdapter') and here:
            assert option in options_of(cls), name
            inner = re.match(r'dict\((\w+)=', value) if option == 'vit' else None
            assert inner is None or inner[1] in options_of(VisionTransformer), name
    text = (REPO / 'docs' / 'guide.md').read_text(encoding='utf-8')
    for here in set(cls.published.values()) if kind == 'ViTAdapter' else ():
        names = ', '.join(f'`{name}`' for name, each in cls.published.items() if each == here)
        code, _, remark = here.partition('; ')
        cell = f'`{code}`' + f'; {remark}' * bool(remark) if here else 'leave it out'
        assert f'\n| {names} | {cell} |\n' in text


@pytest.mark.parametrize(('build', 'words'), NETWORKS)
def test_other_networks(build, words):
    refused(build, words)


def several():
    wrappers = dict(
        body=dict(optimizer=dict(type='SGD', lr=0.1), accumulative_counts=2),
        head=dict(optimizer=dict(type='AdamW', lr=0.01)),
    )
    schedules = dict(body=dict(type='PolyLR', power=1), head=[dict(type='LinearLR', end=9)])
    return Config(dict(optim_wrapper=dict(wrappers, constructor='X'), param_scheduler=schedules))


def usual():
    loader = dict(
        batch_size=2, num_workers=2,
        dataset=dict(type='X', metainfo=dict(classes=('cat', 'dog')), data_root='data/'),
    )  # fmt: skip
    adamw = dict(type='AdamW', lr=1e-4, weight_decay=0.05)
    warm_up = dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False)
    return Config(
        dict(
            data_root='data/',
            train_pipeline=[dict(type='LoadImageFromFile')],
            model=dict(backbone=dict(type='mmlape.VisionTransformer', with_cls_token=False)),
            train_dataloader=loader,
            val_dataloader=dict(loader),
            optim_wrapper=dict(type='OptimWrapper', optimizer=adamw),
            train_cfg=dict(by_epoch=True, max_epochs=12, val_interval=1),
            param_scheduler=[warm_up],
            default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=-1)),
            custom_hooks=[dict(type='mmlape.CheckDataHook')],
            randomness=dict(seed=0),
        )
    )


@pytest.mark.parametrize(
    ('make', 'overrides', 'words'),
    [(usual, *case) for case in BEYOND] + [(several, *case) for case in SEVERAL],
)
def test_beyond_the_model(make, overrides, words):
    check_config(make())
    refused(lambda: check_config(merge_overrides(make(), overrides)), words)


# Paths of values that must be at least 1, above 0, at least 0, or a truth value: with one that is not.
RANGES = {
    0: """train_cfg.max_epochs train_cfg.max_iters train_cfg.val_interval train_cfg.val_begin
        default_hooks.logger.interval auto_scale_lr.base_batch_size test_dataloader.batch_size
        optim_wrapper.accumulative_counts param_scheduler.end param_scheduler.T_max param_scheduler.warmup
        optim_wrapper.optimizer.lr optim_wrapper.optimizer.eps optim_wrapper.clip_grad.max_norm
        optim_wrapper.clip_grad.clip_value param_scheduler.start_factor param_scheduler.gamma param_scheduler.power
        default_hooks.checkpoint.interval""",
    -1: """test_dataloader.num_workers param_scheduler.begin randomness.seed optim_wrapper.optimizer.weight_decay
        param_scheduler.eta_min""",
    1: 'train_cfg.by_epoch param_scheduler.by_epoch randomness.deterministic resume',
}


@pytest.mark.parametrize(
    ('path', 'value'), [(path, value) for value, paths in RANGES.items() for path in paths.split()]
)
def test_values_out_of_range(path, value):
    cfg = Config()
    cfg.merge_from_dict({path: value})
    refused(lambda: check_config(cfg), f'{path} must be ')


def test_warm_ups_of_two_stages():
    check_config(dict(param_scheduler=[dict(warmup=(0, 5))]))
    wrong = dict(param_scheduler=[dict(warmup=(5, -1))])
    refused(lambda: check_config(wrong), 'param_scheduler.0.warmup must be at least 0, got -1')


TRANSFORMS = {
    'brightest must be 0 to 255, got 300': part('DarkBackground', brightest=300),
    "unexpected keyword argument 'brightness'; did you mean 'brightest'": part(
        'DarkBackground', brightness=9
    ),
    'mean must have 2 values': part('LoadImage', channels=2, mean=[0.0]),
    'channels': dict(type=LoadImage),
}


@pytest.mark.parametrize('words', TRANSFORMS)
@pytest.mark.parametrize('split', ['train', 'val', 'test'])
@pytest.mark.parametrize('wrapped', ['', 'dataset', 'datasets'])
def test_transforms(words, split, wrapped):
    def cfg(step):
        data = dict(type='CocoDataset', pipeline=[dict(type='Resize', scale=1), step])
        if wrapped:
            data = {'type': 'Wrapper', wrapped: data if wrapped == 'dataset' else [data]}
        return {f'{split}_dataloader': dict(dataset=data)}

    check_config(cfg(part('DarkBackground', brightest=255)))
    refused(lambda: check_config(cfg(TRANSFORMS[words])), words)
    own = dict(dataset=dict(type='MultiImageMixDataset', dataset={}, pipeline=[TRANSFORMS[words]]))
    refused(lambda: check_config(dict(train_dataloader=own)), words)


def test_a_strategy_may_bring_optimizers():
    cfg = usual()
    cfg.strategy = dict(type='DeepSpeedStrategy')
    cfg.optim_wrapper.optimizer.type = 'FusedAdam'
    check_config(cfg)


@pytest.mark.parametrize('path', MISSPELT)
def test_command_line(path):
    refused(lambda: merge_overrides(usual(), {path: 1}), MISSPELT[path])


MEANT = {
    'model.backbone.with_cp': True,
    'model.backbone.compile_blocks': True,
    'model.backbone.with_dist_token': True,
    'model.backbone.joining.type': 'mmlape.LaPE',
    'model.backbone.joining': dict(type='mmlape.LaPE'),
    'randomness.deterministic': True,
    'optim_wrapper.clip_grad.max_norm': 1,
    'auto_scale_lr.enable': True,
    'env_cfg.dist_cfg.backend': 'gloo',
    'work_dir': 'elsewhere',
    'load_from': 'weights.pth',
    'custom_hooks.0.max_decode': 10,
    'train_dataloader.persistent_workers': False,
    'train_dataloader.dataset.indices': 3,
}


@pytest.mark.parametrize('path', MEANT)
def test_new_names_that_are_meant(path):
    cfg = merge_overrides(usual(), {path: MEANT[path]})
    for key in path.split('.'):
        cfg = cfg[int(key)] if key.isdigit() else cfg[key]
    assert cfg == MEANT[path]

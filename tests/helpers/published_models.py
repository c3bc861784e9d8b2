"""Models that published checkpoints are loaded into: shipped configs, and a narrow Mask R-CNN for quick tests."""

import copy

import published_shapes as published
from config_utils import CONFIGS
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope

MICRO = dict(dims=24, depth=4, inplanes=8, points=2)


def build(model, scope='mmdet'):
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(ConfigDict(copy.deepcopy(model)))


def shipped(path, **model):
    config = Config.fromfile(CONFIGS / path)
    config.merge_from_dict(dict(model=model))
    return config.model


def micro(model, classes=80, **backbone):
    """The golden network as the backbone of a narrow Mask R-CNN."""
    options = dict(
        type='mmlape.ViTAdapter',
        vit=dict(
            arch=dict(embed_dims=24, depth=4, num_heads=3, mlp_ratio=4),
            with_cls_token=False,
            final_norm=False,
            layer_scale=True,
        ),
        conv_inplanes=8,
        num_points=2,
        interaction_indexes=[[0, 0], [1, 1], [2, 2], [3, 3]],
        norm_cfg=dict(type='BN'),
    )
    model = Config.fromfile(CONFIGS / model).model
    model.backbone = {**options, **backbone}
    model.neck.update(in_channels=[24] * 4)
    if 'roi_head' in model:
        model.neck.update(out_channels=16)
        model.rpn_head.update(in_channels=16, feat_channels=16)
        model.roi_head.bbox_roi_extractor.update(out_channels=16)
        model.roi_head.mask_roi_extractor.update(out_channels=16)
        model.roi_head.bbox_head.update(in_channels=16, fc_out_channels=32, num_classes=classes)
        model.roi_head.mask_head.update(in_channels=16, conv_out_channels=16, num_classes=classes)
    else:
        model.bbox_head.update(num_classes=classes)
    return model


MASK_RCNN = '_base_/models/mask-rcnn_fpn.py'


def micro_names(classes=80):
    backbone = published.vit_adapter(**MICRO)
    return published.mask_rcnn(backbone, [24] * 4, classes, width=16, hidden=32)

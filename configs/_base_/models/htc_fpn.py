"""HTC++ (Hybrid Task Cascade with Swin's changes) on an FPN: everything but the backbone.

Boxes are those of ``cascade-mask-rcnn_fpn.py`` without its norms and losses; masks pass from stage to stage, and a head
learns label maps. A config adds ``backbone`` and ``neck``.
"""

_base_ = './cascade-mask-rcnn_fpn.py'

cascade = _base_.model
mask_head = dict(cascade.roi_head.mask_head, type='HTCMaskHead')
model = dict(
    type='HybridTaskCascade',
    data_preprocessor=dict(pad_seg=True),
    roi_head=dict(
        type='HybridTaskCascadeRoIHead',
        interleaved=True,
        mask_info_flow=True,
        bbox_head=[
            dict(
                type='Shared4Conv1FCBBoxHead',
                in_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                num_classes=80,
                bbox_coder=head.bbox_coder,
                reg_class_agnostic=True,
                loss_cls=head.loss_cls,
                loss_bbox=dict(type='SmoothL1Loss', beta=1.0, loss_weight=1.0),
            )
            for head in cascade.roi_head.bbox_head
        ],
        mask_head=[dict(mask_head, with_conv_res=False), mask_head, mask_head],
        semantic_roi_extractor=dict(cascade.roi_head.mask_roi_extractor, featmap_strides=[8]),
        semantic_head=dict(
            type='FusedSemanticHead',
            num_ins=5,
            fusion_level=1,
            seg_scale_factor=1 / 8,
            num_convs=4,
            in_channels=256,
            conv_out_channels=256,
            num_classes=183,
            loss_seg=dict(type='CrossEntropyLoss', ignore_index=255, loss_weight=0.2),
        ),
    ),
    train_cfg=dict(
        rcnn=[
            dict(stage, assigner=dict(stage.assigner, match_low_quality=True))
            for stage in cascade.train_cfg.rcnn
        ]
    ),
    test_cfg=dict(rcnn=dict(score_thr=0.001, nms=dict(type='soft_nms'))),
)
del cascade, mask_head

"""Sparse R-CNN (CVPR 2021) on an FPN, 100 boxes: everything but the backbone.

A config adds ``backbone`` and ``neck.in_channels``, and its own learning rate and clipping.
"""

num_stages = 6
num_proposals = 100
stage = dict(
    type='DIIHead',
    num_classes=80,
    num_ffn_fcs=2,
    num_heads=8,
    num_cls_fcs=1,
    num_reg_fcs=3,
    feedforward_channels=2048,
    in_channels=256,
    dropout=0.0,
    ffn_act_cfg=dict(type='ReLU', inplace=True),
    dynamic_conv_cfg=dict(
        type='DynamicConv',
        in_channels=256,
        feat_channels=64,
        out_channels=256,
        input_feat_shape=7,
        act_cfg=dict(type='ReLU', inplace=True),
        norm_cfg=dict(type='LN'),
    ),
    loss_bbox=dict(type='L1Loss', loss_weight=5.0),
    loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=2.0),
    bbox_coder=dict(
        type='DeltaXYWHBBoxCoder',
        clip_border=False,
        target_means=[0.0, 0.0, 0.0, 0.0],
        target_stds=[0.5, 0.5, 1.0, 1.0],
    ),
)
matching = dict(
    assigner=dict(
        type='HungarianAssigner',
        match_costs=[
            dict(type='FocalLossCost', weight=2.0),
            dict(type='BBoxL1Cost', weight=5.0, box_format='xyxy'),
            dict(type='IoUCost', iou_mode='giou', weight=2.0),
        ],
    ),
    sampler=dict(type='PseudoSampler'),
    pos_weight=1,
)

model = dict(
    type='SparseRCNN',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    neck=dict(type='FPN', out_channels=256, start_level=0, add_extra_convs='on_input', num_outs=4),
    rpn_head=dict(
        type='EmbeddingRPNHead', num_proposals=num_proposals, proposal_feature_channel=256
    ),
    roi_head=dict(
        type='SparseRoIHead',
        num_stages=num_stages,
        stage_loss_weights=[1] * num_stages,
        proposal_feature_channel=256,
        bbox_roi_extractor=dict(
            type='SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=7, sampling_ratio=2),
            out_channels=256,
            featmap_strides=[4, 8, 16, 32],
        ),
        bbox_head=[stage] * num_stages,
    ),
    train_cfg=dict(rpn=None, rcnn=[matching] * num_stages),
    test_cfg=dict(rpn=None, rcnn=dict(max_per_img=num_proposals)),
)
del stage

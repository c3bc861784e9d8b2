"""DDQ DETR (CVPR 2023) on maps of strides 8 to 64: DINO with queries that NMS makes distinct, and dense ones beside."""

_base_ = './dino_4scale.py'

model = dict(
    type='DDQDETR',
    dense_topk_ratio=1.5,
    dqs_cfg=dict(type='nms', iou_threshold=0.8),
    bbox_head=dict(type='DDQDETRHead'),
)

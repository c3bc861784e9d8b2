"""EoMT on COCO's things and stuff at 640 x 640. A row adds the ViT."""

_base_ = ['./eomt_coco.py', '../datasets/coco_panoptic_lsj-640.py']

num_stuff_classes = _base_.num_stuff_classes
num_classes = _base_.num_classes + num_stuff_classes
batch_augment = _base_.model.data_preprocessor.batch_augments[0]
model = dict(
    data_preprocessor=dict(
        _base_.padding, batch_augments=[dict(batch_augment, img_pad_value=0, **_base_.padding)]
    ),
    backbone=dict(num_classes=num_classes),
    panoptic_head=dict(num_stuff_classes=num_stuff_classes),
    panoptic_fusion_head=dict(num_stuff_classes=num_stuff_classes),
    test_cfg=dict(panoptic_on=True, iou_thr=0.8, filter_low_score=True),
)
# MMEngine infers no rule for this name.
default_hooks = dict(checkpoint=dict(save_best='coco_panoptic/PQ', rule='greater'))
del batch_augment

"""Faster R-CNN on the LaPE ViT-Adapter for your own COCO-format folder; boxes suffice (docs/custom_data.md).

    LAPE_DATA_ROOT=data/blood LAPE_CLASSES='RBC,WBC' LAPE_MAX_EPOCHS=24 \
        python tools/train.py configs/custom/faster-rcnn_deit-t-adapter-lape_fpn_coco-format.py
"""

_base_ = './mask-rcnn_deit-t-adapter-lape_fpn_coco-format.py'

model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
)
load_annotations = dict(type='LoadAnnotations', with_bbox=True)
train_pipeline = [
    load_annotations if step['type'] == 'LoadAnnotations' else step
    for step in _base_.train_pipeline
]
test_pipeline = [
    load_annotations if step['type'] == 'LoadAnnotations' else step for step in _base_.test_pipeline
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator

"""Faster R-CNN on ViT-Adapter-Ti: the Mask R-CNN without its mask branch."""

_base_ = './mask-rcnn_deit-t-adapter_fpn.py'

model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
)

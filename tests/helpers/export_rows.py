"""A small model of every kind that is exported."""

import torch
from config_utils import cut, use_scope
from test_configs import CONFIGS, build, load, take_less_work

ROWS = {
    'Mask R-CNN': 'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'Mask R-CNN, plain ViT': 'demo/mask-rcnn_vit-micro-dinov3_sfp_digit-scenes.py',
    'RetinaNet': 'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes.py',
    'GFL': 'experiments/gfl_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'ATSS': 'detectors/atss_deit-s-adapter-lape_fpn_ms-3x_coco.py',
    'FCOS': 'detectors/fcos_deit-s-adapter-lape_fpn_ms-3x_coco.py',
    'Sparse R-CNN': 'experiments/sparse-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'Cascade R-CNN': 'lape/cascade-mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco.py',
    'HTC': 'vit_adapter/htc_augreg-l-adapter_fpn_ms-3x_coco.py',
    'DINO': 'experiments/dino-3scale_vit-micro-adapter-lape_digit-scenes.py',
    'Deformable DETR': 'detr/deformable-detr-refine-twostage_pvt-s-dtn_16xb2-50e_coco.py',
    'Mask2Former, panoptic': 'experiments/mask2former_vit-micro-dinov3_sfp_digit-scenes-panoptic.py',
    'EoMT, instances': 'eomt/eomt_dinov2-l_lsj-1x_coco.py',
    'EoMT': 'experiments/eomt_vit-micro-lape_digit-scenes.py',
    'Mask2Former': 'foundation/mask2former_dinov2-b-adapter_8xb2-40k_ade20k-512x512.py',
    'Segmenter': 'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
    'UPerNet': 'demo/upernet_vit-micro-dinov3_sfp_digit-scenes.py',
    'SegFormer': 'demo/segformer_vit-micro-dinov3_sfp_digit-scenes.py',
    'linear': 'foundation/linear_dinov2-s_8xb2-40k_ade20k-512x512.py',
}


def small(name):
    """The model of a row, shaken, with small heads; and its scope."""
    path = CONFIGS / ROWS[name]
    cfg = load(path)
    use_scope(cfg.default_scope)
    take_less_work(cfg)
    if 'dinov2' in path.name:
        cfg = cut(cfg)
    if name in ('Cascade R-CNN', 'HTC'):  # of so few classes, random scores pass the threshold
        for head in (*cfg.model.roi_head.bbox_head, *_listed(cfg.model.roi_head.mask_head)):
            head.num_classes = 3
    if name == 'HTC':  # soft suppression has no operator; and a smaller backbone
        cfg.model.test_cfg.rcnn.update(nms=dict(type='nms', iou_threshold=0.5), score_thr=0.05)
        donor = load(CONFIGS / ROWS['Cascade R-CNN']).model
        cfg.model.update(backbone=donor.backbone, neck=donor.neck)
    if 'panoptic' in name:  # random classes and masks pass no other thresholds
        cfg.model.test_cfg.update(object_mask_thr=0.0, iou_thr=0.02)
    torch.manual_seed(0)
    model = build(cfg).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.1 * parameter.abs().mean() + 0.01
            parameter += scale * torch.randn(parameter.shape)
    return model, cfg.default_scope


def _listed(value):
    return value if isinstance(value, list) else [value]

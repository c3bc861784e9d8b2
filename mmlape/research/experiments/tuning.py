"""Ways of fine-tuning a pre-trained ViT-S on few images, as `mmlape fit` has them: what docs/fine_tuning.md compares.

The weights stand in for those of DINOv3: DINO on the training images of nuclei and CamVid, without labels. Their
training comes first: `mmlape train dino_vit-s_1xb32_own-images`, with the images of both under `data/own`.
"""

from __future__ import annotations

from typing import Any

from .recipes import DEFAULT, Experiment, Recipe, Variant, cropped

WEIGHTS = 'mmlape:work_dirs/dino_vit-s_1xb32_own-images/epoch_16.pth'
WAYS: dict[str, dict[str, Any]] = {
    'full': {},
    'LoRA': dict(lora=8),
    'frozen, cached': dict(frozen=True),
}
_VIT = {
    'model.backbone.arch': 'deit-small',
    'model.backbone.img_size': 256,
    'model.backbone.window_size': None,
    'model.backbone.drop_path_rate': 0.0,
    'model.backbone.joining': DEFAULT['net.joining'],
}
_WIDTH = 96
# Heads of a width that a CPU trains in minutes, and the anchors and samples that nuclei need.
_NARROW = {
    'model.neck.out_channels': _WIDTH,
    'model.rpn_head.in_channels': _WIDTH,
    'model.rpn_head.feat_channels': _WIDTH,
    'model.rpn_head.anchor_generator.scales': [4],
    'model.roi_head.bbox_roi_extractor.out_channels': _WIDTH,
    'model.roi_head.bbox_roi_extractor.roi_layer.use_torchvision': True,
    'model.roi_head.bbox_head.in_channels': _WIDTH,
    'model.roi_head.bbox_head.conv_out_channels': _WIDTH,
    'model.roi_head.bbox_head.fc_out_channels': 256,
    'model.roi_head.mask_roi_extractor.out_channels': _WIDTH,
    'model.roi_head.mask_roi_extractor.roi_layer.use_torchvision': True,
    'model.roi_head.mask_head.in_channels': _WIDTH,
    'model.roi_head.mask_head.conv_out_channels': _WIDTH,
    'model.train_cfg.rcnn.sampler.num': 128,
    'model.data_preprocessor.batch_augments': [dict(type='BatchFixedSizePad', size=(256, 256), pad_mask=True)],
}  # fmt: skip
_HEAD = {
    'model.decode_head.in_channels': 384,
    'model.decode_head.channels': 384,
    'model.decode_head.embed_dims': 384,
    'model.decode_head.num_heads': 6,
}


def _experiment(
    data: str,
    model: str,
    options: dict[str, Any],
    changes: dict[str, Any],
    pipeline: list | None = None,
) -> Experiment:
    """All ways make as many steps; the frozen one caches as many views of each image as others have epochs."""
    recipes = {}
    for way, more in {**WAYS, 'full, random weights': {}}.items():
        given = {**options, **more} | ({} if 'random' in way else dict(weights=WEIGHTS))
        dataset = 'train_dataloader.dataset'
        if 'cached' in way:
            given['views'], dataset = options['epochs'], f'{dataset}.dataset'
        own = {f'{dataset}.pipeline': pipeline} if pipeline else {}
        recipes[way] = Recipe(model, given, {**_VIT, **changes, **own})
    variants = {way: Variant({}, recipe) for way, recipe in recipes.items()}
    question = f'{data}: what do ways of fine-tuning a ViT-S give, and what do they cost?'
    return Experiment(data, question, recipes['full'], variants, seeds=1)


TUNING = {
    'camvid-tuning': _experiment('camvid', 'segmenter', dict(epochs=8, batch=4, size=256), _HEAD),
    'nuclei-tuning': _experiment(
        'nuclei', 'dinov3', dict(epochs=3, batch=4, size=512), _NARROW, cropped(512, 256)
    ),
}

"""How EoMT (CVPR 2025) is trained here, for both toolboxes, with DINOv2; rows on DINOv3 change two values.

AdamW, all parameters with weight decay; rates fall by 0.8 per layer, but for the blocks that queries run through; in
the released code only with DINOv3 on COCO (configs/eomt/README.md).
"""

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(
        decay_rate=0.8,
        full_rate_layers=3,
        position_decay_mult=1.0,
        norm_decay_mult=1.0,
        bias_decay_mult=1.0,
        flat_decay_mult=1.0,
    ),
    clip_grad=dict(max_norm=0.01, norm_type=2),
)
custom_hooks = [dict(type='mmlape.MaskAnnealingHook')]
auto_scale_lr = dict(enable=False, base_batch_size=16)

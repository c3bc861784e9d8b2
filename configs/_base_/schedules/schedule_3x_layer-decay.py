"""``schedule_3x`` with learning rates that fall by 0.7 per layer of a ViT (Mask R-CNN's on foundation models)."""

_base_ = './schedule_3x.py'

optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.7),
)

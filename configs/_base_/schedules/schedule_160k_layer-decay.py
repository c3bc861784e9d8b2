"""``schedule_160k_adamw`` with learning rates that fall by 0.95 per layer (the schedule of UPerNet on ViT-Adapter)."""

_base_ = './schedule_160k_adamw.py'

optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.95),
)

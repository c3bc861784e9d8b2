"""36 epochs over COCO with learning rates that fall by 0.9 per layer: the schedule of HTC++; 16 images per step."""

_base_ = '../schedules/schedule_3x.py'

optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.9),
)

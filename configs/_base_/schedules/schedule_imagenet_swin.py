"""Swin's 300 epochs (ICCV 2021, appendix A2.1): 1024 images a step, 20 epochs of warm-up from 1e-6, cosine from 1e-3 to
1e-5. Gradients are clipped at 5, as in its code; the appendix says 1. Weight decay spares relative positions too."""

_base_ = './schedule_imagenet.py'

optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
param_scheduler = [
    # from 1e-6
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=20),
]  # fmt: skip

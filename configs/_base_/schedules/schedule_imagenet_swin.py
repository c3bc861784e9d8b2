"""Swin's 300 epochs (ICCV 2021, appendix A2.1) at LaPE's batch (arXiv v1, Table 7): 512 images a step, 20 epochs of
warm-up from 5e-7, cosine from 5e-4 to 5e-6, gradients clipped at 5. Weight decay spares relative positions too."""

_base_ = './schedule_imagenet.py'

optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    # from 5e-7
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=5e-6, by_epoch=True, begin=20),
]  # fmt: skip
auto_scale_lr = dict(base_batch_size=512)

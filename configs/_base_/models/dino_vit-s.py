"""DINO around ViT-S (ICCV 2021): the class token, 65536 prototypes."""

model = dict(
    type='mmlape.DINO',
    backbone=dict(
        type='mmlape.VisionTransformer',
        arch='deit-small',
        img_size=224,
        out_type='cls_token',
        drop_path_rate=0.1,
        norm_cfg=dict(type='mmlape.LN', eps=1e-6),
    ),
    head=dict(type='mmlape.DINOHead', in_channels=384, out_channels=65536),
    criterion=dict(
        type='mmlape.DINOLoss',
        student_temperature=0.1,
        teacher_temperature=0.04,
        centre_momentum=0.9,
    ),
    momentum=0.996,
)

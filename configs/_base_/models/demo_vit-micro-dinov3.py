"""A micro ViT of DINOv3's parts: rotary position, four registers, SwiGLU (as in its S+), layer scale; from scratch.
Beside it ViTDet's simple feature pyramid, of strides 4, 8, 16 and 32.

DINOv3's layer scale starts at 1e-5; a training of minutes from random weights takes 1.
"""

micro_vit = dict(
    type='mmlape.VisionTransformer',
    patch_size=8,
    arch=dict(embed_dims=96, depth=4, num_heads=3, mlp_ratio=3),
    img_size=96,
    position=False,
    attention_position=dict(
        type='mmlape.RotaryPosition', coordinates='centred', pairs='halves', temperature=100.0
    ),
    num_registers=4,
    mlp=dict(type='mmlape.SwiGLU'),
    layer_scale=True,
)
micro_pyramid = dict(
    type='mmlape.SimpleFeaturePyramid',
    in_channels=96,
    out_channels=64,
    scales=[2, 1, 0.5],
    num_outs=4,
)

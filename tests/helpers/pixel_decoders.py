"""A small pixel decoder of Mask2Former, alone and as a network of images."""

import mmdet.models  # noqa: F401
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import nn
from torch.nn import functional as F

ATTENTION = dict(embed_dims=32, num_heads=4, num_levels=3, dropout=0.0, batch_first=True)
FFN = dict(embed_dims=32, feedforward_channels=64, ffn_drop=0.0)


def pixel_decoder(channels=8):
    """MMDetection's, for four maps of these channels."""
    config = ConfigDict(
        type='MSDeformAttnPixelDecoder',
        in_channels=[channels] * 4,
        feat_channels=32,
        out_channels=16,
        norm_cfg=dict(type='GN', num_groups=8),
        encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=ATTENTION, ffn_cfg=FFN)),
        positional_encoding=dict(num_feats=16, normalize=True),
    )
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(config)


class OfImages(nn.Module):
    """Means of an image's parts as the four maps."""

    def __init__(self):
        super().__init__()
        self.decoder = pixel_decoder(channels=3)

    def forward(self, image):
        return self.decoder([F.avg_pool2d(image, side) for side in (4, 8, 16, 32)])

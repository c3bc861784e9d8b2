"""Programs that are exported once, for images of any size and number."""

import pytest
import torch
from config_utils import marked

from mmlape.registry import MODELS

ARCH = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2)
VITS = {
    'LaPE, DTN': dict(joining=dict(type='mmlape.LaPE'), norm_cfg=dict(type='mmlape.DTN', layers=1)),
    'sinusoidal': dict(position=dict(type='mmlape.SinusoidalPosition', axes=2)),
    'rotary': dict(position=False, attention_position=dict(type='mmlape.RotaryPosition')),
}


@pytest.mark.parametrize('name', marked(VITS, ('rotary',)))
def test_plain_vits_are_exported_for_any_size(name):
    """The size of the pre-training, sides that are no multiples of a patch, and less than a patch more or less."""
    torch.manual_seed(0)
    options = dict(type='mmlape.VisionTransformer', arch=ARCH, img_size=64, **VITS[name])
    model = MODELS.build(options).eval()
    batch = torch.export.Dim('batch', min=1, max=16)
    height, width = (torch.export.Dim(side, min=32, max=1024) for side in ('height', 'width'))
    sizes = {'image': {0: batch, 2: height, 3: width}}
    with torch.no_grad():
        program = torch.export.export(
            model, (torch.randn(2, 3, 97, 123),), dynamic_shapes=sizes
        ).module()
        for shape in ((1, 3, 64, 64), (3, 3, 33, 250), (2, 3, 250, 333)):
            image = torch.randn(shape)
            for found, expected in zip(program(image), model(image), strict=True):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

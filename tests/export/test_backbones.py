"""Every registered component in a backbone as TorchScript; as ONNX, what is learned inside of the attention."""

import io

import onnxruntime
import pytest
import torch
from config_utils import marked
from registered import BACKBONES
from torch import nn
from torch.utils._pytree import tree_leaves

from mmlape.apps.export import files

IMAGE = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
# Tables, functions and networks of offsets, which change or are made in every pass.
IN_ATTENTION = [
    'RelativePositionBias',
    'QuadraticBias',
    'RelativePositionMlp',
    'SharedRelativePositionMlp',
    'SharedRelativePositionBias',
    'GaborAttention',
    'SwinTransformer',
    'TransformerTokens',
    'CeiT',
    'AttentionSubsampling',
    'DTN',
]
FAST = ['LaPE', 'SharedRelativePositionMlp', 'ViTAdapter']


class Outputs(nn.Module):
    """A backbone with its outputs as a tuple of tensors."""

    outputs = ()

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, image):
        return tuple(leaf for leaf in tree_leaves(self.backbone(image)) if leaf.numel())


def shaken(name):
    torch.manual_seed(0)
    backbone = BACKBONES[name]().eval()
    backbone.init_weights()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return Outputs(backbone).eval()


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')  # sizes are constants in it
@pytest.mark.parametrize('name', marked(BACKBONES, FAST))
def test_torchscript_holds_every_component(name):
    """With gradients, as a user traces a model without a thought of them."""
    network = shaken(name)
    traced = torch.jit.trace(network, (IMAGE,), check_trace=False)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    for found, expected in zip(torch.jit.load(file)(IMAGE), network(IMAGE), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', IN_ATTENTION)
def test_onnx_holds_what_is_learned_in_the_attention(name, tmp_path):
    network = shaken(name)
    with torch.no_grad():
        expected = network(IMAGE)
        program = torch.export.export(network, (IMAGE,), strict=False)
    network.outputs = [f'map{index}' for index in range(len(expected))]
    files.write_onnx(program, network, tmp_path / 'model.onnx', {})
    session = onnxruntime.InferenceSession(str(tmp_path / 'model.onnx'))
    for found, maps in zip(session.run(None, {files.INPUT: IMAGE.numpy()}), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(found), maps, rtol=1e-3, atol=1e-4)

"""The examples of docs/export.md are run, and their files compute what the models do."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from config_utils import REPO
from docs_pages import python_fences
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch.utils._pytree import tree_leaves

from mmlape.registry import MODELS

# Micro networks of every kind are exported by tests/test_registry.py.
pytestmark = pytest.mark.slow
WHOLE, BACKBONE = (fence.code for fence in python_fences(REPO / 'docs' / 'export.md'))
SIZE = (128, 192)


def write_checkpoint(config, path):
    """Random weights, in which nothing is zero that training would change."""
    cfg = Config.fromfile(config)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=dict(classes=()))), path)


@pytest.mark.parametrize(
    ('config', 'num_outputs'),
    [
        ('lape/segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512.py', 1),
        ('lape/upernet_deit-t-adapter-lape_8xb2-160k_ade20k-512x512.py', 1),
        ('lape/retinanet_deit-s-adapter-lape_fpn_1x_coco.py', 10),
        ('dtn/retinanet_pvt-t-dtn_fpn_1x_coco.py', 10),
    ],
)
def test_a_model_as_an_onnx_file(config, num_outputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = REPO / 'configs' / config
    write_checkpoint(config, 'CHECKPOINT.pth')
    code = WHOLE.replace('CONFIG.py', str(config)).replace('512, 512', '{}, {}'.format(*SIZE))
    if 'coco' in config.name:
        assert 'from mmseg.apis import init_model  # MMDetection: ' in code
        code = code.replace('from mmseg.apis import init_model  # MMDetection: ', '')
    names = {}
    exec(compile(code, 'export.md', 'exec'), names)
    onnx.checker.check_model('model.onnx')
    session = onnxruntime.InferenceSession('model.onnx')
    network = names['Network'](names['model']).eval()
    for batch in (1, 3):
        image = torch.randn(batch, 3, *SIZE)
        outputs = session.run(None, {'image': image.numpy()})
        with torch.no_grad():
            expected = tree_leaves(network(image))
        assert len(outputs) == len(expected) == num_outputs
        for output, wanted in zip(outputs, expected, strict=True):
            assert np.ptp(output) > 0
            assert np.abs(output - wanted.numpy()).max() <= 1e-4 * wanted.abs().max()


def test_a_backbone_as_a_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(BACKBONE, 'export.md', 'exec'), names)
    loaded, image = torch.export.load('backbone.pt2').module(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        for output, wanted in zip(loaded(image), names['backbone'](image), strict=True):
            torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)

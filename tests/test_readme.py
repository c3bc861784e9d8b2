"""The README's example is run as it stands there, on MMDetection's own config."""

import re
from pathlib import Path

import mmdet
import torch
from mmdet.registry import MODELS
from mmdet.utils import register_all_modules
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper

README = Path(__file__).parents[1] / 'README.md'
UPSTREAM = Path(mmdet.__file__).parent / '.mim/configs/mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'


def example() -> str:
    (code,) = re.findall(r'```python\n(.*?)```', README.read_text(encoding='utf-8'), re.S)
    return code


def test_swapping_the_backbone_takes_at_most_15_lines():
    assert len(example().strip().splitlines()) <= 15


def test_swapping_the_backbone_works(tmp_path):
    path = tmp_path / 'my_config.py'
    path.write_text(example().replace('./mask-rcnn_r50_fpn_1x_coco.py', str(UPSTREAM)))
    cfg = Config.fromfile(path)
    assert cfg.model.backbone.vit.init_cfg.model == 'deit_small_patch16_224'
    cfg.model.backbone.vit.init_cfg = None  # a test downloads nothing
    register_all_modules()
    detector = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        features = detector.extract_feat(torch.randn(1, 3, 97, 131))
    assert [tuple(f.shape[-2:]) for f in features] == [(25, 33), (13, 17), (7, 9), (4, 5), (2, 3)]
    optimizer = build_optim_wrapper(detector.train(), cfg.optim_wrapper).optimizer
    rates = sorted({group['lr'] for group in optimizer.param_groups})
    assert type(optimizer).__name__ == 'AdamW'
    assert len(rates) == 14 and rates[-1] == 1e-4

"""Make the files beside this one: weights and outputs of micro EoMT models of ``transformers``.

Run with transformers 5.23.0 and torch 2.11, which must not be in the environment of mmlape (MMPretrain needs names that
transformers 5 has removed)::

    PYTHONPATH=<folder with transformers 5> python tests/data/eomt/make_golden.py

Both networks have masks in every block at probability 1 (``masked``) and none at probability 0 (``annealed``). Weights
are random and exact in float16; ``transformers`` builds square grids alone, so the grid is set afterwards.
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import (
    EomtConfig,
    EomtDinov3Config,
    EomtDinov3ForUniversalSegmentation,
    EomtForUniversalSegmentation,
)

SHARED = dict(
    hidden_size=32, num_hidden_layers=4, num_attention_heads=2, num_blocks=2, num_queries=5,
    num_labels=3, attn_implementation='eager',
)  # fmt: skip
# By name: the class, its config, and the grid (height, width); learned tables have as many rows as a square grid.
CASES = {
    'patch-14': (
        EomtForUniversalSegmentation,
        EomtConfig(
            **SHARED, patch_size=14, image_size=56, num_register_tokens=0, num_upscale_blocks=1, mlp_ratio=2
        ),
        (2, 8),
    ),
    'registers': (
        EomtForUniversalSegmentation,
        EomtConfig(
            **SHARED, patch_size=16, image_size=96, num_register_tokens=2, num_upscale_blocks=2, mlp_ratio=2
        ),
        (4, 9),
    ),
    'dinov3': (
        EomtDinov3ForUniversalSegmentation,
        EomtDinov3Config(
            **SHARED, patch_size=16, image_size=96, num_register_tokens=4, num_upscale_blocks=2,
            intermediate_size=64, rope_parameters=dict(rope_type='default', rope_theta=100.0),
        ),
        (3, 5),
    ),
}  # fmt: skip


def randomise(model: torch.nn.Module) -> None:
    """Values that float16 holds exactly, far from initial ones."""
    for name, parameter in model.named_parameters():
        one = name.endswith('lambda1') or ('norm' in name and name.endswith('weight'))
        values = torch.randn(parameter.shape) * 0.2 + one
        parameter.data = values.half().float()


@torch.no_grad()
def make(name: str) -> dict[str, np.ndarray]:
    """Weights, the image and all predictions of a case."""
    kind, config, grid = CASES[name]
    torch.manual_seed(0)
    model = kind(config).eval()
    randomise(model)
    model.grid_size = grid
    image = torch.randn(2, 3, *(config.patch_size * side for side in grid)).half().float()
    seen: list[tuple] = []
    predict = model.predict
    model.predict = lambda tokens: seen.append(predict(tokens)) or seen[-1]
    arrays = {'image': image.half()}
    for case, prob in (('masked', 1.0), ('annealed', 0.0)):
        seen.clear()
        model.attn_mask_probs.fill_(prob)
        model(image)
        for number, (masks, classes) in enumerate(seen):
            arrays[f'{case}.{number}.masks'], arrays[f'{case}.{number}.classes'] = masks, classes
    weights = {f'weights.{key}': value for key, value in model.state_dict().items()}
    exact = {key: value.half() for key, value in weights.items() if value.is_floating_point()}
    return {key: value.numpy() for key, value in {**weights, **exact, **arrays}.items()}


if __name__ == '__main__':
    assert transformers.__version__.startswith('5.'), transformers.__version__
    for name in CASES:
        np.savez_compressed(Path(__file__).with_name(f'{name}.npz'), **make(name))

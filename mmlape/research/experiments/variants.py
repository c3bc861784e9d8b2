"""The variants of the experiment: every embedding with every joining method, position in the attention, and LaPE's
chain in a pyramid."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmengine.config import Config, ConfigDict

from mmlape import position
from mmlape.position import POSITIONS

EMBEDDINGS = {name: config for name, config in POSITIONS.items() if name != 'none'}
JOININGS = {
    'lape_progressive' if name == 'lape' else name: config
    for name, config in position.JOININGS.items()
}
NONE = POSITIONS['none']
# A fixed embedding has one table for all layers, so unshared equals shared.
SAME = {('sinusoidal_1d', 'unshared'), ('sinusoidal_2d', 'unshared')}
# Two stages, on grids of 8 x 8 and 4 x 4; without a bias in the windows, so that only the position differs.
SWIN = dict(
    type='mmlape.SwinTransformer',
    arch=dict(embed_dims=32, depths=[2, 2, 2, 2], num_heads=[2, 4, 4, 4], window_size=4),
    img_size=32,
    out_indices=1,
)


@dataclass(frozen=True)
class Variant:
    """A variant: position and joining method of the network.

    Args:
        key: Its name in files.
        position: Config of the embedding, a list with one for each stage, or False for none.
        joining: Config of the joining method, or None for none.
        attention_position: Config of the position in the attention, or None or False for none.
        network: Config of another backbone than the shipped config's, or None.
    """

    key: str
    position: dict | list[dict] | Literal[False]
    joining: dict | None
    attention_position: dict | Literal[False] | None = None
    network: dict | None = None

    def config(
        self, path: Path, seed: int, data_root: Path, work_dir: Path, iterations: int | None = None
    ) -> Config:
        """The shipped config with this variant's position.

        Args:
            path: The config.
            seed: Of the weights and of the order of the images.
            data_root: The digit cells.
            work_dir: Where MMEngine writes its log.
            iterations: Training iterations, None for the config's.
        """
        cfg = Config.fromfile(path)
        if self.network is not None:
            cfg.model.backbone = ConfigDict(copy.deepcopy(self.network))
        cfg.model.backbone.update(
            position=copy.deepcopy(self.position),
            joining=copy.deepcopy(self.joining),
            attention_position=copy.deepcopy(self.attention_position),
        )
        cfg.randomness = dict(seed=seed)
        for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
            cfg[loader].dataset.data_root = str(data_root)
        cfg.work_dir = str(work_dir)
        if iterations is not None:
            cfg.train_cfg.max_iters = cfg.train_cfg.val_interval = iterations
            warm_up, falling = cfg.param_scheduler
            warm_up.end = falling.begin = max(1, iterations // 20)
            falling.end = max(iterations, falling.begin + 1)
        return cfg


def _variants() -> dict[str, Variant]:
    default = JOININGS['default']
    listed = [Variant('none', NONE, default)]
    listed += [
        Variant(f'{joining}-{embedding}', EMBEDDINGS[embedding], JOININGS[joining])
        for joining in JOININGS
        for embedding in EMBEDDINGS
        if (embedding, joining) not in SAME
    ]
    listed += [
        Variant(key, NONE, default, dict(type='mmlape.RelativePositionBias', layer_norm=normed))
        for key, normed in (('relative', False), ('relative-layer_norm', True))
    ]
    return {variant.key: variant for variant in [*listed, *_swin_variants()]}


def _swin_variants() -> list[Variant]:
    """LaPE's chain in a pyramid: separate in each stage, or carried to the next."""
    learned, lape = EMBEDDINGS['learned'], JOININGS['lape_progressive']
    made: dict[str, tuple[Any, Any]] = {
        'none': (False, None),
        'default': (learned, JOININGS['default']),
        'lape_by_stage': ([learned] * 4, lape),
        'lape_carried': (learned, lape),
    }
    return [
        Variant(f'swin-{name}', position, joining, False, SWIN)
        for name, (position, joining) in made.items()
    ]


VARIANTS = _variants()

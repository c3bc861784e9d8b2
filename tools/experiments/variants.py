"""What the experiment compares: every embedding in every joining, and the position in the attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmengine.config import Config

from mmlape import position
from mmlape.position import POSITIONS

EMBEDDINGS = {name: config for name, config in POSITIONS.items() if name != 'none'}
JOININGS = {
    'lape_progressive' if name == 'lape' else name: config
    for name, config in position.JOININGS.items()
}
NONE = POSITIONS['none']
# A fixed embedding has one table for all layers: nothing that is not shared.
SAME = {('sinusoidal_1d', 'unshared'), ('sinusoidal_2d', 'unshared')}


@dataclass(frozen=True)
class Variant:
    """One way to tell the network where its tokens are.

    Args:
        key: Its name in files.
        position: Config of the embedding.
        joining: Config of the joining method.
        attention_position: Config of the position in the attention, or None.
    """

    key: str
    position: dict
    joining: dict
    attention_position: dict | None = None

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
        backbone = cfg.model.backbone
        backbone.position = dict(self.position)
        backbone.joining = dict(self.joining)
        backbone.attention_position = self.attention_position and dict(self.attention_position)
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
    return {variant.key: variant for variant in listed}


VARIANTS = _variants()

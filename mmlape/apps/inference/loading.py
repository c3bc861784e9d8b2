"""A trained model by its checkpoint, work dir, shared folder or name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from mmlape.checkpoints.loaders import load_with_config, safe_loading
from mmlape.shipped import read_config
from mmlape.training.last_checkpoint import best_checkpoint, last_complete_checkpoint

from .folders import WEIGHTS, config_in_text, folder_config, folder_weights, shared_folder
from .model import Model
from .names import existing_model, with_package


def load(
    path: str | Path,
    config: str | Path | None = None,
    device: str | None = None,
    optimized: bool = True,
    trust: bool = False,
) -> Model:
    """A trained model by its checkpoint, its work dir, or the name of one that comes with the package.

    Checkpoints are read by :func:`mmlape.safe_loading`, which this switches on for the process; on a CPU,
    :func:`mmlape.cpu.optimize` makes the model faster. Of the config in a checkpoint or folder, only data are read:
    types and texts that mmlape's own commands write (docs/guarantees.md#files-of-others).

    Args:
        path: A checkpoint of MMEngine; a work dir, of which the best checkpoint is taken (``best_*.pth``), else the
            last complete one; a folder of :meth:`Model.save_folder`; ``'OWNER/NAME'``, such a folder on the Hugging
            Face hub; or ``'nuclei'`` (docs/predict.md#a-model-for-nuclei).
        config: Its config, a file or the name of a shipped one. Default None: the one inside the checkpoint.
        device: ``'cpu'``, ``'cuda:1'``, ... Default None: a GPU if there is one.
        optimized: Replace modules by faster ones on a CPU. Default True.
        trust: Run the config that comes with the weights as the Python that it is, with all that it names. Only for
            models whose author you trust as you would trust a program. Default False.

    Raises:
        ValueError: If there is no checkpoint, it holds no config, or one that is refused without ``trust``, or it is of
            no detector or segmentor.
        ConnectionError: If it cannot be downloaded.
    """
    safe_loading()
    folder = shared_folder(path)
    if folder is not None:
        cfg = read_config(config) if config else folder_config(folder, trust)
        content = folder_weights(folder, cfg, trust)
        return Model(cfg, folder / WEIGHTS, device, optimized, content=content)
    checkpoint = _checkpoint_in(Path(path))
    content, text = load_with_config(checkpoint, 'cpu')
    cfg = read_config(config) if config else config_inside(checkpoint, text, trust)
    names = _names_for(content, cfg) if config else None
    return Model(cfg, checkpoint, device, optimized, names, content)


def config_inside(checkpoint: Path, text: str | None, trust: bool = False) -> Config:
    """The config that MMEngine has saved with the weights; see :func:`load`.

    Args:
        checkpoint: The file, for messages.
        text: The config in it, as :func:`~mmlape.checkpoints.loaders.load_with_config` returns it.
        trust: Run it as Python. Default False.

    Raises:
        ValueError: If there is none, or it is refused.
    """
    if text is None:
        raise ValueError(
            f'{str(checkpoint)!r} holds no config: give the one that it was trained with'
        )
    return config_in_text(text, f'the config in {str(checkpoint)!r}', trust)


def _checkpoint_in(path: Path) -> Path:
    """The checkpoint itself, that of a work dir, or that of a name.

    Raises:
        ValueError: If there is none.
    """
    if named := with_package().get(str(path)):
        return named
    path = Path(existing_model(str(path)))
    if path.is_dir():
        found = best_checkpoint(path) or last_complete_checkpoint(str(path))[0]
        if found is None:
            raise ValueError(f'{str(path)!r} has no complete checkpoint')
        return Path(found)
    return path


def _names_for(content: dict[str, Any], cfg: Config) -> dict[str, Any] | None:
    """Names and colours of the labels by the config's test data; None if the checkpoint has its own, or these none."""
    meta = content.get('meta') or {}
    dataset = (cfg.get('test_dataloader') or {}).get('dataset')
    if dataset is None or {'dataset_meta', 'CLASSES'} & meta.keys():
        return None
    with DATASETS.switch_scope_and_registry(cfg.get('default_scope')) as registry:
        kind = dataset.type if isinstance(dataset.type, type) else registry.get(dataset.type)
        known = getattr(kind, 'METAINFO', {})
    found = {**known, **(dataset.get('metainfo') or {})}
    return found if found.get('classes') else None

"""Names of models, which are no paths: those that come with the package, and those on the hub; and of folders of
predictions. No slow imports."""

from __future__ import annotations

import re
from pathlib import Path

from mmlape.checks import existing_checkpoint
from mmlape.shipped import PACKAGE

MODELS = PACKAGE / 'models'  # those that come with the package: weights, and facts as JSON
# What a run of predictions writes into its folder.
WRITTEN = ('classes.txt', 'pictures', 'label_maps', 'predictions.json', 'predictions.csv')
_ON_HUB = re.compile(r'[\w.-]+/[\w.-]+(@[\w./-]+)?')


def with_package() -> dict[str, Path]:
    """Models that come with the package, by their names."""
    return {path.stem: path for path in MODELS.glob('*.safetensors')}


def is_on_hub(text: str) -> bool:
    """Whether a model is looked up on the Hugging Face hub: ``OWNER/NAME``, and no mistyped local path."""
    local = Path(text)
    here = local.suffix in ('.pth', '.safetensors') or local.parent.is_dir()
    return text.startswith('hf://') or bool(_ON_HUB.fullmatch(text) and not here)


def on_hub(name: str) -> str:
    """The address on the hub of a model in a folder of this name: letters, digits, dots and dashes."""
    return f'OWNER/{re.sub(r"[^a-zA-Z0-9_.]+", "-", name).strip("-.") or "NAME"}'


def existing_model(text: str) -> str:
    """Return ``text``, or the work dir in a folder of ``mmlape fit``. ValueError if there is none."""
    path = Path(text)
    if path.is_dir():
        inside = path / 'training'  # in the folder that `mmlape fit` wrote
        for folder in (path, inside):
            if any(any(folder.glob(files)) for files in ('*.pth', '*.safetensors')):
                return str(folder)
        raise ValueError(f'{text!r} has no complete checkpoint')
    if path.exists():
        return existing_checkpoint(text)
    if text in with_package() or is_on_hub(text):
        return text
    raise ValueError(
        f'there is no checkpoint {text!r}; by name there are: {", ".join(with_package())}'
    )


def folder_of_run(wanted: Path | None) -> tuple[Path, list[Path]]:
    """Return the folder of a new run, and the folders of earlier ones beside it, which no run predicts again.

    Args:
        wanted: The folder. None: ``predictions``, or the first of ``predictions-2``, ``predictions-3``, ... that
            holds no run.

    Raises:
        ValueError: If ``wanted`` holds the files of a run.
    """
    if wanted is not None:
        if found := [name for name in WRITTEN if (wanted / name).exists()]:
            raise ValueError(
                f'--out: {wanted} holds an earlier run ({", ".join(found)}): name another folder, or remove it'
            )
        return wanted, [wanted]
    folders = [Path('predictions')]
    while any((folders[-1] / name).exists() for name in WRITTEN):
        folders.append(Path(f'predictions-{len(folders) + 1}'))
    return folders[-1], folders

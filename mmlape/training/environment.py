"""Options of a config from environment variables, for the configs of ``configs/custom``.

``--cfg-options data_root=...`` reaches one place of a config; a data folder or a list of class names has to reach many.
The training tools pass nothing else to a config, so these options come from the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmlape.backbones.vit import ARCHS

__all__ = ['environment_options', 'vit_arch', 'vit_weights']

DEIT_WEIGHTS = {
    'deit-tiny': 'https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth',
    'deit-small': 'https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth',
    'deit-base': 'https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth',
}
_SWITCH = {'1': True, 'true': True, 'yes': True, '0': False, 'false': False, 'no': False}


def environment_options(
    prefix: str, defaults: dict[str, Any], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Read one environment variable per option.

    The option ``max_epochs`` with the prefix ``LAPE_`` is the variable ``LAPE_MAX_EPOCHS``. A value has the type of
    the default: text, integer, number, yes or no, a size ``WIDTHxHEIGHT`` (default: a tuple of two integers). A type
    as default means that the option must be given; ``tuple`` is a list of names separated by commas.

    Args:
        prefix: What the variables begin with; a variable that begins so and is no option is refused.
        defaults: Options and their default values, or types.
        environ: Where to look, ``os.environ`` by default.

    Returns:
        A dict with one value per option.

    Raises:
        ValueError: If a variable is not an option, cannot be read, or is missing.
    """
    environ = os.environ if environ is None else environ
    names = {prefix + option.upper(): option for option in defaults}
    unknown = sorted(name for name in environ if name.startswith(prefix) and name not in names)
    if unknown:
        raise ValueError(f'{", ".join(unknown)}: no such option; there are {", ".join(names)}')
    options = {}
    for name, option in names.items():
        default, text = defaults[option], environ.get(name, '').strip()
        if text:
            options[option] = _read(name, text, default)
        elif isinstance(default, type):
            raise ValueError(f'set the environment variable {name}; this config cannot do without')
        else:
            options[option] = default
    return options


def vit_arch(text: str) -> dict[str, Any]:
    """``deit-tiny``, ``deit-small``, ``deit-base`` or ``WIDTHxDEPTHxHEADS`` to the ``arch`` of a ViT.

    Raises:
        ValueError: If it is neither.
    """
    if text in ARCHS:
        return dict(ARCHS[text])
    try:
        width, depth, heads = (int(number) for number in text.split('x'))
    except ValueError:
        raise ValueError(
            f'{text!r} is no ViT: take one of {", ".join(ARCHS)} or WIDTHxDEPTHxHEADS such as 96x8x3'
        ) from None
    return dict(embed_dims=width, depth=depth, num_heads=heads, mlp_ratio=4)


def vit_weights(text: str, vit: str) -> dict[str, str] | None:
    """``init_cfg`` of a ViT.

    Args:
        text: ``none`` (start from random weights), ``deit`` (DeiT's ImageNet-1K weights of the ViT named ``vit``),
            ``timm:MODEL`` or ``SOURCE:FILE_OR_ADDRESS`` with a source of ``mmlape.Pretrained``.
        vit: As in :func:`vit_arch`.

    Raises:
        ValueError: If ``text`` is none of these, or there are no DeiT weights for this ViT.
    """
    if text == 'none':
        return None
    if text == 'deit':
        if vit not in DEIT_WEIGHTS:
            raise ValueError(f'there are no DeiT weights for {vit!r}: give a file, or "none"')
        return dict(type='mmlape.Pretrained', source='deit', checkpoint=DEIT_WEIGHTS[vit])
    source, colon, what = text.partition(':')
    if not colon or not what:
        raise ValueError(f'{text!r} names no weights: take none, deit, timm:MODEL or SOURCE:FILE')
    is_model = source == 'timm' and '/' not in what and not what.endswith(('.pth', '.pt'))
    return {
        'type': 'mmlape.Pretrained',
        'source': source,
        'model' if is_model else 'checkpoint': what,
    }


def _read(name: str, text: str, default: Any) -> Any:
    kind = default if isinstance(default, type) else type(default)
    try:
        return _READERS[(kind, isinstance(default, type))](text)
    except (KeyError, ValueError):
        raise ValueError(f'{name}={text!r}: expected {_EXPECTED[kind]}') from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(','))
    if not all(names):
        raise ValueError('an empty name')
    return names


def _size(text: str) -> tuple[int, int]:
    width, height = (int(side) for side in text.split('x'))
    if min(width, height) < 1:
        raise ValueError('an empty image')
    return width, height


def _positive(kind: type):
    def read(text: str):
        value = kind(text)
        if not 0 <= value < float('inf'):
            raise ValueError('negative')
        return value

    return read


_READERS = {
    (str, True): str,
    (str, False): str,
    (tuple, True): _names,
    (tuple, False): _size,
    (bool, False): lambda text: _SWITCH[text.lower()],
    (int, False): _positive(int),
    (float, False): _positive(float),
}
_EXPECTED = {
    str: 'text',
    tuple: 'names separated by commas, or a size such as 1333x800',
    bool: 'yes or no',
    int: 'an integer of at least 0',
    float: 'a number of at least 0',
}

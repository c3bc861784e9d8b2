"""Options of a config from environment variables, for ``configs/custom``.

``--cfg-options data_root=...`` changes one place of a config; a data folder or a list of class names has many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mmlape.backbones.vit import ARCHS
from mmlape.checks import check_number, check_positive_int

DEIT_WEIGHTS = {
    'deit-tiny': 'https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth',
    'deit-small': 'https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth',
    'deit-base': 'https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth',
}
_SWITCH = {'1': True, 'true': True, 'yes': True, '0': False, 'false': False, 'no': False}


def environment_options(
    prefix: str, defaults: dict[str, Any], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The value of each option: with the prefix ``LAPE_``, ``max_epochs`` is the variable ``LAPE_MAX_EPOCHS``.

    Args:
        prefix: What the variables begin with.
        defaults: Options and their defaults, whose type a value has: text, integer, number, yes or no, a size
            ``WIDTHxHEIGHT`` (default: two integers). A type instead of a default makes the option required; ``tuple``
            is a list of names separated by commas.
        environ: ``os.environ`` by default.

    Raises:
        ValueError: If a variable with the prefix is not an option, cannot be read, or is missing.
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
            raise ValueError(f'set the environment variable {name}; this config requires it')
        else:
            options[option] = default
    return options


def check_reached(cfg: Mapping[str, Any]) -> None:
    """Check that the network of ``configs/custom`` still has what ``LAPE_VIT`` and ``LAPE_WEIGHTS`` say.

    Raises:
        ValueError: If one of them is set, and the backbone that it was for has been replaced.
    """
    options = cfg.get('options')
    if not isinstance(options, Mapping):  # not one of these configs
        return
    backbone = (cfg.get('model') or {}).get('backbone') or {}
    vit = backbone.get('vit', backbone)
    for option, key in (('vit', 'arch'), ('weights', 'init_cfg')):
        name, text = f'LAPE_{option.upper()}', options.get(option)
        if text is None or os.environ.get(name, '').strip() != text:
            continue  # not set, or a saved config, which was read with other variables
        wanted = vit_arch(text) if option == 'vit' else vit_weights(text, options['vit'])
        has = vit.get(key)
        same = has == wanted
        if wanted and isinstance(has, Mapping):  # an arch may hold more
            same = all(has.get(name) == value for name, value in wanted.items())
        if not same:
            raise ValueError(
                f'{name}={text} reaches nothing, because the backbone was replaced: its {key} is {has!r}. Unset {name}'
            )


def vit_arch(text: str) -> dict[str, Any]:
    """The ``arch`` of ``deit-tiny``, ``deit-small``, ``deit-base`` or ``WIDTHxDEPTHxHEADS``; others: ValueError."""
    if text in ARCHS:
        return dict(ARCHS[text])
    try:
        width, depth, heads = (int(number) for number in text.split('x'))
    except ValueError:
        raise ValueError(
            f'{text!r} is not a ViT: use one of {", ".join(ARCHS)} or WIDTHxDEPTHxHEADS such as 96x8x3'
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
        raise ValueError(f'{text!r} names no weights: use none, deit, timm:MODEL or SOURCE:FILE')
    is_model = source == 'timm' and '/' not in what and not what.endswith(('.pth', '.pt'))
    file = {'model' if is_model else 'checkpoint': what}
    return dict(type='mmlape.Pretrained', source=source, **file)


def _read(name: str, text: str, default: Any) -> Any:
    kind = default if isinstance(default, type) else type(default)
    read, expected = _READERS[list if default is tuple else kind]
    try:
        return read(text)
    except (KeyError, ValueError):
        raise ValueError(f'{name}={text!r}: expected {expected}') from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(','))
    if not all(names):
        raise ValueError('an empty name')
    return names


def _size(text: str) -> tuple[int, int]:
    width, height = (check_positive_int('side', int(side)) for side in text.split('x'))
    return width, height


_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    str: (str, 'text'),
    list: (_names, 'names separated by commas'),
    tuple: (_size, 'a size such as 1333x800'),
    bool: (lambda text: _SWITCH[text.lower()], 'yes or no'),
    int: (lambda text: check_positive_int('', int(text), minimum=0), 'an integer of at least 0'),
    float: (lambda text: check_number('', float(text), minimum=0), 'a number of at least 0'),
}

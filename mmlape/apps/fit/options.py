"""Options of ``mmlape fit``."""

from __future__ import annotations

from dataclasses import dataclass

from mmlape.checks import check_number, check_option, check_positive_int

AUGMENTATIONS = ('none', 'light', 'strong')


@dataclass(frozen=True)
class FitOptions:
    """How ``mmlape fit`` trains; checked when made.

    Attributes:
        epochs: Passes over the training images.
        batch: Images per step.
        size: Side in pixels; None for the model's.
        lr: Learning rate; None for the model's.
        weights: ``'default'``, ``'none'``, a file in the format of the model's own weights, ``SOURCE:FILE``, or the
            checkpoint or work dir of a whole model.
        augment: ``'none'``, ``'light'`` or ``'strong'``.
        lora: Rank of low-rank updates, the only trained part of the backbone (of its ViT); None: all of it is trained.
        frozen: The backbone (its ViT) is frozen.
        views: With ``frozen``, the number of views of each image whose features are cached; None: no cache.
        negatives: Train on images without a box too, as examples of the background.
        ema: Validate and save an exponential moving average of the weights too.
        patience: Stop after so many validations without a better result; None: never.
        workers: Processes that load images.
        seed: Of weights, order and augmentation.

    Raises:
        TypeError, ValueError: If a value has another type or is out of range.
    """

    epochs: int = 24
    batch: int = 2
    size: int | None = None
    lr: float | None = None
    weights: str = 'default'
    augment: str = 'light'
    lora: int | None = None
    frozen: bool = False
    views: int | None = None
    negatives: bool = False
    ema: bool = False
    patience: int | None = None
    workers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('epochs', 'batch'):
            check_positive_int(f'--{name}', getattr(self, name))
        check_positive_int('--workers', self.workers, minimum=0)
        check_positive_int('--seed', self.seed, minimum=0, maximum=2**32 - 1)
        if self.size is not None:
            check_positive_int('--size', self.size, minimum=32)
        for name in ('patience', 'lora', 'views'):
            if getattr(self, name) is not None:
                check_positive_int(f'--{name}', getattr(self, name))
        if self.lora and self.frozen:
            raise ValueError(f'give --frozen or --lora, got both, --lora {self.lora}')
        if self.views and not self.frozen:
            raise ValueError(f'--views goes with --frozen, got --views {self.views} without it')
        if self.lr is not None:
            check_number('--lr', self.lr, above=0)
        check_option('--augment', self.augment, AUGMENTATIONS)

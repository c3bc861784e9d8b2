"""Child registries of MMEngine's, scope ``mmlape``.

``type='mmlape.X'`` in a config makes MMEngine import this module, and then the ``locations`` of the registry in
question: no ``custom_imports`` are needed.
"""

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .checks import did_you_mean
from .compatibility import check_stack

try:
    check_stack()
except ImportError as error:
    # MMEngine swallows this error for a `type='mmlape.X'` and then says only that X is not in the registry.
    logging.getLogger('mmlape').error('mmlape cannot be used: %s', error)
    raise

from mmengine import registry as root


class UnknownNameError(KeyError, ValueError):
    """A ``type`` that is not registered: a KeyError as MMEngine's, and a ValueError as all errors of options here."""

    __str__ = ValueError.__str__  # KeyError's shows the message in quotes


class ChildRegistry(root.Registry):
    """A registry that imports its components on first use and suggests a name instead of an unknown one.

    Args:
        by_name: Modules of components that need a toolbox, by their names: imported when one of them is asked for.

    Attributes:
        by_name: The same, read-only; ``mmlape.heads`` makes its public names of it.
    """

    def __init__(self, *args: Any, by_name: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.by_name = by_name
        # Without locations, upstream looks for modules that are not there, and warns.
        self._imported = not self._locations

    @property
    def module_dict(self) -> dict[str, type]:
        """Components by name."""
        self.import_from_location()
        return super().module_dict

    def get(self, key: str) -> type:
        """The class of this name; UnknownNameError if there is none."""
        if module := self.by_name.get(key.rpartition('.')[2]):
            import_module(module)
        found = super().get(key)
        if found is None:
            names = [f'{self.scope}.{name}' for name in {**self.module_dict, **self.by_name}]
            hint = did_you_mean(f'{self.scope}.{key.rpartition(".")[2]}', names)
            raise UnknownNameError(
                f'{key!r} is not registered as a {self.name} of mmlape{hint or f"; there are {sorted(names)}"}'
            )
        return found

    def has_own(self, name: str) -> bool:
        """Whether this package itself registers a component of this name."""
        module = getattr(self.module_dict.get(name), '__module__', '')
        return name in self.by_name or module.startswith('mmlape.')

    def _register_module(self, module, *args, **kwargs) -> None:
        if not str(getattr(module, '__module__', '')).startswith('mmlape.'):
            self.import_from_location()  # ours first, so that a second component of the same name is an error now
        super()._register_module(module, *args, **kwargs)


def _child(
    name: str, parent: root.Registry, *modules: str, by_name: Mapping[str, str] | None = None
) -> root.Registry:
    return ChildRegistry(
        name,
        parent=parent,
        scope='mmlape',
        locations=[f'mmlape.{module}' for module in modules],
        by_name={key: f'mmlape.{module}' for key, module in (by_name or {}).items()},
    )


MODELS = _child(
    'model',
    root.MODELS,
    *('position', 'norm', 'layers', 'backbones', 'necks'),
    by_name=dict(
        Mask2FormerHead='heads.detection',
        Mask2FormerSegHead='heads.segmentation',
        EoMTHead='heads.eomt_detection',
        EoMTSegHead='heads.eomt_segmentation',
    ),
)
TASK_UTILS = _child('task util', root.TASK_UTILS, by_name=dict(HungarianAssigner='heads.detection'))
DATASETS = _child(
    'dataset',
    root.DATASETS,
    'research.datasets.classification',
    'research.robustness.folders',
    by_name=dict(SeededViews='training.cached_features'),
)
TRANSFORMS = _child(
    'transform',
    root.TRANSFORMS,
    'research.robustness.corruptions',
    by_name=dict(
        DarkBackground='training.load_image',
        LoadImage='training.load_image',
        LoadPanopticMap='research.datasets.panoptic',
    ),
)
METRICS = _child(
    'metric',
    root.METRICS,
    'research.robustness.folders',
    by_name=dict(PanopticQuality='research.datasets.panoptic'),
)
FUNCTIONS = _child('function', root.FUNCTIONS, 'training')
HOOKS = _child(
    'hook',
    root.HOOKS,
    'training',
    by_name=dict(PictureHook='apps.report.pictures', ReportHook='apps.report.hook'),
)
PARAM_SCHEDULERS = _child('parameter scheduler', root.PARAM_SCHEDULERS, 'training')
RUNNERS = _child('runner', root.RUNNERS, 'training')
STRATEGIES = _child('strategy', root.STRATEGIES, 'training')
VISUALIZERS = _child('visualizer', root.VISUALIZERS, 'training')
OPTIM_WRAPPER_CONSTRUCTORS = _child(
    'optimizer wrapper constructor', root.OPTIM_WRAPPER_CONSTRUCTORS, 'training'
)
WEIGHT_INITIALIZERS = _child(
    'weight initializer', root.WEIGHT_INITIALIZERS, 'checkpoints.pretrained'
)

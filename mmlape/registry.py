"""Child registries of MMEngine's, scope ``mmlape``.

``type='mmlape.X'`` in a config makes MMEngine import this module by itself, and then the ``locations`` below of the
registry in question, which register its components; so no ``custom_imports`` is needed.
"""

from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import FUNCTIONS as ROOT_FUNCTIONS
from mmengine.registry import HOOKS as ROOT_HOOKS
from mmengine.registry import METRICS as ROOT_METRICS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as ROOT_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import PARAM_SCHEDULERS as ROOT_PARAM_SCHEDULERS
from mmengine.registry import RUNNERS as ROOT_RUNNERS
from mmengine.registry import STRATEGIES as ROOT_STRATEGIES
from mmengine.registry import TRANSFORMS as ROOT_TRANSFORMS
from mmengine.registry import VISUALIZERS as ROOT_VISUALIZERS
from mmengine.registry import WEIGHT_INITIALIZERS as ROOT_WEIGHT_INITIALIZERS
from mmengine.registry import Registry

from .checks import did_you_mean
from .signatures import checked_options

__all__ = [
    'DATASETS',
    'FUNCTIONS',
    'HOOKS',
    'METRICS',
    'MODELS',
    'OPTIM_WRAPPER_CONSTRUCTORS',
    'PARAM_SCHEDULERS',
    'RUNNERS',
    'STRATEGIES',
    'TRANSFORMS',
    'VISUALIZERS',
    'WEIGHT_INITIALIZERS',
]


class UnknownNameError(KeyError, ValueError):
    """A ``type`` that is not registered. MMEngine's own error for this is a KeyError; ours say what is wrong by
    ValueError."""

    __str__ = ValueError.__str__


class ChildRegistry(Registry):
    """MMEngine's, with two additions: classes of mmlape check their options (:mod:`mmlape.signatures`), and a name that
    is not registered is refused with the nearest one. What is in one is known when it is first asked."""

    @property
    def module_dict(self) -> dict[str, type]:
        """Components by name."""
        self.import_from_location()
        return super().module_dict

    def __len__(self) -> int:
        return len(self.module_dict)

    def __repr__(self) -> str:
        self.import_from_location()
        return super().__repr__()

    def get(self, key: str) -> type:
        """The class of this name.

        Raises:
            UnknownNameError: If there is none.
        """
        found = super().get(key)
        if found is None:
            names = [f'{self.scope}.{name}' for name in self.module_dict]
            hint = did_you_mean(f'{self.scope}.{key.rpartition(".")[2]}', names)
            raise UnknownNameError(
                f'{key!r} is not registered as a {self.name} of mmlape{hint or f"; there are {sorted(names)}"}'
            )
        return found

    def _register_module(self, module, *args, **kwargs) -> None:
        if not str(getattr(module, '__module__', '')).startswith('mmlape.'):
            self.import_from_location()  # ours come first: a name of ours that is taken again is an error, now
        super()._register_module(module, *args, **kwargs)
        if isinstance(module, type):
            checked_options(module)


def _child(name: str, parent: Registry, *rooms: str) -> Registry:
    return ChildRegistry(
        name, parent=parent, scope='mmlape', locations=[f'mmlape.{room}' for room in rooms]
    )


_DATA = ('datasets.digit_images', 'datasets.list_ops_data', 'robustness.folders')

MODELS = _child('model', ROOT_MODELS, 'position', 'norm', 'layers', 'backbones', 'necks')
DATASETS = _child('dataset', ROOT_DATASETS, *_DATA)
TRANSFORMS = _child('transform', ROOT_TRANSFORMS, 'robustness.corruptions')
METRICS = _child('metric', ROOT_METRICS, 'robustness.folders')
FUNCTIONS = _child('function', ROOT_FUNCTIONS, 'engine')
HOOKS = _child('hook', ROOT_HOOKS, 'engine')
PARAM_SCHEDULERS = _child('parameter scheduler', ROOT_PARAM_SCHEDULERS, 'engine')
RUNNERS = _child('runner', ROOT_RUNNERS, 'engine')
STRATEGIES = _child('strategy', ROOT_STRATEGIES, 'engine')
VISUALIZERS = _child('visualizer', ROOT_VISUALIZERS, 'engine')
OPTIM_WRAPPER_CONSTRUCTORS = _child(
    'optimizer wrapper constructor', ROOT_OPTIM_WRAPPER_CONSTRUCTORS, 'engine'
)
WEIGHT_INITIALIZERS = _child(
    'weight initializer', ROOT_WEIGHT_INITIALIZERS, 'checkpoints.pretrained'
)

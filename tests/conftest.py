"""Fixtures shared by all tests."""

import gc
import json
import logging
import os
import pickle
import random
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from mmengine import registry
from mmengine.config import Config
from mmengine.fileio.handlers import file_handlers
from mmengine.runner import CheckpointLoader
from mmengine.utils import ManagerMixin
from torch import Tensor

GOLDEN = Path(__file__).parent / 'data' / 'golden'
CONFIGS = str(Path(__file__).resolve().parent.parent / 'configs') + os.sep
LOADERS, HANDLERS = dict(CheckpointLoader._schemes), dict(file_handlers)


class Golden(NamedTuple):
    """What a published reference implementation computed: see tests/data/golden/README.md."""

    meta: dict[str, Any]
    state: dict[str, Tensor]
    arrays: dict[str, Tensor]


def load_golden(name: str) -> Golden:
    with np.load(GOLDEN / f'{name}.npz') as archive:
        meta = json.loads(bytes(archive['meta']))
        tensors = {key: torch.from_numpy(archive[key]) for key in archive.files if key != 'meta'}
    state = {key[6:]: value for key, value in tensors.items() if key.startswith('state/')}
    rest = {key: value for key, value in tensors.items() if not key.startswith('state/')}
    return Golden(meta, state, rest)


@pytest.fixture
def golden():
    """Loader of golden vectors by name."""
    return load_golden


def pytest_configure(config):
    """Values depend on no seed of pytest-randomly, which shuffles tests: seeds are set here."""
    config.option.randomly_reset_seed = False


def _set_seeds():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """What tests share is the same whichever of them asks for it first."""
    if fixturedef.scope != 'function':
        _set_seeds()


@pytest.fixture(autouse=True)
def _seeded():
    _set_seeds()


@pytest.fixture
def safe_loading():
    """MMEngine's loaders as :func:`mmlape.safe_loading` sets them, for one test."""
    import mmlape

    mmlape.safe_loading()


@pytest.fixture(autouse=True)
def _loaders(monkeypatch):
    """Loaders that a test, or what it shares with others, has replaced do not serve the next one."""
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(LOADERS))
    for ending, handler in HANDLERS.items():
        monkeypatch.setitem(file_handlers, ending, handler)


@pytest.fixture(autouse=True)
def _figures_explain_themselves(monkeypatch):
    """Of each figure that a test saves: what plots show along their axes, and what lines, dots and bands are."""
    from mmlape.apps.report import curves

    def png(figure, written=curves.figure_png):
        framed = [axes for axes in figure.axes if axes.get_visible() and axes.get_frame_on()]
        assert all(axes.has_data() for axes in framed), 'an empty panel'
        plots = [axes for axes in framed if (axes.lines or axes.collections) and not axes.images]
        plots = [axes for axes in plots if axes.get_label() != '<colorbar>']
        for axes in plots:
            top = axes.get_position().y1
            first = next(each for each in plots if each.get_position().y1 == top)
            assert first.get_ylabel() or first.get_yticklabels()[0].get_text(), 'no y label'
            kinds = {(type(mark), mark.get_linestyle()) for mark in axes.lines}
            kinds |= {(type(mark), None) for mark in axes.collections}
            assert len(kinds) < 2 or figure.legends or axes.get_legend(), kinds
        assert not plots or plots[-1].get_xlabel(), 'no x label'
        return written(figure)

    monkeypatch.setattr(curves, 'figure_png', png)


def _registries():
    found = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]
    for each in found:
        found += [child for child in each.children.values() if child not in found]
    return found


@pytest.fixture(autouse=True, scope='module')
def _components(request):
    """What the tests of a file have registered, others do not find."""
    before = {each: set(each.module_dict) for each in _registries()}
    yield
    for each in _registries():
        for name in set(each.module_dict) - before.get(each, set()):
            if each.module_dict[name].__module__ == request.module.__name__:
                del each.module_dict[name]


def _managers(kind):
    """MMEngine's classes that remember their instances by name: scopes, visualizers, message hubs, loggers."""
    for each in kind.__subclasses__():
        yield each
        yield from _managers(each)


@contextmanager
def _instances_forgotten():
    """The last default scope decides in which library a name is looked up: none is left to later tests."""
    before = {manager: dict(manager._instance_dict) for manager in _managers(ManagerMixin)}
    yield
    for manager in _managers(ManagerMixin):
        known = before.get(manager, {})
        for name, left in manager._instance_dict.items():
            if name not in known and isinstance(left, logging.Logger):
                for handler in left.handlers:
                    handler.close()
        manager._instance_dict.clear()
        manager._instance_dict.update(known)


@pytest.fixture(scope='module', autouse=True)
def _instances_of_a_module():
    with _instances_forgotten():
        yield


@pytest.fixture(autouse=True)
def _instances_of_a_test(_instances_of_a_module):
    with _instances_forgotten():
        yield


@pytest.fixture
def process_group(tmp_path):
    """A group of this process alone."""
    store = f'file://{tmp_path}/store'
    torch.distributed.init_process_group('gloo', init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def switched_on(monkeypatch):
    """Operators for CPUs, which `make env` has compiled, whatever the environment says."""
    from mmlape.cpu import library

    monkeypatch.setenv('MMLAPE_OPS', '1')
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.fixture(params=['plain', 'operator'])
def either_way(request, monkeypatch):
    """DTN in norms that the test builds: by PyTorch's operators, then by the one in C++."""
    if request.param == 'operator':
        from mmlape.cpu import replace
        from mmlape.norm import dtn

        request.getfixturevalue('switched_on')
        plain = dtn.PlainDTN
        monkeypatch.setattr(dtn, 'PlainDTN', lambda: replace.DTN(plain()))


@pytest.fixture(scope='module')
def cheap_values():
    """Networks of full size, built in a fraction of the time, for a module of tests that look at no values."""
    from cheap_values import cheap_values

    with cheap_values():
        yield


@pytest.fixture(scope='session')
def digits(tmp_path_factory):
    """The data of the demo's configs, a few images; only to be read."""
    from mmlape.research.datasets import build_digit_scenes

    return build_digit_scenes(tmp_path_factory.mktemp('digits'), num_train=6, num_val=2)


@pytest.fixture
def commands(tmp_path, monkeypatch, capsys):
    """Tools in this process, run in an empty folder."""
    from tool_runs import Commands

    return Commands(tmp_path, monkeypatch, capsys)


@pytest.fixture
def digit_commands(commands, tmp_path, digits):
    """The same, in a folder with these data."""
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'digit_scenes').symlink_to(digits)
    return commands


def pytest_collection_finish():
    """What is there by now stays: looking for it anew takes longer than many a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope='session', autouse=True)
def _plain_configs():
    """Making the text of a config pretty takes longer than toy trainings; those in other processes do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.runner.collect_env', dict)
        for place in ('mmengine.config.config.FormatCode', 'yapf.yapflib.yapf_api.FormatCode'):
            patch.setattr(place, lambda text, **_: (text, True), raising=False)
        yield


@pytest.fixture(scope='session', autouse=True)
def _shipped_configs_are_read_once():
    """Reading a config of ours and its bases takes longer than many a test."""
    read, known = Config._file2dict, {}

    def file_to_dict(filename, *options, **more):
        path = os.path.realpath(filename)  # pages are tried beside a link to them
        if not path.startswith(CONFIGS):
            return read(filename, *options, **more)
        key = repr((path, options, more))
        if key not in known:
            known[key] = pickle.dumps(read(filename, *options, **more))
        return pickle.loads(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Config, '_file2dict', staticmethod(file_to_dict))
        yield


@pytest.fixture(scope='session', autouse=True)
def _no_seeds_of_devices_that_are_not_there():
    """PyTorch keeps the text of the stack for each of them, which takes longer than many a test."""
    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, 'manual_seed_all', lambda seed: None, raising=False)
        yield


@pytest.fixture(scope='session', autouse=True)
def _pictures_are_drawn_once():
    """A layout without overlaps and tight borders take three more passes over a figure; tests of them ask for them."""
    from matplotlib.figure import Figure

    savefig = Figure.savefig

    def save(self, file, *, bbox_inches=None, **options):
        self.set_layout_engine('none')
        savefig(self, file, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, 'savefig', save)
        yield


@pytest.fixture(scope='session', autouse=True)
def _data_sets_do_not_collect_garbage():
    """Each of MMEngine's does when it is read, which takes longer than many a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.dataset.base_dataset.gc', SimpleNamespace(collect=int))
        yield

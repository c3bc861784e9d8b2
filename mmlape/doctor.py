"""``mmlape doctor``: each check imports what it needs, so that it also works where packages are broken."""

from __future__ import annotations

import copy
import importlib
import math
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mmlape import compatibility
from mmlape.failures import TRY, explained

__all__ = ['Check', 'examine', 'exit_code', 'table']

OK, WARNING, ERROR = STATES = 'ok', 'warning', 'error'
# In a process of its own: operators that were compiled for another torch may crash it.
_OPERATORS = """
import torch
from mmlape.compatibility import provide_operators
provide_operators()
from mmcv.ops import nms
for device in ['cpu', 'cuda'][: 1 + torch.cuda.is_available()]:
    boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], device=device)
    if nms(boxes, boxes.new_tensor([.9, .8, .7]), 0.5)[1].tolist() != [0, 2]:
        raise SystemExit(f'wrong result on {device}')
"""


# Of the image of a trial step, in pixels: the least that all strides and windows divide.
_SIZE = 128, 128


class Check(NamedTuple):
    """One line of the report: what was checked, its state, what was found, and what to do (empty: nothing)."""

    name: str
    state: str
    found: str
    advice: str = ''


class _Problem(Exception):  # noqa: N818  # it may be a warning
    """Raised by a check if something is wrong."""

    def __init__(self, found: str, advice: str = '', state: str = ERROR) -> None:
        super().__init__(found)
        self.result = state, advice


def examine(config: str | None = None, work_dir: str | None = None) -> list[Check]:
    """Run all checks, also of a config (a file, or a name of mmlape's) and its work dir."""
    packages = {each.module: partial(_package, each) for each in compatibility.PACKAGES}
    found = _run({'Python': platform.python_version})
    if compatibility.missing() and not any(
        map(compatibility.metadata_versions, compatibility.PACKAGES)
    ):
        found += _run({'packages': _nothing_installed})
    else:
        compatibility.provide_operators()
        found += _run({'torch': _torch, **packages})
        found += _run({'mmcv._ext': _operators, 'environment': _environment, 'GPU': _gpus})
    cfg: dict[str, Any] = {}
    if config is not None and exit_code(found):
        found.append(Check('config', ERROR, 'not checked', 'fix the packages first'))
    elif config is not None:
        found += _run({'config': partial(_config, config, cfg)})
    found += _run({'disk': partial(_disk, work_dir or cfg.get('work_dir') or 'work_dirs')})
    if cfg:
        splits = [name for name in ('train', 'val', 'test') if cfg.get(f'{name}_dataloader')]
        data = {f'{name} data': partial(_data, cfg, name) for name in splits}
        found += _run({'options': partial(_options, cfg), 'model': partial(_model, cfg)})
        if found[-1].state == OK:
            found += _run({'one step': partial(_step, cfg)})
        found += _run({**data, 'weights': partial(_weights, cfg)})
    return found


def exit_code(checks: Iterable[Check]) -> int:
    """1 if there is an error, else 0."""
    return int(any(check.state == ERROR for check in checks))


def table(checks: list[Check]) -> str:
    """The report as text: what works, then warnings, then errors, with advice."""
    width, lines = max(len(check.name) for check in checks), []
    for check in sorted(checks, key=lambda each: STATES.index(each.state)):
        lines += [''] * (check.state != OK)
        lines += [f'{check.state:<8} {check.name:<{width}}  {check.found}']
        lines += [f'{"":<{width + 11}}{check.advice}'] if check.advice else []
    counts = [(sum(check.state == state for check in checks), state) for state in STATES[1:]]
    summary = ', '.join(f'{n} {state}{"s" * (n > 1)}' for n, state in counts if n)
    return '\n'.join([*lines, '', summary or 'no problem found', ''])


def _run(checks: Mapping[str, Callable[[], str]]) -> list[Check]:
    """The results; a check that fails itself is an error, and does not stop the others."""
    found: list[Check] = []
    for name, check in checks.items():
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            warnings.filterwarnings('error', '.*that mmlape was tested with')
            try:
                found.append(Check(name, OK, check()))
            except (_Problem, UserWarning) as problem:
                state, advice = getattr(problem, 'result', (WARNING, ''))
                found.append(Check(name, state, str(problem), advice))
            except Exception as error:  # anything may be broken here
                advice = (explained(error) or '').partition(TRY)[0]
                found.append(Check(name, ERROR, _text_of(error), advice))
    return found


def _text_of(error: Exception) -> str:
    return f'{type(error).__name__}: {" ".join(str(error).split())}'


def _nothing_installed() -> str:
    raise _Problem(f'not installed: {", ".join(compatibility.missing())}', compatibility.INSTALL)


def _torch() -> str:
    """Is it installed, new enough, safe for loading files, and that for which torchvision was built?"""
    compatibility.check_torch()
    import torch

    version, cuda = str(torch.__version__), torch.version.cuda
    try:
        importlib.import_module('torchvision')
    except (ImportError, RuntimeError) as error:
        advice = f'install both from one place: {compatibility.TORCH_INSTALL} --force-reinstall'
        raise _Problem(
            f'{version}, and torchvision does not work with it: {error}', advice
        ) from error
    if fault := compatibility.weights_only_fault(version):
        found = f'{version} has {fault}, even with weights_only=True'
        advice = f'update to torch >= 2.10 and < {compatibility.TORCH_END}, or use .safetensors'
        raise _Problem(found, advice, WARNING)
    if compatibility.numbers(version) >= compatibility.numbers(compatibility.TORCH_END):
        raise _Problem(f'{version} is untested', compatibility.TORCH_INSTALL, WARNING)
    return f'{version}, built for {f"CUDA {cuda}" if cuda else "CPUs"}'


def _package(package: compatibility.Package) -> str:
    """Is a package of OpenMMLab installed once, in a version that works, and can it be imported?"""
    versions = compatibility.metadata_versions(package)
    version = compatibility.found_version(package)
    if version is None and package.required:
        raise _Problem('not installed', f'{package.advice(set(versions))}; {compatibility.HELP}')
    if version is None:
        return 'not installed; only its own configs need it'
    if len(versions) == 2:
        both = package.original[0], package.onedl[0]
        advice = f'pip uninstall -y {" ".join(both)}, then {package.advice(set())}'
        raise _Problem(f'{" and ".join(both)} are both installed, one over the other', advice)
    compatibility.check_version(package, version, set(versions))
    module = package.module if package.required else f'{package.module}.models'
    try:
        importlib.import_module(module)
    except TypeError as error:
        # mmpretrain, which mmdet imports, takes transformers 5 for none, and inherits from its classes all the same.
        found = getattr(sys.modules.get('transformers'), '__version__', '')
        advice = "pip install 'transformers<5'" if compatibility.numbers(found) >= (5,) else ''
        raise _Problem(f'{module}: {error}', advice) from error
    tested = version in (package.original[1], package.onedl[1])
    return f'{version} ({next(iter(versions), "unknown origin")}{", untested" * (not tested)})'


def _operators() -> str:
    """MMCV's compiled operators, by calling one on each device."""
    mmcv = next(each for each in compatibility.PACKAGES if each.module == 'mmcv')
    advice = compatibility.compile_advice(set(compatibility.metadata_versions(mmcv)))
    # The same import path: folders may have been added to it here.
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *['-S'] * sys.flags.no_site, '-c', _OPERATORS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]
        other = 'compiled for another torch: ' * ('undefined symbol' in last)
        raise _Problem(other + last, f'{advice}; {compatibility.HELP}')
    if compatibility.has_torchvision_operators():
        found = "torchvision's NMS and RoIAlign replace them, others raise NotImplementedError"
        advice = f'install a C++ compiler, then {advice}; {compatibility.HELP}'
        raise _Problem(found, advice, WARNING)
    return 'works'


def _environment() -> str:
    import timm
    from mmengine.utils.dl_utils import collect_env

    found = {**collect_env(), 'timm': timm.__version__}
    shown = ('TorchVision', 'OpenCV', 'timm', 'GCC', 'NVCC')
    return ', '.join(f'{key} {found[key]}' for key in shown if found.get(key))


def _gpus() -> str:
    """Can torch compute on each GPU, and does it see all of the driver's?"""
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append(f'{facts.name} ({facts.total_memory / 2**30:.0f} GiB)')
        one = torch.ones(2, 2, device=f'cuda:{index}')
        one.mm(one).cpu()  # fails where this torch has no kernels for this GPU
    if not found and shutil.which('nvidia-smi'):
        done = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, timeout=30)
        hidden = os.environ.get('CUDA_VISIBLE_DEVICES')
        what = f'torch (CUDA {torch.version.cuda}, CUDA_VISIBLE_DEVICES={hidden}) sees none of them'
        if 'GPU 0' in done.stdout:
            advice = f"unset CUDA_VISIBLE_DEVICES, or install a torch < {compatibility.TORCH_END} for the driver's CUDA"
            raise _Problem(what, advice, ERROR if hidden is None else WARNING)
    return ', '.join(found) or 'none: training runs on the CPU, for the demo at most'


def _disk(work_dir: str) -> str:
    path = Path(work_dir).resolve()
    folder = next(each for each in (path, *path.parents) if each.exists())
    if not folder.is_dir():
        raise _Problem(f'{folder} is not a folder', 'use another one: --work-dir')
    free = shutil.disk_usage(folder).free / 2**30
    if not os.access(folder, os.W_OK):
        raise _Problem(f'{folder} is not writable', 'use another folder: --work-dir')
    if free < 5:
        advice = 'a checkpoint of a detector takes 0.3 to 1.5 GiB: use another disk with --work-dir'
        raise _Problem(f'{free:.1f} GiB free in {folder}', advice, WARNING)
    return f'{free:.0f} GiB free in {folder}'


def _config(text: str, loaded: dict[str, Any]) -> str:
    """Read the config by its file or name into ``loaded``."""
    from mmlape.shipped import find_config, read_config

    path = find_config(text)
    try:
        loaded |= {'work_dir': f'work_dirs/{path.stem}', **read_config(path)}
    except Exception as error:  # a config is a program
        raise _Problem(
            f'{path}: {" ".join(str(error).split())}', 'see `mmlape docs guide`'
        ) from error
    return str(path)


def _model(cfg: dict) -> str:
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope(cfg.get('default_scope') or 'mmengine')
    model = MODELS.build({'data_preprocessor': cfg.get('data_preprocessor'), **cfg['model']})
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return f'{type(model).__name__}, {millions:.1f} million parameters'


def _options(cfg: dict) -> str:
    """Check names and values as a training does before it starts."""
    from mmlape.training import check_config

    check_config(cfg)
    return 'all known'


def _step(cfg: dict) -> str:
    """One forward and backward pass of a detector or segmentor on a small random image, and its optimizer."""
    from mmengine.config import Config

    config = Config({**cfg})
    if config.get('default_scope') not in ('mmdet', 'mmseg') or not cfg.get('train_dataloader'):
        return 'not tried: only trainings of detectors and segmentors are'
    try:
        loss = _loss_of_random_image(config)
    except Exception as error:  # the image may lack what this model reads
        state = ERROR if (advice := explained(error)) else WARNING
        raise _Problem(_text_of(error), (advice or '').partition(TRY)[0], state) from error
    if not math.isfinite(loss):
        raise _Problem(
            f'the loss of a random image is {loss}', 'see `mmlape docs training`', WARNING
        )
    return f'works on a random image of {_SIZE[0]} x {_SIZE[1]} pixels'


def _loss_of_random_image(config: Any) -> float:
    from mmengine.optim import build_optim_wrapper
    from mmengine.registry import DefaultScope

    from mmlape.research.analysis import random_batch, training_model

    model = training_model(config)
    batch = random_batch(config, _SIZE)
    with DefaultScope.overwrite_default_scope(config.default_scope):
        loss, _ = model.parse_losses(model(**model.data_preprocessor(batch, True), mode='loss'))
        loss.backward()
        options = copy.deepcopy(config.optim_wrapper)
        options.type = 'OptimWrapper'  # others need a GPU
        for key in ('loss_scale', 'dtype'):
            options.pop(key, None)
        build_optim_wrapper(model, options)
    return loss.item()


def _data(cfg: dict, split: str) -> str:
    """Check data as mmlape.CheckDataHook does, but decode fewer images."""
    from mmlape.training import CheckDataHook, check_data_is_there

    check_data_is_there(cfg, [split])
    reports = CheckDataHook(max_decode=50).reports(cfg, split)
    if problems := [problem for report in reports for problem in report.problems]:
        raise _Problem('; '.join(problems), 'see `mmlape docs data`')
    return '; '.join(note for report in reports for note in report.notes)


def _weights(cfg: dict) -> str:
    """Do the checkpoints of ``init_cfg`` and ``load_from`` exist, or can they be downloaded?"""
    from mmlape.training.check_data import config_values

    values = dict(config_values(cfg['model']))
    named = {value for path, value in values.items() if path.endswith('.checkpoint')}
    files = sorted(filter(None, {*named, cfg.get('load_from')}))
    found = [*map(_weight, files)]
    for path, source in values.items():
        place = path.removesuffix('.source')
        if source == 'timm' and f'{place}.checkpoint' not in values:
            name = values.get(f'{place}.model') or 'the arch'
            found.append(f'{name} of timm, which downloads it (not checked)')
    return ', '.join(found) or 'none: training begins with random ones'


def _weight(text: str) -> str:
    from mmlape.checkpoints.files import download_path

    if text.startswith('hf://'):
        return f'{text} (not checked)'
    if '://' not in text and not Path(text).expanduser().exists():
        raise _Problem(
            f'{text} does not exist', 'correct init_cfg or load_from (`mmlape docs weights`)'
        )
    if not text.startswith('http') or (file := download_path(text)).is_file():
        return text
    try:
        urllib.request.urlopen(urllib.request.Request(text, method='HEAD'), timeout=10).close()
    except OSError as error:
        found = f'{text} is not in {file.parent} and cannot be downloaded ({error})'
        raise _Problem(
            found, 'see "Weights for nodes without a network" in `mmlape docs cluster`'
        ) from error
    return f'{text} (can be downloaded)'

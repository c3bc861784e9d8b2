"""Checkpoints of strangers by every way in: nothing in them is run, and none is taken that is not what it must be."""

import contextlib
import logging
import os
from dataclasses import dataclass, field

import pytest
import torch
from crafted import BROKEN, CODE, CONFIGS, FINE, NO_TRAINING, UNFIT, Maker
from mmengine.config import Config
from mmengine.logging import HistoryBuffer, MMLogger
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import DefaultScope
from mmengine.runner import Runner, load_checkpoint
from tiny_training import VIT, TinyModel, tiny_config

from mmlape.checkpoints import CheckpointError, Pretrained, contents
from mmlape.checkpoints.reading import read_checkpoint
from mmlape.research.analysis.loading import load_backbone

pytestmark = pytest.mark.usefixtures('safe_loading')

KINDS = {
    'code': CODE,
    'config': CONFIGS,
    'broken': BROKEN,
    'unfit': UNFIT,
    'no training': NO_TRAINING,
    'fine': FINE,
}
WHOLE = ('test', 'resume', 'resume with EMA')
# Weights that no training may start from either.
NEVER = ('not_a_number', 'one_infinite_value', 'integers', 'truth_values', 'complex_numbers')


class Records(logging.Handler):
    """What is logged, as text."""

    def __init__(self):
        super().__init__()
        self.text = ''

    def emit(self, record):
        self.text += record.getMessage() + '\n'


@dataclass
class Everything:
    """All files, and all ways in."""

    maker: Maker
    files: dict = field(default_factory=dict)
    ways: dict = field(default_factory=dict)
    runners: tuple = ()
    log: str = ''

    def in_turn(self, name):
        """Every third way: all of them are taken by some file of each kind, and end in one reader."""
        return [*self.ways][sum(name.encode()) % 3 :: 3]

    def enter(self, way, path):
        """Why it is refused, or None; no payload may have run. What was logged is in ``log``."""
        records = Records()
        loggers = [MMLogger.get_current_instance(), *(runner.logger for runner in self.runners)]
        for logger in loggers:
            logger.addHandler(records)
        try:
            self.ways[way](path)
            message = None
        except (CheckpointError, ValueError, TypeError) as error:
            message = str(error)
        finally:
            for logger in loggers:
                logger.removeHandler(records)
            self.log = records.text
        ran = list(self.maker.folder.glob('*.canary'))
        assert not ran, f'{way} has run {ran[0].stem}'
        return message


def built_runner(folder, mode, **options):
    config = tiny_config(folder / mode, experiment_name=mode.replace(' ', '_'), **options)
    runner = Runner.from_cfg(config)
    runner.test() if mode == 'test' else runner.train()
    return runner


def way_of(runner, resume=False):
    def load(path):
        runner._load_from, runner._resume, runner._has_loaded = str(path), resume, False
        runner.load_or_resume()

    return load


def teacher_of():
    """The teacher of a distilled classifier, which is built with its weights when training starts."""
    from mmlape.research.pretraining.distillation import DistilledClassifier

    student = dict(VIT, out_type='cls_and_dist', prefix=dict(cls_token=True, dist_token=True))
    head = dict(type='mmpretrain.DeiTClsHead', num_classes=3, in_channels=24)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = DistilledClassifier(dict(type='TinyModel'), backbone=student, head=head)

    def load(path):
        init_cfg = dict(type='Pretrained', checkpoint=str(path))
        model._teachers, model._teacher_cfg = (), dict(type='TinyModel', init_cfg=init_cfg)
        model.init_weights()

    return load


@pytest.fixture(scope='module')
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp('strangers')
    trained = built_runner(folder, 'train')
    averaged = built_runner(folder, 'EMA', custom_hooks=[dict(type='EMAHook')])
    maker = Maker(folder, read_checkpoint(folder / 'train' / 'epoch_1.pth'))
    found = Everything(maker)
    for kind, table in KINDS.items():
        found.files[kind] = {name: maker.make(table, name) for name in table}
    tested = built_runner(folder, 'test', load_from=str(found.files['fine']['as_saved']))
    found.runners = (trained, averaged, tested)
    model, config = TinyModel(), tiny_config(folder)
    config.model.backbone = VIT
    found.ways.update({
        'read_checkpoint': read_checkpoint,
        "MMEngine's load_checkpoint": lambda path: load_checkpoint(model, str(path), logger='current'),
        "MMEngine's Pretrained": lambda path: PretrainedInit(str(path))(model),
        'mmlape.Pretrained': lambda path: Pretrained('mmlape', str(path))(model),
        'load_backbone': lambda path: load_backbone(config, path),
        'teacher': teacher_of(),
        'test': way_of(tested),
        'load_from': way_of(trained),
        'resume': way_of(trained, resume=True),
        'resume with EMA': way_of(averaged, resume=True),
    })  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, '_MOST_ITEMS', 10**4)  # counting a million of them takes a second
        yield found


def test_there_are_enough_files_and_ways(everything):
    files = [path for kind in KINDS for path in everything.files[kind].values()]
    assert len(CODE) >= 20 and len(files) == len(set(files)) >= 100
    assert len(everything.ways) == 10 and all(map(os.path.lexists, files))


def unsafely(path):
    """Read as MMEngine 0.10.7 does; and as later ones first do, with what they take for safe."""
    with torch.serialization.safe_globals([getattr, HistoryBuffer]):
        for weights_only in (True, False):
            with contextlib.suppress(Exception):  # of what comes after the payload
                torch.load(path, weights_only=weights_only)


@pytest.mark.parametrize('name', CODE)
def test_code_is_not_run_by_any_way(everything, name, monkeypatch):
    path = everything.files['code'][name]
    for way in everything.ways:
        message = everything.enter(way, path)
        assert message and str(path) in message and '\n' not in message, (way, message)
    canary = everything.maker.folder / f'{name}.canary'
    for module in ('torch', '_set_obj_state'):  # which one of the payloads replaces
        monkeypatch.setitem(vars(torch._utils), module, vars(torch._utils)[module])
    unsafely(path)
    assert canary.exists(), 'the payload does nothing, so that nothing is shown'
    canary.unlink()


@pytest.mark.parametrize('name', CONFIGS)
def test_the_text_of_a_config_is_data_by_every_way(everything, name, monkeypatch):
    monkeypatch.syspath_prepend(everything.maker.folder)
    path = everything.files['config'][name]
    for way in everything.ways:
        assert everything.enter(way, path) is None, way
    canary = everything.maker.folder / f'{name}.canary'
    whole = torch.load(path, weights_only=False)
    text = whole['meta' if name != 'in_the_runtime' else 'message_hub']
    text = text['config'] if name != 'in_the_runtime' else text['runtime_info']['cfg']
    with contextlib.suppress(Exception):  # of what comes after the payload
        Config.fromstring(text, '.py')
    assert canary.exists(), 'the payload does nothing, so that nothing is shown'
    canary.rmdir() if canary.is_dir() else canary.unlink()


@pytest.mark.parametrize('name', BROKEN)
def test_what_is_damaged_or_no_checkpoint_is_refused(everything, name):
    path = everything.files['broken'][name]
    for way in everything.in_turn(name):
        message = everything.enter(way, path)
        assert message and str(path) in message and '\n' not in message, (way, message)
        assert 'weights_only' not in message or 'legacy' in message or 'TorchScript' in message


@pytest.mark.parametrize('name', UNFIT)
def test_other_weights_are_refused_to_test_and_resume_and_reported_to_start_from(everything, name):
    path = everything.files['unfit'][name]
    for way in WHOLE:
        message = everything.enter(way, path)
        assert message and str(path) in message and '\n' not in message, (way, message)
    message = everything.enter('load_from', path)
    if message is None:
        assert 'is loaded in part' in everything.log and name not in NEVER
        assert 'stays random: head.' in everything.log or 'head.scale' in everything.log
    read_otherwise = name in ('one_missing', 'one_too_many', 'under_another_name')
    assert everything.enter('mmlape.Pretrained', path) or read_otherwise
    for way in ("MMEngine's load_checkpoint", "MMEngine's Pretrained"):
        words = ('do not match exactly', 'is NaN or infinite', 'head.weight is int64',
                 'head.bias is bool', 'head.bias is complex64')  # fmt: skip
        message = everything.enter(way, path)
        assert message or any(word in everything.log for word in words), everything.log


@pytest.mark.parametrize('name', NO_TRAINING)
def test_weights_alone_are_enough_for_everything_but_to_resume(everything, name):
    path = everything.files['no training'][name]
    for way in everything.ways:
        assert bool(everything.enter(way, path)) == way.startswith('resume'), way


@pytest.mark.parametrize('name', FINE)
def test_what_is_right_is_taken_by_every_way(everything, name):
    path = everything.files['fine'][name]
    for way in everything.ways:
        assert everything.enter(way, path) is None, way
        assert 'in part' not in everything.log
    assert 'is a link to' in everything.log or name != 'behind_a_link'

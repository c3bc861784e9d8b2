"""Checkpoints whose state is made up: refused in one line, before the run takes, skips or deletes anything."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.registry import RUNNERS
from tiny_training import tiny_config

from mmlape import cli
from mmlape.checkpoints import CheckpointError
from mmlape.training import CheckpointHook, resume_state
from mmlape.training.resume_state import check_training_state

pytestmark = pytest.mark.usefixtures('safe_loading')

HUGE = 10**600
NOT_PLACES = (-1, True, math.nan, '3', None, [3], HUGE)
HUB, INFO, LOGS = ('message_hub',), ('message_hub', 'runtime_info'), ('message_hub', 'log_scalars')
RECORD = ('meta', 'exact_resume')
GROUP, ADAM = ('optimizer', 'param_groups', 0), ('optimizer', 'state', 0)
HOLE = object()  # nothing in this place


def config(work_dir, by_epoch=False, checkpoint=None, **options):
    """Four iterations, or two epochs of two; everything that a checkpoint can hold."""
    validated = tiny_config(work_dir)
    epochs = dict(by_epoch=True, max_epochs=2)
    return tiny_config(
        work_dir,
        train_cfg=epochs if by_epoch else dict(by_epoch=False, max_iters=4, val_interval=1),
        val_dataloader=validated.test_dataloader,
        val_cfg=dict(),
        val_evaluator=validated.test_evaluator,
        param_scheduler=[
            dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=2),
            dict(type='MultiStepLR', milestones=[2, 3], by_epoch=False, begin=2),
        ],
        default_hooks=dict(
            exact_resume=dict(type='mmlape.ExactResumeHook'),
            check_weights=dict(type='mmlape.CheckWeightsHook'),
            checkpoint=dict(
                type='mmlape.CheckpointHook',
                by_epoch=False,
                interval=1,
                max_keep_ckpts=2,
                save_best='mean',
                rule='greater',
                **(checkpoint or {}),
            ),
        ),
        custom_hooks=[dict(type='EMAHook'), dict(type='mmlape.ResumeCheckHook')],
        log_level='ERROR',
        experiment_name=str(work_dir),
        **options,
    )


def train(runner, path):
    """Train as ``mmlape train --resume`` does."""
    runner._resume, runner._load_from, runner._has_loaded = True, str(path), False
    runner.train()
    return runner


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """By whether by epochs: a work dir, and the content of its checkpoint in the middle."""
    found = {}
    for by_epoch in (False, True):
        work_dir = tmp_path_factory.mktemp('trained')
        cfg = config(work_dir, by_epoch)
        cfg.default_hooks.checkpoint.max_keep_ckpts = -1
        RUNNERS.build(cfg).train()
        content = torch.load(work_dir / 'iter_3.pth', weights_only=False)
        found[by_epoch] = work_dir, content
    return found


def changed(content, entry, value):
    """A copy of the checkpoint with another value at the end of a path of keys."""
    whole = owner = copy.deepcopy(content)
    for key in entry[:-1]:
        owner = owner[key]
    if value is HOLE:
        del owner[entry[-1]]
    else:
        owner[entry[-1]] = value
    return whole


def histories(**lengths):
    history = HistoryBuffer([1.0], [1])
    history.__dict__.update({f'_{k}_history': np.ones(n) for k, n in lengths.items()})
    return history


def with_attribute(name, value):
    history = HistoryBuffer([1.0], [1])
    history.__dict__[name] = value
    return history


MADE_UP = (
    (('meta',), [], 'text', {1: 2}),
    (('meta', 'epoch'), *NOT_PLACES, 2**60),
    (('meta', 'iter'), *NOT_PLACES, 2**60),
    (('meta', 'seed'), -1, 2**32, True, math.nan, '3', [3], 0.5, HUGE),
    (RECORD, 'text', [1]),
    ((*RECORD, 'seed'), HOLE, -1, 2**32, *NOT_PLACES),
    ((*RECORD, 'place'), HOLE, 10**9, *NOT_PLACES),
    ((*RECORD, 'images'), HOLE, 0, 10**18, *NOT_PLACES),
    ((*RECORD, 'validated'), 0, 'no', [False]),
    (('meta', 'images_per_step'), [], {}, 'text', dict(processes=0, images=2, accumulated=1)),
    (('meta', 'images_per_step', 'images'), *NOT_PLACES),
    (HUB, 'text', [1], {1: 2}, {}),
    (INFO, None, [], {1: 2}),
    (LOGS, None, [], {1: HistoryBuffer([1.0], [1])}),
    ((*HUB, 'resumed_keys'), HOLE, None, [], {1: True}),
    ((*LOGS, 'train/loss'), histories(log=3), histories(log=0, count=0), histories(log=1, count=3)),
    (
        (*LOGS, 'train/loss'),
        with_attribute('_log_history', np.array(1.0)),
        with_attribute('_count_history', np.zeros(1)),
        with_attribute('max_length', -5),
    ),
    ((*INFO, 'epoch'), *NOT_PLACES),
    ((*INFO, 'iter'), *NOT_PLACES),
    ((*INFO, 'eta'), -1, math.nan, math.inf, 1e18, '3', None, [3]),
    ((*INFO, 'best_score'), math.nan, True, '3', None, [3], torch.ones(2)),
    ((*INFO, 'best_ckpt'), None, 3, [], '', '..', '/', 'a/..', 'best_\0.pth', '/etc/passwd'),
    ((*INFO, 'best_ckpt'), 'best_\n.pth', f'best_{"x" * 5000}.pth', 'best_mean', 'iter_1.pth'),
    ((*INFO, 'outdated_best_ckpts'), 'best_a.pth', {'best_a.pth': 1}, 3, None),
    ((*INFO, 'outdated_best_ckpts'), ['../best_x.pth'], ['/runs/best_x.pth'], ['..'], [''], [None]),
    ((*INFO, 'outdated_best_ckpts'), ['best_a\0.pth'], [f'best_{"x" * 5000}.pth'], ['iter_1.pth']),
    ((*INFO, 'outdated_best_ckpts'), ['best_\\..\\x.pth'], [['best_a.pth']], ['best_link/x.pth']),
    ((*INFO, 'keep_ckpt_ids'), '123', 3, None, {1: 2}, *([value] for value in NOT_PLACES)),
    ((*INFO, 'keep_ckpt_ids'), ['/../../x'], [1, 2, '../../victim'], [[1]]),
    (('ema_state_dict',), None, [], 'text', {1: torch.zeros(())}),
    (('ema_state_dict', 'steps'), -1, 'text', torch.zeros(3), torch.tensor(0.5), torch.tensor(-1)),
    (('param_schedulers',), None, 'text', {}, 3, [1, 2], [{1: 2}]),
    (('param_schedulers', 0, 'step'), 3),
    (('param_schedulers', 0, 'optimizer'), 3, None),
    (('param_schedulers', 0, 'last_step'), 'text', None, [1], math.nan),
    (('param_schedulers', 0, 'end'), 'text', {}, math.nan),
    (('param_schedulers', 0, 'base_values'), 3, 'text', [], ['text'], [1.0, 1.0]),
    (('param_schedulers', 0, 'param_name'), 3, ['lr']),
    (('param_schedulers', 1, 'milestones'), 3, [2, 3], {None: 1}),
)

NOT_OF_THE_OPTIMIZER = (
    (('optimizer',), None, [], 'text', {}, {1: 2}, dict(state={})),
    (('optimizer', 'param_groups'), None, {}, [], [1], [{}], 'text', [dict(params=[0], lr=1.0)]),
    ((*GROUP, 'params'), HOLE, [], None, 3, [0]),
    ((*GROUP, 'lr'), HOLE, '3', None, math.nan, [1], torch.ones(2)),
    ((*GROUP, 'betas'), HOLE, 0.9, (0.9,), ('a', 'b'), None),
    ((*GROUP, 'weight_decay'), HOLE, 'much', [1.0]),
    (('optimizer', 'state'), None, 'text', [1]),
    (ADAM, None, 'text', [1], {1: 2}, dict(step=torch.tensor(1.0))),
    ((*ADAM, 'exp_avg'), HOLE, torch.zeros(2), 'text', 3, torch.zeros(1).expand(1, 1, 24)),
    ((*ADAM, 'step'), HOLE, 'text', torch.zeros(2), math.nan),
)


def refusal(content, entry, value, folder, runner, resume=train):
    """The message with which a checkpoint with this value is refused."""
    path = folder / 'made_up.pth'
    torch.save(changed(content, entry, value), path)
    with pytest.raises(CheckpointError) as error:
        resume(runner, path)
    text = str(error.value)
    assert str(path) in text and '\n' not in text and len(text) < 700, text
    assert re.search(rf'\b{entry[0]}\b.*(must be|Error: )|holds only', text), text
    return text


def named(table):
    return [pytest.param(entry, values, id='.'.join(map(str, entry))) for entry, *values in table]


@pytest.fixture(scope='module')
def built(trained, tmp_path_factory):
    """A runner that has taken nothing yet, which is about to resume."""
    folder = tmp_path_factory.mktemp('built')
    runner = RUNNERS.build(config(folder))
    with pytest.raises(FileNotFoundError):
        train(runner, folder / 'none.pth')
    return runner


@pytest.mark.parametrize(('entry', 'values'), named(MADE_UP))
def test_made_up_entries_are_refused(entry, values, trained, built, tmp_path):
    def resume(runner, path):
        runner._load_from, runner._has_loaded = str(path), False
        runner.load_or_resume()

    infos = dict(built.message_hub.runtime_info)
    refusal(trained[False][1], entry, values[0], tmp_path, built, resume)
    for value in values[1:]:  # without a file, which takes most of the time
        with pytest.raises(CheckpointError, match='must be'):
            check_training_state(built, changed(trained[False][1], entry, value))
    assert built.iter == built.epoch == 0 and not built.message_hub.log_scalars
    assert dict(built.message_hub.runtime_info) == infos


@pytest.mark.parametrize(('entry', 'values'), named(NOT_OF_THE_OPTIMIZER))
def test_made_up_states_of_the_optimizer_are_refused(entry, values, trained, tmp_path):
    for number, value in enumerate(values):
        runner = RUNNERS.build(config(tmp_path / str(number)))
        text = refusal(trained[False][1], entry, value, tmp_path, runner)
        assert 'exp_avg' not in entry or 'exp_avg' in text, text
        assert runner.iter <= 3 and not list((tmp_path / str(number)).glob('*.pth'))


@pytest.mark.parametrize('fused', [False, True])
def test_a_state_is_not_read_beyond_its_end(fused, trained, tmp_path):
    """A fused step takes the sizes from the parameter: it read and wrote elsewhere in memory."""
    whole = copy.deepcopy(trained[False][1])
    for group in whole['optimizer']['param_groups']:
        group.update(fused=fused, foreach=False)
    content = whole
    for number, value in enumerate((torch.zeros(2), torch.zeros(1).expand(1, 1, 24))):
        runner = RUNNERS.build(config(tmp_path / str(number)))
        text = refusal(content, (*ADAM, 'exp_avg'), value, tmp_path, runner)
        assert 'exp_avg must be of shape' in text


def test_a_full_memory_is_no_fault_of_the_file():
    def step():
        raise torch.OutOfMemoryError('CUDA out of memory')

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    optimizer.step = step
    resume_state._name_file_at_first_step(optimizer, 'FILE')
    with pytest.raises(torch.OutOfMemoryError, match='CUDA'):
        optimizer.step()


OPTIMIZERS = {
    'SGD': dict(momentum=0.9), 'Adam': dict(amsgrad=True), 'NAdam': {}, 'RAdam': {}, 'Adamax': {}, 'Adagrad': {},
    'Adadelta': {}, 'ASGD': {}, 'Rprop': {}, 'RMSprop': dict(momentum=0.9, centered=True),
}  # fmt: skip


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_states_of_every_optimizer_have_the_shape_of_their_parameter(name):
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **OPTIMIZERS[name])
    parameter.sum().backward()
    optimizer.step()
    state = {
        key: value
        for key, value in optimizer.state[parameter].items()
        if torch.is_tensor(value) and value.shape == parameter.shape
    }
    assert state
    for key, value in state.items():
        resume_state._check_value(key, key, value, parameter)
        with pytest.raises(CheckpointError, match=rf'{key} must be of shape \(2, 3\)'):
            resume_state._check_value(key, key, torch.zeros(2), parameter)


def test_epochs_skip_no_more_than_one(trained, tmp_path):
    for place in (
        2,
        3,
    ):  # of two batches; the last of a run with other sizes may be another one more
        path = tmp_path / f'{place}.pth'
        torch.save(changed(trained[True][1], (*RECORD, 'place'), place), path)
        assert train(RUNNERS.build(config(tmp_path / str(place), True)), path).epoch == 2
    for place in (5, 10**9):
        runner = RUNNERS.build(config(tmp_path / str(place), True))
        text = refusal(trained[True][1], (*RECORD, 'place'), place, tmp_path, runner)
        assert 'the length of an epoch' in text and 'meta.exact_resume.place' in text


def test_smaller_batches_begin_at_a_higher_position(trained, tmp_path):
    for images, iterations in ((200, 4), (2, 4)):
        path = tmp_path / 'larger.pth'
        torch.save(changed(trained[False][1], (*RECORD, 'images'), images), path)
        cfg = config(tmp_path / str(images))
        assert train(RUNNERS.build(cfg), path).iter == iterations
        saved = torch.load(tmp_path / str(images) / 'iter_4.pth', weights_only=False)
        assert saved['meta']['exact_resume']['place'] == 3 * images // 2 + 1


def named_files(content, **names):
    """The checkpoint with other names of files in it."""
    whole = copy.deepcopy(content)
    whole['message_hub']['runtime_info'].update(names)
    return whole


@pytest.mark.parametrize('hook', ['mmlape.CheckpointHook', 'CheckpointHook'])
@pytest.mark.parametrize('out_dir', [False, True])
def test_files_are_deleted_only_beside_the_checkpoint(hook, out_dir, trained, tmp_path):
    """Not those of the same names elsewhere, and not by MMEngine's own hook either."""
    elsewhere, work_dir = tmp_path / 'elsewhere', tmp_path / 'run'
    folder = tmp_path / 'out' / 'run' if out_dir else work_dir
    names = ('best_a.pth', 'best_b.pth', 'iter_1.pth', 'iter_2.pth')
    for each in (elsewhere, folder):
        each.mkdir(parents=True)
        for name in names:
            (each / name).touch()
    infos = dict(best_ckpt=str(elsewhere / 'best_a.pth'), outdated_best_ckpts=['best_b.pth'])
    infos.update(best_score=-1e9, keep_ckpt_ids=[1, 2, 3])
    content = named_files(trained[False][1], **infos)

    def resume(path):
        cfg = config(work_dir)
        cfg.experiment_name = str(path)
        cfg.default_hooks.checkpoint.type = hook
        if out_dir:
            cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'out')
        torch.save(content, path)
        train(RUNNERS.build(cfg), path)
        return {name for name in names if (folder / name).exists()}

    assert resume(elsewhere / 'iter_3.pth') == set(names)
    # In the folder itself, they are this training's: two are kept, and a better one was found.
    gone = {'best_a.pth', 'best_b.pth'} if hook.startswith('mmlape') else {'best_a.pth'}
    assert resume(folder / 'iter_3.pth') == set(names) - gone - {'iter_1.pth', 'iter_2.pth'}
    assert {path.name for path in elsewhere.iterdir()} == {*names, 'iter_3.pth'}


@pytest.mark.parametrize('way', ['{}/elsewhere/', '../elsewhere/', 'link/'])
def test_no_path_leads_to_another_folder(way, trained, tmp_path):
    work_dir, victim = tmp_path / 'run', tmp_path / 'elsewhere' / 'best_a.pth'
    for folder in (work_dir, victim.parent):
        folder.mkdir()
    victim.touch()
    (work_dir / 'link').symlink_to(victim.parent)
    path = f'{way.format(tmp_path)}best_a.pth'
    torch.save(named_files(trained[False][1], outdated_best_ckpts=[path]), work_dir / 'iter_3.pth')
    with pytest.raises(CheckpointError, match='outdated_best_ckpts must be the name of a file'):
        train(RUNNERS.build(config(work_dir)), work_dir / 'iter_3.pth')
    assert victim.exists()


def test_nothing_is_deleted_behind_a_link(trained, tmp_path):
    work_dir, elsewhere = tmp_path / 'run', tmp_path / 'elsewhere'
    for folder in (work_dir, elsewhere):
        folder.mkdir()
    (elsewhere / 'victim.pth').touch()
    (work_dir / 'best_a.pth').symlink_to(elsewhere)
    (work_dir / 'best_b.pth').symlink_to(elsewhere / 'victim.pth')
    infos = dict(best_ckpt='best_a.pth', outdated_best_ckpts=['best_a.pth', 'best_b.pth'])
    torch.save(named_files(trained[False][1], best_score=-1e9, **infos), work_dir / 'iter_3.pth')
    assert train(RUNNERS.build(config(work_dir)), work_dir / 'iter_3.pth').iter == 4
    assert (elsewhere / 'victim.pth').exists()
    assert (work_dir / 'best_a.pth').is_symlink() and (work_dir / 'best_b.pth').is_symlink()


def test_the_last_checkpoint_is_the_one_that_was_read(trained, tmp_path):
    """`published_keys` reads it, and writes beside it."""
    path = tmp_path / 'iter_4.pth'
    whole = torch.load(trained[False][0] / 'iter_4.pth', weights_only=False)
    whole['message_hub']['runtime_info']['last_ckpt'] = '/elsewhere/iter_4.pth'
    torch.save(whole, path)
    runner = train(RUNNERS.build(config(tmp_path / 'run')), path)
    hook = next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))
    assert hook.last_ckpt == runner.message_hub.get_info('last_ckpt') == str(path)


@pytest.mark.parametrize('hook', ['SafeLoadingHook', 'ResumeCheckHook'])
def test_both_hooks_check_before_others(hook, trained, tmp_path):
    cfg = config(tmp_path / 'run')
    cfg.custom_hooks[-1] = dict(type=f'mmlape.{hook}')
    for entry, value in ((RECORD, 'text'), ((*INFO, 'keep_ckpt_ids'), ['/x'])):
        runner = RUNNERS.build(cfg)
        refusal(trained[False][1], entry, value, tmp_path, runner)


def test_what_the_message_hub_resumes_is_what_it_holds(trained, tmp_path):
    """With False, MMEngine stops by an assertion when it updates the entry."""
    path = tmp_path / 'false.pth'
    torch.save(changed(trained[False][1], (*HUB, 'resumed_keys', 'iter'), False), path)
    assert train(RUNNERS.build(config(tmp_path / 'run')), path).iter == 4


def test_weights_may_come_with_any_state(trained, tmp_path):
    """In `load_from`, it is not used."""
    for number, (key, value) in enumerate(dict(meta=[1], message_hub='text', optimizer=3).items()):
        torch.save(changed(trained[False][1], (key,), value), tmp_path / 'weights.pth')
        cfg = config(tmp_path / str(number), load_from=str(tmp_path / 'weights.pth'))
        runner = RUNNERS.build(cfg)
        runner.train()
        assert runner.iter == 4


def test_the_command_ends_with_one_line(trained, tmp_path):
    torch.save(changed(trained[False][1], (*RECORD, 'place'), 10**9), tmp_path / 'far.pth')
    runner = RUNNERS.build(config(tmp_path / 'run'))
    with pytest.raises(SystemExit) as end, cli.weights_only():
        train(runner, tmp_path / 'far.pth')
    assert end.value.code == (
        f'error: {tmp_path}/far.pth cannot be resumed: meta.exact_resume.place must be an integer from 0 to 400 '
        '(those of a training of 4 iterations), got 1000000000'
    )

"""A resumed training goes on with the schedules of its checkpoint: the user is told where the config has others."""

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import CosineAnnealingLR, LinearLR, MultiStepLR

from mmlape.training.resume_schedules import schedule_warning


def cosine(epochs):
    return [
        dict(kind=LinearLR, start_factor=0.1, by_epoch=False, end=5),
        dict(kind=CosineAnnealingLR, T_max=epochs, by_epoch=True, end=epochs),
    ]


def steps(*milestones, end=10**9):
    return [dict(kind=MultiStepLR, milestones=list(milestones), end=end)]


def runner_of(schedules, epochs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    made = [each.pop('kind')(optimizer, **each) for each in copy.deepcopy(schedules)]
    loop = SimpleNamespace(max_epochs=epochs, max_iters=9 * epochs)
    return SimpleNamespace(param_schedulers=made, train_loop=loop, _load_from='work/epoch_4.pth')


def checkpoint_of(runner, moved=2):
    for schedule in runner.param_schedulers:
        for _ in range(moved):
            schedule.step()
    info = dict(max_epochs=runner.train_loop.max_epochs, max_iters=runner.train_loop.max_iters)
    states = [schedule.state_dict() for schedule in runner.param_schedulers]
    return dict(param_schedulers=states, message_hub=dict(runtime_info=info))


@pytest.mark.parametrize(
    ('before', 'after', 'epochs', 'words'),
    [
        (cosine(4), cosine(4), (4, 4), None),
        (cosine(4), cosine(8), (4, 8), r'param_scheduler\[1\].T_max = 4, 8 in the config.*end = 4, 8'),
        (cosine(4), cosine(4), (4, 8), 'has 8 epochs, 4 before, and its schedules end with those'),
        (cosine(8), cosine(8), (4, 8), None),
        (cosine(8), cosine(8), (8, 4), None),
        (steps(2, 3), steps(4, 6), (4, 8), r'param_scheduler\[0\].milestones = Counter'),
        (steps(2, 3, end=4), steps(2, 3, end=4), (4, 8), 'end with those'),
        (cosine(4), cosine(4)[1:], (4, 4), '2 in param_scheduler, 1 in the config'),
        ([], [], (4, 8), None),
    ],
)  # fmt: skip
def test_schedules_that_do_not_fit_a_longer_training(before, after, epochs, words):
    checkpoint = checkpoint_of(runner_of(before, epochs[0]))
    for wrap in (lambda each: each, lambda each: dict(generator=each)):
        runner = runner_of(after, epochs[1])
        runner.param_schedulers = wrap(runner.param_schedulers)
        states = wrap(checkpoint['param_schedulers'])
        said = schedule_warning(runner, checkpoint | dict(param_schedulers=states))
        if words is None:
            assert said is None
        else:
            generator = '.generator' if isinstance(states, dict) else ''
            assert said is not None and "load_from='work/epoch_4.pth'" in said
            assert re.search(words, said.replace(generator, '')), said

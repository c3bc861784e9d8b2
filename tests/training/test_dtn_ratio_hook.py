"""The hook that logs DTN's ratios: what a run's backends get, and the course that is read from it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from tiny_training import short_runner
from torch import nn

from mmlape.norm import DTN
from mmlape.research.analysis import draw_ratios, read_ratios
from mmlape.training import DTNRatioHook


class Model(BaseModel):
    """Two DTN layers, one of them with a mean of its own, and a loss that moves their ratios."""

    def __init__(self, **options):
        super().__init__()
        self.first = DTN(8, 4, **options)
        self.second = DTN(8, 2, variance_only=True, **options)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens, mode='loss'):
        return dict(loss=self.head(self.second(self.first(tokens, (2, 3)), (2, 3))).tanh().mean())

    def train_step(self, data, optim_wrapper):
        loss = self(torch.stack(list(data)))['loss']
        optim_wrapper.update_params(loss)
        return dict(loss=loss.detach())


class Seen(DTNRatioHook):
    """Keeps the true ratios at the end of every iteration."""

    def __init__(self, **options):
        super().__init__(**options)
        self.omegas = {}

    def after_train_iter(self, runner, *arguments, **named):
        super().after_train_iter(runner, *arguments, **named)
        modules = dict(first=runner.model.first, second=runner.model.second)
        self.omegas[runner.iter + 1] = {
            (name, kind): getattr(module, f'ratio_{kind}').omega.detach().clone()
            for name, module in modules.items()
            for kind in ('mean', 'var')
            if getattr(module, f'ratio_{kind}').omega is not None
        }


def train(folder, hook, model=None, iterations=6, **options):
    data = [torch.randn(6, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    sgd = dict(type='SGD', lr=0.5)
    short_runner(folder, model or Model(), data, [hook], iterations, sgd, 2, **options).train()


def test_logged_ratios_are_the_sigmoid_of_omega(tmp_path):
    hook = Seen(interval=2)
    train(tmp_path / 'run', hook)
    course = read_ratios([tmp_path / 'run'])
    assert course.steps.tolist() == [0, 2, 4, 6]
    assert set(course.values) == {('first', 'mean'), ('first', 'var'), ('second', 'var')}
    assert course.layers == ['first', 'second']
    for key, values in course.values.items():
        assert np.array_equal(values[0], np.full(values.shape[1], 0.5))
        for row, step in zip(values[1:], (2, 4, 6), strict=True):
            assert np.allclose(row, 1 / (1 + np.exp(-hook.omegas[step][key].numpy())), atol=1e-6)
    assert np.abs(course.values['first', 'mean'][-1] - 0.5).max() > 1e-3


def test_a_resumed_run_is_one_course(tmp_path):
    train(tmp_path / 'run', DTNRatioHook(1), iterations=4)
    # as if it had been killed after iteration 5, with a checkpoint of iteration 4
    (file,) = (tmp_path / 'run').rglob('scalars.json')
    lost = {'dtn_ratio/first/mean/0': 0.9, 'step': 5}
    file.write_text(file.read_text() + json.dumps(lost) + '\n' + '{"dtn_ratio/first/me')
    resumed = tmp_path / 'resumed'
    train(resumed, DTNRatioHook(1), load_from=str(tmp_path / 'run/iter_4.pth'), resume=True)
    course = read_ratios([file, resumed])
    assert course.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert course.values['first', 'mean'].shape == (7, 4)
    assert np.isfinite(course.values['first', 'mean']).all()
    assert course.values['first', 'mean'][5, 0] != 0.9


def test_a_model_without_learned_ratios_is_trained_with_a_warning(tmp_path):
    train(tmp_path / 'run', DTNRatioHook(1), Model(ratio_mean=1.0, ratio_var=0.5))
    (log,) = (tmp_path / 'run').rglob('*.log')
    assert log.read_text().count('DTNRatioHook has nothing to log') == 1
    with pytest.raises(ValueError, match='no ratios are logged'):
        read_ratios([tmp_path / 'run'])


def test_the_model_inside_a_wrapper_is_logged(monkeypatch):
    logged = []
    wrapper = SimpleNamespace(module=Model())
    monkeypatch.setattr('mmlape.training.stop_hooks.is_model_wrapper', lambda m: m is wrapper)
    visualizer = SimpleNamespace(add_scalars=lambda scalars, step: logged.append((scalars, step)))
    DTNRatioHook().before_train(SimpleNamespace(model=wrapper, iter=7, visualizer=visualizer))
    ((scalars, step),) = logged
    assert step == 7 and scalars['dtn_ratio/first/mean/0'] == 0.5 and len(scalars) == 4 + 4 + 2


def test_files_without_a_course(tmp_path):
    with pytest.raises(FileNotFoundError, match='nothing'):
        read_ratios([tmp_path / 'nothing'])
    (tmp_path / 'scalars.json').write_text('not json\n{"loss": 1.0, "step": 1}\n')
    with pytest.raises(ValueError, match=r"no ratios are logged in '.*: train with custom_hooks"):
        read_ratios([tmp_path])


def test_the_picture_has_a_panel_per_layer_and_a_line_per_head(tmp_path):
    records = [
        {f'dtn_ratio/backbone.block{n}.norm1/{kind}/{head}': 0.5 + 0.01 * head * step}
        for step in range(3)
        for n in range(9)
        for kind in ('mean', 'var')
        for head in range(2)
    ]
    lines = [json.dumps(record | dict(step=index // 36)) for index, record in enumerate(records)]
    (tmp_path / 'scalars.json').write_text('\n'.join(lines))
    course = read_ratios([tmp_path / 'scalars.json'])
    figure = draw_ratios(course)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 18 and all(len(axes.lines) == 2 for axes in shown)
    bands = [range(5), range(5, 9)]
    assert [axes.get_title() for axes in shown] == [
        f'block{n}.norm1\n{of}' for band in bands for of in ('mean', 'variance') for n in band
    ]
    assert shown[0].lines[1].get_xydata().tolist() == [[0, 0.5], [1, 0.51], [2, 0.52]]

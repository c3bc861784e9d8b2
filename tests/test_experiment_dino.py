"""The experiment on DINO: its options, its curves, and one run of it."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tools'))

import experiment_dino
from experiments import dino
from experiments.table import replace_table


def test_curves(tmp_path):
    """Losses by step, accuracies by epoch at their steps, after that of the network before training."""
    losses = dict(teacher_entropy=0.5, divergence=0.25)
    lines = [
        {'accuracy/top1': 11.0, 'step': 0},
        dict(losses, loss=0.75, epoch=1, step=11),
        dict(losses, loss=0.5, epoch=1, step=22),
        {'accuracy/top1': 30.0, 'step': 1},
        dict(losses, loss=0.25, epoch=2, step=44),
        {'accuracy/top1': 40.0, 'step': 2},
    ]
    log = tmp_path / 'scalars.json'
    log.write_text('\n'.join(map(json.dumps, lines)))
    curves = dino._curves(log, 12.5)
    assert curves['loss'] == [[11, 0.75], [22, 0.5], [44, 0.25]]
    assert curves['divergence'] == [[11, 0.25], [22, 0.25], [44, 0.25]]
    assert curves['k-NN accuracy (%)'] == [[0, 12.5], [22, 30.0], [44, 40.0]]
    figure = dino.draw_curves([dict(curves=curves)] * 2)
    assert [len(place.lines) for place in figure.axes] == [2, 2, 2, 2]


def test_the_page_says_what_was_measured():
    docs = Path(dino.__file__).parents[2] / 'docs'
    records = json.loads((docs / 'experiment_dino.json').read_text())
    text = (docs / 'dino.md').read_text(encoding='utf-8')
    assert replace_table(text, dino.markdown(records)) == text
    assert len(records) >= 3 and all(r['after'] > r['before'] + 10 for r in records)


def test_one_seed_has_no_spread():
    record = dict(seed=0, before=10.0, after=50.0, epochs=4, iterations=88, processor_seconds=9.0)
    assert 'standard' not in dino.markdown([record])
    two = dino.markdown([record, dict(record, seed=1, after=60.0)])
    assert '| mean ± standard deviation | 10.0 ± 0.0 | 55.0 ± 7.1 |' in two


@pytest.mark.parametrize(('option', 'least'), [('--seeds', 1), ('--epochs', 4)])
def test_wrong_options(option, least, capsys):
    with pytest.raises(SystemExit):
        experiment_dino.parse_arguments([option, str(least - 1)])
    assert f'{option} must be at least {least}, got {least - 1}' in capsys.readouterr().err


@pytest.mark.slow
def test_a_run(tmp_path, monkeypatch):
    """Records, curves and attention; a seed that is there is not trained again."""
    arguments = ['--seeds', '1', '--epochs', '4', '--work-dir', str(tmp_path)]
    assert experiment_dino.main(arguments) == 0
    record = json.loads((tmp_path / 'seed0.json').read_text())
    assert (record['epochs'], record['iterations']) == (4, 88)
    first, (step, _), last = record['curves']['k-NN accuracy (%)']
    assert (first, step, last) == ([0, record['before']], 44, [88, record['after']])
    assert 20 < record['before'] < record['after'] < 90
    names = (*dino.PUBLISHED, 'distance-before', 'distance-after')
    assert all((tmp_path / f'dino-{name}.png').stat().st_size > 1000 for name in names)
    monkeypatch.setattr(dino.Runner, 'from_cfg', None)
    assert experiment_dino.main(arguments) == 0

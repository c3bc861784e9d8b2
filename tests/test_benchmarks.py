"""python -m benchmarks: references compute what ours compute, what differs is not timed, and what a run prints."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SMALL = dict(embed_dims=48, depth=4, num_heads=3, mlp_ratio=4)


@pytest.fixture
def room(monkeypatch):
    """Modules of ``benchmarks``, of this clone."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f'benchmarks.{name}')


@pytest.mark.parametrize('flavour', ['segmentation', 'detection'])
def test_the_published_adapter_is_ours(room, flavour):
    build = room('reference.vit_adapter').PublishedViTAdapter
    cases = room('cases')
    windows = None if flavour == 'segmentation' else 3
    options = dict(window_size=[windows, windows, None, windows]) if windows else {}
    vit = dict(cases.ADAPTED, arch=SMALL, **options)
    ours = cases.MODELS.build(
        dict(
            type='mmlape.ViTAdapter',
            vit=vit,
            vit_feature='last' if windows else 'per_stage',
            interaction_indexes=[[i, i] for i in range(4)],
        )
    )
    theirs = build(48, 3, 4, windows, per_stage=not windows)
    theirs.load_state_dict(cases.randomised(ours).state_dict())
    # Batch norms of few cells magnify rounding: in float64 there is little of it.
    image = torch.randn(2, 3, 64, 96).double()
    found = {model: model.double().train()(image) for model in (ours, theirs)}
    for model in found:
        sum(maps.square().mean() for maps in found[model]).backward()
    for mine, other in zip(found[ours], found[theirs], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        wanted = expected[name.replace('position.embedding.', '')]
        assert (parameter.grad - wanted).norm() < 1e-4 * wanted.norm().clamp(min=1e-6), name


def test_what_differs_is_not_timed(room):
    case = room('cases').dtn(8, 16, 2, 1, 1)
    with torch.no_grad():
        case.models['published'].weight.add_(1)
    with pytest.raises(RuntimeError, match='published and ours differ by'):
        room('measuring').differences(case)


def test_a_run_prints_and_records(room, monkeypatch, capsys, tmp_path):
    main = room('__main__')
    small = {'dtn 8 x 8': lambda: room('cases').dtn(8, 16, 2, 1, 1)}
    monkeypatch.setattr(main, 'CASES', small)
    monkeypatch.setattr(room('measuring'), 'TURN_MS', 0)
    monkeypatch.setattr(main, 'quieten', lambda: None)
    threads = torch.get_num_threads()
    record = tmp_path / 'record.json'
    monkeypatch.setattr(sys, 'argv', ['', '--repeats', '1', '--out', str(record)])
    assert main.main() == 0
    torch.set_num_threads(threads)
    assert 'LayerNorms' in capsys.readouterr().out
    found = json.loads(record.read_text())
    machine = found['machine']
    assert machine['commit'] and machine['torch'].startswith(machine['versions']['torch'])
    case = found['results']['cases']['dtn 8 x 8']
    assert case['difference'].keys() == {'published'}
    assert case['saved_bytes']['ours'] < case['saved_bytes']['published']
    for what in ('forward', 'train_step'):
        assert case[what].keys() == {'LayerNorm', 'published', 'ours'}
        assert min(each['median_ms'] for each in case[what].values()) > 0


def test_the_page_shows_the_record(room):
    main = room('__main__')
    cases = json.loads(main.RECORD.read_text())['results']['cases']
    assert cases.keys() == main.CASES.keys()
    page = (ROOT / 'docs/speed.md').read_text(encoding='utf-8')
    expected = [line for name, found in cases.items() for line in main.rows(name, found)]
    assert '\n'.join([main.HEAD, *expected]) in page


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--only', 'resnet'], 'no case has that in its name; there are adapter'),
        (['--repeats', '0'], '--repeats 0: expected a positive number'),
    ],
)
def test_wrong_arguments(room, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, 'argv', ['', *arguments])
    with pytest.raises(SystemExit):
        room('__main__').parse_arguments()
    assert message in capsys.readouterr().err


def test_scaling_measures_a_point_once_and_draws_it(room, monkeypatch, capsys, tmp_path):
    scaling = room('scaling')
    monkeypatch.setattr(room('measuring'), 'TURN_MS', 0)
    for name, value in dict(SIDES=(512, 1024), BATCHES=(1,), quieten=lambda: None).items():
        monkeypatch.setattr(scaling, name, value)

    def small(side, batch):
        return room('cases').dtn(side // 64, 16, 2, 1, batch)

    monkeypatch.setattr(scaling, 'NETWORKS', {'DTN': (small, 512)})
    record, pictures = tmp_path / 'record.json', tmp_path / '{axis}.png'
    arguments = ['', '--repeats', '1', '--out', str(record), '--pictures', str(pictures)]
    monkeypatch.setattr(sys, 'argv', arguments)
    threads = torch.get_num_threads()
    assert scaling.main() == 0
    first = scaling.read(record)
    said = (
        'DTN, kept, 512 to 1024: pixels to the power of LayerNorm 0.99, published 1.84, ours 1.00'
    )
    assert said in capsys.readouterr().out
    case = small(512, 1)
    kept = room('side_by_side').saved_bytes(lambda: case.call(case.models['published'])) / 1e6
    assert first['DTN']['side']['512']['kept']['published'] == pytest.approx(kept, rel=0.05)
    monkeypatch.setattr(scaling, 'point', None)
    assert scaling.main() == 0
    torch.set_num_threads(threads)
    assert scaling.read(record) == first
    assert all((tmp_path / f'{axis}.png').stat().st_size for axis in ('side', 'batch'))

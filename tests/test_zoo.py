"""The page of all rows: it says what configs, metafiles and the record of measurements say."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from config_utils import REPO

from mmlape.research.analysis import StepMemory
from mmlape.research.analysis.complexity import Complexity

sys.path.insert(0, str(REPO / 'tools' / 'developers'))

from mmlape.research.zoo import END, START, Zoo, read_reports, read_rows, write_measured

TOOL = REPO / 'tools' / 'developers' / 'zoo_table.py'
PAGE = REPO / 'docs' / 'model_zoo.md'
RECORD = REPO / 'benchmarks' / 'records' / 'model_zoo.json'
ROW = 'segmenter_deit-t_mask_8xb1-160k_ade20k-512x512'
SIZE = Complexity(6713388, 5_000_000, 12_600_000_000, 10_400_000_000, (512, 512))
MEMORY = StepMemory(27_000_000, 27_000_000, 54_000_000, 500_000_000, (512, 512), 1)


@pytest.mark.slow
def test_the_record_is_of_these_models():
    """With the next one what `zoo_table.py --check` does; if this fails, measure again."""
    assert Zoo(read_rows(REPO), RECORD).problems() == []


def test_metafiles_and_the_page_say_what_was_measured():
    zoo = Zoo(read_rows(REPO), RECORD, read_reports(REPO))
    assert {
        row.name: [row.metadata[key] for key in ('Parameters', 'FLOPs')] for row in zoo.rows
    } == {name: [found['parameters'], found['flops']] for name, found in zoo.measured.items()}
    assert PAGE.read_text() == zoo.page(PAGE)
    others = ('_base_', 'demo', 'experiments', 'imagenet', 'cifar', 'ablations', 'listops', 'dino')
    configs = [path for path in REPO.glob('configs/*/*.py') if path.parent.name not in others]
    assert sorted(path.stem for path in configs) == sorted(row.name for row in zoo.rows)


@pytest.fixture(scope='module')
def root(tmp_path_factory) -> Path:
    """A zoo of one row; configs are the repository's."""
    folder = tmp_path_factory.mktemp('zoo')
    (folder / 'configs').mkdir()
    for name in ('_base_', 'lape'):
        shutil.copytree(REPO / 'configs' / name, folder / 'configs' / name)
    metafile = folder / 'configs' / 'lape' / 'metafile.yml'
    head, _, models = metafile.read_text().partition('Models:\n')
    (entry,) = [part for part in models.split('  - Name: ') if part.startswith(f'{ROW}\n')]
    metafile.write_text(f'{head}Models:\n  - Name: {entry}')
    (folder / 'model-index.yml').write_text('Import:\n  - configs/lape/metafile.yml\n')
    (folder / 'docs').mkdir()
    (folder / 'docs/model_zoo.md').write_text(f'# Zoo\n\n{START}\n| [{ROW}] |\n{END}\nmore\n')
    (folder / TOOL.relative_to(REPO)).parent.mkdir(parents=True)
    shutil.copy(TOOL, folder / TOOL.relative_to(REPO))
    return folder


def measured(root: Path, tmp_path: Path) -> tuple[Zoo, dict]:
    """The zoo with its one row measured, and the row's entry."""
    (row,) = read_rows(root)
    zoo = Zoo([row], tmp_path / 'zoo.json')
    zoo.put(row, SIZE, MEMORY)
    row.metadata.update(Parameters=SIZE.parameters, FLOPs=SIZE.flops)
    return zoo, zoo.measured[ROW]


def test_what_is_no_longer_true_is_found(root, tmp_path):
    zoo, entry = measured(root, tmp_path)
    (row,) = zoo.rows
    row.metadata['Parameters'] = 7
    assert zoo.problems() == [
        f'lape/metafile.yml says Parameters 7 of {ROW}, measured: {SIZE.parameters}'
    ]
    row.metadata['Parameters'] = SIZE.parameters
    entry['model'] = 'other'
    entry['step']['images'] = 2
    assert zoo.problems() == [
        f'{ROW} has another model than the one that was measured',
        f'{ROW} has other batches than those that were measured',
    ]
    assert '| 0.6 (2, 512 x 512) |' in zoo.page(root / 'docs/model_zoo.md')
    zoo.measured['old'] = zoo.measured.pop(ROW)
    assert zoo.problems() == [f'{ROW} has not been measured', 'old was measured but is not a row']


def test_reports_of_gpus_stand_beside_the_estimate(root, tmp_path):
    figures = {'measured, GB': 0.72}
    results = [
        dict(case=f'lape/{ROW}', figures=figures),
        dict(case='vit', figures={'plain, ms': 3}),
    ]
    path = tmp_path / 'benchmarks/records/gpu_card.json'
    path.parent.mkdir(parents=True)
    zoo, _ = measured(root, tmp_path)
    for speed, said in ({}, ''), ({'images per second': 41.26}, ', 41.3 images/s'):
        figures.update(speed)
        path.write_text(json.dumps(dict(machine=dict(device='A card'), results=results)))
        zoo.reports = read_reports(tmp_path)
        assert f'| 0.6 (1, 512 x 512); A card: 0.7 GB{said} |' in zoo.page(
            root / 'docs/model_zoo.md'
        )


def test_figures_go_into_a_metafile_that_keeps_its_layout(tmp_path):
    lines = [
        '# a comment',
        'Models:',
        '  - Name: a',
        '    Metadata: {Epochs: 1, Parameters: 0, FLOPs: 12}',
        '    Results: [{Parameters: 5.7M, FLOPs: 305M}]',
    ]
    lines += ['  - Name: b', '    Metadata:', '      Parameters: 3', '      FLOPs: 4']
    path = tmp_path / 'metafile.yml'
    path.write_text('\n'.join(lines))
    write_measured(path, {'b': dict(parameters=33, flops=44), 'c': dict(parameters=5, flops=6)})
    assert path.read_text() == '\n'.join([*lines[:7], '      Parameters: 33', '      FLOPs: 44'])
    write_measured(path, {'a': dict(parameters=11, flops=22)})
    assert '{Epochs: 1, Parameters: 11, FLOPs: 22}' in path.read_text()
    assert lines[4] in path.read_text()
    path.write_text('  - Name: a\n    Metadata: {Epochs: 1, FLOPs: 2}')
    with pytest.raises(ValueError, match=r'metafile\.yml: a must have one Parameters, got 0'):
        write_measured(path, {'a': dict(parameters=11, flops=22)})


@pytest.mark.slow
def test_the_command(root, tmp_path, monkeypatch, capsys):
    """Measures, writes, agrees with itself, and sees what has changed since."""
    copy = shutil.copytree(root, tmp_path / 'zoo')

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', ['zoo_table.py', *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(copy / TOOL.relative_to(REPO)), run_name='__main__')
        return stop.value.code, capsys.readouterr()

    code, said = run('--config', 'segmenter*')
    assert code == 0
    assert f'{ROW}: 6,713,388 parameters, 12,641,115,648 FLOPs, ' in said.out
    page = copy / 'docs' / 'model_zoo.md'
    text = page.read_text()
    assert f'[{ROW}](../configs/lape/{ROW}.py) | 6.7 (5.7) | 13 (10) | 0.' in text
    assert text.startswith('# Zoo\n') and text.endswith(f'\n\n{END}\nmore\n')
    assert 'FLOPs: 12641115648' in (copy / 'configs' / 'lape' / 'metafile.yml').read_text()
    assert run('--check')[0] == 0
    page.write_text(text.replace('6.7 (5.7)', '6.8 (5.7)'))
    code, said = run('--check')
    assert code == 1
    assert 'model_zoo.md is not what its record and the metafiles say' in said.err
    assert run('--config', 'resnet*')[0] == 'no row is named resnet*'

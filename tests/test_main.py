"""The command ``mmlape``: help, versions and mistakes are answered before anything is imported that takes time."""

import json
import subprocess
import sys

import pytest
from config_utils import REPO

from mmlape import __version__
from mmlape.__main__ import FAMILIES, commands
from mmlape.compatibility import torch_version

TOOLS = {name: path for name, path in commands().items() if path.suffix == '.py'}
# One process for all: what is imported by one stays, so the first that imports too much is the one that is named.
ANSWERS = """
import contextlib, io, json, sys
from mmlape.__main__ import main

def answer(*arguments):
    sys.argv, path = ['mmlape', *arguments], list(sys.path)
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    sys.path[:] = path
    heavy = {'torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'timm', 'scipy', 'matplotlib'}
    return code, out.getvalue(), err.getvalue(), sorted(heavy & set(sys.modules))

print(json.dumps({' '.join(asked): answer(*asked) for asked in json.loads(sys.argv[1])}))
"""
MISTAKES = {
    'train': 'the following arguments are required: config',
    'train setup.py --amp-dtype fp8': "--amp-dtype: invalid choice: 'fp8'",
    'train setup.py --cfg-options a = 1': "--cfg-options takes KEY=VALUE without spaces, got 'a'",
    'train setup.py --sed 1': 'unrecognized arguments: --sed',
    'train mask-rcnn_deit-t-adaptr': 'neither a file nor a shipped config',
    'robustness setup.py x.pth --corruptions rain': "--corruptions: invalid choice: 'rain'",
    'convert tim a b --config c': "argument source: invalid choice: 'tim'",
    'fit_gabor a.pth b.pth --variant F': "--variant: invalid choice: 'F'",
    'picture position_correlation x.py --where here': "--where: invalid choice: 'here'",
    'picture token_pca x.py --images a --compare BN': "--compare: invalid choice: 'BN'",
    'docs fi': "there is no page 'fi'; did you mean fit?",
    'build list_ops --depths 3': 'unrecognized arguments: --depths',
}


# Commands with arguments that they accept before they import what is missing.
COMMANDS = (
    'train setup.py', 'test setup.py x.pth', 'predict x.pth x.png', 'fit tests', 'demo', 'demo --help',
    'timm_run setup.py', 'dist_train setup.py 2', 'dist_test setup.py x.pth 2', 'slurm_train a b setup.py',
    'slurm_test a b setup.py x.pth', 'robustness setup.py x.pth', 'convert timm a b --config setup.py',
    'fit_gabor a.pth b.pth', 'picture position_embedding setup.py', 'picture position_correlation setup.py',
    'picture token_pca setup.py --images a', 'picture dtn_maps setup.py', 'experiment position', 'experiment dino',
    'experiment robustness', 'experiment x', 'build digit_scenes x',
)  # fmt: skip


PAGES = (
    'docs fit',
    'docs docs/fit.md#in-short',
    'docs configs/eomt',
    'docs ../configs/eomt/README.md',
)


def answers_of(asked: list[list[str]], *options: str) -> dict:
    """``{arguments: (exit code, output, errors, packages that were imported by then)}``."""
    command = [sys.executable, *options, '-c', ANSWERS, json.dumps(asked)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope='module')
def answers():
    lines = ['--help', '--version', 'trian', 'picture pca', 'docs', *PAGES, *FAMILIES, *MISTAKES]
    asked = [[], *(line.split() for line in lines)]
    asked += [
        [*name.split(), option] for name in TOOLS for option in ('--help', '--no-such-option')
    ]
    return answers_of(asked)


def test_one_line_says_what_to_install():
    """Without site-packages (-S), as after `pip install --no-deps` of the wheel into an empty environment."""
    found = answers_of([line.split() for line in COMMANDS] + [['--version'], ['doctor']], '-S')
    names = 'torch, torchvision, timm, numpy, safetensors, mmengine, mmcv'
    advice = "`pip install 'mmlape[onedl]'`"
    said = f'mmlape needs {names}, which are not installed: {advice}; see `mmlape docs install`'
    for asked in COMMANDS:
        code, _, err, _ = found[asked]
        assert str(code).startswith(f'error: {said}') and '\n' not in code and not err, asked
    assert found['--version'][1].splitlines()[-1].startswith(said)
    code, out, _, _ = found['doctor']
    assert code == 1 and f'error    packages  not installed: {names}' in out and advice in out
    result = subprocess.run(
        [sys.executable, '-S', '-c', 'import mmlape; mmlape.load'],
        cwd=REPO, capture_output=True, text=True,
    )  # fmt: skip
    assert result.stderr.splitlines()[-1].startswith(f'ImportError: {said}')


def test_nothing_that_takes_time_is_imported(answers):
    for asked, (*_, imported) in answers.items():
        assert not imported, f'mmlape {asked} imports {imported}'


@pytest.mark.parametrize('name', TOOLS)
def test_help_and_an_option_that_does_not_exist(name, answers):
    code, out, _, _ = answers[f'{name} --help']
    assert code == 0 and len(out) > 100 and f'mmlape {name}' in out
    code, _, err, _ = answers[f'{name} --no-such-option']
    assert (code == 2 and 'error: ' in err) or '--no-such-option' in str(code)


@pytest.mark.parametrize('asked', MISTAKES)
def test_mistakes(asked, answers):
    code, _, err, _ = answers[asked]
    assert code == 2 and MISTAKES[asked] in err


def test_versions(answers):
    code, out, _, _ = answers['--version']
    assert code == 0 and out.startswith(f'mmlape {__version__}\nPython 3.')
    assert f'torch {torch_version()}\nmmengine ' in out


def test_pages(answers):
    """Without packages too, as Markdown; the list has the title of each."""
    shown = [answers[asked][1] for asked in PAGES]
    assert shown[0] == shown[1] == (REPO / 'docs/fit.md').read_text()
    assert shown[2] == shown[3] == (REPO / 'configs/eomt/README.md').read_text()
    assert '\n  fit                  Fit: from a folder' in answers['docs'][1]


def test_the_commands_are_listed(answers):
    assert answers[''] == answers['--help']
    assert all(f'  {name.split()[0]} ' in answers[''][1] for name in commands())
    assert len({name.split()[0] for name in commands()}) <= 26
    for family in FAMILIES:
        code, out, _, _ = answers[family]
        names = [name for name in commands() if name.startswith(f'{family} ')]
        assert code == 0 and len(names) > 1 and all(f'  mmlape {name} ' in out for name in names)
    assert "no command 'picture pca'; did you mean picture token_pca" in answers['picture pca'][2]
    code, _, err, _ = answers['trian']
    assert code == 2 and "no command 'trian'; did you mean train" in err

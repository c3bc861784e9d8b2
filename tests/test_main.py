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
    'robustness setup.py x://y.pth --corruptions rain': "--corruptions: invalid choice: 'rain'",
    'convert tim a b --config c': "argument source: invalid choice: 'tim'",
    'fit_gabor x://y.pth b.pth --variant F': "--variant: invalid choice: 'F'",
    'picture position_correlation setup.py --where here': "--where: invalid choice: 'here'",
    'picture token_pca setup.py --images docs --compare BN': "--compare: invalid choice: 'BN'",
    'train LICENSE': "config: 'LICENSE' is no config: its name must end with .py",
    'predict tests tests': "model: 'tests' has no complete checkpoint",
    'docs fi': "there is no page 'fi'; did you mean fit?",
    'build list_ops --depths 3': 'unrecognized arguments: --depths',
    'train setup.py --resume none.pth': "--resume: there is no checkpoint 'none.pth'",
    'train setup.py --log tensorbord': "--log: must be of tensorboard, wandb, mlflow, got 'tensorbord'",
    'train setup.py --work-dir setup.py': "--work-dir: 'setup.py' is not a folder",
    'test setup.py none.pth': "checkpoint: there is no checkpoint 'none.pth'",
    'test setup.py x://y.pth --images 0': '--images: must be at least 1, got 0',
    'predict none.pth tests': "model: there is no checkpoint 'none.pth'; by name there are: nuclei",
    'predict nuclei none': "source: 'none' is neither a file nor a folder",
    'predict nuclei docs --score 2': "must be in [0, 1], got '2'",
    'predict nuclei docs --overlap 1': '--overlap: must be in [0, 1)',
    'fit none': "data: there is no folder 'none'",
    'fit tests --score x': "must be in [0, 1], got 'x'",
    'fit tests --model micro-adaptr': "there is no model 'micro-adaptr'; did you mean 'micro-adapter'",
    'fit tests --epochs 0': '--epochs must be at least 1, got 0',
    'fit tests --views 2': '--views goes with --frozen',
    'export nuclei x.pt': "OUT must end with .onnx, got 'x.pt'",
    'export nuclei x.onnx --int8 none': "--int8: there is no folder 'none'",
    'export nuclei x.onnx --tolerance 0': '--tolerance: must be a number above 0',
    'share nuclei tests': "'tests' exists already",
    'app none.pth': "model: there is no checkpoint 'none.pth'",
    'estimate setup.py --batch 0': '--batch: must be at least 1, got 0',
    'robustness setup.py none.pth': "checkpoint: there is no checkpoint 'none.pth'",
    'convert timm a b.pth --config none': '--config: ',
    'picture position_embedding none': 'config: ',
    'picture token_pca setup.py --images none': "--images: 'none' is neither",
    'experiment camvid --data none': "--data: there is no folder 'none'",
    'experiment position --seeds 0': '--seeds: must be at least 1, got 0',
    'completion fish': "invalid choice: 'fish'",
    'doctor none': "config: 'none' is neither a file nor a shipped config",
    'doctor --work-dir setup.py': "--work-dir: 'setup.py' is not a folder",
    'test setup.py LICENSE': "checkpoint: 'LICENSE' is no checkpoint",
    'test setup.py tests': "checkpoint: 'tests' is a folder, and holds no checkpoint",
    'test setup.py x://y.pth --data-root none': "--data-root: there is no folder 'none'",
    'test setup.py x://y.pth --show-dir setup.py': "--show-dir: 'setup.py' is not a folder",
    'train setup.py --data-root none': "--data-root: there is no folder 'none'",
    'train setup.py --seed 4294967296': '--seed: must be at most 4294967295',
    'predict LICENSE tests': "model: 'LICENSE' is no checkpoint",
    'predict nuclei mmlape/cli': "source: the folder 'mmlape/cli' has no image and no video in it",
    'predict nuclei setup.py': "source: 'setup.py' is no image and no video",
    'predict nuclei docs --overlap 0.1': '--overlap goes with --tile',
    'predict nuclei docs --device gpu': '--device: must be of cpu, cuda, ',
    'predict nuclei docs --config setup.py --trust': '--trust: not allowed with argument --config',
    'fit mmlape/cli --out x': 'mmlape/cli holds no data of a known format',
    'fit tests --weights none.pth': "--weights: there is no file 'none.pth'; --weights none",
    'fit tests --weights tim:setup.py': "--weights: 'tim:setup.py': the source must be of ceit, ",
    'fit tests --task segment --model micro-adapter': '--model micro-adapter is for instance',
    'fit docs --train-ann none.json': "none.json",
    'fit tests --list': 'name the folder of your data, or give --list',
    'export nuclei docs': "out: 'docs' is a folder, and must be a file",
    'export nuclei setup.py/x.onnx': "out: 'setup.py' is not a folder",
    'export nuclei x.onnx --images mmlape/cli': "--images: the folder 'mmlape/cli' has no image in it",
    'share nuclei x --delta tim:x': "'tim:x' must be SOURCE:PLACE",
    'share nuclei setup.py/x': "folder: 'setup.py' is not a folder",
    'share nuclei x --metrics setup.py': '--metrics setup.py cannot be read as JSON',
    'app nuclei --example none': "--example: there is no file 'none'",
    'app nuclei --host nowhere.invalid': '--host nowhere.invalid --port 7860: ',
    'app nuclei --port 65536': '--port: must be at most 65535',
    'robustness setup.py x://y.pth --seed -1': '--seed: must be at least 0',
    'robustness timm/ x://y.pth': "config: 'timm/' is neither",
    'robustness_table a': 'expected NAME=RECORD[,RECORD...]',
    'robustness_table a=setup.py': 'setup.py',
    'convert mmseg none.pth x.pth --config setup.py': "there is no checkpoint 'none.pth'",
    'convert timm a x.txt --config setup.py': 'a checkpoint to write ends in .pth or .safetensors',
    'fit_gabor x://y.pth x.txt': 'out: a checkpoint to write ends in .pth or .safetensors',
    'prediction_split setup.py setup.py': "without: 'setup.py' must end with .pkl or .json",
    'picture token_pca setup.py --images mmlape/cli': "--images: the folder 'mmlape/cli' has no image in it",
    'picture position_embedding setup.py --format timm': '--format goes with a checkpoint',
    'picture position_correlation setup.py --head -1': '--head: must be at least 0',
    'experiment camvit': "there is no experiment 'camvit'; did you mean 'camvid'",
    'experiment camvid --only best': "--only must be one of ['LaPE', 'default'], got 'best'",
    'experiment position --only lape': "--only: invalid choice: 'lape' (choose from 'default-learned'",
    'experiment list_ops --only LN --only GRN': "--only: invalid choice: 'GRN'",
    'test setup.py x://y.pth --wait-time -1': '--wait-time: must be a number not below 0',
    'experiment camvid --table --only LaPE': '--only is for runs, and --table runs nothing',
    'experiment camvid --evaluate x://y.pth --seeds 1': '--seeds is for runs, and --evaluate runs nothing',
    'experiment camvid --part test': '--part goes with --evaluate',
    'picture dtn_ratios none': "runs: there is no file and no folder 'none'",
    'experiment camvid --work-dir setup.py': "--work-dir: 'setup.py' is not a folder",
    'build digit_scenes setup.py': 'setup.py exists and is not a digit scenes folder',
    'build list_ops x --num-train 0': 'num_train must be 1 to 10000000, got 0',
    'timm_run none.py': "there is no script 'none.py'",
}


# Commands with arguments that they accept before they import what is missing.
COMMANDS = (
    'train setup.py', 'test setup.py x://y.pth', 'predict nuclei docs', 'fit tests', 'demo', 'demo --help',
    'timm_run setup.py', 'dist_train setup.py 2', 'dist_test setup.py x.pth 2', 'slurm_train a b setup.py',
    'slurm_test a b setup.py x.pth', 'robustness setup.py x://y.pth', 'convert timm a b.pth --config setup.py',
    'fit_gabor x://y.pth b.pth', 'picture position_embedding setup.py', 'picture position_correlation setup.py',
    'picture token_pca setup.py --images docs', 'picture dtn_maps setup.py', 'experiment position', 'experiment dino',
    'experiment robustness', 'experiment camvid', 'build digit_scenes x',
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
    lines = [
        '--help',
        'help',
        'help train',
        '--version',
        'completion bash',
        'trian',
        'picture pca',
        'docs',
        *PAGES,
        *FAMILIES,
        *MISTAKES,
    ]
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
    if name not in ('timm_run', *FAMILIES):  # the text of its module, and a list
        examples = out.partition('\nexamples:\n')[2].splitlines()
        assert len(examples) == 2 and all(f'  mmlape {name}' in each for each in examples)
    code, _, err, _ = answers[f'{name} --no-such-option']
    assert (code == 2 and 'error: ' in err) or '--no-such-option' in str(code)


@pytest.mark.parametrize('asked', MISTAKES)
def test_mistakes(asked, answers):
    code, _, err, _ = answers[asked]
    assert code == 2 and MISTAKES[asked] in err
    assert err.count('\n') == 1 or 'the nearest are\n' in err


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
    assert answers[''] == answers['--help'] == answers['help']
    assert answers['help train'] == answers['train --help']
    listed = {name.split()[0] for name, path in commands().items() if path.suffix == '.py'}
    assert all(f'  {name} ' in answers[''][1] for name in listed)
    assert len({name.split()[0] for name in commands()}) <= 26
    for family in FAMILIES:
        code, out, _, _ = answers[family]
        names = [name for name in commands() if name.startswith(f'{family} ')]
        assert code == 0 and len(names) > 1 and all(f'  mmlape {name} ' in out for name in names)
    assert "no command 'picture pca'; did you mean picture token_pca" in answers['picture pca'][2]
    code, _, err, _ = answers['trian']
    assert code == 2 and "no command 'trian'; did you mean train" in err


def test_completion_of_commands_and_options(answers):
    """In bash; for zsh two lines more, which let it run the same."""
    script = answers['completion bash'][1]
    ask = (
        'complete() { :; }\n'
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mmlape; echo "${COMPREPLY[*]}"; }\n'
        'ask mmlape estim; ask mmlape train --amp-; ask mmlape train se; ask mmlape picture token_p\n'
        'ask mmlape picture token_pca --dir; ask mmlape experiment --li'
    )
    done = subprocess.run(['bash', '-c', f'{script}\n{ask}'], capture_output=True, text=True)
    words = ['estimate', '--amp-dtype', '', 'token_pca', '--directions', '--list']
    assert (done.stdout.splitlines(), done.stderr) == (words, '')

"""The command ``mmlape``: ``mmlape train CONFIG ...`` runs ``tools/train.py``; ``mmlape`` alone lists the commands.

No slow imports: tools parse their options first.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import runpy
import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from mmlape.compatibility import (
    PACKAGES,
    found_version,
    metadata_versions,
    provide_operators,
    stack_problem,
    torch_version,
)
from mmlape.shipped import find_config, shipped_folder
from mmlape.version import __version__

GROUPS = {
    'Train': 'fit estimate train dist_train slurm_train timm_run demo build_digit_scenes build_list_ops',
    'Predict': 'predict app export share',
    'Evaluate': 'test dist_test slurm_test robustness robustness_table prediction_split',
    'Weights': 'convert fit_gabor timm_vits',
    'Pictures of position': (
        'position_embedding position_correlation position_flow position_grids patch_order attention_distance '
        'class_attention'
    ),
    'Pictures of DTN': 'dtn_maps dtn_ratios token_magnitude token_pca token_variation',
    'Experiments': (
        'experiment experiment_position experiment_dino experiment_list_ops experiment_robustness zoo_table'
    ),
    'Help': 'doctor',
}


def commands() -> dict[str, Path]:
    """Every tool by its name: ``tools/NAME.py``, ``tools/NAME.sh``, and ``NAME.py`` in its folders (but packages)."""
    folder = shipped_folder('tools')
    paths = [*folder.glob('*.py'), *folder.glob('*.sh')]
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not part.name.endswith('_parts') and not any(part.glob('__*__.py')):
            paths += [*part.glob('*.py')]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def summary(path: Path) -> str:
    """The first sentence of a tool's description."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        described = ast.get_docstring(ast.parse(text)) or ''
    else:
        comments = (line.lstrip('# ') for line in text.splitlines()[1:] if line.startswith('#'))
        described = next(comments, '')
    first = re.split(r'(?<=[.?])\s+(?=[A-Z])|\n\n', described.strip())[0]
    return first.replace('\n', ' ').replace('``', '')


def listing() -> str:
    """All commands in groups, with a line each."""
    found = commands()
    width = max(map(len, found))
    text = 'usage: mmlape COMMAND [arguments]; mmlape COMMAND --help shows its options\n'
    for group, names in GROUPS.items():
        lines = (f'  {name:<{width}}  {summary(found[name])}\n' for name in names.split())
        text += f'\n{group}:\n{"".join(lines)}'
    return text


def versions() -> str:
    """mmlape, Python, PyTorch and the OpenMMLab packages, which are not imported, with a line each."""
    text = f'mmlape {__version__}\nPython {platform.python_version()}\n'
    text += f'torch {torch_version() or "is not installed"}\n'
    for package in PACKAGES:
        names = ', '.join(getattr(package, family)[0] for family in metadata_versions(package))
        version = found_version(package)
        text += f'{package.module} {version} ({names})\n' if version else ''
    return f'{text}{stack_problem() or ""}'.rstrip() + '\n'


def missing_package(error: BaseException | None) -> str | None:
    """What is not installed, and the command that installs it; None if the error has another reason."""
    while error is not None:  # MMEngine wraps errors of `custom_imports`
        if isinstance(error, ModuleNotFoundError) and 'pip install' in str(error):
            return str(error)  # one of ours, which names an extra
        for package in PACKAGES:
            if isinstance(error, ModuleNotFoundError) and error.name == package.module:
                families = {family for each in PACKAGES for family in metadata_versions(each)}
                return f'this needs {package.module}, which is not installed: {package.advice(families)}'
        error = error.__cause__ or error.__context__
    return None


def run(path: Path, arguments: list[str]) -> None:
    """Run a tool; SystemExit says in one line what to install if a dependency is missing."""
    if path.suffix == '.sh':
        problem = None if {'-h', '--help'} & {*arguments} else stack_problem()
        if problem:
            sys.exit(f'error: {problem}')
        # The scripts start other processes: with this interpreter, whatever `python` is there.
        environment = {'PYTHON': sys.executable, **os.environ}
        os.execvpe('bash', ['bash', str(path), *arguments], environment)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    provide_operators()
    try:
        runpy.run_path(str(path), run_name='__main__')
    except ImportError as error:
        if problem := stack_problem() or missing_package(error):
            sys.exit(f'error: {problem}')
        raise


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    if len(sys.argv) < 2 or sys.argv[1] in ('-h', '--help', 'help'):
        sys.stdout.write(listing())
        return
    if sys.argv[1] in ('-V', '--version'):
        sys.stdout.write(versions())
        return
    name, arguments = sys.argv[1], sys.argv[2:]
    found = commands()
    if name not in found:
        near = get_close_matches(name, found, 3, 0.4)
        hint = f'; did you mean {", ".join(near)}?' if near else ''
        sys.exit(f'error: there is no command {name!r}{hint} `mmlape` lists them')
    path = found[name]
    if arguments:
        with suppress(ValueError):  # not a config: the command itself checks its arguments
            arguments[0] = str(find_config(arguments[0]))
    run(path, arguments)


if __name__ == '__main__':
    main()

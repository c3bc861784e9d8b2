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
import textwrap
from difflib import get_close_matches
from pathlib import Path
from shutil import get_terminal_size

from mmlape.cli.program import framed, wrong_usage
from mmlape.compatibility import (
    PACKAGES,
    found_version,
    metadata_versions,
    provide_operators,
    stack_problem,
    torch_version,
)
from mmlape.shipped import shipped_folder
from mmlape.version import __version__

# The scripts are other names of `train` and `test`.
GROUPS = {
    'Train': 'fit estimate train timm_run demo build',
    'Predict': 'predict app export share',
    'Evaluate': 'test robustness robustness_table prediction_split',
    'Weights': 'convert fit_gabor',
    'Research': 'picture experiment',
    'Help': 'doctor docs completion',
}
# Commands that are several, each with the folder of its programs and what they do.
FAMILIES = {
    'picture': (
        'analysis_tools',
        'Draw a figure of the papers: positions, attention, tokens, the maps of DTN.',
    ),
    'experiment': ('experiments', 'Train variants with several seeds, and compare them.'),
    'build': ('dataset_converters', 'Build a data set of generated images or sequences.'),
}


def commands() -> dict[str, Path]:
    """Every tool by its command: ``train``, ``picture token_pca``. ``experiment`` alone is for real images."""
    folder = shipped_folder('tools')
    paths = [*folder.glob('*.py'), *folder.glob('*.sh'), *folder.glob('model_converters/*.py')]
    found = {path.stem: path for path in paths}
    for family, (place, _) in FAMILIES.items():
        found |= {f'{family} {path.stem}': path for path in folder.glob(f'{place}/*.py')}
    return dict(sorted(found.items()))


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
    """All commands in groups."""
    found = commands()
    texts = {name: summary(path) for name, path in found.items()}
    texts |= {name: f'{text} `mmlape {name}` lists them.' for name, (_, text) in FAMILIES.items()}
    text = 'usage: mmlape COMMAND [arguments]; mmlape COMMAND --help shows its options\n'
    width = max(len(name) for names in GROUPS.values() for name in names.split())
    for group, names in GROUPS.items():
        text += f'\n{group}:\n{_table({name: texts[name] for name in names.split()}, width)}'
    return text


def family_listing(family: str) -> str:
    """The programs of a family."""
    found = {name: path for name, path in commands().items() if name.split()[0] == family}
    own = {f'mmlape {name}': summary(path) for name, path in found.items() if name != family}
    text = f'usage: mmlape {family} NAME [arguments]; mmlape {family} NAME --help shows its options\n\n'
    text += _table(own, max(map(len, own)))
    if family in found:
        text += f'\nOthers, on real images: mmlape {family} --list\n'
    return text


def _table(texts: dict[str, str], width: int) -> str:
    """Names with their texts, wrapped to the terminal."""
    style: dict = dict(
        width=get_terminal_size().columns,
        subsequent_indent=' ' * (width + 4),
        break_on_hyphens=False,
    )
    lines = (textwrap.fill(f'  {name:<{width}}  {text}', **style) for name, text in texts.items())
    return ''.join(f'{line}\n' for line in lines)


def versions() -> str:
    """mmlape, Python, PyTorch and the OpenMMLab packages, which are not imported, with a line each."""
    text = f'mmlape {__version__}\nPython {platform.python_version()}\n'
    text += f'torch {torch_version() or "is not installed"}\n'
    for package in PACKAGES:
        names = ', '.join(getattr(package, family)[0] for family in metadata_versions(package))
        version = found_version(package)
        text += f'{package.module} {version} ({names})\n' if version else ''
    return f'{text}{stack_problem() or ""}'.rstrip() + '\n'


def run(path: Path, arguments: list[str]) -> None:
    """Run a tool."""
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
    runpy.run_path(str(path), run_name='__main__')


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    with framed():
        _main()


def _main() -> None:
    if sys.argv[1:2] == ['help']:
        sys.argv[1:] = [*sys.argv[2:], '--help']  # of a command, or of all
    if len(sys.argv) < 2 or sys.argv[1] in ('-h', '--help'):
        sys.stdout.write(listing())
        return
    if sys.argv[1] in ('-V', '--version'):
        sys.stdout.write(versions())
        return
    name, arguments = sys.argv[1], sys.argv[2:]
    found = commands()
    if name in FAMILIES:
        if not arguments or arguments[0] in ('-h', '--help'):
            sys.stdout.write(family_listing(name))
            return
        if f'{name} {arguments[0]}' in found:
            name, arguments = f'{name} {arguments[0]}', arguments[1:]
    if name not in found:
        wanted = ' '.join([name, *arguments[:1]]) if name in FAMILIES else name
        near = get_close_matches(wanted, found, 3, 0.4)
        hint = f'; did you mean {", ".join(near)}?' if near else ':'
        wrong_usage(f'there is no command {wanted!r}{hint} `mmlape` lists them')
    run(found[name], arguments)


if __name__ == '__main__':
    main()

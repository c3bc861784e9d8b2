"""The command ``mmlape``: everything in ``tools``, by its name.

``mmlape train CONFIG ...`` is ``python tools/train.py CONFIG ...``; ``mmlape`` alone lists the commands. A CONFIG that
is no file is looked up among the configs that come with the package. Nothing is imported that takes time: tools parse
their options first.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

from mmlape.shipped import shipped_configs, shipped_folder
from mmlape.stack import PACKAGES, found_version, metadata_versions, torch_version
from mmlape.version import __version__


def commands() -> dict[str, Path]:
    """Every tool by its name: ``tools/NAME.py``, ``tools/NAME.sh``, and ``NAME.py`` in folders of tools.

    Folders that are Python packages or begin nothing by themselves (``*_parts``) are parts of tools.
    """
    folder = shipped_folder('tools')
    paths = [*folder.glob('*.py'), *folder.glob('*.sh')]
    for room in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not room.name.endswith('_parts') and not any(room.glob('__*__.py')):
            paths += [*room.glob('*.py')]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def summary(path: Path) -> str:
    """The first sentence of a tool's description."""
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.py':
        described = ast.get_docstring(ast.parse(text)) or ''
    else:
        comments = (line.lstrip('# ') for line in text.splitlines()[1:] if line.startswith('#'))
        described = next(comments, '')
    return (
        re.split(r'(?<=[.?])\s+(?=[A-Z])|\n\n', described.strip())[0]
        .replace('\n', ' ')
        .replace('``', '')
    )


def listing() -> str:
    """All commands with a line each."""
    found = commands()
    width = max(map(len, found))
    lines = [f'  {name.ljust(width)}  {summary(path)}' for name, path in found.items()]
    head = 'usage: mmlape COMMAND [arguments]; mmlape COMMAND --help says more'
    return '\n'.join([head, '', *lines, ''])


def versions() -> str:
    """mmlape, Python, PyTorch and the OpenMMLab packages, which are not imported, with a line each."""
    lines = [
        f'mmlape {__version__}',
        f'Python {platform.python_version()}',
        f'torch {torch_version() or "is not installed"}',
    ]
    for package in PACKAGES:
        names = ', '.join(getattr(package, family)[0] for family in metadata_versions(package))
        version = found_version(package)
        lines += [f'{package.module} {version} ({names})'] if version else []
    return '\n'.join([*lines, ''])


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
    arguments = [_config_file(arguments[0]), *arguments[1:]] if arguments else []
    if path.suffix == '.sh':
        # The scripts start other processes: with this interpreter, whatever `python` is there.
        environment = {'PYTHON': sys.executable, **os.environ}
        os.execvpe('bash', ['bash', str(path), *arguments], environment)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name='__main__')


def _config_file(argument: str) -> str:
    """The file of a shipped config if ``argument`` is its name; the tools themselves refuse unknown names."""
    if argument.startswith('-') or Path(argument).exists():
        return argument
    name = argument.removesuffix('.py')
    configs = shipped_configs()
    files = [path for key, path in configs.items() if name in (key, key.rpartition('/')[2])]
    return str(files[0]) if len(files) == 1 else argument


if __name__ == '__main__':
    main()

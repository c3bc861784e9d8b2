"""Tries Pythons, versions of torch and both stacks (``make matrix``), and writes the table of ``docs/install.md``.

Each row gets an environment in ``work_dirs/matrix``, the smoke tests and the quick demo: some 5 minutes, and 5 more
where mmcv was never compiled. Rows whose Python is not on this machine stay as they are. Standard library only.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'install.md'
BEGIN, END = '<!-- matrix: written by make matrix -->\n', '<!-- end of the matrix -->'
# Python, packages, and the torch that a user brought, beside which everything else is the newest.
ROWS = [
    *((f'3.{minor}', 'onedl', '') for minor in range(10, 15)),
    ('3.10', 'onedl', '2.6.0'),
    ('3.12', 'onedl', '2.11.0'),
    *((f'3.{minor}', 'openmmlab', '') for minor in range(10, 13)),
]
SMOKE = ('layers', 'norm', 'position', 'backbones', 'checkpoints', 'cpu', 'test_compatibility.py')
VERSIONS = """import cv2, json, numpy, sys, torch
print(json.dumps([sys.version.split()[0], torch.__version__.split('+')[0], numpy.__version__, cv2.__version__]))"""
HEAD = '| Python | packages | torch | numpy | OpenCV | system | smoke tests | quick demo |\n'
HEAD += '|---' * 8 + '|\n'


def run(*command: object, check: bool = True) -> subprocess.CompletedProcess:
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    command = [*map(str, command)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=check)


def tried(python: str, stack: str, torch: str) -> str:
    """Set up the environment of a row, test it, and return the row."""
    venv = ROOT / 'work_dirs' / 'matrix' / f'{python}-{stack}-{torch or "tested"}'
    python, own = f'python{python}', venv / 'bin' / 'python'
    if torch and not venv.is_dir():
        run(python, '-m', 'venv', venv)
        run(own, '-m', 'pip', 'install', '-q', f'torch=={torch}', 'torchvision')
    run('make', 'env', f'PYTHON={python}', f'VENV={venv}', f'STACK={stack}')
    version, *others = json.loads(run(own, '-W', 'ignore', '-c', VERSIONS).stdout)
    tests = [f'tests/{name}' for name in SMOKE]
    options = ('-q', '-n', '2', '-m', 'not slow', '--tb', 'line')
    smoke = run(own, '-m', 'pytest', *options, *tests, check=False)
    demo = run(own, 'tools/demo.py', '--quick', check=False)
    for done in (smoke, demo):
        if done.returncode:
            print(done.stdout[-3000:], done.stderr[-3000:])
    counts = re.findall(r'\d+ (?:failed|passed|errors?)\b', smoke.stdout.rstrip().split('\n')[-1])
    release = platform.freedesktop_os_release()['PRETTY_NAME'].replace(' GNU/Linux', '')
    cells = [version, stack, *others, release, ', '.join(counts) or 'crashed']
    return f'| {" | ".join(cells)} | {"failed" if demo.returncode else "passed"} |'


def merged(page: str, row: str) -> str:
    """Return `page` with `row` in its table, instead of one with the same Python, packages and torch."""

    def key(line: str) -> list:
        python, *others = (cell.strip() for cell in line.split('|')[1:4])
        return [*map(int, python.split('.')[:2]), *others]

    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {tuple(key(line)): line for line in [*table.splitlines()[2:], row]}
    lines = ''.join(f'{rows[each]}\n' for each in sorted(rows))
    return f'{before}{BEGIN}{HEAD}{lines}{END}{after}'


def main() -> None:
    parser = argparse.ArgumentParser(prog='make matrix', description=__doc__)
    parser.add_argument('only', nargs='*', help='Pythons, as 3.14; without: all on this machine')
    options = parser.parse_args()
    for python, stack, torch in ROWS:
        if options.only and python not in options.only:
            continue
        print(f'Python {python}, {stack}, torch {torch or "as tested"}', flush=True)
        try:
            run(f'python{python}', '-c', '')
        except (OSError, subprocess.CalledProcessError):
            print(f'    there is no python{python}')
            continue
        try:
            row = tried(python, stack, torch)
        except subprocess.CalledProcessError as error:
            sys.exit(f'error: {error}\n{error.stdout[-1000:]}{error.stderr[-3000:]}')
        print(f'    {row}', flush=True)
        PAGE.write_text(merged(PAGE.read_text(), row))


if __name__ == '__main__':
    main()

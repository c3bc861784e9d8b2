"""Check that docstrings are sentences or noun phrases: none begins with one of ``WORDS``. `make lint` runs this."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = {'of', 'those', 'that', 'by', 'as', 'which', 'what'}
EXCEPTIONS: tuple[tuple[str, str], ...] = ()  # (path:NAME, reason)
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

found = 0
for path in sorted(
    file for part in ('mmlape', 'tools', 'benchmarks') for file in ROOT.glob(f'{part}/**/*.py')
):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        text = ast.get_docstring(node) if isinstance(node, KINDS) else None
        place, name = path.relative_to(ROOT).as_posix(), getattr(node, 'name', 'the module')
        word = text.split()[0].strip('.,:;') if text and text.strip() else ''
        if word.lower() in WORDS and f'{place}:{name}' not in dict(EXCEPTIONS):
            found += 1
            print(f'{place}:{getattr(node, "lineno", 1)}: docstring of {name} begins with {word}')
sys.exit(found > 0)

"""Imports go one way: no cycle between modules, and no import from a lower package to a higher one."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import mmlape

ROOT = Path(mmlape.__file__).resolve().parent
# From the lowest to the highest; packages of a line do not import one another.
ORDER = (
    'version pixels',
    'lazy shipped checks compatibility atomic config_text preemption runtime.private',
    'registry',
    'failures',
    'layout',
    'runtime',
    'position',
    'norm',
    'layers',
    'backbones',
    'necks heads checkpoints research.datasets',
    'cpu gpu',
    'training',
    'apps.inference',
    'apps.export',
    'research.pretraining',
    'timm_models',
    'apps.app apps.report',
    'research.analysis research.demo',
    'apps.fit',
    'research.robustness',
    'research.experiments research.zoo',
    'cli',
    'doctor __main__',
)
RANKS = {package: rank for rank, packages in enumerate(ORDER) for package in packages.split()}


def module_of(path: Path) -> str:
    parts = ['mmlape', *path.relative_to(ROOT).with_suffix('').parts]
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


FILES = {module_of(path): path for path in sorted(ROOT.rglob('*.py')) if '.mim' not in path.parts}


@cache
def imports(module: str) -> list[tuple[str, bool]]:
    """Modules of mmlape that one imports, and whether it does so when it is imported itself; not those for types."""
    path, found = FILES[module], []
    package = module if path.name == '__init__.py' else module.rpartition('.')[0]
    waiting = [(node, True) for node in ast.parse(path.read_text(encoding='utf-8')).body]
    while waiting:
        node, at_once = waiting.pop()
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = resolve_name('.' * node.level + (node.module or ''), package)
            whole = [f'{start}.{alias.name}' for alias in node.names]  # may be a module
            names = [name if name in FILES else start for name in whole]
        elif not (isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.unparse(node.test)):
            below = at_once and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            waiting += [(child, below) for child in ast.iter_child_nodes(node)]
        found += [(name, at_once) for name in names if name.partition('.')[0] == 'mmlape']
    return found


def package_of(module: str) -> str:
    parts = module.split('.')[1:]
    if module == 'mmlape.runtime.private':  # what wraps PyTorch alone is below everything
        return 'runtime.private'
    return '.'.join(parts[: 2 if parts[:1] in (['apps'], ['research']) else 1])


def test_every_package_has_a_place():
    assert {package_of(module) for module in FILES} - {''} - {'apps', 'research'} == set(RANKS)


def test_no_import_from_a_lower_package_to_a_higher_one():
    wrong = []
    for module in FILES:
        for other, _ in imports(module):
            own, used = package_of(module), package_of(other)
            if '' not in (own, used) and own != used and RANKS[used] >= RANKS[own]:
                wrong.append(f'{module} imports {other}')
    assert not wrong, '\n'.join(wrong)


# What each group may not import; the ranks above say more.
WALLS = {
    'position norm layers backbones heads necks checkpoints runtime cpu gpu': 'training apps research cli',
    'training': 'apps research cli',
    'apps': 'research cli',
    'research timm_models': 'cli',
}


@pytest.mark.parametrize(('group', 'walled'), WALLS.items())
def test_walls(group, walled):
    """Parts know neither what trains them nor what is made with them, applications no research, nobody a command."""
    places = {module: module.split('.')[1] for module in FILES if module.count('.')}
    assert {*group.split(), *walled.split()} <= {*places.values()}
    wrong = [
        f'{module} imports {other}'
        for module, place in places.items()
        if place in group.split()
        for other, _ in imports(module)
        if other.count('.') and other.split('.')[1] in walled.split()
    ]
    assert not wrong, '\n'.join(wrong)


def test_no_cycle():
    # A package's __init__ imports its modules, which import one another by their own names.
    graph = {
        module: {
            other
            for other, at_once in imports(module)
            if at_once and other in FILES and not f'{module}.'.startswith(f'{other}.')
        }
        for module in FILES
    }
    order = list(TopologicalSorter(graph).static_order())  # a CycleError names the cycle
    assert len(order) == len(FILES)

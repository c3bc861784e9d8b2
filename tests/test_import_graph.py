"""Imports go one way: no cycle between modules, and no import from a lower package to a higher one."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import mmlape

ROOT = Path(mmlape.__file__).resolve().parent
# From the lowest to the highest; packages of a line do not import one another.
ORDER = (
    'version lazy renamed checks compatibility atomic runtime.private',
    'registry',
    'layout',
    'runtime',
    'position',
    'norm',
    'layers',
    'backbones',
    'necks checkpoints datasets',
    'cpu',
    'training',
    'cli',
    'inference',
    'pretraining',
    'timm_models',
    'analysis',
    'fit',
    'robustness',
    'doctor __main__',
)
RANKS = {package: rank for rank, packages in enumerate(ORDER) for package in packages.split()}


def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules of mmlape that a file imports, and whether it does so when it is imported itself."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    typed = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and 'TYPE_CHECKING' in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    at_once = {id(node) for node in tree.body} | {
        id(node)
        for block in tree.body
        if isinstance(block, (ast.Try, ast.If))
        for node in ast.walk(block)
    }
    package = module_of(path).split('.')
    package = package if path.name == '__init__.py' else package[:-1]
    found = []
    for node in ast.walk(tree):
        if id(node) in typed:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = '.'.join([*base, *([node.module] if node.module else [])])
            # A name may be a module of the package.
            names = [
                f'{start}.{alias.name}' if exists(f'{start}.{alias.name}') else start
                for alias in node.names
            ]
        else:
            continue
        found += [
            (name, id(node) in at_once) for name in names if name.partition('.')[0] == 'mmlape'
        ]
    return found


def module_of(path: Path) -> str:
    parts = ['mmlape', *path.relative_to(ROOT).with_suffix('').parts]
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split('.')[1:])
    return path.with_suffix('.py').is_file() or (path / '__init__.py').is_file()


FILES = {module_of(path): path for path in sorted(ROOT.rglob('*.py')) if '.mim' not in path.parts}


def package_of(module: str) -> str:
    # What wraps PyTorch alone is below everything.
    return (
        'runtime.private'
        if module == 'mmlape.runtime.private'
        else module.partition('.')[2].partition('.')[0]
    )


def test_every_package_has_a_place():
    assert {package_of(module) for module in FILES} - {''} == set(RANKS)


def test_no_import_from_a_lower_package_to_a_higher_one():
    wrong = []
    for module, path in FILES.items():
        for other, _ in imports(path):
            own, used = package_of(module), package_of(other)
            if '' not in (own, used) and own != used and RANKS[used] >= RANKS[own]:
                wrong.append(f'{module} imports {other}')
    assert not wrong, '\n'.join(wrong)


def test_no_cycle():
    graph = {
        module: {other for other, at_once in imports(path) if at_once and other in FILES} - {module}
        for module, path in FILES.items()
    }
    # A package's __init__ imports its modules, which import one another by their own names.
    for module, others in graph.items():
        graph[module] = {other for other in others if not module.startswith(f'{other}.')}
    order = list(
        TopologicalSorter(graph).static_order()
    )  # raises CycleError, which names the cycle
    assert len(order) == len(FILES)

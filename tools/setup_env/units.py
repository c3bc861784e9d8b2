"""mmcv's C++ sources joined into a few translation units, so that torch's headers are parsed a few times, not 78.

The text that is compiled stays the same, and so do the optimizations: a unit includes whole files, and each file is in
one unit. Files that could change one another's meaning are kept apart: what two of them may both declare (functions and
types of the same name), and what one leaves behind for those after it (macros, ``using``).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path('mmcv', 'ops', 'csrc', 'pytorch')
COUNT = 8
# At the first column, where mmcv's sources declare: a function (macros are all in capitals), a type, an alias.
DECLARED = re.compile(
    r'^(?! )[\w:<>&*, ]*?\b(\w*[a-z]\w*)\(|^(?:struct|class|enum) (\w+)|^using [\w:]*?(\w+)(?:;| =)',
    re.MULTILINE,
)
LEFT_BEHIND = re.compile(r'^ *#define |^using namespace ', re.MULTILINE)


def join_sources(source: Path) -> None:
    """Put units in the places where mmcv's ``setup.py`` looks for its sources, which move to ``joined/``."""
    folder = source / SOURCES
    texts = {
        path.relative_to(folder): path.read_text(encoding='utf-8')
        for path in sorted([*folder.glob('*.cpp'), *folder.glob('cpu/*.cpp')])
    }
    for path in texts:
        moved = folder / 'joined' / path
        moved.parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(moved)
    for number, unit in enumerate(arrange(texts, COUNT)):
        lines = ''.join(f'#include "joined/{path.as_posix()}"\n' for path in unit)
        (folder / f'unit_{number}.cpp').write_text(lines, encoding='utf-8')


def are_joined(source: Path) -> bool:
    return (source / SOURCES / 'joined').is_dir()


@dataclass
class Unit:
    """Files that are compiled as one; ``closed`` once a file in it leaves something behind."""

    files: list[Path] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    length: int = 0
    closed: bool = False


def arrange(texts: dict[Path, str], count: int) -> list[list[Path]]:
    """The files of each unit: `count` units of about the same length, and more where files do not fit together."""
    units = [Unit() for _ in range(count)]
    # What leaves something behind comes last, so that it closes units that are full.
    for path in sorted(texts, key=lambda path: (leaves(texts[path]), -len(texts[path]), path)):
        names = declared(texts[path])
        fitting = [unit for unit in units if not unit.closed and not unit.names & names]
        if not fitting:
            units.append(Unit())
            fitting = units[-1:]
        unit = min(fitting, key=lambda unit: unit.length)
        unit.files.append(path)
        unit.names |= names
        unit.length += len(texts[path])
        unit.closed = leaves(texts[path])
    return [unit.files for unit in units if unit.files]


def declared(text: str) -> set[str]:
    return {name for match in DECLARED.finditer(text) for name in match.groups() if name}


def leaves(text: str) -> bool:
    return bool(LEFT_BEHIND.search(text))

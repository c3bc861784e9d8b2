"""docs/papers.md: nothing of a paper is left out, and everything that a row names is there."""

import argparse
import ast
import inspect
import itertools
import pkgutil
import re
import shlex
from functools import cache
from typing import NamedTuple

import pytest
import torch
from config_utils import CONFIGS, REPO
from docs_pages import anchor
from markdown_it import MarkdownIt
from mmengine.config import Config, DictAction

from mmlape import registry
from mmlape.cli.options import merge_overrides
from mmlape.shipped import find_config, shipped_configs

pytestmark = pytest.mark.usefixtures('cheap_values')

PAGE = REPO / 'docs' / 'papers.md'
ABLATIONS = CONFIGS / 'ablations' / 'README.md'
STEMS = {name.rpartition('/')[2] for name in shipped_configs()}
REGISTRIES = [each for each in vars(registry).values() if isinstance(each, registry.ChildRegistry)]

# Counted in the papers' full texts. Of sections and appendices, those with results or definitions that have no number.
CONTENTS = {
    'LaPE, ICCV 2023': {'Table': '1-8', 'Figure': '1-5', 'Equation': '1-12'},
    'LaPE, arXiv v1': {'Table': '1-7', 'Figure': '1-8', 'Equation': '1-12', 'Appendix': 'B'},
    'DTN, ICLR 2022': {
        'Table': '1-6, 7a, 7b, 8-12',
        'Figure': '1, 2, 3a, 3b, 4-9',
        'Equation': '1-7',
        'Algorithm': '1',
        'Section': '4.3',
        'Appendix': 'A.1, B.1, B.2',
    },
    'Gabor': {'Table': '1-5', 'Figure': '1-11', 'Equation': '1-13'},
    'ViT-Adapter, ICLR 2023': {'Table': '1-3'},  # what LaPE's tables stand on
}
NUMBERED = rf'({"|".join(sorted({kind for kinds in CONTENTS.values() for kind in kinds}))})s? (.+)'


class Cell(NamedTuple):
    text: str
    code: list[str]
    links: list[str]


class Row(NamedTuple):
    """A row of a table: where in the paper, what it is, what does it here, what a CPU shows, published."""

    paper: str
    where: str
    here: Cell
    shown: Cell
    published: Cell

    @property
    def code(self) -> list[str]:
        return self.here.code + self.shown.code


def rows_of(text: str) -> list[Row]:
    found, paper, cells = [], '', []
    tokens = MarkdownIt('commonmark').enable('table').parse(text)
    for before, token in itertools.pairwise(tokens):
        if before.type == 'heading_open':
            paper = token.content
        elif before.type == 'tr_open':
            cells = []
        elif before.type == 'td_open':
            parts = token.children or []
            code = [part.content for part in parts if part.type == 'code_inline']
            links = [part.attrs['href'] for part in parts if part.type == 'link_open']
            cells.append(Cell(token.content, code, links))
        elif token.type == 'tr_close' and cells:
            where, _, here, shown, published = cells
            found.append(Row(paper, where.text, here, shown, published))
    return found


ROWS = rows_of(PAGE.read_text(encoding='utf-8'))


def numbers(text: str) -> list[str]:
    """``'1-3, 7a'`` as ``['1', '2', '3', '7a']``."""
    found = []
    for part in text.split(', '):
        ends = re.fullmatch(r'(\d+)-(\d+)', part)
        found += [str(n) for n in range(int(ends[1]), int(ends[2]) + 1)] if ends else [part]
    return found


def numbered(row: Row) -> list[tuple[str, str]]:
    """``Equations 3-5`` as three of them."""
    match = re.fullmatch(NUMBERED, row.where)
    return [(match[1], number) for number in numbers(match[2])] if match else []


def expanded(name: str) -> list[str]:
    """``a{b,c}`` as a shell would: ``ab`` and ``ac``."""
    parts = re.split(r'\{([^{}]*)\}', name)
    choices = [part.split(',') if i % 2 else [part] for i, part in enumerate(parts)]
    return [''.join(choice) for choice in itertools.product(*choices)]


def config(name: str) -> Config:
    return Config.fromfile(find_config(name), import_custom_modules=False)


def check_command(words: list[str]) -> None:
    """Raises what the options of a command's config would; its name and options: tests/test_docs_pages.py."""
    if '--cfg-options' in words:
        (name,) = STEMS.intersection(words)
        parser = argparse.ArgumentParser()
        parser.add_argument('--cfg-options', nargs='+', action=DictAction)
        cfg = merge_overrides(config(name), parser.parse_known_args(words)[0].cfg_options)
        with torch.device('meta'):  # what an option does is the network's to say
            registry.MODELS.build(cfg.model.backbone)


@cache
def thing(name: str):
    """``mmlape.X``: what is registered by this name, else what Python finds there."""
    if name.count('.') == 1:
        for box in REGISTRIES:
            box.import_from_location()
            if name.removeprefix('mmlape.') in box.module_dict:
                return box.module_dict[name.removeprefix('mmlape.')]
    return pkgutil.resolve_name(name)


def check_code(code: str, row: Row) -> None:
    if code.startswith(('mmlape ', 'python ', 'make ')):
        check_command(shlex.split(code))
    elif '::' in code:
        path, _, function = code.partition('::')
        if f'\ndef {function}(' not in (REPO / path).read_text():
            raise ValueError(f'{path} has no {function}')
    elif re.fullmatch(r'mmlape(\.\w+)+', code):
        thing(code)
    elif code.startswith('configs/') or set(expanded(code)) <= STEMS:
        for name in [str(REPO / code)] if '/' in code else expanded(code):
            config(name)
    else:  # an option of a class that is named beside it, or a further value of one
        name = code.partition('=')[0]
        parts = [thing(other) for other in row.code if re.fullmatch(r'mmlape(\.\w+)+', other)]
        if not any(name in inspect.signature(part).parameters for part in parts):
            ast.literal_eval(code)


def missing(rows: list[Row], paper: str) -> set:
    """What has no row, more than one, or a row and is not in the paper."""
    found = [item for row in rows if row.paper == paper for item in numbered(row)]
    wanted = [(kind, n) for kind, text in CONTENTS[paper].items() for n in numbers(text)]
    return set(found) ^ set(wanted) | {item for item in found if found.count(item) > 1}


def broken(rows: list[Row]) -> list[str]:
    """What rows name and is not there."""
    problems = []
    for row in rows:
        for code in row.code:
            try:
                check_code(code, row)
            except (Exception, SystemExit) as error:
                problems.append(f'{row.paper}, {row.where}: {code}: {error!r}')
    return problems


@pytest.mark.parametrize('paper', CONTENTS)
def test_nothing_of_a_paper_is_left_out(paper):
    assert missing(ROWS, paper) == set()


@pytest.mark.parametrize('paper', dict.fromkeys(row.paper for row in ROWS))
def test_what_rows_name_is_there(paper):
    assert broken([row for row in ROWS if row.paper == paper]) == []


def test_every_ablation_has_its_row():
    headings = re.findall(r'^## (.*\d.*)$', ABLATIONS.read_text(), re.MULTILINE)
    anchors = [anchor(heading) for heading in headings]
    wanted = {name + '-1' if name in anchors[:i] else name for i, name in enumerate(anchors)}
    links = {link.rpartition('#')[2] for row in ROWS for link in row.here.links if 'ablat' in link}
    assert len(headings) > 10 and wanted - links == set()

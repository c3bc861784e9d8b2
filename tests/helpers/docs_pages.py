"""The project's Markdown pages, taken apart for the tests about them."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

REPO = Path(__file__).resolve().parents[2]
PATTERNS = ('*.md', 'docs/*.md', 'configs/*/README.md', 'benchmarks/**/*.md', 'tests/**/*.md')
PAGES = sorted(path for pattern in PATTERNS for path in REPO.glob(pattern))


class Fence(NamedTuple):
    """A block of code. ``line`` is that of its first line in the page, counted from 1."""

    language: str
    code: str
    line: int


class Page(NamedTuple):
    """What the tests look at; ``code`` is all of it, in blocks and in sentences."""

    path: Path
    text: str
    links: list[str]
    anchors: set[str]
    fences: list[Fence]
    code: list[str]


@cache
def read_page(path: Path) -> Page:
    text = path.read_text(encoding='utf-8')
    tokens = MarkdownIt('commonmark').enable('table').parse(text)
    page = Page(path, text, [], set(re.findall(r'<a id="([^"]+)">', text)), [], [])
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ('fence', 'code_block'):
            page.fences.append(Fence(token.info.strip(), token.content, token.map[0] + 2))
            page.code.append(token.content)
        for part in token.children or ():
            if part.type in ('link_open', 'image'):
                page.links.append(part.attrs['href' if part.type == 'link_open' else 'src'])
            elif part.type == 'code_inline':
                page.code.append(part.content)
        if before is not None and before.type == 'heading_open':
            words = ''.join(part.content for part in token.children)
            page.anchors.add(_unused(anchor(words), page.anchors))
    return page


def anchor(heading: str) -> str:
    """The anchor that code hosts give a heading."""
    return re.sub(r'[^\w\- ]', '', heading.strip().lower()).replace(' ', '-')


def _unused(name: str, taken: set[str]) -> str:
    """The second heading of a name gets a number."""
    number = 0
    while name + (f'-{number}' if number else '') in taken:
        number += 1
    return name + (f'-{number}' if number else '')


def python_fences(path: Path) -> list[Fence]:
    return [fence for fence in read_page(path).fences if fence.language == 'python']

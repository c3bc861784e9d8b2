"""Show a page of the documentation; without a name, list the pages.

    mmlape docs [PAGE]

PAGE is a name of the list, or a file as links of pages name it. Pages are Markdown; a terminal shows them in its pager.
"""

import pydoc
from difflib import get_close_matches

from mmlape import cli
from mmlape.cli.arguments import Parser
from mmlape.shipped import shipped_pages


def parse_arguments():
    parser = Parser('docs', 'Show a page of the documentation.', 'fit', 'configs/eomt')
    parser.add_argument('page', nargs='?', help='a name of the list; default: list the pages')
    options = parser.parse_args()
    pages = shipped_pages()
    name = (options.page or 'index').partition('#')[0].removesuffix('.md').removesuffix('/README')
    name = name.lstrip('./').removeprefix('docs/')
    if name not in pages and f'configs/{name}' in pages:
        name = f'configs/{name}'
    if name not in pages:
        near = get_close_matches(name, pages, 1)
        hint = f'did you mean {near[0]}? ' if near else ''
        parser.error(f'there is no page {options.page!r}; {hint}`mmlape docs` lists them')
    options.file = pages[name]
    return options


def listing():
    """The names and titles of all pages."""
    pages = shipped_pages()
    width = max(map(len, pages))
    titles = {
        name: path.read_text(encoding='utf-8').split('\n', 1)[0] for name, path in pages.items()
    }
    lines = (f'  {name:<{width}}  {title.lstrip("# ")}\n' for name, title in titles.items())
    return f'usage: mmlape docs PAGE\n\n{"".join(lines)}'


def main():
    options = parse_arguments()
    if options.page is None:
        print(listing(), end='')
    else:
        pydoc.pager(options.file.read_text(encoding='utf-8'))


if __name__ == '__main__':
    cli.run_program(main)

"""The site: ``make docs``. Sphinx, as OpenMMLab's own documentation; pages are the Markdown files of the repository.

Sphinx runs with the repository's root as its source folder (``sphinx-build -c docs . OUT``), so that pages outside of
``docs`` are pages of the site too, and the relative links that a code host follows are those that Sphinx follows.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).resolve().parents[1]

project = 'mmlape'
author = 'the mmlape authors'
project_copyright = 'the mmlape authors, Apache-2.0'
version = release = re.search(r"'(.+)'", (ROOT / 'mmlape' / 'version.py').read_text())[1]

extensions = [
    'myst_parser',
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
]
root_doc = 'docs/index'
include_patterns = [
    'docs/*.md',
    'docs/api/*.rst',
    'configs/*/README.md',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
]
# Folders that are not even looked into.
exclude_patterns = ['.*', 'build', 'data', 'dist', 'docs/_build', 'mmlape', 'tests', 'work_dirs']

myst_heading_anchors = 4  # links such as install.md#gpus, as code hosts have them
myst_links_external_new_tab = False

autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
autodoc_default_options = {'members': True, 'show-inheritance': True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes are documented once, in the class's docstring
napoleon_custom_sections = [('Returns (``forward``)', 'returns_style')]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = 'furo'
html_title = f'mmlape {version}'
html_copy_source = False
html_static_path, html_css_files = ['static'], ['code.css']
html_extra_path = ['site']  # next to this file: index.html, which leads to docs/index.html
pygments_style, pygments_dark_style = 'friendly', 'monokai'

linkcheck_timeout = 20
linkcheck_ignore = [r'https?://localhost\b.*']

# Where the sources can be browsed, such as https://host/owner/mmlape/blob/main. Links to files that are no pages lead
# there; without it, to pages with the source of configs and tools, and to copies of the rest.
SOURCE_URL = os.environ.get('SOURCE_URL', '').rstrip('/')
SHOWN = ('configs/**/*.py', 'tools/**/*.py', 'tools/**/*.sh', 'benchmarks/**/*.py')


def shown_sources() -> dict[str, str]:
    """Files that have a page with their source, as paths in the repository, and the names of those pages."""
    found = sorted(path for pattern in SHOWN for path in ROOT.glob(pattern))
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return {name: f'sources/{name}' for name in names}


class LinkSources(SphinxPostTransform):
    """Links to files that are no pages lead to :data:`SOURCE_URL`, or to a page with the source."""

    default_priority = 5
    formats = ('html',)

    def run(self, **_) -> None:
        builder, docname = self.app.builder, self.env.docname
        folder = Path(self.env.doc2path(docname, base=True)).parent
        pages = shown_sources()
        for found in list(self.document.findall(download_reference)):
            name = (folder / found['reftarget']).resolve().relative_to(ROOT).as_posix()
            if SOURCE_URL:
                address = f'{SOURCE_URL}/{name}'
            elif name in pages:
                address = builder.get_relative_uri(docname, pages[name])
            else:
                continue
            found.replace_self(nodes.reference('', '', *found.children, refuri=address))


def show_sources(app):
    """The pages with sources: name, context and template of each."""
    if SOURCE_URL:
        return
    for name, page in shown_sources().items():
        text = (ROOT / name).read_text(encoding='utf-8')
        lexer = 'bash' if name.endswith('.sh') else 'python'
        code = app.builder.highlighter.highlight_block(text, lexer, linenos=False)
        yield page, {'title': name, 'body': f'<h1>{name}</h1>{code}'}, 'page.html'


def add_navigation(app, docname: str, source: list[str]) -> None:
    """Make the navigation of the lists of the index page: a part for each heading. The first link of an item is an
    entry; the item's other links are below it.

    So the pages need no directive that a code host would show as it stands.
    """
    trees = []
    for title, items in listed().items():
        trees += [_tree([item[0] for item in items], title)] if docname == root_doc else []
        trees += [_tree(item[1:]) for item in items if item[1:] and docname == item[0][1]]
    source[0] += '\n\n' + '\n\n'.join(trees) + '\n'


def listed() -> dict[str, list[list[tuple[str, str]]]]:
    """Items of the lists of the index page by heading; an item is its links, as text and name of the page."""
    text = (ROOT / f'{root_doc}.md').read_text(encoding='utf-8')
    found = {}
    for part in re.split(r'^## ', text, flags=re.MULTILINE)[1:]:
        items = re.findall(r'^\* (.+(?:\n  .+)*)', part, re.MULTILINE)
        links = [re.findall(r'\[([^\]]+)\]\(([\w./-]+)\.(?:md|rst)\)', item) for item in items]
        if links:
            found[part.splitlines()[0]] = [[(t, _page(p)) for t, p in item] for item in links]
    return found


def _tree(links: list[tuple[str, str]], caption: str = '') -> str:
    head = ['```{toctree}', ':hidden:', *([f':caption: {caption}'] if caption else []), '']
    return '\n'.join([*head, *(f'{text} </{page}>' for text, page in links), '```'])


def _page(link: str) -> str:
    """Name of a page from a link of the index page."""
    return os.path.normpath(os.path.join(os.path.dirname(root_doc), link))


def setup(app) -> dict:
    app.connect('source-read', add_navigation)
    app.connect('html-collect-pages', show_sources)
    app.add_post_transform(LinkSources)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}

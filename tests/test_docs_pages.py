"""Pages: every link and picture exists, on a code host, in a clone and in the site, and so does what they tell one to
type; the site is built without a warning."""

import ast
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from inspect import signature
from pathlib import Path
from urllib.parse import unquote

import pytest
from docs_pages import PAGES, REPO, read_page

from mmlape.__main__ import FAMILIES, commands
from mmlape.research.datasets import build_digit_scenes
from mmlape.research.experiments.plan import EXPERIMENTS
from mmlape.shipped import PACKAGE, shipped_pages

BY_NAME = {path.relative_to(REPO).as_posix(): path for path in PAGES}
every_page = pytest.mark.parametrize('name', BY_NAME)
MAKEFILE = (REPO / 'Makefile').read_text(encoding='utf-8')
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
TARGETS = set(re.findall(r'^([a-z][a-z-]*):', MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r'^#   ([A-Z_]+)=', MAKEFILE, re.MULTILINE))
FOLDERS = 'benchmarks|configs|docs|mmlape|tests|tools'
FILE = rf'(?<![\w/.$}}-])((?:{FOLDERS})/[\w./-]+\.(?:py|sh|md|json|yml))(?![\w<*{{])'
CONFIGS = {path.stem for path in REPO.glob('configs/*/*.py')}
# Such a name is a config of the zoo, of ours or of upstream, wherever it stands.
CONFIG_NAME = r'(?<![\w/-])([a-z][\w-]*_[\w-]+_(?:\w+-)*(?:coco|ade20k|in1k|digit-\w+)[\w-]*)(?:\.py)?(?![\w-])'
MAKE = r'(?:^|(?<=[\s;&`]))make ([a-z][\w-]*)((?: \w+=\S+)*)'
# At the beginning of a line or after variables; not `mmlape cannot be imported`, which is a message.
COMMAND = r"^ *(?:\w+=(?:'[^']*'|\S*) )*mmlape (?!(?:\w+) be )([a-z]\w*(?: [a-z]\w*)?)\b"
COMMANDS = commands()
# A command with its options, lines that go on joined; timm's tools have options of their own.
CALL = rf'mmlape ((?:(?:{"|".join(FAMILIES)}) )?\w+)((?: +[^\n|`#;]*)?)'
SHARED = '\n'.join(
    path.read_text(encoding='utf-8')
    for pattern in ('mmlape/cli/*.py', 'tools/t*.py')
    for path in REPO.glob(pattern)
)
# `mmlape build digit_scenes` makes its options from the parameters of the function.
MADE = ''.join(f"'--{name.replace('_', '-')}'" for name in signature(build_digit_scenes).parameters)
# Experiments make theirs from keywords and keys, `seeds=dict(...)`.
MADE += ''.join(
    f"'--{name.replace('_', '-')}'"
    for pattern in ('mmlape/cli/experiments.py', 'tools/experiment.py', 'tools/experiments/*.py')
    for path in REPO.glob(pattern)
    for name in re.findall(r"\b(\w+)'?(?:=|: )dict\(", path.read_text(encoding='utf-8'))
)


def unknown(text: str) -> list[str]:
    """What a piece of code in a page names and does not exist."""
    problems = []
    for target, options in re.findall(MAKE, text, re.MULTILINE):
        if target not in TARGETS:
            problems.append(f'make {target}')
        names = re.findall(r'(\w+)=', options)
        problems += [f'make {target} {name}=' for name in names if name not in VARIABLES]
    text = text.replace('\\\n', ' ')
    known = {*COMMANDS, *FAMILIES, *(f'experiment {name}' for name in EXPERIMENTS)}
    for name in re.findall(COMMAND, text, re.MULTILINE):
        first = name.split()[0]
        if name not in known and (first in FAMILIES or first not in known):
            problems.append(f'mmlape {name}')
    calls = re.findall(CALL, re.sub(r'tools/(\w+)\.(?:py|sh)', r'mmlape \1', text))
    for name, rest in calls:
        if name in COMMANDS and name != 'timm_run':
            source = COMMANDS[name].read_text(encoding='utf-8') + SHARED + MADE
            options = re.findall(r'(?<!\S)(--[a-z][\w-]*)', rest)
            problems += [f'{name} {option}' for option in options if f"'{option}'" not in source]
    problems += [name for name in re.findall(FILE, text) if not (REPO / name).is_file()]
    return problems + [name for name in re.findall(CONFIG_NAME, text) if name not in CONFIGS]


def dead(page) -> list[str]:
    """What is wrong with the relative links of a page."""
    problems = []
    for link in page.links:
        if re.match(r'[a-z]+:', link):
            continue
        name, _, fragment = unquote(link).partition('#')
        target = (page.path.parent / name).resolve() if name else page.path
        if name.startswith('/') or not target.is_relative_to(REPO):
            problems.append(f'{link} leads out of the repository')
        elif not target.exists():
            problems.append(f'{link} leads nowhere')
        elif fragment and fragment not in (
            read_page(target).anchors if target.suffix == '.md' else ()
        ):
            problems.append(f'{link}: {target.name} has no such heading')
    return problems


@every_page
def test_links_and_commands_exist(name):
    page = read_page(BY_NAME[name])
    assert dead(page) == []
    assert [problem for code in page.code for problem in unknown(code)] == []
    # Nothing is of somebody's machine.
    found = re.findall(r'(?<![\w.~>}])/(?:home|root|Users|opt|tmp|work)/\S*', page.text)
    assert found == []


def messages(path: Path) -> list[str]:
    """The texts of a program; of a module of the package without docstrings, which are for readers of the sources."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    documented = [
        n for n in ast.walk(tree) if isinstance(n, DOCUMENTED) and path.is_relative_to(PACKAGE)
    ]
    docstrings = {id(each.body[0].value) for each in documented if ast.get_docstring(each)}
    texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return [each.value for each in texts if id(each) not in docstrings]


def test_programs_name_pages_that_an_installed_package_shows():
    """`mmlape docs PAGE`; docstrings of the package name files."""
    pages, told = shipped_pages(), 0
    # Two kinds of programs for clones.
    programs = [
        path
        for folder in (PACKAGE, REPO / 'tools')
        for path in folder.rglob('*.py')
        if not {'developers', 'setup_env'} & {*path.parts}
    ]
    for path in programs:
        source = path.read_text(encoding='utf-8')
        named = re.findall(r'`mmlape docs ([\w/]+)`', source)
        told += len(named)
        assert [page for page in named if page not in pages] == [], path
        files = re.findall(r'(?<![\w/])((?:docs|configs/\w+)/\w+\.md)', source)
        assert [file for file in files if not (REPO / file).is_file()] == [], path
        found = [
            text for text in messages(path) if re.search(r'\W(docs|configs/\w+)/\w+\.md', text)
        ]
        assert found == [], path
    assert told > 20


def test_the_index_leads_to_every_page():
    index = read_page(BY_NAME['docs/index.md'])
    linked = {(index.path.parent / link).resolve() for link in index.links}
    pages = {*(REPO / 'docs').glob('*.md'), *(REPO / 'configs').glob('*/README.md')}
    assert pages - linked - {index.path} == set()
    items = re.findall(r'^\* (.+(?:\n  .+)*)', index.text, re.MULTILINE)
    listed = [re.findall(r'\]\(([^)]+)\)', item) for item in items]
    assert (
        all(listed) and len(listed) <= 20
    )  # entries of the navigation; further links are below them
    every = [link for item in listed for link in item]
    assert len(set(every)) == len(every)
    assert pages - {(index.path.parent / link).resolve() for link in every} == {index.path}


def test_every_package_has_a_page_of_reference():
    folders = [path.parent for path in (REPO / 'mmlape').rglob('__init__.py')]
    groups = [REPO / 'mmlape', *(REPO / 'mmlape' / name for name in ('apps', 'research'))]
    packages = {path.name for path in folders if path.parent in groups and path not in groups}
    packages = packages - {'demo', 'experiments'} | {'necks'}  # those two are programs of tools/
    pages = {path.stem for path in (REPO / 'docs' / 'api').glob('*.rst')} - {'index'}
    assert pages == packages
    assert pages <= set((REPO / 'docs' / 'api' / 'index.rst').read_text().split())


class Anatomy(HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self, page: Path):
        super().__init__()
        self.addresses, self.anchors, self.names = set(), set(), set()
        self.feed(page.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.addresses |= {attrs[key] for key in ('href', 'src') if attrs.get(key)}
        self.anchors.add(attrs.get('id'))


def build(out: Path, *options: str, **variables: str) -> Path:
    command = [
        sys.executable,
        *['-m', 'sphinx', '-q', '-b', 'html', '-c', 'docs', '-d'],
        f'{out}-trees',
    ]
    result = subprocess.run(
        [*command, *options, '.', str(out)],
        cwd=REPO,
        capture_output=True,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1', **variables},
    )
    assert result.returncode == 0, result.stderr
    return out


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp('site') / 'html', '-W', '--keep-going')


@pytest.mark.slow
def test_no_link_of_the_site_is_dead(site):
    pages = {page: Anatomy(page) for page in site.rglob('*.html')}
    dead = []
    for page, found in pages.items():
        for address in found.addresses:
            name, _, anchor = unquote(address).partition('#')
            name = name.partition('?')[0]
            if re.match(r'[a-z]+:|//', address):
                continue
            target = (page.parent / name).resolve() if name else page
            known = pages[target].anchors if target in pages else set()
            if not target.exists() or (anchor and known and anchor not in known):
                dead.append(f'{page.relative_to(site)}: {address}')
    assert dead == []


@pytest.mark.slow
def test_navigation_configs_search_and_reference(site):
    index = Anatomy(site / 'docs' / 'index.html')
    for link in read_page(REPO / 'docs' / 'index.md').links:
        page = re.sub(r'\.(md|rst)$', '.html', link)
        assert page in index.addresses or page == link, link  # dead ones: the test above
    config = 'sources/configs/lape/mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco.py.html'
    for name, *words in (
        ('index.html', 'url=docs/index.html'),
        ('docs/model_zoo.html', f'href="../{config}"'),
        (config, 'mmlape.LaPE', 'sidebar-tree'),
        ('searchindex.js', 'docs/troubleshooting', 'configs/lape/README', 'Gabor'),
        ('docs/api/position.html', 'id="mmlape.position.LaPE"', 'progressive'),
    ):
        text = (site / name).read_text(encoding='utf-8')
        assert [word for word in words if word not in text] == [], name


@pytest.mark.slow
def test_links_to_sources_may_lead_to_a_code_host(tmp_path):
    only = ['-D', 'root_doc=configs/demo/README', '-D', 'include_patterns=configs/demo/README.md']
    address = 'https://code.example/me/mmlape/blob/main'
    site = build(tmp_path / 'html', *only, SOURCE_URL=f'{address}/')
    links = Anatomy(site / 'configs' / 'demo' / 'README.html').addresses
    assert f'{address}/configs/_base_/models/demo_vit-micro-adapter-lape.py' in links

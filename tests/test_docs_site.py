"""The site is built without a warning, and no link in it is dead."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from docs_pages import REPO, read_page

pytestmark = pytest.mark.slow


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


def test_no_link_is_dead(site):
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


def test_navigation_configs_search_and_reference(site):
    index = Anatomy(site / 'docs' / 'index.html')
    for link in read_page(REPO / 'docs' / 'index.md').links:
        assert re.sub(r'\.(md|rst)$', '.html', link) in index.addresses
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


def test_links_to_sources_may_lead_to_a_code_host(tmp_path):
    only = ['-D', 'root_doc=configs/demo/README', '-D', 'include_patterns=configs/demo/README.md']
    address = 'https://code.example/me/mmlape/blob/main'
    site = build(tmp_path / 'html', *only, SOURCE_URL=f'{address}/')
    links = Anatomy(site / 'configs' / 'demo' / 'README.html').addresses
    assert f'{address}/configs/_base_/models/demo_vit-micro-adapter-lape.py' in links

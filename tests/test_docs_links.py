"""Every link and picture of the pages exists, on a code host as in a clone."""

import re
from urllib.parse import unquote

import pytest
from docs_pages import PAGES, REPO, read_page

BY_NAME = {path.relative_to(REPO).as_posix(): path for path in PAGES}


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


@pytest.mark.parametrize('name', BY_NAME)
def test_links_lead_somewhere(name):
    assert dead(read_page(BY_NAME[name])) == []


@pytest.mark.parametrize(
    'text',
    [
        '[a](missing.md)',
        '![a](images/missing.png)',
        '[a](#missing)',
        '[a](/etc/hosts)',
        '[a](../..)',
    ],
)
def test_a_dead_link_is_found(tmp_path, monkeypatch, text):
    monkeypatch.setitem(globals(), 'REPO', tmp_path)
    path = tmp_path / 'page.md'
    path.write_text(f'# A heading\n\n[there](page.md#a-heading) [back](#a-heading)\n\n{text}\n')
    assert len(dead(read_page(path))) == 1


def test_headings_of_one_name_have_anchors_of_their_own(tmp_path):
    path = tmp_path / 'page.md'
    path.write_text('# `a.md`: B, c!\n## Twice\n## Twice\n')
    assert read_page(path).anchors == {'amd-b-c', 'twice', 'twice-1'}


@pytest.mark.parametrize('name', BY_NAME)
def test_nothing_of_somebodys_machine(name):
    found = re.findall(
        r'(?<![\w.~>}])/(?:home|root|Users|opt|tmp|work)/\S*', read_page(BY_NAME[name]).text
    )
    assert found == []


def test_the_index_leads_to_every_page():
    index = read_page(BY_NAME['docs/index.md'])
    listed = {(index.path.parent / link).resolve() for link in index.links}
    pages = {*(REPO / 'docs').glob('*.md'), *(REPO / 'configs').glob('*/README.md')}
    assert pages - listed - {index.path} == set()
    assert len(set(index.links)) == len(index.links)


def test_every_room_has_a_page_of_reference():
    rooms = {path.parent.name for path in (REPO / 'mmlape').glob('*/__init__.py')}
    pages = {path.stem for path in (REPO / 'docs' / 'api').glob('*.rst')} - {'index'}
    assert pages == rooms
    listed = (REPO / 'docs' / 'api' / 'index.rst').read_text().split()
    assert pages <= set(listed)

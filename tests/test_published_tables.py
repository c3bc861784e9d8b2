"""Metafiles say what the papers' tables say: every figure of every row that is a config here, and none besides."""

import re
from collections import defaultdict

import pytest
import yaml
from config_utils import REPO

PAGE = REPO / 'tests' / 'data' / 'published_tables.yaml'
TABLES = yaml.safe_load(PAGE.read_text())
PAPERS = {table['paper'] for table in TABLES}
AS_PRINTED = ('Parameters', 'FLOPs')
# Of the part that is trained: tests/pretraining/test_ablations.py counts them.
NOT_IN_METAFILES = 'Position Parameters'


def in_the_papers():
    """Figures by config, paper and table."""
    found = {}
    for table in TABLES:
        for config, _, *figures in table['rows']:
            if config is not None:
                key = (config, table['paper'], table['table'])
                assert key not in found, key
                found[key] = dict(
                    zip(table['columns'], figures, strict=True), Dataset=table['data']
                )
                found[key].pop(NOT_IN_METAFILES, None)
    return found


def in_the_metafiles():
    """The same of the metafiles, and what they say that is in none of these papers."""
    found, elsewhere = defaultdict(dict), {}
    for name in yaml.safe_load((REPO / 'model-index.yml').read_text())['Import']:
        for entry in yaml.safe_load((REPO / name).read_text())['Models']:
            for result in entry['Results']:
                if 'Published' not in result:
                    continue
                source = re.match(r'(.+?), Table (\d+)', result['Published'])
                if source is None or source[1] not in PAPERS:
                    elsewhere.setdefault(result['Published'], entry['Name'])
                    continue
                row = found[entry['Name'], source[1], int(source[2])]
                printed = {key: result[key] for key in (*AS_PRINTED, 'Dataset') if key in result}
                for key, value in {**result['Metrics'], **printed}.items():
                    assert row.setdefault(key, value) == value, (entry['Name'], key)
    return found, elsewhere


@pytest.mark.parametrize('table', TABLES, ids=lambda t: f'{t["paper"]}, {t["table"]}, {t["data"]}')
def test_rows_are_whole_and_say_why_they_have_no_config(table):
    width = 2 + len(table['columns'])
    names = [row[1] for row in table['rows']]
    assert len(set(names)) == len(names)
    assert [row for row in table['rows'] if len(row) != width] == []
    without = {row[1] for row in table['rows'] if row[0] is None}
    reason = table.get('without', {})
    if isinstance(reason, str):
        assert reason and without
    else:
        assert set(reason) == without and all(reason.values())


def test_metafiles_say_what_the_tables_say():
    """In both directions. A new published row of a config goes into the page of tables, and the other way round."""
    papers, (metafiles, _) = in_the_papers(), in_the_metafiles()
    assert {key: metafiles.get(key) for key in papers} == papers
    assert {key: figures for key, figures in metafiles.items() if key not in papers} == {}


def test_other_sources_are_the_known_ones():
    """A misspelt paper would escape the comparison."""
    _, elsewhere = in_the_metafiles()
    known = (
        'ViT-Adapter, ICLR 2023', 'MM', "detection results in the authors' repository",
        'DINOv3, Table', 'DINOv2, TMLR 2024, Table', 'EoMT, CVPR 2025, Table', 'EoMT, released code, model zoo',
        "EVA-02, the authors' repository",
    )  # fmt: skip
    assert [source for source in elsewhere if not source.startswith(known)] == []


@pytest.mark.parametrize(('page', 'column'), [('README.md', 3), ('docs/pretraining.md', 2)])
def test_rows_of_pages_have_figures_of_the_tables_that_they_cite(page, column):
    checked, cited = 0, None
    for line in (REPO / page).read_text().splitlines():
        cited = re.search(r'(LaPE|DTN), Tables? (\d+)(?: and (\d+))?', line) or cited
        cells = line.split('|')[column + 1 :]
        if not re.search(r'\b(Tables?|same table) ?', ''.join(cells)):
            continue
        paper, *numbers = cited.groups()
        figures = [
            figure
            for table in TABLES
            for row in table['rows']
            for figure in row[2:]
            if table['paper'].startswith(f'{paper}, IC') and str(table['table']) in numbers
        ]
        for printed in re.findall(r'\d+\.\d+', ''.join(cells)):
            digits = len(printed.partition('.')[2])
            numbers_alone = [each for each in figures if isinstance(each, float)]
            assert printed in {f'{each:.{digits}f}' for each in numbers_alone}, line
            checked += 1
    assert checked > 20


def test_the_page_of_dtn_has_the_figures_of_its_tables():
    text = (REPO / 'docs' / 'dtn.md').read_text()
    rows = {
        (table['table'], row[1].partition(',')[0]): dict(
            zip(table['columns'], row[2:], strict=True)
        )
        for table in TABLES
        for row in table['rows']
        if table['paper'].startswith('DTN')
    }
    found = re.findall(
        r'^\| (\S+) \| `\S+` \| (\S+), (\S+) \| \S+ M \| (\S+) \| (\S+) \| \S+ \|$', text, re.M
    )
    assert len(found) == 7
    for name, *figures in found:
        table = 1 if name.startswith('ViT') else 2 if name == 'Swin-T' else 9
        both = [rows[table, f'{name} {norm}'] for norm in ('LN', 'DTN')]
        accuracies = [str(each['Top 1 Accuracy']) for each in both]
        assert figures == accuracies + [each['FLOPs'].removesuffix('G') for each in both], name
    listed = re.search(r'Table 3, ImageNet top-1 of\s+ViT-S\): ([^\n]+)\.', text)[1]
    for each in listed.replace('SwitchableNorm', 'SN').split(', '):
        norm, figure = each.split()
        assert figure == str(rows[3, f'ViT-S {norm}']['Top 1 Accuracy']), each
    assert listed.count(',') == 7

"""What launches kernels on a GPU: no more than in the record, and counted as autograd's engine would call it."""

import json
from collections import Counter

import pytest
import torch
from backbone_variants import build_adapter, build_pvt, build_swin, build_vit
from cheap_values import cheap_values
from config_utils import REPO

from benchmarks.cases import KERNELS, OURS
from benchmarks.launches import (
    CASES,
    DTYPES,
    RECORD,
    Launches,
    build,
    count,
    page_table,
    run_backward,
    totals,
)

KEPT = json.loads(RECORD.read_text())
SLACK = 1.1
FAST = ('vit-tiny 512, LaPE', 'dtn 56 x 56, C 64, pool 4', 'dtn 14 x 14, C 320')


@pytest.mark.filterwarnings('ignore:User provided device_type')
@pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES],
)
def test_no_more_than_in_the_record(name):
    """After an intended change, ``python -m benchmarks.launches`` writes the record."""
    with cheap_values():
        case = build(name)
    for dtype in DTYPES:
        for whose in {OURS, KERNELS} & case.models.keys():
            found = totals(count(case, case.models[whose], DTYPES[dtype]))
            kept = KEPT[name][whose][dtype]
            assert all(found[part] <= SLACK * kept[part] for part in kept), (found, kept)


def test_kernels_of_dtn_cost_a_network_little():
    norms = KEPT['pvt-small 512, DTN']
    for dtype in DTYPES:
        ours, others = (
            sum(norms[whose][dtype][part] for part in ('forward', 'backward'))
            for whose in (KERNELS, 'LayerNorm')
        )
        assert ours <= 1.3 * others


def test_the_page_shows_the_record():
    assert KEPT.keys() == CASES.keys()
    assert page_table(KEPT) in (REPO / 'docs/speed.md').read_text(encoding='utf-8')


NETWORKS = {
    'vit, LaPE': lambda: build_vit(joining=dict(type='mmlape.LaPE')),
    'pvt': build_pvt,
    'pvt, DTN': lambda: build_pvt(norm_cfg=dict(type='mmlape.DTN')),
    'swin': build_swin,
    'adapter': build_adapter,
}


@pytest.mark.parametrize('name', NETWORKS)
def test_a_backward_pass_has_the_operators_of_the_engine(name):
    model, image = NETWORKS[name]().train(), torch.rand(2, 3, 64, 96)
    found = []
    for run in (torch.autograd.backward, run_backward):
        model.zero_grad()
        outputs = [*model(image)]
        counts = Counter()
        with Launches(Counter()) as launches, launches.counted(counts):
            run(outputs, [each.detach() for each in outputs])
        found.append(counts)
    assert found[0] == found[1]

"""How much Python is between a config and a network: calls of ours, and functions that an option passes."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import mmlape
from benchmarks.stops import PARTS, stops
from mmlape.registry import MODELS

ROOT = str(Path(mmlape.__file__).parent)


def calls_of_ours(build):
    """Calls of functions of the package by file and name."""
    found = Counter()

    def count(frame, event, _):
        code = frame.f_code
        if event == 'call' and code.co_filename.startswith(ROOT):
            found[code.co_filename, code.co_name] += 1

    sys.setprofile(count)
    try:
        build()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize('options', [{}, dict(joining=dict(type='mmlape.LaPE'))])
def test_calls_of_building_a_vit(options):
    """The first one of a process looks at signatures, too."""
    config = dict(options, type='mmlape.VisionTransformer', arch='deit-tiny')
    MODELS.build(config)
    found = calls_of_ours(lambda: MODELS.build(config))
    assert 300 < found.total() < 1000, found.most_common(20)


@pytest.mark.parametrize('option', PARTS)
def test_stops_of_an_option(option):
    found = stops(option)
    assert 'backbones/vit.py: VisionTransformer.__init__' in found or sys.version_info < (3, 11)
    assert 3 <= len(found) <= 5, found

"""How DTN is computed in a test: by the operator in C++, or by PyTorch's."""

import pytest

from mmlape.cpu import library, modules
from mmlape.norm import dtn
from mmlape.norm.dtn_maps import PlainDTN


@pytest.fixture(params=['plain', 'operator'])
def either_way(request, monkeypatch):
    """One after the other, of norms that the test builds."""
    if request.param == 'operator':
        monkeypatch.setenv('MMLAPE_OPS', '1')
        library.library.cache_clear()
        monkeypatch.setattr(dtn, 'PlainDTN', lambda: modules.DTN(PlainDTN()))
        yield
        library.library.cache_clear()
    else:
        yield

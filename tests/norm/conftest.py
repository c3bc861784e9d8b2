"""How DTN is computed in a test: by the operator in C++, as on CPUs, or by PyTorch's."""

import pytest

from mmlape import ops


@pytest.fixture
def in_pytorch(monkeypatch):
    """As on GPUs and on machines without a compiler."""
    monkeypatch.setattr(ops, 'is_served', lambda tokens: False)


@pytest.fixture(params=['operator', 'function'])
def either_way(request):
    """One after the other."""
    if request.param == 'function':
        request.getfixturevalue('in_pytorch')

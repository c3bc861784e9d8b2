"""What tests of operators share."""

import pytest

from mmlape.cpu import library


@pytest.fixture
def switched_on(monkeypatch):
    """Whatever the environment says: this is about operators, which `make env` has compiled."""
    monkeypatch.setenv('MMLAPE_OPS', '1')
    library.library.cache_clear()
    yield
    library.library.cache_clear()

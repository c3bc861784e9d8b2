"""Fixtures of this room."""

import pytest
from tool_runs import Commands


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    return Commands(tmp_path, monkeypatch, capsys)

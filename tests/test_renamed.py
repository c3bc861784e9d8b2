"""`mmlape migrate`: names that moved or were removed, and what to write instead."""

import importlib
import re

import pytest
from config_utils import REPO, shipped_configs

from mmlape.renamed import RENAMED, renamed_names

OLD = """
custom_imports = dict(imports=['mmlape.engine', 'mmlape.layers.attention.Attention'])
default_hooks = dict(hung=dict(type='mmlape.HungProcessHook', timeout=5))
"""


def test_names_are_found_with_their_lines():
    found = list(renamed_names(OLD))
    assert [(number, name) for number, name, _ in found] == [
        (2, 'mmlape.engine'),
        (2, 'mmlape.layers.attention.Attention'),
        (3, 'mmlape.HungProcessHook'),
        (3, 'hung=dict'),
    ]
    assert {name: instead for _, name, instead in found}['mmlape.engine'] == 'mmlape.training'


def test_our_own_configs_are_up_to_date():
    assert len(shipped_configs()) > 50
    for path in [*REPO.glob('configs/**/*.py'), *REPO.glob('configs/**/*.md')]:
        assert not list(renamed_names(path.read_text())), path


@pytest.mark.parametrize(
    'instead', sorted({text for text in RENAMED.values() if text.startswith('mmlape.')})
)
def test_what_to_write_instead_is_there(instead):
    module, _, name = re.match(r'[\w.]+', instead)[0].rpartition('.')
    found = importlib.import_module(module)
    assert hasattr(found, name) or importlib.import_module(f'{module}.{name}')


def test_the_command(digit_commands, tmp_path, capsys):
    (tmp_path / 'old.py').write_text(OLD)
    (tmp_path / 'new.py').write_text("backbone = dict(type='mmlape.VisionTransformer')\n")
    with pytest.raises(SystemExit, match='1'):
        digit_commands('migrate.py', 'old.py', 'new.py')
    assert 'old.py:2: mmlape.engine: mmlape.training\n' in capsys.readouterr().out
    assert digit_commands('migrate.py', 'new.py') == 'nothing to change\n'
    assert digit_commands.refused('migrate.py', 'no.py') == 'error: there is no file no.py'

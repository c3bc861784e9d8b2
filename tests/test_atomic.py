"""A file has its old or its new content, whatever happens while it is written."""

import errno
import os
import subprocess

import pytest
from mmengine.fileio import get_file_backend

import mmlape.training  # noqa: F401  (registers the backend)
from mmlape import atomic
from mmlape.atomic import atomic_write, remove_leftovers
from mmlape.checkpoints.files import fault_of


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_and_its_digest(tmp_path):
    backend = get_file_backend(tmp_path / 'x', backend_args=dict(backend='mmlape_whole_files'))
    backend.put(b'first', tmp_path / 'new' / 'a.pth')
    backend.put(b'\x80second', tmp_path / 'new' / 'a.pth')
    assert names(tmp_path / 'new') == ['a.pth', 'a.pth.sha256']
    assert (tmp_path / 'new' / 'a.pth').read_bytes() == b'\x80second'
    check = ['sha256sum', '--check', '--strict', 'a.pth.sha256']
    done = subprocess.run(check, cwd=tmp_path / 'new', capture_output=True, text=True, check=False)
    assert done.stdout == 'a.pth: OK\n', done
    assert fault_of(tmp_path / 'new' / 'a.pth') is None
    backend.remove(tmp_path / 'new' / 'a.pth')
    assert names(tmp_path / 'new') == []


def test_a_digest_that_does_not_fit(tmp_path):
    path = tmp_path / 'a.pth'
    atomic_write(path, b'\x80content', digest=True)
    path.write_bytes(b'\x80Content')
    assert 'is damaged' in fault_of(path)
    for text in ('', '\n', 'none'):
        (tmp_path / 'a.pth.sha256').write_text(text)
        assert 'not in the format of sha256sum' in fault_of(path)


CALLS = ('draft', 'digest draft', 'replace', 'sync', 'second replace')


@pytest.mark.parametrize('failing', range(len(CALLS)), ids=CALLS)
def test_stopped_at_any_point(tmp_path, monkeypatch, failing):
    """Old or new, no draft, and never a digest that does not fit."""
    path = tmp_path / 'a.pth'
    atomic_write(path, b'\x80old', digest=True)
    calls = iter(range(10))

    def counted(original):
        def call(*args):
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, 'No space left on device')
            return original(*args)

        return call

    monkeypatch.setattr(atomic, '_draft', counted(atomic._draft))
    monkeypatch.setattr(atomic.os, 'replace', counted(os.replace))
    monkeypatch.setattr(atomic, '_sync_folder', counted(atomic._sync_folder))
    with pytest.raises(OSError, match='No space'):
        atomic_write(path, b'\x80new', digest=True)
    assert path.read_bytes() == (b'\x80old' if failing < 3 else b'\x80new')
    assert fault_of(path) is None
    assert set(names(tmp_path)) <= {'a.pth', 'a.pth.sha256'}


def test_what_is_not_read_back_is_not_published(tmp_path, monkeypatch):
    atomic_write(tmp_path / 'a.pth', b'\x80old', digest=True)
    draft = atomic._draft

    def bad(path, data):
        return draft(path, data[:-1] if path.name == 'a.pth' else data)

    monkeypatch.setattr(atomic, '_draft', bad)
    with pytest.raises(OSError, match='not read back') as error:
        atomic_write(tmp_path / 'a.pth', b'\x80new', digest=True)
    assert error.value.errno == errno.EIO
    assert (tmp_path / 'a.pth').read_bytes() == b'\x80old' and fault_of(tmp_path / 'a.pth') is None


def test_leftovers_and_nothing_else_are_removed(tmp_path):
    kept = ('a.pth', 'a.pth.sha256', 'data.sha256', '.hidden', 'b.pth')
    for name in (*kept, '.a.pth.mmlape-draft', 'gone.pth.sha256'):
        (tmp_path / name).write_bytes(b'1')
    assert sorted(remove_leftovers(tmp_path)) == ['.a.pth.mmlape-draft', 'gone.pth.sha256']
    assert names(tmp_path) == sorted(kept)

"""Checkpoint files: MMEngine's own are read, and nothing in a file is run."""

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from tiny_training import VIT

from mmlape.checkpoints import Pretrained
from mmlape.checkpoints.files import download_checkpoint, download_path
from mmlape.checkpoints.reading import read_checkpoint
from mmlape.registry import MODELS


def test_pretrained_reads_what_a_runner_saved(tmp_path):
    history = HistoryBuffer()
    history.update(1.5, 1)
    source, path = MODELS.build(VIT), tmp_path / 'iter_1.pth'
    state = {f'backbone.{name}': value for name, value in source.state_dict().items()}
    log = dict(loss=history, rate=np.float64(0.1), seed=np.uint32(7))
    torch.save(dict(state_dict=state, message_hub=log), path)
    assert read_checkpoint(path)['message_hub']['loss'].current() == 1.5
    model = MODELS.build(VIT)
    Pretrained(source='mmlape', checkpoint=str(path))(model)
    assert torch.equal(model.state_dict()['pos_embed'], source.state_dict()['pos_embed'])


def test_reading_changes_nothing_for_those_who_read_later(tmp_path):
    # Resuming comes after the initial weights, and on the original stack needs what was allowed on import.
    path = tmp_path / 'iter_1.pth'
    history = HistoryBuffer()
    history.update(1.5, 1)
    torch.save(dict(state_dict={}, message_hub=dict(loss=history)), path)
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([HistoryBuffer])
    try:
        read_checkpoint(path)
        assert set(torch.serialization.get_safe_globals()) == {*before, HistoryBuffer}
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def test_addresses_are_downloaded_once(tmp_path, monkeypatch):
    """By an address of a file here: no network is needed for it."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'home'))
    source = MODELS.build(VIT)
    torch.save({'model': source.state_dict()}, tmp_path / 'deit_small-abc.pth')
    address = (tmp_path / 'deit_small-abc.pth').as_uri()
    path = download_checkpoint(address)
    assert path.name == 'deit_small-abc.pth'
    assert path.parent.parent == tmp_path / 'home' / 'hub' / 'checkpoints'
    addresses = [download_path(f'https://a.org/{folder}/x.pth') for folder in 'ab']
    assert addresses[0].parent.name.startswith('a.org-') and addresses[0] != addresses[1]
    (tmp_path / 'deit_small-abc.pth').unlink()
    assert download_checkpoint(address) == path
    assert torch.equal(read_checkpoint(path)['model']['norm.weight'], source.norm.weight)
    with pytest.raises(ConnectionError, match=r'other\.pth cannot be downloaded.*copy the file to'):
        download_checkpoint((tmp_path / 'other.pth').as_uri())
    assert not path.with_name('other.pth').exists()
    with pytest.raises(ValueError, match='names no file'):
        download_checkpoint('https://example.org/')


def test_an_address_as_checkpoint(tmp_path, monkeypatch):
    source = MODELS.build(VIT)
    torch.save(source.state_dict(), tmp_path / 'vit.pth')
    monkeypatch.setattr(
        'mmlape.checkpoints.pretrained.download_checkpoint',
        {'https://example.org/vit.pth': tmp_path / 'vit.pth'}.__getitem__,
    )
    model = MODELS.build(VIT)
    Pretrained(source='deit', checkpoint='https://example.org/vit.pth')(model)
    assert torch.equal(model.norm.weight, source.norm.weight)

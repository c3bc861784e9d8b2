"""Digests, checksums, texts of configs, histories and torch's own faults, one by one."""

import argparse
import os
import subprocess

import numpy as np
import pytest
import torch
from crafted.maker import Call, run
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader

from mmlape.atomic import atomic_write
from mmlape.checkpoints import CheckpointError, contents, reading
from mmlape.checkpoints.files import download_path, write_checkpoint
from mmlape.checkpoints.reading import read_checkpoint, weights_only_everywhere

pytestmark = pytest.mark.usefixtures('safe_loading')

STATE = {f'layer{i}.weight': torch.arange(40.0) for i in range(3)}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / 'file.pth'
    torch.save(dict(meta=dict(epoch=1), state_dict=STATE), path)
    return path


def same(checkpoint):
    state = checkpoint.get('state_dict', checkpoint)
    return state.keys() == STATE.keys() and all(STATE[k].equal(v) for k, v in state.items())


def test_a_flipped_bit_is_found_wherever_it_changes_anything(path):
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 29):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            assert same(read_checkpoint(path)), f'another content, by the bit at {place}'
        except CheckpointError:
            refused += 1
    # The rest is padding and what an archive says of itself twice.
    assert refused > len(whole) / 29 / 4


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_every_bit_counts_with_a_digest(tmp_path, suffix):
    path = write_checkpoint(tmp_path / f'file{suffix}', STATE)
    assert same(read_checkpoint(path))
    subprocess.run(['sha256sum', '--check', f'{path.name}.sha256'], cwd=tmp_path, check=True)
    whole = path.read_bytes()
    for place in range(0, len(whole), 211):
        data = bytearray(whole)
        data[place] ^= 4
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r'is damaged \(sha256 .*\) or was replaced'):
            read_checkpoint(path)
    write_checkpoint(path, {**STATE, 'more': torch.ones(1)}, overwrite=True)
    assert 'more' in read_checkpoint(path).get('state_dict', read_checkpoint(path))


def test_the_digest_of_what_a_link_leads_to(path, tmp_path):
    atomic_write(path, path.read_bytes(), digest=True)
    link = tmp_path / 'folder' / 'link.pth'
    link.parent.mkdir()
    link.symlink_to(path)
    assert same(read_checkpoint(link))
    torch.save(STATE, path)
    with pytest.raises(
        CheckpointError, match=r'link\.pth.* is damaged \(sha256 .*\) or was replaced'
    ):
        read_checkpoint(link)


def test_pickles_of_ones_own_are_read_when_trusted(tmp_path, monkeypatch, caplog):
    canary, path = tmp_path / 'canary', tmp_path / 'own.pth'
    torch.save(dict(state_dict=STATE, more=run(canary)), path)
    for value in ('', '0', 'no'):
        monkeypatch.setenv('MMLAPE_TRUST_PICKLES', value)
        with pytest.raises(CheckpointError, match='MMLAPE_TRUST_PICKLES=1 reads such'):
            read_checkpoint(path)
        with pytest.raises(CheckpointError):
            CheckpointLoader.load_checkpoint(str(path))
    assert not canary.exists()
    monkeypatch.setenv('MMLAPE_TRUST_PICKLES', '1')
    assert read_checkpoint(path)['state_dict'].keys() == STATE.keys() and canary.exists()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match='is not complete'):
        read_checkpoint(path)


def test_what_does_not_go_through_the_loader_reads_weights_alone_too(tmp_path, path, monkeypatch):
    canary = tmp_path / 'canary'
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    torch.save(run(canary), tmp_path / 'code.pth')
    with weights_only_everywhere():
        with pytest.raises(Exception, match='exec'):
            torch.load(tmp_path / 'code.pth', weights_only=False)
        assert torch.load(path, weights_only=False)['meta']['epoch'] == 1
    assert not canary.exists() and os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] == '1'
    assert 'TORCH_FORCE_WEIGHTS_ONLY_LOAD' not in os.environ


def test_a_history_brings_no_statistics_and_no_methods(tmp_path):
    buffer = HistoryBuffer([1.0, 3.0], [1, 1])
    buffer.__dict__['update'] = HistoryBuffer
    before = dict(HistoryBuffer._statistics_methods)
    HistoryBuffer._statistics_methods['mean'] = HistoryBuffer.max
    try:
        torch.save(dict(loss=buffer), tmp_path / 'file.pth')
    finally:
        HistoryBuffer._statistics_methods.update(before)
    found = read_checkpoint(tmp_path / 'file.pth')['loss']
    assert type(found) is HistoryBuffer and found.statistics('mean') == 2
    assert HistoryBuffer._statistics_methods == before and 'update' not in vars(found)
    found.update(5.0)
    assert found.data[0].tolist() == [1, 3, 5]


def test_a_history_of_other_things_is_refused(tmp_path):
    buffer = HistoryBuffer([1.0], [1])
    buffer._log_history = ['no number']
    torch.save(dict(loss=buffer), tmp_path / 'file.pth')
    with pytest.raises(CheckpointError, match='holds something that is not a number'):
        read_checkpoint(tmp_path / 'file.pth')


def test_a_checkpoint_reads_statistics_of_a_history_and_nothing_else():
    assert contents.statistic_of_history(HistoryBuffer, 'mean') is HistoryBuffer.mean
    for owner, name in ((HistoryBuffer, '__init__'), (HistoryBuffer.mean, '__globals__')):
        with pytest.raises(contents.UnpicklingError, match='must not read'):
            contents.statistic_of_history(owner, name)


def test_what_trainings_and_timm_save_is_read(tmp_path):
    content = dict(
        args=argparse.Namespace(lr=0.1),
        random=dict(numpy=np.random.get_state(), torch=torch.get_rng_state(), python=(3, (1, 2))),
        arrays=[
            np.arange(3),
            np.float32(1),
            np.zeros((2, 2), dtype=np.uint8),
            np.bool_(True),
            np.zeros(0),
        ],
    )
    torch.save(content, tmp_path / 'file.pth')
    found = read_checkpoint(tmp_path / 'file.pth')
    assert found['args'].lr == 0.1 and found['random']['numpy'][0] == 'MT19937'
    assert found['arrays'][2].shape == (2, 2)


def test_a_torch_in_which_weights_only_is_broken_is_said_once(path, monkeypatch):
    """Which versions are: tests/test_doctor.py."""
    said = []
    monkeypatch.setattr(torch, '__version__', '2.9.1')
    monkeypatch.setattr(reading, '_warn', said.append)
    reading._warn_of_this_torch.cache_clear()
    for _ in range(2):
        read_checkpoint(path)
    reading._warn_of_this_torch.cache_clear()
    assert len(said) == 1 and 'CVE-2026-24747' in said[0]


def test_names_of_mmengines_lists(tmp_path, path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    monkeypatch.setattr(
        'mmengine.runner.checkpoint.get_torchvision_models',
        lambda: {'net': 'http://x.org/code.pth'},
    )
    kept = download_path('http://x.org/code.pth')
    kept.parent.mkdir(parents=True)
    torch.save(Call(exec, f'open({str(tmp_path / "canary")!r}, "w")'), kept)
    for name in ('torchvision://net', 'modelzoo://net', 'http://x.org/code.pth'):
        with pytest.raises(CheckpointError, match='holds exec, which is not data'):
            CheckpointLoader.load_checkpoint(name)
    torch.save(STATE, kept)
    assert same(CheckpointLoader.load_checkpoint('torchvision://net'))
    for name in ('torchvision://other', 'open-mmlab://other', 'mmcls://other', 'pavi://other'):
        with pytest.raises(CheckpointError, match='other'):
            CheckpointLoader.load_checkpoint(name)
    assert not (tmp_path / 'canary').exists()

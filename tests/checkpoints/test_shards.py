"""Folders and checkpoints in several files: read whole, or refused by name."""

import json

import pytest
import torch
from mmengine.runner import CheckpointLoader
from safetensors.torch import save_file

from mmlape.atomic import atomic_write
from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.reading import read_checkpoint

pytestmark = pytest.mark.usefixtures('safe_loading')

STATE = {f'layer{i}.weight': torch.arange(4.0) + i for i in range(3)}


def write(folder, suffix='safetensors', **changes):
    """Two files and their index; returns that."""
    stem = 'model' if suffix == 'safetensors' else 'pytorch_model'
    save = save_file if suffix == 'safetensors' else torch.save
    places, names = {}, list(STATE)
    for number, entries in enumerate((names[:1], names[1:]), 1):
        name = f'{stem}-{number:05}-of-00002.{suffix}'
        save({each: STATE[each] for each in entries}, folder / name)
        places.update(dict.fromkeys(entries, name))
    index = folder / f'{stem}.{suffix}.index.json'
    index.write_text(json.dumps(dict(metadata={}, weight_map={**places, **changes})))
    return index


def same(state):
    return state.keys() == STATE.keys() and all(STATE[k].equal(v) for k, v in state.items())


@pytest.mark.parametrize('suffix', ['safetensors', 'bin'])
def test_several_files(tmp_path, suffix):
    index = write(tmp_path, suffix)
    for place in (index, tmp_path):
        assert same(read_checkpoint(place))
        assert same(CheckpointLoader.load_checkpoint(str(place)))


@pytest.mark.parametrize('name', ['model.safetensors', 'pytorch_model.bin'])
def test_a_folder(tmp_path, name):
    (save_file if name.endswith('safetensors') else torch.save)(STATE, tmp_path / name)
    assert same(read_checkpoint(tmp_path))
    loaded = CheckpointLoader.load_checkpoint(str(tmp_path))
    assert same(loaded.get('state_dict', loaded))


def test_a_folder_of_other_things(tmp_path):
    with pytest.raises(CheckpointError, match=r'is a folder.* holds none of model\.safetensors'):
        read_checkpoint(tmp_path)


def test_files_behind_links(tmp_path):
    """As the hub's cache keeps them."""
    kept, shown = tmp_path / 'blobs', tmp_path / 'snapshot'
    kept.mkdir(), shown.mkdir()
    write(kept)
    for path in kept.iterdir():
        (shown / path.name).symlink_to(path)
    assert same(read_checkpoint(shown))


@pytest.mark.parametrize(
    'name',
    [
        '../model.safetensors',
        '/etc/passwd',
        'a/b.safetensors',
        'a\\b.bin',
        'c:b.bin',
        '..',
        '',
        3,
        'a.index.json',
    ],
)
def test_no_files_elsewhere(tmp_path, name):
    index = write(tmp_path, more=name)
    with pytest.raises(CheckpointError, match="for 'more', which is not a file beside it"):
        read_checkpoint(index)


def test_what_is_missing_damaged_or_of_another_checkpoint(tmp_path):
    index = write(tmp_path)
    second = tmp_path / 'model-00002-of-00002.safetensors'
    whole = second.read_bytes()
    second.unlink()
    with pytest.raises(FileNotFoundError, match=r'there is no checkpoint .*model-00002'):
        read_checkpoint(index)
    second.write_bytes(whole[:-3])
    with pytest.raises(CheckpointError, match=r'model-00002.*cannot be read as a checkpoint'):
        read_checkpoint(index)
    save_file({'layer1.weight': STATE['layer1.weight'], 'other': torch.zeros(1)}, second)
    with pytest.raises(
        CheckpointError, match=r'model-00002.* is not the file .*layer2\.weight, other'
    ):
        read_checkpoint(index)
    atomic_write(second, whole, digest=True)
    assert same(read_checkpoint(index))
    second.write_bytes(whole[:-1] + b'\1')
    with pytest.raises(CheckpointError, match='is damaged'):
        read_checkpoint(index)


@pytest.mark.parametrize(
    'content', ['', '[1]', '{"weight_map": {}}', '{"weight_map": 3}', '[' * 100000]
)
def test_no_index(tmp_path, content):
    path = tmp_path / 'model.safetensors.index.json'
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r'is not (an|a valid) index'):
        read_checkpoint(path)

"""A shared folder answers as the model does, from a path and from the hub's cache, and runs nothing in it."""

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from config_utils import REPO
from mmengine.config import Config
from mmengine.runner import CheckpointLoader
from PIL import Image
from safetensors.torch import load_file, save_file
from test_config_text import evil
from torch import nn

import mmlape
from mmlape.apps.export.verify import made_images
from mmlape.apps.inference.about import facts_of
from mmlape.apps.inference.score import best_score
from mmlape.backbones import VisionTransformer
from mmlape.checkpoints import CheckpointError, Pretrained, safe_loading
from mmlape.checkpoints.deltas import is_file, values_of_base
from mmlape.checkpoints.report import DownloadError


@pytest.fixture(scope='module')
def model():
    return mmlape.load('nuclei', None, 'cpu', False)


@pytest.fixture(scope='module')
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp('saved') / 'shared'
    model.save_folder(folder, {'mask AP': 46.3}, {'data': 'BBBC038'}, 'apache-2.0')
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / 'shared')


def answer(model):
    image = made_images(1, (101, 158))[0].transpose(1, 2, 0).astype('uint8')
    (found,) = model.predict(image, score=0.05)
    assert len(found.boxes) > 3
    return torch.from_numpy(found.boxes)


def test_a_folder_answers_as_the_model(model, folder):
    assert {path.name for path in folder.iterdir()} >= {
        'config.py', 'model.safetensors', 'metrics.json', 'README.md'
    }  # fmt: skip
    read = mmlape.load(folder, None, 'cpu', False)
    assert read.classes == ('nucleus',) and torch.equal(answer(read), answer(model))
    card = (folder / 'README.md').read_text()
    assert 'license: apache-2.0' in card and '| mask AP | 46.3 |' in card and 'BBBC038' in card
    assert json.loads((folder / 'metrics.json').read_text()) == {'mask AP': 46.3}
    with pytest.raises(ValueError, match='exists already'):
        model.save_folder(folder)


def test_the_score_of_the_best_f1_goes_with_the_weights(model, tmp_path, monkeypatch, commands):
    image = made_images(1, (101, 158))[0].transpose(1, 2, 0).astype('uint8')
    monkeypatch.setattr(model, 'own_score', None)
    assert model.score == 0.3 and not model.score_note()
    monkeypatch.setattr(model, 'own_score', 0.07)
    model.save(tmp_path / 'one.safetensors')
    model.save_folder(tmp_path / 'folder')
    for path in ('one.safetensors', 'folder'):
        read = mmlape.load(tmp_path / path, None, 'cpu', False)
        assert read.score == 0.07
        (found,), (same,) = read.predict(image), read.predict(image, score=0.07)
        (fewer,) = read.predict(image, score=0.3)
        assert len(found) == len(same) > len(fewer)
    Image.fromarray(image).save(tmp_path / 'a.png')
    line = "minimum score 0.07, the best F1's on the validation images; --score changes it"
    said = commands('predict.py', 'folder', 'a.png', '--no-pictures')
    assert line in said and ': see' not in said  # nothing is written
    assert 'minimum score' not in commands('predict.py', 'folder', 'a.png', '--score', 0.3)


@pytest.mark.parametrize('wrong', ['high', 1.5, float('nan'), {}, 10**400])
def test_a_wrong_score_beside_the_weights_is_refused(wrong):
    assert best_score(dict(meta=dict(score_threshold='0.4')), 'a.pth') == 0.4
    assert best_score(dict(meta=[]), 'a.pth') is None
    with pytest.raises(CheckpointError, match='its score_threshold is not a number from 0'):
        best_score(dict(meta=dict(score_threshold=wrong)), 'a.pth')


def test_nothing_in_a_folder_is_run(folder):
    config = folder / 'config.py'
    text = config.read_text()
    for line, reason in (
        ('import antigravity', r'line \d+ is code'),
        ("model = dict(type='os.system', command='true')", r"model\.type='os\.system'"),
    ):
        config.write_text(f'{text}\n{line}\n')
        with pytest.raises(ValueError, match=f'config.py. is refused: {reason}'):
            mmlape.load(folder)


@pytest.mark.parametrize(
    ('name', 'content', 'reason'),
    [
        ('model.safetensors', b'', 'model.safetensors'),
        ('model.safetensors', b'\xff' * 8 + b'{}', 'model.safetensors'),
        ('model.safetensors', (9).to_bytes(8, 'little') + b'{"a": [1]', 'model.safetensors'),
        ('model.safetensors', b'PK\3\4', 'model.safetensors'),
        ('config.py', b'\xff\xfe', 'UTF-16'),
        ('config.py', b'a = ' + b'[' * 10**5, 'nested too deeply'),
        ('config.py', b'', 'default_scope'),
    ],
)
def test_broken_files_in_a_folder(folder, name, content, reason):
    (folder / f'{name}.sha256').unlink(missing_ok=True)
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        mmlape.load(folder)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'about',
    [
        'null', '[' * 10**5, '{}', '{"base": 1, "digest": ""}', '{"base": "timm:/etc/passwd", "digest": ""}',
        '{"base": "mmlape:../x.pth", "digest": ""}', '{"base": "deit:http://a.example/x.pth", "digest": ""}',
    ],
)  # fmt: skip
def test_differences_name_no_other_file_and_no_address(folder, about):
    path = folder / 'model.safetensors'
    (folder / 'model.safetensors.sha256').unlink()
    save_file(load_file(path), path, dict(format='pt', delta=about))
    with pytest.raises(CheckpointError, match=r'only timm models|does not say'):
        mmlape.load(folder)


@pytest.fixture
def on_hub(folder, tmp_path, monkeypatch):
    """The name of the folder as one of the hub, in its cache; no server is asked."""
    cached = tmp_path / 'hub' / 'models--some--nuclei'
    (cached / 'refs').mkdir(parents=True)
    (cached / 'refs' / 'main').write_text('0' * 40)
    (cached / 'snapshots').mkdir()
    folder.rename(cached / 'snapshots' / ('0' * 40))
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    return 'some/nuclei'


def test_a_model_of_the_hub(model, on_hub):
    read = mmlape.load(on_hub, None, 'cpu', False)
    assert torch.equal(answer(read), answer(model))
    safe_loading()
    weights = CheckpointLoader.load_checkpoint(f'hf://{on_hub}')['state_dict']
    read.model.backbone.vit.patch_embed.proj.bias.data.zero_()
    Pretrained('mmlape', f'hf://{on_hub}').load(
        read.model, Pretrained('mmlape', f'hf://{on_hub}').read(read.model)
    )
    for name, value in read.model.state_dict().items():
        assert torch.equal(value, weights[name])
    for name in ('some/other', f'hf://{on_hub}@v2', 'hf://a/b/c', 'some/other@v1.0'):
        with pytest.raises(DownloadError, match=f'{name} cannot be had from the Hugging Face hub'):
            mmlape.load(name)


@pytest.mark.parametrize('name', ['some/model.pth', 'work_dirs/mine', 'mine'])
def test_a_mistyped_path_is_not_looked_for_on_the_hub(name, tmp_path, monkeypatch):
    (tmp_path / 'work_dirs').mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match='there is no checkpoint'):
        mmlape.load(name)


def test_differences_of_networks_that_count(tmp_path):
    """The digest is also over tensors without dimensions, as norms of batches have them."""
    arch = dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2)
    norm = dict(type='mmlape.TokenBN')
    backbone = VisionTransformer(arch=arch, img_size=32, patch_size=16, norm_cfg=norm)
    assert any(value.ndim == 0 for value in backbone.state_dict().values())
    save_file(backbone.state_dict(), tmp_path / 'base.safetensors')
    model = nn.ModuleDict(dict(backbone=backbone))
    values, _ = values_of_base(model, f'mmlape:{tmp_path / "base.safetensors"}')
    assert len(values) > 10 and 'backbone.norm.running_mean' in values


def test_the_digest_of_a_base_is_the_same_with_dora(tmp_path):
    arch = dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2)
    found = []
    for lora in (None, dict(rank=2, dora=True)):
        torch.manual_seed(0)
        backbone = VisionTransformer(arch=arch, img_size=32, patch_size=16, lora=lora)
        if lora is None:
            save_file(backbone.state_dict(), tmp_path / 'base.safetensors')
        model = nn.ModuleDict(dict(backbone=backbone))
        found.append(values_of_base(model, f'mmlape:{tmp_path / "base.safetensors"}'))
    assert found[0][1] == found[1][1] and set(found[0][0]) == set(found[1][0])


def test_differences_to_weights_that_must_not_be_passed_on(model, tmp_path):
    generator = torch.Generator().manual_seed(0)
    original = model.model.backbone.vit.state_dict()
    base = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in original.items()
    }
    save_file(base, tmp_path / 'gated.safetensors')
    folder = tmp_path / 'shared'
    model.save_folder(folder, delta=f'mmlape:{tmp_path / "gated.safetensors"}')
    stored, weights = load_file(folder / 'model.safetensors'), model.model.state_dict()
    for name in weights:
        part = name.removeprefix('backbone.vit.')
        expected = original[part] - base[part] if part in base else weights[name]
        torch.testing.assert_close(stored[name], expected)
    assert 'differences to `mmlape:gated.safetensors`' in (folder / 'README.md').read_text()
    with pytest.raises(FileNotFoundError, match=r'gated\.safetensors'):
        mmlape.load(folder, None, 'cpu', False)
    safe_loading()
    with pytest.raises(CheckpointError, match='differences to other weights'):
        CheckpointLoader.load_checkpoint(str(folder))
    (tmp_path / 'gated.safetensors').rename(folder / 'gated.safetensors')
    read = mmlape.load(folder, None, 'cpu', False)
    torch.testing.assert_close(dict(read.model.state_dict()), dict(weights), atol=1e-6, rtol=0)
    for write, place in ((read.save, 'a.safetensors'), (read.save_folder, 'again')):
        with pytest.raises(
            ValueError, match=r'differences to mmlape:gated\.safetensors, which may not'
        ):
            write(tmp_path / place)
    read.save_folder(tmp_path / 'again', delta=f'mmlape:{folder / "gated.safetensors"}')
    base['patch_embed.proj.bias'] += 1e-3
    save_file(base, folder / 'gated.safetensors')
    with pytest.raises(
        CheckpointError, match='differences to other values than those of mmlape:gated'
    ):
        mmlape.load(folder, None, 'cpu', False)
    with pytest.raises(ValueError, match='the base must be SOURCE:PLACE'):
        model.save_folder(tmp_path / 'other', delta='gated.safetensors')


def test_the_command(commands, tmp_path, monkeypatch):
    work_dir = tmp_path / 'work'
    logs = work_dir / '2026' / 'vis_data'
    logs.mkdir(parents=True)
    mmlape.load('nuclei', None, 'cpu', False).save(work_dir / 'epoch_5.safetensors')
    (work_dir / 'fit.py').write_text("made_by = 'mmlape fit IMAGES --model swin'\n")
    rows = [dict(loss=1.0, step=5), {'coco/bbox_mAP': 0.5, 'step': 5, 'time': 0.1}]
    (logs / 'scalars.json').write_text('\n'.join(map(json.dumps, rows)))
    made = work_dir / 'epoch_5.safetensors', tmp_path / 'shared'
    commands('share.py', *made, '--data', 'my | cells', '--license', 'cc0-1.0')
    card = Path(tmp_path, 'shared', 'README.md').read_text()
    assert '| box AP | 0.5 |' in card and r'| data | my \| cells |' in card
    assert '| training | `mmlape fit IMAGES --model swin` |' in card
    limits = card.replace('| limits | not stated |', '| limits | small cells |')  # its owner
    Path(tmp_path, 'shared', 'README.md').write_text(limits)
    said = commands('share.py', tmp_path / 'shared', tmp_path / 'again 细胞')  # knows what it was
    folder = f"'{tmp_path}/again 细胞'"
    assert f'mmlape predict {folder} IMAGES' in said and f'hf upload OWNER/again {folder}' in said
    again = Path(tmp_path, 'again 细胞', 'README.md').read_text()
    assert again == limits.replace('# shared', '# again 细胞').replace(
        'OWNER/shared', 'OWNER/again'
    )
    commands('share.py', 'nuclei', tmp_path / 'nuclei')
    card = Path(tmp_path, 'nuclei', 'README.md').read_text()
    page = ' '.join((REPO / 'docs' / 'predict.md').read_text().split())
    known = facts_of('nuclei')
    for name in ('training', 'limits'):
        assert f'| {name} | {known[name]} |' in card
    assert known['limits'][1:] in page and '| mask AP | 57.3 |' in card
    assert '| license | apache-2.0 |' in card and 'resized to fit 512 x 512 pixels' in card
    Path(tmp_path, 'y').touch()
    assert 'cannot be read as JSON' in commands.refused('share.py', 'nuclei', 'x', '--metrics', 'y')
    for content in ('{"images": []}', '{"mask AP": "55"}', '{"good": true}', '[1]'):
        Path(tmp_path, 'y').write_text(content)
        said = commands.refused('share.py', 'nuclei', 'x', '--metrics', 'y')
        assert 'must be an object of figures by name' in said


@pytest.mark.parametrize(
    ('base', 'is_one'),
    [
        ('timm:vit_small_patch16_224', False),
        ('timm:weights.pth', True),
        ('mmlape:vit_small_patch16_224', True),
        ('mmlape:https://host/weights.pth', False),
        ('timm:hf://owner/name', False),
    ],
)
def test_a_base_that_is_a_file_lies_in_the_folder(base, is_one):
    assert is_file(base) == is_one


def test_names_of_classes_of_all_kinds(model, tmp_path, monkeypatch):
    """In a shared folder and in one file; the config is data, and the card's table keeps its rows."""
    texts = evil(tmp_path / 'made')
    names = dict(classes=texts, palette=[[1, 2, 3]] * len(texts))
    monkeypatch.setattr(model.model, 'dataset_meta', names)
    monkeypatch.setattr(model, 'classes', tuple(texts))
    folder, file = tmp_path / 'shared', tmp_path / 'one.safetensors'
    model.save_folder(folder)
    model.save(file)
    for path in (folder, file):
        assert mmlape.load(path, None, 'cpu', False).model.dataset_meta == names
    assert '{{' not in (folder / 'config.py').read_text()
    read = Config.fromfile(folder / 'config.py')  # as upstream's tools read it
    assert read.test_dataloader.dataset.metainfo.classes == texts
    card = (folder / 'README.md').read_text().split('\n')
    (row,) = [line for line in card if line.startswith('| classes')]
    assert row.endswith(' |') and row.count('|') - row.count(r'\|') == 3
    assert not (tmp_path / 'made').exists()

"""Predictions of saved models are those of upstream's tools; large images are told of and cut into tiles."""

import copy
import json
import os
import pickle
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from frozen.work_dirs import restore
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import PixelData
from PIL import Image
from pycocotools import mask as coco_mask
from safetensors.torch import save_file
from tool_runs import Commands

import mmlape
from mmlape.apps.inference import Model
from mmlape.apps.inference.loading import _checkpoint_in
from mmlape.apps.inference.tiles import input_side
from mmlape.checkpoints import CheckpointError, files, reading
from mmlape.layers import merge_lora
from mmlape.training.last_checkpoint import best_checkpoint


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """Folder, config and checkpoint of each saved work dir that predicts."""
    found = {}
    for name in ('mmdet', 'mmseg', 'demo'):
        folder = tmp_path_factory.mktemp(name)
        found[name] = (folder, *restore(name, folder))
    return found


@pytest.fixture(scope='module')
def models(saved):
    return {name: mmlape.load(checkpoint) for name, (_, _, checkpoint) in saved.items()}


def image(height, width):
    rng = np.random.default_rng(height)
    small = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height)))


@pytest.mark.parametrize('option', [('--score', 0), ('--json',), ('--csv',)])
def test_a_segmentor_has_no_boxes_to_choose_or_write(option, saved, commands, tmp_path):
    Image.fromarray(image(40, 64)).save(tmp_path / 'a.png')
    said = commands.refused('predict.py', saved['mmseg'][2], 'a.png', *option)
    assert said.startswith(f'error: {option[0]} is for boxes, and ')
    assert said.endswith(' is a segmentor')


def test_boxes_and_masks_in_the_file_are_those_of_the_test_tool(saved, monkeypatch, capsys):
    folder, config, checkpoint = saved['mmdet']
    call = Commands(folder, monkeypatch, capsys)
    call('test.py', config, checkpoint, '--out', 'test.pkl')
    call('predict.py', checkpoint, 'data/coco/val2017', '--score', 0, '--json', '--no-pictures')
    content = json.loads((folder / 'predictions' / 'predictions.json').read_text())
    found = {entry['file_name']: [] for entry in content['images']}
    names = {entry['id']: entry['file_name'] for entry in content['images']}
    for entry in content['annotations']:
        found[names[entry['image_id']]].append(entry)
    expected = pickle.loads((folder / 'test.pkl').read_bytes())  # of our own run
    assert len(expected) == len(found) == 4 and sum(map(len, found.values())) > 20
    for sample in expected:
        instances = sample['pred_instances']
        path = sample['img_path'].removeprefix(f'{folder}/')
        order = instances['scores'].argsort(descending=True, stable=True).tolist()
        for number, entry in zip(order, found[path], strict=True):
            assert entry['score'] == pytest.approx(float(instances['scores'][number]), abs=1e-6)
            assert entry['category_id'] == int(instances['labels'][number]) + 1
            x, y, width, height = entry['bbox']
            box = torch.tensor([x, y, x + width, y + height])
            torch.testing.assert_close(box, instances['bboxes'][number], atol=1e-3, rtol=1e-5)
            wanted = coco_mask.decode(instances['masks'][number])
            assert (coco_mask.decode(entry['segmentation']) == wanted).all()
            assert entry['area'] == wanted.sum()


def test_label_maps_are_those_of_the_test_tool(saved, monkeypatch, capsys):
    folder, config, checkpoint = saved['mmseg']
    call = Commands(folder, monkeypatch, capsys)
    call('test.py', config, checkpoint, '--out', 'maps')
    images = 'data/ade/ADEChallengeData2016/images/validation'
    said = call('predict.py', folder / 'run', images, '--out', 'found')
    assert said.splitlines()[-1] == '3 images: see found'
    expected = sorted((folder / 'maps').glob('*.png'))
    assert len(expected) == 3 and len([*(folder / 'found/pictures').glob('*.jpg')]) == 3
    for path in expected:
        with Image.open(path) as one, Image.open(folder / 'found/label_maps' / path.name) as other:
            one, other = np.asarray(one).astype(int), np.asarray(other).astype(int)
        assert (one == other).all() or (one == other + 1).all()


@pytest.mark.parametrize('name', ['mmdet', 'mmseg', 'mmseg, padded', 'demo'])
def test_several_images_in_batches_and_one_tile(models, name, monkeypatch):
    model, images = models[name[:5]], [image(48, 75), image(75, 48), image(61, 61)]
    if 'padded' in name:
        monkeypatch.setattr(model.model.data_preprocessor, 'test_cfg', dict(size_divisor=64))
    alone = [next(model.predict(each, score=0.0)) for each in images]
    together = list(model.predict(images, batch=2, score=0.0))
    assert [each.name for each in together] == ['0', '1', '2']
    for one, other, given in zip(alone, together, images, strict=True):
        assert one.image is given and other.image is given
        (tiled,) = model.predict(given, score=0.0, tile=75)
        if model.finds_boxes:
            assert (tiled.boxes == one.boxes).all() and (tiled.scores == one.scores).all()
            assert len(one) > 5 and (np.diff(one.scores) <= 0).all()
            assert (one.crops is not None) == (name == 'mmdet')
            few = next(model.predict(given, score=float(one.scores[2])))
            assert len(few) >= 3 and few.scores.min() >= one.scores[2]
        else:
            assert tiled.label_map.shape == given.shape[:2] and len(one) == 0
            assert (tiled.label_map == one.label_map).all()


def test_a_large_image_is_told_of_once_unless_it_is_in_tiles(models, monkeypatch):
    said, large = [], image(100, 900)
    monkeypatch.setattr(
        'mmlape.apps.inference.model.print_log', lambda text, **_: said.append(text)
    )
    for name, words, mode in (
        ('mmdet', 'are shrunk to ', None),
        ('mmseg', "at once (model.test_cfg.mode='whole')", 'whole'),
        ('mmseg', "at once (model.test_cfg.mode='slide')", 'slide'),
    ):
        model = models[name]
        model._told.clear()
        if name == 'mmseg':
            large = image(100, 110)
            monkeypatch.setattr('mmlape.apps.inference.model._MANY_PIXELS', 1000)
            monkeypatch.setitem(model._inferencer.cfg.model, 'test_cfg', dict(mode=mode))
        for tile, lines in ((450, 0), (None, 1), (None, 1)):
            (result,) = model.predict(large, tile=tile, batch=4)
            assert result.image.shape == large.shape and len(said) == lines
        assert words in said.pop() and not said
    side = input_side(models['mmdet'].cfg)
    for tile in (side // 2, side // 2 - 1, side // 2 - 2):
        models['mmdet'].predict(image(9, 9), tile=tile)
    (line,) = said
    assert f'enlarges tiles of {side // 2 - 1} pixels to {side}' in line
    (result,) = models["mmdet"].predict(image(100, 300), tile=200, score=0.0, with_whole=True)
    assert len(result) and (result.boxes[:, 2] <= 300).all()


def test_pil_images_and_named_files(models, tmp_path):
    """Turned as their EXIF data say, like files; grey ones and those with alpha are RGB."""
    model, pixels = models['mmseg'], image(48, 75)
    picture = Image.fromarray(pixels[..., ::-1])
    picture.save(tmp_path / 'a.png')
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(np.rot90(pixels[..., ::-1]).copy()).save(tmp_path / 'b.png', exif=exif)
    with Image.open(tmp_path / 'b.png') as turned:
        given = [
            tmp_path / 'a.png',
            ('mine', str(tmp_path / 'a.png')),
            picture,
            picture.convert('RGBA'),
            turned,
        ]
        found = list(model.predict(given))
    assert [each.name for each in found] == [
        str(given[0]),
        'mine',
        '2',
        '3',
        str(tmp_path / 'b.png'),
    ]
    assert all((each.image == pixels).all() for each in found)
    (grey,) = model.predict(picture.convert('L'))
    assert (grey.image == np.array(picture.convert('L'))[..., None]).all()
    assert model.network_input(picture)[0].equal(model.network_input(pixels)[0])
    with pytest.raises(TypeError, match="8 bits, got a PIL image of mode 'I;16'"):
        list(model.predict(Image.new('I;16', (9, 9))))


def test_wrong_images_and_options(models, tmp_path):
    model = models['mmseg']
    (tmp_path / 'a.jpg').write_text('no image')
    for options, error, message in (
        (dict(images=tmp_path / 'a.jpg'), ValueError, 'cannot be decoded'),
        (dict(images=np.zeros((8, 8, 3))), TypeError, 'uint8 array .* got float64'),
        (dict(images=[3]), TypeError, 'got int'),
        (dict(images=None), TypeError, 'a uint8 array .* got NoneType'),
        (dict(images=[], batch=0), ValueError, 'batch must be at least 1'),
        (dict(images=[], score=-1), ValueError, 'score must be'),
        (dict(images=[], tile=16), ValueError, 'tile must be at least 32'),
        (dict(images=[], tile=64, with_whole=True), ValueError, 'is for detectors, and this is a'),
        (dict(images=[], with_whole=True), ValueError, 'with_whole goes with tile'),
    ):
        with pytest.raises(error, match=message):
            list(model.predict(**options))


def test_a_panoptic_answer_is_refused(models, monkeypatch):
    model, answer = models['mmdet'], DetDataSample(pred_panoptic_seg=PixelData())
    monkeypatch.setattr(model, '_run', lambda *_: [answer])
    with pytest.raises(ValueError, match=r'no instances .*panoptic.*: use mmlape test'):
        list(model.predict(image(48, 75)))


@pytest.mark.parametrize('name', ['mmdet', 'mmseg'])
def test_a_model_in_one_file_of_half_precision(models, name, tmp_path, monkeypatch):
    model, picture = models[name], image(48, 75)
    model.save(path := tmp_path / 'small.safetensors')
    assert path.stat().st_size < 0.55 * sum(4 * p.numel() for p in model.model.parameters()) + 2e5
    assert str(tmp_path.parent).encode() not in path.read_bytes()
    again = mmlape.load(path)
    assert again.classes == model.classes and again.palette == model.palette
    (one,), (other,) = (each.predict(picture, score=0.0) for each in (model, again))
    if name == 'mmdet':
        best = slice(0, 3)
        assert np.abs(one.scores[best] - other.scores[best]).max() < 2e-3
    else:
        assert (one.label_map == other.label_map).mean() > 0.98
    for name, message in (('small.safetensors', 'exists'), ('x.pth', 'is saved as .safetensors')):
        with pytest.raises(ValueError, match=message):
            model.save(tmp_path / name)
    weight = next(model.model.parameters())
    with torch.no_grad():
        before = weight.flatten()[0].clone()
        weight.view(-1)[0] = 1e6
        with pytest.raises(ValueError, match='too large for half precision'):
            model.save(tmp_path / 'other.safetensors')
        weight.view(-1)[0] = before
    assert not (tmp_path / 'other.safetensors').exists()


@pytest.mark.parametrize(
    ('disc', 'background'),
    [((120,) * 3, (8,) * 3), ((70,) * 3, (210,) * 3), ((140, 50, 90), (225, 190, 210))],
    ids=['fluorescence', 'bright field', 'stained'],
)
def test_the_model_for_nuclei_finds_discs(disc, background):
    model = mmlape.load('nuclei')
    rows, columns = np.mgrid[:290, :411]
    centres = [(y, x) for y in range(40, 290, 70) for x in range(45, 411, 80)]
    discs = [np.hypot(rows - y, columns - x) < 9 + n % 5 for n, (y, x) in enumerate(centres)]
    image = np.where(np.any(discs, axis=0)[..., None], disc, background).astype(np.uint8)
    (found,) = model.predict(image)
    assert model.score == 0.6 and model.classes == ('nucleus',)
    assert found.masks.shape[1:] == image.shape[:2]
    overlaps = [
        max((mask & disc).sum() / (mask | disc).sum() for mask in found.masks) for disc in discs
    ]
    assert np.mean(np.array(overlaps) > 0.7) > 0.8 and len(found) < 1.2 * len(discs)


def test_a_model_of_the_package_that_is_not_there():
    with pytest.raises(ValueError, match="no checkpoint 'nucleus'; by name there are: nuclei"):
        mmlape.load('nucleus')


def test_code_in_the_config_of_a_safetensors_file_is_not_run(tmp_path):
    state = dict(weight=torch.zeros(1))
    code = "import pathlib\npathlib.Path('ran').touch()\nmodel = dict(type='mmdet.FCOS')\n"
    save_file(state, tmp_path / 'a.safetensors', dict(format='pt', cfg=code))
    with pytest.raises(ValueError, match='is refused: line 1 is code'):
        mmlape.load(tmp_path / 'a.safetensors')
    assert not (tmp_path / 'ran').exists() and not Path('ran').exists()


@pytest.mark.parametrize('kind', ['checkpoint', 'with its config', 'one file', 'folder'])
def test_a_checkpoint_is_read_and_hashed_once(saved, models, kind, tmp_path, monkeypatch):
    _, config, checkpoint = saved['mmdet']
    path, given = checkpoint, config if kind == 'with its config' else None
    if kind == 'one file':
        models['mmdet'].save(path := tmp_path / 'small.safetensors')
    elif kind == 'folder':
        models['mmdet'].save_folder(path := tmp_path / 'shared')
    counts = Counter()
    read, hashed = reading._read_file, files.sha256_of
    monkeypatch.setattr(reading, '_read_file', lambda *rest: counts.update(['read']) or read(*rest))
    monkeypatch.setattr(
        files, 'sha256_of', lambda *rest: counts.update(['hashed']) or hashed(*rest)
    )
    mmlape.load(path, given, device='cpu')
    assert counts == dict(read=1, hashed=1)


def test_of_a_work_dir_the_newest_best_checkpoint_is_taken_else_the_last(tmp_path):
    torch.save(dict(state_dict={}), tmp_path / 'epoch_3.pth')
    assert _checkpoint_in(tmp_path) == tmp_path / 'epoch_3.pth'
    assert best_checkpoint(tmp_path) is None
    for seconds, name in ((9, 'best_b_epoch_1.pth'), (5, 'best_a_epoch_2.pth')):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    assert _checkpoint_in(tmp_path) == tmp_path / 'best_b_epoch_1.pth'


def test_the_config_of_the_caller_is_not_changed(saved):
    _, config, checkpoint = saved['mmdet']
    cfg = Config.fromfile(config)
    before = copy.deepcopy(cfg.to_dict())
    model = Model(cfg, checkpoint, 'cpu', optimized=False)
    assert cfg.to_dict() == before == model.cfg.to_dict()


def test_lora_is_saved_within_the_weights(saved, tmp_path):
    _, config, checkpoint = saved['demo']
    cfg = Config.fromfile(config)
    cfg.model.backbone.lora = dict(rank=2, dora=True)
    cfg.dump(tmp_path / 'lora.py')
    with pytest.raises(CheckpointError, match=r'entries are missing .*lora_A'):
        mmlape.load(checkpoint, tmp_path / 'lora.py', 'cpu')
    with DefaultScope.overwrite_default_scope('mmdet'):
        whole = MODELS.build(cfg.model).state_dict()
    plain = torch.load(checkpoint, weights_only=False)
    torch.save(dict(plain, state_dict=whole | plain['state_dict']), tmp_path / 'lora.pth')
    model = mmlape.load(tmp_path / 'lora.pth', tmp_path / 'lora.py', 'cpu')
    changes = {name: value for name, value in model.model.named_parameters() if '.lora_' in name}
    for value in changes.values():
        torch.nn.init.normal_(value, std=0.1)
    model.save(tmp_path / 'small.safetensors')
    other = mmlape.load(tmp_path / 'small.safetensors', device='cpu').model
    wanted = merge_lora(copy.deepcopy(model.model)).state_dict()
    assert changes and other.state_dict().keys() == wanted.keys()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4)
    assert changes.keys() <= model.model.state_dict().keys()  # which stays as it is


def test_what_is_no_model(saved, tmp_path):
    torch.save(dict(state_dict={}), tmp_path / 'a.pth')
    torch.save(dict(meta=dict(cfg="default_scope = 'mmpretrain'\n")), tmp_path / 'b.pth')
    (tmp_path / 'empty').mkdir()
    for name, message in (
        ('a.pth', 'holds no config: give the one'),
        ('b.pth', "for detectors and segmentors, got default_scope='mmpretrain'"),
        ('c.pth', 'there is no checkpoint'),
        ('empty', 'has no complete checkpoint'),
    ):
        with pytest.raises(ValueError, match=message):
            mmlape.load(tmp_path / name)
    _, config, checkpoint = saved['demo']
    shutil.copytree(Path(checkpoint).parent, tmp_path / 'fitted/training')
    assert mmlape.load(tmp_path / 'fitted').finds_boxes  # the folder that `mmlape fit` wrote
    torch.save(
        {k: v for k, v in torch.load(checkpoint, weights_only=False).items() if k != 'meta'},
        tmp_path / 'd.pth',
    )
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)  # upstream's, that it would take COCO's names
        model = mmlape.load(tmp_path / 'd.pth', config=config)
    assert model.finds_boxes and model.classes == mmlape.load(checkpoint).classes
    assert model.palette == mmlape.load(checkpoint).palette
    for device in ('cuda:7', 'CPU'):
        with pytest.raises(ValueError, match=f"the device '{device}' cannot be used"):
            mmlape.load('nuclei', device=device)

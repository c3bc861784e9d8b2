"""Images of five channels and 16 bits from a folder to a trained model and its answers."""

import copy
import json
import runpy
from types import SimpleNamespace

import cv2
import gradio as gr
import numpy as np
import pytest
import torch
from docs_pages import REPO
from mmengine.registry import MODELS, DefaultScope

import mmlape
from mmlape import doctor
from mmlape.apps.app import Answers
from mmlape.apps.export import Network, compare, made_images, runtime_settings
from mmlape.apps.fit import FitOptions, config_text, find_data, find_model
from mmlape.apps.fit.channels import loader_of
from mmlape.config_text import read_config_text
from mmlape.research.analysis import ModelPanels, measure_step_memory

CHANNELS = 5
SIDE = 96


def scene(number):
    """A square that only the last channel shows, uint16; and its box."""
    numbers = np.random.default_rng(number)
    pixels = numbers.integers(900, 1100, (SIDE, SIDE, CHANNELS)).astype(np.uint16)
    left, top = (int(each) for each in numbers.integers(4, 50, 2))
    pixels[top : top + 36, left : left + 36, -1] = 9000
    return pixels, [left, top, 36, 36]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp('bands')
    images, boxes = [], []
    for number in range(1, 11):
        pixels, box = scene(number)
        np.save(root / f'{number}.npy', pixels)
        images.append(dict(id=number, file_name=f'{number}.npy', width=SIDE, height=SIDE))
        common = dict(id=number, image_id=number, category_id=1, iscrowd=0)
        boxes.append(dict(common, bbox=box, area=box[2] * box[3]))
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name='square')])
    (root / 'annotations.json').write_text(json.dumps(content))
    return root


def config(folder, out, model='micro-adapter', **options):
    data = find_data(folder, out)
    text = config_text(
        data, find_model(model, data.task), FitOptions(**options), out, loader_of(data)
    )
    return data, read_config_text(text)


@pytest.mark.parametrize('model', ['lape-adapter', 'dtn-pvt'])
def test_the_config_reads_normalises_and_has_the_channels(folder, tmp_path, model):
    data, cfg = config(folder, tmp_path, model, augment='strong')
    loader = loader_of(data)
    assert loader['channels'] == CHANNELS and loader['mean'][-1] > 1500 > loader['mean'][0]
    for split in ('train', 'test'):
        steps = cfg[f'{split}_dataloader'].dataset.pipeline
        assert steps[0] == loader
        assert not any('PhotoMetric' in step.type for step in steps)
    backbone = cfg.model.backbone
    assert backbone.get('vit', backbone).in_channels == CHANNELS
    assert cfg.model.data_preprocessor.mean is None
    cfg.model.backbone.get('vit', cfg.model.backbone).init_cfg = None
    with DefaultScope.overwrite_default_scope('mmdet'):
        network = MODELS.build(cfg.model)
    assert (
        network.data_preprocessor(dict(inputs=[torch.ones(CHANNELS, 64, 64)]))['inputs'].eq(1).all()
    )
    assert len(network.backbone(torch.randn(1, CHANNELS, 64, 64))) > 1


def test_doctor_and_estimate_know_the_channels(folder, tmp_path):
    cfg = config(folder, tmp_path)[1]
    cfg.model.backbone.vit.init_cfg = None
    assert doctor._step(cfg).startswith('works on a random image')
    assert measure_step_memory(cfg, image_size=(96, 96)).total > 0


def test_images_of_8_bits_go_as_before(folder, tmp_path):
    own = tmp_path / 'own'
    own.mkdir()
    content = json.loads((folder / 'annotations.json').read_text())
    for entry in content['images']:
        entry['file_name'] = entry['file_name'].replace('npy', 'png')
        pixels = scene(entry['id'])[0][..., -3:]
        cv2.imwrite(str(own / entry['file_name']), (pixels >> 8).astype(np.uint8))
    (own / 'annotations.json').write_text(json.dumps(content))
    data, cfg = config(own, tmp_path / 'out', augment='strong')
    assert loader_of(data) is None
    assert cfg.train_dataloader.dataset.pipeline[0] == dict(type='LoadImageFromFile')
    assert any('PhotoMetric' in step.type for step in cfg.train_dataloader.dataset.pipeline)
    assert 'in_channels' not in cfg.model.backbone.vit


@pytest.mark.slow
def test_from_the_folder_to_boxes(folder, tmp_path, commands):
    out = tmp_path / 'out'
    options = ('--model', 'micro-adapter', '--epochs', 2, '--workers', 0, '--size', 96)
    commands('fit.py', folder, '--out', out, *options)
    assert (out / 'report.html').stat().st_size > 10_000
    commands('predict.py', out / 'training', folder, '--out', tmp_path / 'found', '--score', 0)
    assert len(list((tmp_path / 'found').rglob('*.jpg'))) == 10
    model = mmlape.load(out / 'training', device='cpu', optimized=False)
    check_export(model)
    check_runtime_and_app(model, tmp_path)


def network_of(model):
    return Network(copy.deepcopy(model.model), model.loader)


def check_export(model):
    """The network of a file takes pixels as they are, and answers as the test step does; NaN is the mean there too."""
    network = network_of(model)
    images = made_images(2, (SIDE, SIDE), loader=model.loader)
    images[0, 1, 5:9] = np.nan

    @torch.no_grad()
    def run(batch):
        return [each.numpy() for each in network(torch.from_numpy(batch))]

    arguments = model.model, run, network.outputs, iter([images]), 'mmdet', 1e-3, model.loader
    (difference,) = compare(*arguments)
    assert difference.compared > 5 and difference.within(1e-3), str(difference)


def check_runtime_and_app(model, folder):
    """The runtime without PyTorch and the app find the boxes that the model finds."""
    runtime = runpy.run_path(str(REPO / 'examples/onnx_runtime/predict.py'))
    file = folder / '1.npy'
    np.save(file, scene(1)[0])
    (expected,) = model.predict(file, score=0.05)
    pixels = runtime['read'](file, CHANNELS)
    network = network_of(model)
    own = object.__new__(runtime['Model'])
    own.settings = runtime_settings(model.cfg, network, model.classes, (SIDE, SIDE))

    @torch.no_grad()
    def run(_, feeds):
        return [each.numpy() for each in network(torch.from_numpy(feeds['image']))]

    own.session = SimpleNamespace(run=run)
    found = own.predict(pixels, 0.05)
    assert len(expected) and np.allclose(found['scores'], expected.scores, atol=1e-3)
    assert np.allclose(found['boxes'], expected.boxes, atol=0.1)
    assert runtime['shown'](pixels).shape == (SIDE, SIDE, 3)
    answers = Answers(model, ModelPanels(model))
    image, picture, rows, kept = answers.open(str(file), 0.05)
    assert image.shape == (SIDE, SIDE, 3) and picture.ndim == 3 and len(rows) == len(expected)
    assert kept.pixels.shape == (SIDE, SIDE, CHANNELS)
    assert ModelPanels(model).attention(kept, 20, 30).shape == (SIDE, SIDE, 3)
    np.save(file, pixels[..., :3])
    with pytest.raises(gr.Error, match='no image that can be read'):
        answers.open(str(file), 0.05)

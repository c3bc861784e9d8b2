"""The command's files answer as PyTorch does, also by the runtime that needs neither torch nor mmlape."""

import copy
import importlib
import json
import math
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backbone_variants import component, randomise
from config_utils import (
    CONFIGS,
    REPO,
    foundation_configs,
    shipped_configs,
    vit_adapter_configs,
)
from export_rows import small
from foundation_kinds import small as small_vit
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image
from registered import ceit, levit, swin, t2t, vit

import mmlape
from mmlape.apps.export import files
from mmlape.apps.export.network import Network
from mmlape.apps.export.selection import suppress
from mmlape.apps.export.settings import default_size, runtime_settings, steps_left_out
from mmlape.apps.export.verify import compare, made_images
from mmlape.shipped import read_config
from mmlape.training.load_image import DarkBackground

RUNTIME = REPO / 'examples' / 'onnx_runtime' / 'predict.py'
# Graphs with deformable attention, for any size, take minutes to make.
ANY_SIZE = dict.fromkeys(('Mask R-CNN, plain ViT', 'UPerNet', 'EoMT, instances', 'DINO'), True)
ANY_SIZE['Mask2Former, panoptic'] = False
FAMILIES = {
    'Swin': swin(),
    'BEiT': vit(arch=small_vit('beit_base_patch16_224')[1], patch_size=16),
    'relative bias': vit(
        attention_position=component('RelativePositionBias'), window_size=[3, None]
    ),
    'T2T': t2t(tokens=component('TransformerTokens')),
    'CeiT': ceit(),
    'LeViT': levit(),
}


def runner(path):
    session = onnxruntime.InferenceSession(str(path))
    return lambda images: session.run(None, {files.INPUT: images})


@pytest.mark.slow
@pytest.mark.parametrize('name', ANY_SIZE)
def test_files_answer_as_pytorch(name, tmp_path):
    """With random weights; other numbers of images than the exported one, and other sizes, which no patch divides."""
    model, scope = small(name)
    network, path, any_size = Network(copy.deepcopy(model)), tmp_path / 'model.onnx', ANY_SIZE[name]
    program = files.export_program(network, (101, 158), batch=True, sizes=any_size)
    files.write_onnx(program, network, path, {})
    files.finish(path)
    onnx.checker.check_model(str(path))
    assert not {'GridSample'} & {node.op_type for node in onnx.load(str(path)).graph.node}
    shapes = [(1, (101, 158)), (3, (150, 97) if any_size else (101, 158))]
    batches = (made_images(count, size, 3) for count, size in shapes)
    for difference in compare(model, runner(path), network.outputs, batches, scope, 1e-3):
        assert difference.within(1e-3), difference


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_segmentors_on_each_family_answer_as_pytorch(name, tmp_path):
    """With SegFormer's head, which takes any number of maps, and sides that no patch divides."""
    model, scope = small('SegFormer')
    model.backbone = FAMILIES[name]()
    channels = [maps.shape[1] for maps in model.backbone(torch.zeros(1, 3, 64, 96))]
    model.decode_head = MODELS.build(
        dict(
            type='SegformerHead',
            in_channels=channels,
            in_index=list(range(len(channels))),
            channels=8,
            num_classes=3,
        )
    )
    del model.neck
    randomise(model)
    network, path = Network(copy.deepcopy(model)), tmp_path / 'model.onnx'
    files.write_onnx(files.export_program(network, (75, 118), True, False), network, path, {})
    batches = (made_images(count, (75, 118), 3) for count in (1, 3))
    for difference in compare(model, runner(path), network.outputs, batches, scope, 1e-4):
        assert difference.within(1e-4), difference


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """The nuclei model, which comes with the package, as a file for one size, with the names of its modules."""
    path = tmp_path_factory.mktemp('exported') / 'nuclei.onnx'
    model = mmlape.load('nuclei', None, 'cpu', False)
    network = Network(copy.deepcopy(model.model))
    program = files.export_program(network, (128, 96), batch=False, sizes=False)
    known = runtime_settings(model.cfg, network, model.classes, (128, 96))
    files.write_onnx(program, network, path, known)
    return path, model


@pytest.fixture
def runtime(monkeypatch):
    monkeypatch.syspath_prepend(str(RUNTIME.parent))
    return importlib.import_module('predict')


@pytest.mark.parametrize('shape', [(4, 5), (4, 5, 3)])
def test_the_example_reads_images_of_16_bits(shape, runtime, tmp_path):
    path = tmp_path / 'deep.png'
    cv2.imwrite(str(path), np.linspace(0, 65535, math.prod(shape)).reshape(shape).astype(np.uint16))
    np.testing.assert_array_equal(runtime.read(path), cv2.imread(str(path))[..., ::-1])


def alone(tmp_path, *arguments):
    """The runtime where Python finds NumPy, onnxruntime, Pillow and nothing else that is installed."""
    packages = tmp_path / 'packages'
    packages.mkdir()
    names = ('numpy', 'numpy.libs', 'onnxruntime', 'PIL', 'pillow.libs', 'google', 'flatbuffers')
    for name in names:
        installed = Path(sysconfig.get_path('purelib')) / name
        if installed.exists():
            (packages / name).symlink_to(installed)
    environ = {'PYTHONPATH': str(packages), 'PATH': os.environ['PATH'], 'OMP_NUM_THREADS': '1'}
    line = [sys.executable, '-S', '-c', 'import torch']
    assert subprocess.run(line, env=environ, capture_output=True).returncode
    line = [sys.executable, '-S', str(RUNTIME), *map(str, arguments)]
    done = subprocess.run(line, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_runtime_finds_what_the_model_finds(exported, runtime, tmp_path):
    """At the size of the file; boxes in the order of their scores."""
    path, model = exported
    image = made_images(1, (128, 96), 5)[0].transpose(1, 2, 0).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / 'image.png')
    found = runtime.Model(path).predict(image, score=0.05)
    assert len(found['boxes']) > 3
    assert found['masks'].shape == (len(found['boxes']), 128, 96)
    out = tmp_path / 'drawn'
    printed = alone(tmp_path, path, tmp_path / 'image.png', '--score', 0.05, '--out', out)
    assert f'{len(found["boxes"])} boxes' in printed
    drawn = np.asarray(Image.open(out / 'image.png'))
    assert drawn.shape == image.shape and (drawn != image).any()

    def run(images):  # what the network gets; the runtime makes it of the image
        got = runtime.Model(path).predict(image, score=1e-6)
        return [got[name][None] for name in outputs]

    outputs = ('boxes', 'scores', 'labels', 'masks')
    seen = DarkBackground()(dict(img=image))['img']
    batch = seen.transpose(2, 0, 1)[None].astype(np.float32)
    (difference,) = compare(model.model, run, outputs, iter([batch]), 'mmdet', 1e-3)
    assert difference.within(1e-3) and difference.compared > 3, difference


@pytest.mark.slow
def test_half_and_eight_bits(exported, tmp_path):
    """Norms stay in float32, heads have no eight bits; the answers are near."""
    path, model = exported
    half, int8 = tmp_path / 'half.onnx', tmp_path / 'int8.onnx'
    files.write_half(path, half)
    files.write_int8(path, int8, (made_images(1, (128, 96), seed) for seed in range(4)))
    outputs = ('boxes', 'scores', 'labels', 'masks')
    for written, tolerance in ((half, 3e-2), (int8, 0.3)):
        images = iter([made_images(1, (128, 96), 5)])
        (difference,) = compare(model.model, runner(written), outputs, images, 'mmdet', tolerance)
        assert difference.matched >= 0.9 * difference.compared > 2, difference
        files.finish(written)
        known = onnxruntime.InferenceSession(str(written)).get_modelmeta().custom_metadata_map
        assert 'nucleus' in known[files.METADATA]
    files.finish(path)
    assert half.stat().st_size < 0.7 * path.stat().st_size
    graph = onnx.load(str(half)).graph
    types = {each.name: each.data_type for each in graph.initializer}
    norms = [node for node in graph.node if node.op_type == 'LayerNormalization']
    assert norms and all(types.get(node.input[1], 1) == 1 for node in norms)
    kinds = [node.op_type for node in onnx.load(str(int8)).graph.node]
    assert kinds.count('QuantizeLinear') > 20


class Suppression(torch.nn.Module):
    outputs, least, channels = ('scores',), None, None

    def forward(self, image):
        """Boxes side by side, whose scores are the pixels."""
        scores = image[:, 0, 0]
        left = torch.arange(scores.shape[1], dtype=torch.float32) * 4
        boxes = torch.stack([left, left * 0, left + 5, left * 0 + 5], dim=-1)
        boxes = boxes.expand(image.shape[0], -1, -1)
        return (suppress(boxes, scores, torch.zeros_like(scores).long(), 0.05),)


@pytest.mark.slow
def test_a_package_finds_nothing_one_box_and_several(tmp_path):
    """torchvision tells the compiler that at least two boxes remain."""
    network = Suppression()
    program = files.export_program(network, (64, 64), batch=True, sizes=False)
    run = files.run_package(program, tmp_path / 'a.pt2', dict(classes=['é"']))
    kept = torch._inductor.aoti_load_package(str(tmp_path / 'a.pt2')).get_metadata()['mmlape']
    assert json.loads(kept) == dict(classes=['é"'])
    for scores in ([0.0, 0.0], [0.5, 0.0], [0.5, 0.7], [0.5, 0.7, 0.6, 0.9]):
        image = np.zeros((1, 3, 64, 64), np.float32)
        image[0, 0, 0, : len(scores)] = scores
        (found,) = run(image)
        assert np.array_equal(found, network(torch.from_numpy(image))[0].numpy())
        assert (found > 0).sum() == min(1, sum(map(bool, scores))) + (len(scores) > 2)


@pytest.mark.slow
def test_the_command(commands, tmp_path):
    model = mmlape.load('nuclei', None, 'cpu', False)
    model.cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='mmseg.CLAHE'))
    model.save(tmp_path / 'mine.safetensors')
    path, options = tmp_path / 'new/nuclei.onnx', ('--dynamic', 'none', '--max-boxes', 7)
    printed = commands(
        'export.py', tmp_path / 'mine.safetensors', path, '--trust', '--size', '96x128', *options
    )
    assert 'to an image first: CLAHE of the test pipeline' in printed
    assert printed.count('largest difference') == 1 and '1 x 96 x 128' in printed
    assert 'outputs boxes, scores, labels, masks' in printed and path.is_file()
    (boxes, *_) = runner(path)(made_images(1, (96, 128)))
    assert boxes.shape == (1, 7, 4)


MISTAKES = {
    'OUT must end with .onnx': ('nuclei', 'out.txt'),
    'there is no folder': ('nuclei', 'out.onnx', '--int8', 'nowhere'),
    'there is no checkpoint': ('nowhere.pth', 'out.onnx'),
    'each at least 32': ('nuclei', 'out.onnx', '--size', '512'),
    'must be an integer': ('nuclei', 'out.onnx', '--max-boxes', 'many'),
    'OUT must end with .pt2': ('nuclei', 'out.onnx', '--to', 'pt2,onnx'),
    '--half does not go with --to pt2': ('nuclei', 'out.pt2', '--to', 'pt2', '--half'),
    "must be of onnx, pt2, got 'tflite'": ('nuclei', 'out.onnx', '--to', 'tflite'),
    'must be of batch, size and none': ('nuclei', 'out.onnx', '--dynamic', 'images'),
}


@pytest.mark.parametrize('text', MISTAKES)
def test_mistakes_end_with_one_line(text, commands):
    assert text in commands.refused('export.py', *MISTAKES[text])


def test_a_folder_of_videos_is_refused_before_anything_is_written(commands, tmp_path):
    (tmp_path / 'videos').mkdir()
    (tmp_path / 'videos/a.mp4').touch()
    for option in ('--images', '--int8'):
        said = commands.refused('export.py', 'nuclei', 'out.onnx', option, tmp_path / 'videos')
        assert 'has no image in it' in said and not (tmp_path / 'out.onnx').exists()


def test_settings_of_a_segmentor():
    """Windows of the file's size, and sides that the test pipeline rounds up."""
    name = 'vit_adapter/upernet_augreg-t-adapter_8xb2-160k_ade20k-512x512.py'
    cfg = Config.fromfile(CONFIGS / name)
    network = SimpleNamespace(mean=None, outputs=['logits'], least=None, channels=None)
    known = runtime_settings(cfg, network, ['a'], None)
    assert (known['scale'], known['keep_ratio'], known['multiple']) == ([2048, 512], True, 32)
    assert known['windows'] == dict(crop=[512, 512], stride=[341, 341])
    assert runtime_settings(cfg, network, ['a'], (512, 512))['windows'] == known['windows']
    smaller = runtime_settings(cfg, network, ['a'], (256, 96))
    assert smaller['windows'] == dict(crop=[256, 96], stride=[170, 63])


def test_the_size_of_a_file_is_asked_for_where_each_image_has_its_own():
    """ADE20K's scale and that of `mmlape fit` only limit the longer side."""
    test_cfg, pipeline = (
        dict(mode='whole'),
        [dict(type='Resize', scale=(640, 160), keep_ratio=True)],
    )
    data = dict(test_dataloader=dict(dataset=dict(pipeline=pipeline)))
    cfg = Config(dict(data, model=dict(test_cfg=test_cfg)))
    with pytest.raises(
        ValueError, match=r'a shorter side of 160.*--size HEIGHTxWIDTH, or --dynamic'
    ):
        default_size(cfg, 32)
    assert default_size(cfg, 32, any_size=True) == (160, 640)
    pipeline[0].update(scale=(300, 160))
    assert default_size(Config(dict(data, model=dict(test_cfg=test_cfg))), 32) == (160, 320)
    pipeline[0].update(scale=(640, 160), keep_ratio=False)
    assert default_size(Config(dict(data, model=dict(test_cfg=test_cfg))), 32) == (160, 640)
    del pipeline[0]['scale']
    bare = Config(dict(data, model={}))
    with pytest.raises(ValueError, match='names no test size: give --size'):
        default_size(bare, 32)
    assert default_size(bare, 32, any_size=True) == (256, 384)


def test_settings_of_a_detector():
    pipeline = [dict(type='Resize', scale=(120, 60), keep_ratio=True)]
    cfg = Config(dict(model={}, test_dataloader=dict(dataset=dict(pipeline=pipeline))))
    assert default_size(cfg, 32) == (64, 128)
    one = Config(
        dict(cfg, test_dataloader=dict(dataset=dict(pipeline=[dict(pipeline[0], scale=60)])))
    )
    assert default_size(one, 32) == (64, 64)
    mean = torch.tensor([1.0, 2, 3]).view(3, 1, 1)
    network = SimpleNamespace(
        mean=mean, is_bgr=True, outputs=('boxes',), least=(64, 96), channels=None
    )
    known = runtime_settings(cfg, network, ('a',), None, 0.42)
    assert (known['fill'], known['least']) == ([3.0, 2.0, 1.0], [64, 96])
    assert known['score'] == 0.42 and known['brightest'] is None
    pipeline.insert(0, dict(type='mmlape.DarkBackground', brightest=90))
    cfg = Config(dict(model={}, test_dataloader=dict(dataset=dict(pipeline=pipeline))))
    assert runtime_settings(cfg, network, ('a',), None)['brightest'] == 90


@pytest.mark.parametrize('paths', [shipped_configs, foundation_configs, vit_adapter_configs])
def test_runtimes_take_every_step_of_a_shipped_test_pipeline(paths):
    for path in paths():
        assert steps_left_out(read_config(path)) == [], path.name


def test_steps_that_a_runtime_does_not_take_are_named():
    """Second steps of a kind too, since a file has one of each; and inside wrapped data sets."""
    pipeline = [
        dict(type='mmlape.LoadImage'),
        dict(type=DarkBackground),
        dict(type='Resize', scale_factor=0.5),
        dict(type='mmdet.Resize', scale=(64, 32), keep_ratio=True),
        dict(type='ResizeToMultiple', size_divisor=32),
        dict(type='mmseg.CLAHE'),
        dict(type='Resize', scale=(128, 64)),
        dict(type='Pad', size_divisor=32),
        dict(type='ResizeToMultiple', size_divisor=64),
        dict(type=DarkBackground, brightest=9),
        dict(type='LoadAnnotations'),
        dict(type='PackDetInputs'),
    ]
    whole = dict(type='ConcatDataset', datasets=[dict(type='CocoDataset', pipeline=pipeline)])
    cfg = Config(dict(model={}, test_dataloader=dict(dataset=whole)))
    assert steps_left_out(cfg) == [
        'Resize', 'CLAHE', 'Resize', 'Pad', 'ResizeToMultiple', 'DarkBackground'
    ]  # fmt: skip


def test_the_runtime_makes_backgrounds_dark(runtime):
    model, seen = runtime.Model.__new__(runtime.Model), []
    model.settings = dict(outputs=['logits'], brightest=96)
    model._label_map = seen.append
    step = DarkBackground()
    for top in (100, 256):
        image = np.random.default_rng(0).integers(0, top, (7, 9, 3), dtype=np.uint8)
        model.predict(image)
        assert np.array_equal(seen[-1], step.transform(dict(img=image))['img'])


def test_the_runtime_pads_and_scales_back(runtime):
    model = runtime.Model.__new__(runtime.Model)
    model.classes = ['a']
    model.settings = dict(
        outputs=['boxes', 'scores', 'labels'], size=[64, 64], scale=[64, 64], keep_ratio=True, fill=[0.0] * 3,
        windows=None,
    )  # fmt: skip
    box = dict(
        boxes=np.array([[8.0, 4, 32, 16]], np.float32), scores=np.ones(1), labels=np.zeros(1, int)
    )
    model._run = lambda image: box
    found = model.predict(np.zeros((65, 128, 3), np.uint8))['boxes']
    np.testing.assert_allclose(found, [[16, 4 * 65 / 33, 64, 16 * 65 / 33]], rtol=1e-5)
    for own, score, count in ((0.3, None, 1), (0.5, None, 0), (0.5, 0.4, 1)):
        box['scores'], model.settings['score'] = np.array([0.4]), own
        assert len(model.predict(np.zeros((65, 128, 3), np.uint8), score)['boxes']) == count
    ids = np.repeat([1, 0], 32)[:, None].repeat(64, axis=1)
    model._run = lambda image: dict(panoptic=ids)
    assert (model.predict(np.zeros((64, 128, 3), np.uint8))['panoptic'] == 1).all()
    del model._run
    model.settings.update(size=None, least=[64, 96])
    seen = []
    model.session = SimpleNamespace(
        run=lambda _, inputs: seen.append(inputs['image'].shape) or [np.zeros(1)] * 3
    )
    for height, width in ((40, 50), (70, 100)):
        model._run(np.zeros((height, width, 3)))
    assert seen == [(1, 3, 64, 96), (1, 3, 70, 100)]


def test_the_runtime_rounds_sides_up_and_slides_over_them(runtime):
    model, seen = runtime.Model.__new__(runtime.Model), []
    model.classes = ['a', 'b']
    model.settings = dict(
        outputs=['logits'], size=None, scale=[2048, 50], keep_ratio=True, multiple=32, fill=[0.0] * 3,
        windows=dict(crop=[64, 64], stride=[32, 32]),
    )  # fmt: skip
    model._run = lambda window: (
        seen.append(window.shape) or dict(logits=np.zeros((2, *window.shape[:2])))
    )
    found = model.predict(np.zeros((30, 40, 3), np.uint8), 0.3)  # 50 x 67, then 64 x 96
    assert found['label_map'].shape == (30, 40) and seen == [(64, 64, 3)] * 2

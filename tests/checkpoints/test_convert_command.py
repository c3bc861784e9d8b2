"""The command that converts weights, and what upstream's runner and tools make of its files."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import mmdet
import published_shapes as published
import pytest
import torch
from config_utils import CONFIGS, coco_content, write_coco
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.runner.checkpoint import load_checkpoint
from published_models import MASK_RCNN, build, micro, micro_names
from safetensors import safe_open
from tool_runs import Commands

from mmlape.checkpoints import Pretrained
from mmlape.checkpoints.files import write_checkpoint
from mmlape.checkpoints.loaders import load_from_local
from mmlape.checkpoints.reading import read_checkpoint
from mmlape.registry import MODELS

TOOL = 'model_converters/convert.py'
CLASSES = tuple(f'class {number}' for number in range(80))


@pytest.fixture
def convert(tmp_path, monkeypatch, capsys):
    return Commands(tmp_path, monkeypatch, capsys)


def write_config(folder, model, **rest):
    path = folder / 'config.py'
    Config(dict(model=model, default_scope='mmdet', **rest)).dump(path)
    return path


@pytest.fixture
def detector(tmp_path):
    """A published checkpoint and a config for it; arguments of the command."""
    torch.save(published.checkpoint(micro_names(), CLASSES), tmp_path / 'det.pth.tar')
    config = write_config(tmp_path, micro(MASK_RCNN))
    return ['vit_adapter', 'det.pth.tar', 'out/det.pth', '--config', config]


def test_published_detector_is_loaded_strictly_by_mmengine(convert, detector, tmp_path):
    said = convert(TOOL, *detector)
    assert 'neck: 16 of 16 (100.0% of the values)' in said
    assert "load_from='out/det.pth'" in said
    model = build(micro(MASK_RCNN))
    loaded = load_checkpoint(model, 'out/det.pth', map_location='cpu', strict=True)
    assert loaded['meta']['dataset_meta'] == {'classes': CLASSES}
    assert (
        loaded['meta']['weights'] == 'det.pth.tar' and 'roi_head: 20 of' in loaded['meta']['report']
    )
    state = published.random_state(micro_names())
    assert torch.equal(model.neck.fpn_convs[3].conv.bias, state['neck.fpn_convs.3.conv.bias'])
    gamma = model.backbone.vit.blocks[3].ls2.gamma
    assert torch.equal(gamma, state['backbone.blocks.3.gamma2'])
    path = tmp_path / 'out' / 'det.pth'
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ['det.pth', 'det.pth.sha256'], 'no draft is left'
    assert (
        path.stat().st_mode & stat.S_IRGRP == (tmp_path / 'config.py').stat().st_mode & stat.S_IRGRP
    )


def test_an_existing_file_is_kept_unless_told(convert, detector, tmp_path):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'det.pth').write_text('precious')
    assert "'out/det.pth' exists already" in convert.refused(TOOL, *detector)
    assert (tmp_path / 'out' / 'det.pth').read_text() == 'precious'
    convert(TOOL, *detector, '--force')
    assert len(read_checkpoint(tmp_path / 'out' / 'det.pth')['state_dict']) > 100


def test_safetensors_of_a_whole_model_go_in_again(convert, detector, tmp_path):
    detector[2] = 'det.safetensors'
    assert "source='mmlape', checkpoint='det.safetensors') of the model" in convert(TOOL, *detector)
    with safe_open('det.safetensors', 'pt') as file:
        assert file.metadata()['source'] == 'vit_adapter'
    model = micro(MASK_RCNN)
    model.init_cfg = dict(type='mmlape.Pretrained', source='mmlape', checkpoint='det.safetensors')
    model = build(model)
    model.init_weights()
    for name, value in read_checkpoint('det.safetensors').items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_backbone_for_an_adapter(convert, tmp_path):
    """A ViT's weights: the file holds the ViT alone, not an adapter of random values."""
    model = micro(MASK_RCNN)
    vit = MODELS.build(dict(type='mmlape.VisionTransformer', **model.backbone.vit))
    write_checkpoint('vit.safetensors', vit.state_dict())
    arguments = ['deit', 'vit.safetensors', 'out.pth', '--config', write_config(tmp_path, model)]
    assert "checkpoint='out.pth') of the backbone's vit" in convert(TOOL, *arguments)
    assert set(read_checkpoint('out.pth')['state_dict']) == set(vit.state_dict())
    adapter = build(model).backbone
    for target in (adapter, adapter.vit):
        Pretrained('mmlape', checkpoint='out.pth', min_matched=1)(target)
        assert torch.equal(adapter.vit.patch_embed.proj.weight, vit.patch_embed.proj.weight)


def test_differences_are_added_to_what_the_vit_starts_from(convert):
    model = Config.fromfile(CONFIGS / 'experiments/eomt_vit-micro-lape_digit-scenes.py').model
    backbone = MODELS.build(model.backbone)
    fives = {name: torch.full_like(value, 5) for name, value in backbone.vit.state_dict().items()}
    write_checkpoint('base.safetensors', fives)
    ones = {
        f'network.{name.replace("vit.", "encoder.backbone.")}': torch.ones_like(value)
        for name, value in backbone.state_dict().items()
    }
    write_checkpoint('delta.safetensors', ones)
    arguments = ['eomt_delta', 'delta.safetensors', 'out.pth', '--config', 'config.py']
    Config(dict(model=model, default_scope='mmseg')).dump('config.py')
    message = convert.refused(TOOL, *arguments)
    assert 'eomt_delta needs init_cfg in the vit' in message
    base = dict(type='mmlape.Pretrained', source='mmlape', checkpoint='base.safetensors')
    model.backbone.vit.init_cfg = base
    Config(dict(model=model, default_scope='mmseg')).dump('config.py')
    convert(TOOL, *arguments)
    state = read_checkpoint('out.pth')['state_dict']
    vit = [value for name, value in state.items() if name.startswith('vit.blocks')]
    assert len(vit) > 10 and all((value == 6).all() for value in vit)


def test_a_classifiers_backbone_for_a_detector(convert, tmp_path):
    """Its head is none of the detector's: the backbone is what it has in common."""
    model = micro(MASK_RCNN)
    model.backbone = dict(type='mmlape.VisionTransformer', arch=model.backbone.vit.arch)
    vit = MODELS.build(model.backbone)
    state = {f'backbone.{name}': value for name, value in vit.state_dict().items()}
    torch.save({'state_dict': {**state, 'head.fc.weight': torch.zeros(5, 24)}}, 'classifier.pth')
    arguments = ['mmlape', 'classifier.pth', 'o.pth', '--config', write_config(tmp_path, model)]
    assert 'head.fc.weight: outside of the backbone' in convert(TOOL, *arguments)
    assert set(read_checkpoint('o.pth')['state_dict']) == set(vit.state_dict())


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(out='out.pt'), r"ends in .pth or .safetensors, got 'out.pt'"),
        (dict(weights='nowhere.pth'), "there is no checkpoint 'nowhere.pth'"),
        (dict(config='nowhere.py'), "'nowhere.py' is neither a file nor a shipped config"),
        (dict(source='timm', weights='vit_tiny_patch61'), "no model 'vit_tiny_patch61'"),
        (dict(source='timm'), 'the model is a ViTAdapter|do not fit|only'),
        (dict(source='resnet'), 'invalid choice'),
        (dict(min_matched='2'), 'min-matched: must be in'),
    ],
)
def test_mistakes_end_with_one_message_and_no_file(change, message, convert, detector, tmp_path):
    options = dict(zip(('source', 'weights', 'out'), detector[:3], strict=True))
    options = {**options, 'config': detector[4], 'min_matched': '0.95', **change}
    arguments = [
        options['source'],
        options['weights'],
        options['out'],
        '--config',
        options['config'],
    ]
    said = convert.refused(TOOL, *arguments, '--min-matched', options['min_matched'])
    assert re.search(message, said) and 'Traceback' not in said
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('name', ['a.pth', 'a.safetensors'])
def test_names_of_classes_are_kept(name, tmp_path):
    names = dict(classes=('a', 'b'), palette=[(0, 0, 0), (9, 9, 9)])
    path = write_checkpoint(tmp_path / name, dict(a=torch.zeros(1)), dict(dataset_meta=names))
    kept = load_from_local(str(path))['meta']['dataset_meta']
    assert (*kept['classes'],) == names['classes'] and len(kept['palette']) == 2


def test_views_are_written_alone(tmp_path):
    large = torch.zeros(100_000)
    for name in ('a.pth', 'a.safetensors'):
        path = write_checkpoint(tmp_path / name, dict(first=large[:2], second=large[1:3]))
        assert path.stat().st_size < 10_000


@pytest.mark.slow
def test_upstreams_test_tool_runs_the_converted_detector(tmp_path):
    """Both commands as a user types them, from an empty folder."""
    classes = CocoDataset.METAINFO['classes']
    content = coco_content(2, classes=classes[:3])
    content['categories'] += [dict(id=100 + n, name=name) for n, name in enumerate(classes[3:])]
    write_coco(tmp_path, content, split='val2017')
    annotations = tmp_path / 'annotations' / 'val2017.json'
    assert len(json.loads(annotations.read_text())['categories']) == 80
    config = Config.fromfile(CONFIGS / 'lape' / 'mask-rcnn_deit-t-adapter_fpn_ms-3x_coco.py')
    config.model = micro(MASK_RCNN)
    config.model.test_cfg.rcnn.score_thr = 0.0  # random scores are low
    dataset = config.test_dataloader.dataset
    dataset.update(data_root=str(tmp_path), ann_file=str(annotations))
    config.test_dataloader.num_workers = 0
    config.test_dataloader.persistent_workers = False
    config.test_evaluator.ann_file = str(annotations)
    config.dump(tmp_path / 'config.py')
    torch.save(published.checkpoint(micro_names(), classes), tmp_path / 'det.pth.tar')

    env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=str(CONFIGS.parent))
    folder = tmp_path / 'elsewhere'
    folder.mkdir()
    tools = CONFIGS.parent / 'tools', Path(mmdet.__file__).parent / '.mim' / 'tools'
    said = ''
    for command in (
        [tools[0] / TOOL, 'vit_adapter', '../det.pth.tar', 'det.pth', '--config', '../config.py'],
        [tools[1] / 'test.py', '../config.py', 'det.pth', '--work-dir', 'run'],
    ):
        command = [sys.executable, *map(str, command)]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        said += done.stdout + done.stderr
        assert done.returncode == 0, said[-4000:]
    assert 'Load checkpoint from det.pth' in said and 'coco/segm_mAP:' in said
    assert 'missing keys' not in said and 'unexpected key' not in said
    assert 'size mismatch' not in said

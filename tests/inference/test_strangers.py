"""Checkpoints of strangers as models: nothing that their configs name is run, by no way in."""

import contextlib
import pickle
import runpy
import sys

import numpy as np
import pytest
import torch
from crafted.maker import code, run
from mmdet.apis import DetInferencer
from mmengine import load as load_file
from mmengine.fileio import dump
from mmengine.structures import InstanceData
from tool_runs import REPO

import mmlape
from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.contents import plain_config

PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64)),
    dict(type='PackDetInputs'),
]
CELLS = dict(type='CocoDataset', pipeline=PIPELINE)
DETECTOR = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor'),
    backbone=dict(type='ResNet', depth=18, num_stages=1, out_indices=(0,), strides=(1,), dilations=(1,)),
    neck=dict(type='FPN', in_channels=[64], out_channels=16, num_outs=1),
    bbox_head=dict(
        type='RetinaHead', num_classes=2, in_channels=16, feat_channels=16, stacked_convs=1,
        anchor_generator=dict(type='AnchorGenerator', scales=[4], ratios=[1.0], strides=[4]),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
    ),
    test_cfg=dict(nms_pre=10, min_bbox_size=0, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5), max_per_img=10),
)  # fmt: skip
SEGMENTOR = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
    backbone=dict(type='ResNetV1c', depth=18, norm_cfg=dict(type='BN')),
    decode_head=dict(
        type='FCNHead', in_channels=512, in_index=3, channels=8, num_convs=1, num_classes=2
    ),
    test_cfg=dict(mode='whole'),
)


def detector(dataset=CELLS, **model):
    drawn = "visualizer = dict(type='DetLocalVisualizer')\n"
    return f"default_scope = 'mmdet'\n{drawn}model = {DETECTOR | model}\ntest_dataloader = {dict(dataset=dataset)}\n"


def segmentor(**loss):
    head = SEGMENTOR['decode_head'] | dict(loss_decode=dict(type='CrossEntropyLoss', **loss))
    data = dict(
        dataset=dict(
            type='BaseSegDataset',
            pipeline=[dict(type='LoadImageFromFile'), dict(type='PackSegInputs')],
        )
    )
    return f"default_scope = 'mmseg'\nmodel = {SEGMENTOR | dict(decode_head=head)}\ntest_dataloader = {data}\n"


def nested(**dataset):
    return dict(
        type='MultiImageMixDataset', pipeline=PIPELINE, dataset=dict(pipeline=[], **dataset)
    )


class Files:
    """Files beside the checkpoint, which run code when they are read without care."""

    def __init__(self, folder):
        self.folder, self.canary = folder, folder / 'canary'

    def pickled(self, ending='pkl'):
        path = self.folder / f'code.{ending}'
        path.write_bytes(pickle.dumps(run(self.canary)))
        return str(path)

    def yaml(self):
        path = self.folder / 'code.yaml'
        path.write_text(f'!!python/object/apply:builtins.exec [{code(self.canary)!r}]\n')
        return str(path)

    def config(self):
        path = self.folder / 'teacher.py'
        path.write_text(f'{code(self.canary)}\nmodel = dict()\n')
        return str(path)

    def array(self):
        path = self.folder / 'tree.npy'
        np.save(path, np.array([run(self.canary)], dtype=object), allow_pickle=True)
        return str(path)


CASES = {
    'weights of classes': lambda f: segmentor(class_weight=f.pickled()),
    'weights of classes, YAML': lambda f: segmentor(class_weight=f.yaml()),
    'annotations': lambda f: detector(nested(type='BaseDetDataset', ann_file=f.pickled())),
    'proposals': lambda f: detector(nested(type='CocoDataset', proposal_file=f.pickled())),
    'metas of another ending': lambda f: detector(
        nested(type='OpenImagesDataset', label_file='', meta_file=f.pickled('txt'), hierarchy_file='')
    ),
    'a tree': lambda f: detector(nested(type='OpenImagesDataset', label_file='', hierarchy_file=f.array())),
    'a teacher': lambda f: detector(type='KnowledgeDistillationSingleStageDetector', teacher_config=f.config()),
    'a function': lambda f: detector(type='os.mkdir', path=str(f.canary)),
    'a statement': lambda f: f'{code(f.canary)}\n{detector()}',
}  # fmt: skip
WAYS = {
    'load': lambda path: mmlape.load(path, device='cpu'),
    'DetInferencer': lambda path: DetInferencer(weights=str(path), device='cpu'),
}


def checkpoint(folder, text):
    path = folder / 'strange.pth'
    meta = dict(cfg=text, dataset_meta=dict(classes=['a', 'b'], palette=[[1, 2, 3], [4, 5, 6]]))
    torch.save(dict(meta=meta, state_dict={}), path)
    return path


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('case', CASES)
def test_nothing_that_a_config_names_is_run(case, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mmlape.safe_loading()
    files = Files(tmp_path)
    path = checkpoint(tmp_path, CASES[case](files))
    with contextlib.suppress(Exception):  # most are refused, in whatever way upstream has
        WAYS[way](path)
    assert not files.canary.exists()


def test_the_command_ends_in_one_line(tmp_path, monkeypatch):
    files = Files(tmp_path)
    path = checkpoint(tmp_path, segmentor(class_weight=files.pickled()))
    monkeypatch.setattr(sys, 'argv', ['predict.py', str(path), str(tmp_path), '--device', 'cpu'])
    monkeypatch.setattr(sys, 'path', [str(REPO / 'tools'), *sys.path])
    (tmp_path / 'a.png').touch()
    with pytest.raises(SystemExit, match=r'^error: .*exec, which is not data'):
        runpy.run_path(str(REPO / 'tools' / 'predict.py'), run_name='__main__')
    assert not files.canary.exists()


@pytest.mark.parametrize('way', WAYS)
def test_a_plain_model_is_built(way, tmp_path):
    """Ours also wants weights for it."""
    mmlape.safe_loading()
    expected = contextlib.nullcontext()
    if way == 'load':
        expected = pytest.raises(CheckpointError, match='RetinaNet of the config: 37 of 42 entries')
    with expected:
        assert WAYS[way](checkpoint(tmp_path, detector()))


@pytest.mark.parametrize(
    ('option', 'harmless'),
    [
        ("teacher_config='a.py'", False), ('teacher_config=dict(model=1)', True), ("hierarchy_file='a.npy'", False),
        ('hierarchy_file=None', True), ('trust_remote_code=True', False), ('trust_remote_code=False', True),
        ("decode_backend='pickle'", False), ("decode_backend='numpy'", True),
        ("warp_mode='cv2.MOTION_AFFINE'", True), ("warp_mode='cv2.x and print(1)'", False),
        ("warp_mode='print(1)'", False), ("custom_imports=dict(imports=['mmdet_evil'])", True),
        ("type='mmpretrain.torchvision/ConvertImageDtype'", False),
    ],
)  # fmt: skip
def test_options_that_run_what_they_name(option, harmless):
    text, _ = plain_config(f'model = dict({option})\nother = 1\n')
    assert ('model' in text) == harmless


def test_only_modules_of_the_packages_themselves_are_imported():
    text, dropped = plain_config("custom_imports = dict(imports=['mmdet_evil'])\nother = 1\n")
    assert dropped == 1
    assert 'mmdet_evil' not in text


def test_data_files_hold_data(tmp_path):
    mmlape.safe_loading()
    found = InstanceData(scores=torch.ones(2))
    content = dict(
        numbers=[1, 2.5, 1j, None, True], texts={'a', b'b'}, arrays=[np.eye(2), np.float32(3)],
        tensors=(torch.eye(2), torch.float16, torch.Size([2])), found=found, span=range(3),
    )  # fmt: skip
    for protocol in (2, 4, 5):
        dump(content, tmp_path / 'a.pkl', protocol=protocol)
        read = load_file(tmp_path / 'a.pkl')
        assert read['texts'] == content['texts']
        np.testing.assert_array_equal(read['arrays'][0], np.eye(2))
        assert read['tensors'][0].equal(torch.eye(2))
        assert read['tensors'][1:] == content['tensors'][1:]
        assert read['found'].scores.equal(found.scores)
    (tmp_path / 'a.yaml').write_text('a: [1, 2.5, text]\n')
    assert load_file(tmp_path / 'a.yaml') == dict(a=[1, 2.5, 'text'])


@pytest.mark.parametrize(
    'module', ['os.system', 'builtins.getattr', 'builtins.eval', 'subprocess.Popen', 'torch.load']
)
def test_pickled_files_call_nothing_else(module, tmp_path, monkeypatch):
    mmlape.safe_loading()
    place, _, name = module.rpartition('.')
    path = tmp_path / 'a.pkl'
    path.write_bytes(f'c{place}\n{name}\n.'.encode())
    with pytest.raises(CheckpointError, match=f'{module}, which is not data'):
        load_file(path)
    monkeypatch.setenv('MMLAPE_TRUST_PICKLES', '1')
    assert callable(load_file(path))

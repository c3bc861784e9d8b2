"""Batches and configs in files that are read without executing anything."""

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.config import Config
from mmengine.structures import InstanceData, LabelData, PixelData
from mmseg.structures import SegDataSample

from mmlape.engine.capture import FORMAT, read_capture
from mmlape.engine.plain_data import literal_config, plain, restored, tensors_in
from mmlape.engine.replay import build_captured_model


def through_a_file(value, path):
    torch.save(plain(value), path)
    return restored(torch.load(path, weights_only=True))


def test_numbers_arrays_and_containers(tmp_path):
    value = dict(
        a=[1, 2.5, 'x', None, True], b=(np.float32(0.1), np.int64(7)), c=np.arange(6, dtype=np.uint16).reshape(2, 3),
        d=torch.arange(3, dtype=torch.bfloat16), e=np.array([[True]]), f=np.empty((0, 4), np.float32), g={3: 'three'},
    )  # fmt: skip
    back = through_a_file(value, tmp_path / 'x.pth')
    assert back['a'] == value['a'] and back['b'] == value['b'] and back['g'] == value['g']
    assert type(back['b']) is tuple and type(back['b'][0]) is np.float32
    for name in 'cef':
        np.testing.assert_array_equal(back[name], value[name])
        assert back[name].dtype == value[name].dtype and back[name].shape == value[name].shape
    assert torch.equal(back['d'], value['d'])


def test_what_is_kept_is_a_copy():
    image = torch.zeros(3)
    kept = plain([image])
    image.fill_(1)
    assert kept[0].sum() == 0


def test_samples_of_the_toolboxes(tmp_path):
    for masks in (
        BitmapMasks(np.ones((2, 5, 6), np.uint8), 5, 6),
        PolygonMasks([[np.array([0.0, 0, 3, 0, 3, 3])], [np.array([1.0, 1, 2, 1, 2, 2])]], 5, 6),
    ):
        sample = DetDataSample(metainfo=dict(img_shape=(5, 6), scale_factor=(1.5, np.float64(2))))
        sample.gt_instances = InstanceData(
            bboxes=HorizontalBoxes(torch.rand(2, 4)), labels=torch.tensor([1, 2]), masks=masks
        )
        batch = dict(inputs=[torch.rand(3, 5, 6)], data_samples=[sample])
        back = through_a_file(batch, tmp_path / 'x.pth')['data_samples'][0]
        assert type(back) is DetDataSample and back.metainfo == sample.metainfo
        assert torch.equal(back.gt_instances.bboxes.tensor, sample.gt_instances.bboxes.tensor)
        assert type(back.gt_instances.masks) is type(masks)
        np.testing.assert_array_equal(back.gt_instances.masks.to_ndarray(), masks.to_ndarray())
        paths = [path for path, _ in tensors_in(batch)]
        assert 'inputs[0]' in paths and 'data_samples[0].gt_instances.bboxes' in paths
        assert [path for path, _ in tensors_in(batch, samples=False)] == ['inputs[0]']
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.ones(1, 5, 6, dtype=torch.long)))
    back = through_a_file(sample, tmp_path / 'x.pth')
    assert torch.equal(back.gt_sem_seg.data, sample.gt_sem_seg.data)


def test_only_data_come_back():
    """A file names classes; it must not choose what is imported or called."""
    assert isinstance(restored(plain(LabelData(label=torch.ones(1)))), LabelData)
    for name in (
        'subprocess.Popen',
        'os.system',
        'builtins.dict',
        'no_such_module.Thing',
        'InstanceData',
    ):
        with pytest.raises(ValueError, match='which is not there'):
            restored({'<class>': name, 'meta': {}, 'data': {}})
        with pytest.raises(ValueError, match='which is not there'):
            restored({'<class>': name, 'parts': ['ls']})
    with pytest.raises(ValueError, match='cannot be kept in a file'):
        restored(plain(dict(a=object())))


def test_a_config_is_literal(tmp_path):
    cfg = Config(
        dict(
            model=dict(type='mmlape.LN', eps=1e-5), hook=dict(type=torch.nn.ReLU), s=[(1, 2)], f=len
        )
    )
    found = literal_config(cfg)
    assert found['model'] == dict(type='mmlape.LN', eps=1e-5) and found['s'] == [(1, 2)]
    assert (
        found['hook']['type'] == 'torch.nn.modules.activation.ReLU' and found['f'] == 'builtins.len'
    )
    torch.save(found, tmp_path / 'x.pth')
    assert torch.load(tmp_path / 'x.pth', weights_only=True) == found


class Harmful:
    def __reduce__(self):
        return (eval, ("__import__('pathlib').Path('executed').touch()",))


def test_a_file_from_a_stranger_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(dict(format=FORMAT, batch=Harmful()), 'nan.pth')
    with pytest.raises(ValueError, match='is no file of a training step'):
        read_capture('nan.pth')
    touch = dict(type='subprocess.Popen', args=['touch', 'executed'])
    for cfg in (
        dict(model=touch),
        dict(
            model=dict(type='mmengine.utils.package_utils.call_command', cmd=['touch', 'executed'])
        ),
        dict(model=dict(type='mmlape.VisionTransformer', norm_cfg=[touch])),
        dict(model=dict(type='mmlape.VisionTransformer'), data_preprocessor=touch),
        dict(
            model=dict(type='mmlape.VisionTransformer'), custom_imports=dict(imports='antigravity')
        ),
        dict(model=dict(type='mmlape.VisionTransformer'), default_scope='antigravity'),
    ):
        with pytest.raises(ValueError, match='give --trust if the file is from you'):
            build_captured_model(dict(config=cfg))
    with pytest.raises(ValueError, match='give --config'):
        build_captured_model(dict(config={}))
    assert not (tmp_path / 'executed').exists()

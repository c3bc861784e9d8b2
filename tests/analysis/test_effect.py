"""What position changes: patches in another order, and predictions made by hand and read from files (Table 2)."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from backbone_variants import build_adapter, build_pvt, build_vit
from config_utils import write_image
from mmengine.config import Config
from mmengine.evaluator import DumpResults
from mmpretrain.structures import DataSample
from tool_runs import check_png, write_checkpoint, write_config

from mmlape.research.analysis import (
    patch_order,
    read_predictions,
    shuffle_patches,
    split_predictions,
    without_position,
)

ARCH = dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2)
VIT = dict(
    type='mmlape.VisionTransformer', arch=ARCH, img_size=64, joining=dict(type='mmlape.LaPE')
)


def test_patches_lie_where_the_order_says():
    image = torch.arange(6.0).reshape(1, 1, 2, 3).repeat_interleave(2, 2).repeat_interleave(3, 3)
    order = torch.tensor([4, 2, 0, 1, 5, 3])
    shuffled = shuffle_patches(image, (2, 3), order)
    assert shuffled.shape == image.shape
    assert shuffled[0, 0, ::2, ::3].flatten().tolist() == order.tolist()
    back = torch.argsort(order)
    assert torch.equal(shuffle_patches(shuffled, (2, 3), back), image)


@pytest.mark.parametrize('position', ['NoPosition', 'LearnedPosition'])
def test_differences_are_those_of_the_tokens(position):
    model = build_vit(position=dict(type=f'mmlape.{position}'), out_type='raw', final_norm=False)
    model.eval()
    image = torch.randn(1, 3, 50, 67)  # cut to 48 x 64
    found = patch_order(model, image, seed=3)
    assert found.grid == (3, 4) and found.differences.shape == (4, 3, 4)
    assert sorted(found.order) == list(range(12)) != found.order.tolist()
    assert patch_order(model, image).order.tolist() != found.order.tolist()
    assert np.allclose(found.image, image[0, :, :48, :64].mean(0))
    assert np.allclose(found.shuffled[:16, :16].mean(), patch(found.image, found.order[0]).mean())
    if position == 'NoPosition':
        assert found.differences.max() < 1e-5
        return
    with torch.no_grad():
        cut = image[:, :, :48, :64]
        shuffled = shuffle_patches(cut, (16, 16), torch.from_numpy(found.order))
        before, after = (model(each)[-1][0, 1:] for each in (cut, shuffled))
    last = found.differences[-1].flatten()
    for place, source in enumerate(found.order):
        expected = (after[place] - before[source]).norm() / before[source].norm()
        assert np.isclose(last[source], expected, rtol=1e-4)
    assert last.mean() > 1e-3


def patch(image, number):
    row, column = divmod(number, 4)
    return image[16 * row :, 16 * column :][:16, :16]


def test_networks_without_patches_are_refused():
    overlapping = build_vit(stem=dict(type='mmlape.PatchEmbed', patch_size=16, stride=8))
    for model in (build_pvt(), build_adapter(), overlapping):
        with pytest.raises(ValueError, match='are not the patches of an image'):
            patch_order(model.eval(), torch.zeros(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r'must hold two patches of \(16, 16\) at least'):
        patch_order(build_vit().eval(), torch.zeros(1, 3, 31, 31))


def test_nothing_of_position_is_left():
    backbone = dict(VIT, attention_position=dict(type='mmlape.RotaryPosition'))
    config = Config(dict(model=dict(backbone=backbone)))
    left = without_position(config).model.backbone
    assert left == dict(
        type=VIT['type'], arch=ARCH, img_size=64, position=False, attention_position=False
    )
    assert config.model.backbone.joining.type == 'mmlape.LaPE'


def test_the_command_about_patches(commands, tmp_path):
    values = dict(mean=[120.0] * 3, std=[60.0] * 3)
    config = write_config(tmp_path, VIT, data_preprocessor=values)
    checkpoint = write_checkpoint(tmp_path, build_vit(arch=ARCH, joining=VIT['joining']))
    write_image(tmp_path / 'a.png', (64, 80))
    script, out = 'analysis_tools/patch_order.py', tmp_path / 'pictures'
    arguments = (config, checkpoint, '--images', tmp_path / 'a.png', '--out', out)
    said = commands(script, *arguments, '--order', 1)
    assert said.split() == [f'{out}/order_a.png', f'{out}/order_a.npz']
    check_png(out / 'order_a.png')
    with np.load(out / 'order_a.npz') as arrays:
        grid = tuple(arrays['grid'])
        assert arrays['differences'].shape == arrays['differences_without'].shape == (2, *grid)
        assert arrays['differences_without'].max() < 5e-6
        assert arrays['differences'][-1].mean() > 5e-5  # initial values
    adapter = 'model.backbone.type=mmlape.PyramidVisionTransformer'
    refused = commands.refused(script, *arguments[:1], *arguments[2:], '--cfg-options', adapter)
    assert refused.startswith('error: ')


# Without position right in 0 to 4; with it, in 0, 1, 2, 5, 6.
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5]
WITHOUT = [3, 1, 4, 1, 5, 0, 0, 0, 0]
WITH = [3, 1, 4, 0, 0, 9, 2, 7, 0]
NAMES = [f'{number}.jpg' for number in range(9)]


def dump(path, predicted, labels=LABELS):
    """As ``mmlape test --out`` does."""
    metric = DumpResults(out_file_path=str(path))
    for name, label, guess in zip(NAMES, labels, predicted, strict=True):
        sample = DataSample(metainfo=dict(img_path=name)).set_gt_label(label).set_pred_label(guess)
        sample.set_pred_score(torch.rand(10))
        metric.process({}, [sample.to_dict()])
    metric.evaluate(len(NAMES))
    return path


def test_files_of_the_same_images(tmp_path):
    entries = [dict(gt_label=a, pred_label=b) for a, b in zip(LABELS, WITH, strict=True)]
    (tmp_path / 'with.json').write_text(json.dumps(entries))
    found = read_predictions(tmp_path / 'with.json')
    assert found.predicted.tolist() == WITH and found.names[2] == '2'
    first = read_predictions(dump(tmp_path / 'a.pkl', WITHOUT))
    assert first.names == tuple(NAMES) and first.labels.tolist() == LABELS
    with pytest.raises(ValueError, match='same images in the same order, got 9 and 9'):
        split_predictions(first, found)
    other = read_predictions(dump(tmp_path / 'c.pkl', WITH, LABELS[::-1]))
    with pytest.raises(ValueError, match=r'same true classes \(gt_label\)'):
        split_predictions(first, other)


def test_the_command_about_predictions(commands, tmp_path):
    files = [dump(tmp_path / 'a.pkl', WITHOUT), dump(tmp_path / 'b.pkl', WITH)]
    out = tmp_path / 'found' / 'split.json'
    said = commands('prediction_split.py', *files, '--out', out)
    assert [' '.join(line.split()) for line in said.splitlines()[-3:]] == [
        '9 images with: right with: wrong',
        'without: right ignored 3 (33.3%) mislead 2 (22.2%)',
        'without: wrong correct 2 (22.2%) useless 2 (22.2%)',
    ]
    found = json.loads(out.read_text())
    kinds = dict(ignored=NAMES[:3], mislead=NAMES[3:5], correct=NAMES[5:7], useless=NAMES[7:])
    assert found['images'] == kinds and found['counts']['useless'] == 2
    said = commands.refused('prediction_split.py', files[0], tmp_path / 'c.pkl')
    assert said.startswith("error: argument with_position: there is no file '")


def test_wrong_predictions(tmp_path):
    path = tmp_path / 'x.pkl'
    for content, text in (
        (b'no pickle', 'UnpicklingError'),
        (pickle.dumps([os.getcwd]), r'refers to posix\.getcwd, which is not data'),
        (pickle.dumps([dict(gt_label=torch.tensor([1, 2]), pred_label=1)]), 'only one element'),
        (pickle.dumps([dict(gt_label=1)]), "KeyError: 'pred_label'"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f'cannot be read as predictions, .*{text}'):
            read_predictions(path)

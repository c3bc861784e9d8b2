"""Table 2 of the Gabor paper: predictions made by hand, and files of a test."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from mmengine.evaluator import DumpResults
from mmpretrain.structures import DataSample

from mmlape.analysis import compare_predictions, read_predictions, split_predictions

# Without position right in 0 to 4; with it, in 0, 1, 2, 5, 6.
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5]
WITHOUT = [3, 1, 4, 1, 5, 0, 0, 0, 0]
WITH = [3, 1, 4, 0, 0, 9, 2, 7, 0]
NAMES = [f'{number}.jpg' for number in range(9)]


def test_every_image_is_of_the_kind_of_table_2():
    split = split_predictions(WITHOUT, WITH, LABELS)
    assert split.counts() == dict(ignored=3, mislead=2, correct=2, useless=2)
    found = {kind: split.images(kind).tolist() for kind in split.counts()}
    assert found == dict(ignored=[0, 1, 2], mislead=[3, 4], correct=[5, 6], useless=[7, 8])
    # What position changes is what it corrects less what it misleads.
    right = [np.mean(np.equal(given, LABELS)) for given in (WITHOUT, WITH)]
    assert right[1] - right[0] == pytest.approx((2 - 2) / 9)


def dump(path, predicted, labels=LABELS, names=NAMES):
    """As ``mmlape test --out`` does."""
    metric = DumpResults(out_file_path=str(path))
    for name, label, guess in zip(names, labels, predicted, strict=True):
        sample = DataSample(metainfo=dict(img_path=name)).set_gt_label(label).set_pred_label(guess)
        sample.set_pred_score(torch.rand(10))
        metric.process({}, [sample.to_dict()])
    metric.evaluate(len(names))
    return path


def test_files_of_a_test(tmp_path):
    without, with_position = (
        read_predictions(dump(tmp_path / f'{name}.pkl', predicted))
        for name, predicted in (('without', WITHOUT), ('with', WITH))
    )
    assert without.names == tuple(NAMES) and without.labels.tolist() == LABELS
    assert compare_predictions(without, with_position).images('correct').tolist() == [5, 6]
    entries = [dict(gt_label=a, pred_label=b) for a, b in zip(LABELS, WITH, strict=True)]
    (tmp_path / 'with.json').write_text(json.dumps(entries))
    found = read_predictions(tmp_path / 'with.json')
    assert found.predicted.tolist() == WITH and found.names[2] == '2'


def test_the_command(run, tmp_path):
    files = [dump(tmp_path / 'a.pkl', WITHOUT), dump(tmp_path / 'b.pkl', WITH)]
    out = tmp_path / 'found' / 'split.json'
    said = run('analysis_tools/prediction_split.py', *files, '--out', out)
    assert [' '.join(line.split()) for line in said.splitlines()] == [
        '9 images with: right with: wrong',
        'without: right ignored 3 (33.3%) mislead 2 (22.2%)',
        'without: wrong correct 2 (22.2%) useless 2 (22.2%)',
    ]
    found = json.loads(out.read_text())
    assert found['images']['mislead'] == ['3.jpg', '4.jpg'] and found['counts']['useless'] == 2
    said = run.refused('analysis_tools/prediction_split.py', files[0], tmp_path / 'c.pkl')
    assert said.startswith("error: there is no file of predictions '")


def test_other_images_are_refused(tmp_path):
    first = read_predictions(dump(tmp_path / 'a.pkl', WITHOUT))
    fewer = read_predictions(dump(tmp_path / 'b.pkl', WITH[:5], LABELS[:5], NAMES[:5]))
    with pytest.raises(ValueError, match='same images in the same order, got 9 and 5'):
        compare_predictions(first, fewer)
    other = read_predictions(dump(tmp_path / 'c.pkl', WITH, LABELS[::-1]))
    with pytest.raises(ValueError, match=r'same true classes \(gt_label\)'):
        compare_predictions(first, other)


@pytest.mark.parametrize(
    ('given', 'error', 'text'),
    [
        (([1], [1, 2], [1, 2]), ValueError, 'one class for each image, got'),
        (([], [], []), ValueError, 'at least one image'),
        (([0.5], [1], [1]), TypeError, 'without must hold class indices, got float64'),
    ],
)
def test_wrong_predictions(given, error, text):
    with pytest.raises(error, match=text):
        split_predictions(*given)


def test_wrong_files(tmp_path):
    path = tmp_path / 'x.pkl'
    for content, text in (
        (b'no pickle', 'cannot be read as predictions'),
        (pickle.dumps([os.getcwd]), r'refers to posix\.getcwd, which is no data'),
        (pickle.dumps([]), 'must hold a list'),
        (
            pickle.dumps([dict(gt_label=torch.tensor([1, 2]), pred_label=1)]),
            'one class as gt_label',
        ),
        (pickle.dumps([dict(gt_label=1)]), 'one class as pred_label, got None'),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=text):
            read_predictions(path)
    with pytest.raises(ValueError, match=r"kind must be one of .*, got 'wrong'"):
        split_predictions([1], [1], [1]).images('wrong')

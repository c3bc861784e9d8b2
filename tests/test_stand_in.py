"""mmcv without a compiler: torchvision's NMS and RoIAlign against mmcv's compiled ones, and how mmlape reports it."""

import importlib.util
import shutil
import sys
from pathlib import Path

import mmcv
import pytest
import torch
from mmcv.ops import nms, roi_align
from site_copies import link_site_packages, run_python

from mmlape import compatibility

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / 'mmlape' / 'runtime' / 'mmcv_ext.py'


@pytest.fixture
def both(monkeypatch):
    """Results of a function with mmcv's operators and with the stand-in."""
    spec = importlib.util.spec_from_file_location('mmcv_ext', SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def results(function):
        compiled = function()
        for name in ('nms', 'roi_align'):
            monkeypatch.setattr(sys.modules[f'mmcv.ops.{name}'], 'ext_module', module)
        return compiled, function()

    return results


def boxes_and_scores(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 80
    sides = torch.rand(count, 2, generator=generator) * 40
    return torch.cat([corners, corners + sides], 1), torch.rand(count, generator=generator)


@pytest.mark.parametrize('offset', [0, 1])
def test_nms_keeps_the_same_boxes(both, offset):
    """Boxes of whole pixels have overlaps that equal the threshold, and equal scores."""
    generator = torch.Generator().manual_seed(1)
    corners = torch.randint(0, 4, (120, 2), generator=generator)
    boxes = torch.cat([corners, corners + torch.randint(0, 7, (120, 2), generator=generator)], 1)
    cases = [boxes_and_scores(count, seed) for seed, count in enumerate((0, 1, 2, 40, 300))]
    cases += [(boxes.float(), torch.randint(0, 50, (120,), generator=generator) / 50)]
    options = [dict(iou_threshold=n / 10, offset=offset) for n in range(11)]
    options += [dict(iou_threshold=0.5, offset=offset, score_threshold=0.4, max_num=7)]
    compiled, found = both(lambda: [nms(*case, **given) for case in cases for given in options])
    for (boxes, kept), (expected_boxes, expected) in zip(found, compiled, strict=True):
        assert kept.dtype == expected.dtype and torch.equal(kept, expected)
        assert torch.equal(boxes, expected_boxes)


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('ratio', [0, 1, 3])
@pytest.mark.parametrize(('count', 'size'), [(9, 7), (4, (3, 5)), (0, 2)])
def test_roi_align_and_its_gradient(both, aligned, ratio, count, size):
    dtype = torch.float64 if count == 4 else torch.float32
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(2, 5, 23, 17, generator=generator, dtype=dtype)
    boxes, images = boxes_and_scores(count)[0], torch.arange(count)[:, None] % 2
    rois = torch.cat([images, boxes], 1).to(dtype)  # some reach beyond the map, which is 92 x 68

    def pooled_and_gradient():
        leaf = features.clone().requires_grad_()
        first, second = (roi_align(leaf, rois, size, 0.25, ratio, 'avg', aligned) for _ in range(2))
        (first.square() + second).sum().backward()
        return first.detach(), leaf.grad

    compiled, results = both(pooled_and_gradient)
    for found, expected in zip(results, compiled, strict=True):
        assert found.shape == expected.shape and found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    rois = torch.tensor([[0.0, 0, 0, 4, 4]])
    with pytest.raises(NotImplementedError, match=r"roi_align with pool_mode='max'"):
        roi_align(torch.ones(1, 1, 8, 8), rois, 2, 1.0, 0, 'max', True)


@pytest.mark.slow
@pytest.mark.parametrize('copied', [True, False])
def test_mmcv_and_mmlape_can_be_imported_with_it(copied, tmp_path):
    """mmcv looks up all operators at import; a missing one raises an error when it is called. Where `make env` has not
    copied the file into mmcv, `mmlape.registry` and our commands let Python find it in mmlape."""
    site, others = link_site_packages(tmp_path / 'site', without=('mmcv',))
    (site / 'mmcv').mkdir()
    for entry in Path(mmcv.__file__).parent.iterdir():
        if not entry.name.startswith(('_ext', '__pycache__')):
            (site / 'mmcv' / entry.name).symlink_to(entry)
    if copied:
        shutil.copy(SOURCE, site / 'mmcv' / '_ext.py')
    for entry in Path(mmcv.__file__).parent.parent.glob('*mmcv-*.dist-info'):  # has the version
        (site / entry.name).symlink_to(entry)
    code = (
        'import torch, mmlape.registry, mmcv._ext, mmcv.ops\n'
        'from mmlape import compatibility, doctor\n'
        'print(doctor._run({"mmcv._ext": doctor._operators}))\n'
        'assert mmcv._ext.__file__.endswith("_ext.py")\n'
        'assert compatibility.has_torchvision_operators()\n'
        'assert not hasattr(mmcv._ext, "__path__")\n'
        'print(mmcv.ops.get_compiler_version(), mmcv.ops.get_compiling_cuda_version())\n'
        'mmcv.ops.soft_nms(torch.tensor([[0., 0, 2, 2]]), torch.ones(1))\n'
    )
    result = run_python(code, site, others, ROOT, cwd=tmp_path)
    assert result.stdout.count("none: torchvision's NMS and RoIAlign") == 2
    assert "state='warning'" in result.stdout and 'replace them' in result.stdout
    assert 'MMCV_WITH_OPS=1 pip install --no-build-isolation' in result.stdout
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("NotImplementedError: mmcv's operator softnms is not there")
    assert 'install a C++ compiler and call `make env` again' in last


def test_compiled_operators_come_first(tmp_path, monkeypatch):
    """If a stand-in were left behind beside a library, the library would be loaded."""
    monkeypatch.setattr(compatibility, 'package_folder', lambda _: tmp_path)
    assert compatibility.operators_file() is None and compatibility.has_torchvision_operators()
    finders = [*sys.meta_path]  # the first that finds a module wins
    monkeypatch.setattr(sys, 'meta_path', finders)
    compatibility.provide_operators()
    assert finders.index(importlib.machinery.PathFinder) < finders.index(
        compatibility._TorchvisionOperators
    )
    (tmp_path / '_ext.py').write_text('')
    assert compatibility.has_torchvision_operators()
    (tmp_path / f'_ext{importlib.machinery.EXTENSION_SUFFIXES[0]}').write_text('')
    assert not compatibility.has_torchvision_operators()

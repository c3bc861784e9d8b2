"""mmcv without a compiler: torchvision's NMS and RoIAlign in place of its operators, and when the set-up takes them."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mmcv
import pytest
import torch
from config_utils import CONFIGS, use_scope
from mmcv.ops import batched_nms, nms, roi_align
from mmengine.config import Config
from mmengine.registry import DefaultScope
from site_copies import link_site_packages, run_python

from mmlape import stack
from mmlape.registry import MODELS

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / 'tools' / 'setup_env'
SOURCE = PROGRAM / 'mmcv_ext.py'


@pytest.fixture(scope='module')
def module():
    spec = importlib.util.spec_from_file_location('mmcv_ext', SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def switch(module, monkeypatch):
    """Puts the stand-in into mmcv's functions, from there on."""

    def put():
        for name in ('nms', 'roi_align'):
            monkeypatch.setattr(sys.modules[f'mmcv.ops.{name}'], 'ext_module', module)

    return put


# -- the operators --------------------------------------------------------------------------------


def boxes_and_scores(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 80
    sides = torch.rand(count, 2, generator=generator) * 40
    return torch.cat([corners, corners + sides], 1), torch.rand(count, generator=generator)


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('threshold', [0.0, 0.3, 0.5, 0.7, 1.0])
def test_boxes_are_kept_as_by_mmcv(switch, offset, threshold):
    cases = [boxes_and_scores(count, seed) for seed, count in enumerate((0, 1, 2, 40, 300))]
    options = dict(iou_threshold=threshold, offset=offset)
    limited = dict(options, score_threshold=0.4, max_num=7)

    def results():
        return [nms(*case, **given) for case in cases for given in (options, limited)]

    compiled = results()
    switch()
    for (dets, kept), (wanted_dets, wanted) in zip(results(), compiled, strict=True):
        assert kept.dtype == wanted.dtype and torch.equal(kept, wanted)
        assert torch.equal(dets, wanted_dets)


@pytest.mark.parametrize('offset', [0, 1])
def test_whole_numbers_where_overlaps_meet_the_threshold(switch, offset):
    """Boxes of 0 to 6 pixels: ratios of small numbers, among them exactly 0.2, 0.6 and their like, and equal scores."""
    generator = torch.Generator().manual_seed(1)
    corners = torch.randint(0, 4, (120, 2), generator=generator)
    boxes = torch.cat([corners, corners + torch.randint(0, 7, (120, 2), generator=generator)], 1)
    scores = torch.randint(0, 50, (120,), generator=generator) / 50
    thresholds = [n / 10 for n in range(11)]

    def results():
        return [nms(boxes.float(), scores, t, offset=offset)[1].tolist() for t in thresholds]

    compiled = results()
    switch()
    assert results() == compiled


def test_classes_apart(switch):
    boxes, scores = boxes_and_scores(200)
    classes = torch.arange(200) % 3
    wanted = batched_nms(boxes, scores, classes, dict(type='nms', iou_threshold=0.5))
    switch()
    found = batched_nms(boxes, scores, classes, dict(type='nms', iou_threshold=0.5))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('ratio', [0, 1, 3])
@pytest.mark.parametrize(
    ('count', 'size', 'dtype'),
    [(9, 7, torch.float32), (4, (3, 5), torch.float64), (0, 2, torch.float32)],
)
def test_pooled_features_and_their_gradients_are_mmcvs(switch, aligned, ratio, count, size, dtype):
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(2, 5, 23, 17, generator=generator, dtype=dtype)
    boxes, images = boxes_and_scores(count)[0], torch.arange(count)[:, None] % 2
    rois = torch.cat([images, boxes], 1).to(dtype)  # some reach beyond the map, which is 92 x 68

    def results():
        leaf = features.clone().requires_grad_()
        pooled = roi_align(leaf, rois, size, 0.25, ratio, 'avg', aligned)
        pooled.square().sum().backward()
        return pooled.detach(), leaf.grad

    compiled = results()
    switch()
    for found, wanted in zip(results(), compiled, strict=True):
        assert found.shape == wanted.shape and found.dtype == dtype
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_one_is_pooled_to_one_and_gradients_are_added(module):
    rois, nothing = torch.tensor([[0.0, 0, 0, 4, 4]]), torch.empty(0)
    options = dict(
        aligned_height=2, aligned_width=2, spatial_scale=1.0, sampling_ratio=2, pool_mode=1
    )
    output, gradient = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 8, 8)
    module.roi_align_forward(
        torch.ones(1, 1, 8, 8), rois, output, nothing, nothing, aligned=False, **options
    )
    assert torch.equal(output, torch.ones(1, 1, 2, 2))
    module.roi_align_backward(output, rois, nothing, nothing, gradient, aligned=False, **options)
    torch.testing.assert_close(gradient.sum(), torch.tensor(64.0 + 4))


def test_what_is_not_there_says_what_to_do_when_it_is_called(module, switch):
    missing = module.ms_deform_attn_forward  # mmcv looks names up when it is imported
    with pytest.raises(NotImplementedError) as error:
        missing(torch.ones(1), im2col_step=64)
    text = str(error.value)
    assert text.startswith("mmcv's operator ms_deform_attn_forward is not there")
    assert 'without compiled operators' in text and '\n' not in text
    assert 'install a C++ compiler and call `make env` again' in text
    with pytest.raises(AttributeError, match='__path__'):
        _ = module.__path__
    assert module.get_compiling_cuda_version() == 'not available'
    assert 'torchvision' in module.get_compiler_version()
    switch()
    leaf = torch.ones(1, 1, 8, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"roi_align with pool_mode='max'"):
        roi_align(leaf, torch.tensor([[0.0, 0, 0, 4, 4]]), 2, 1.0, 0, 'max', True)


def test_mask_rcnn_of_the_demo_learns_and_finds_the_same(switch):
    """Losses, gradients and predictions beside those with mmcv's operators."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmdet.utils import register_all_modules
    from mmengine.structures import InstanceData

    file = CONFIGS / 'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py'
    config = Config.fromfile(file)
    register_all_modules(init_default_scope=False)
    use_scope('mmdet')
    torch.manual_seed(0)
    model = MODELS.build(config.model)
    model.init_weights()
    image = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    masks = torch.zeros(2, 64, 64, dtype=torch.uint8).numpy()
    masks[0, 4:30, 4:30] = masks[1, 20:60, 30:60] = 1
    objects = InstanceData(
        bboxes=torch.tensor([[4.0, 4, 30, 30], [30, 20, 60, 60]]),
        labels=torch.tensor([1, 2]),
        masks=BitmapMasks(masks, 64, 64),
    )
    size = dict(img_shape=(64, 64), ori_shape=(64, 64), pad_shape=(64, 64), scale_factor=(1.0, 1.0))

    state = {name: value.clone() for name, value in model.state_dict().items()}

    def results():
        model.load_state_dict(state)  # statistics of norms
        torch.manual_seed(1)  # proposals are sampled
        sample = DetDataSample(metainfo=dict(size), gt_instances=objects.clone())
        data = dict(inputs=[image], data_samples=[sample])
        model.train().zero_grad()
        losses = model(**model.data_preprocessor(data, True), mode='loss')
        loss, _ = model.parse_losses(losses)
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        with torch.no_grad():
            (found,) = model.eval()(**model.data_preprocessor(data, False), mode='predict')
        return loss.detach(), gradient, found.pred_instances.bboxes, found.pred_instances.scores

    compiled = results()
    switch()
    for found, wanted in zip(results(), compiled, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert compiled[1].abs().max() > 0
    DefaultScope._instance_dict.popitem(last=True)


# -- an mmcv with it ------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """Everything that is installed, and mmcv as the set-up leaves it without a compiler."""
    site = link_site_packages(tmp_path_factory.mktemp('stand_in') / 'site', without=('mmcv',))
    (site / 'mmcv').mkdir()
    for entry in Path(mmcv.__file__).parent.iterdir():
        if not entry.name.startswith(('_ext', '__pycache__')):
            (site / 'mmcv' / entry.name).symlink_to(entry)
    shutil.copy(SOURCE, site / 'mmcv' / '_ext.py')
    for entry in Path(mmcv.__file__).parent.parent.glob('*mmcv-*.dist-info'):  # has the version
        (site / entry.name).symlink_to(entry)
    return site


def test_mmcv_and_mmlape_can_be_imported_with_it(site, tmp_path):
    """Every name that mmcv.ops looks up is there, and what is not there is refused only when it is called."""
    code = (
        'import mmlape, torch, mmcv._ext, mmcv.ops\n'
        'from mmlape import stack\n'
        'from mmlape import doctor\n'
        'assert mmcv._ext.__file__.endswith("_ext.py") and stack.stands_in()\n'
        'print(mmcv.ops.get_compiler_version())\n'
        'print(doctor._run({"mmcv._ext": doctor._operators}))\n'
        'mmcv.ops.soft_nms(torch.tensor([[0., 0, 2, 2]]), torch.ones(1))\n'
    )
    result = run_python(code, site, ROOT, cwd=tmp_path)
    version, check = result.stdout.strip().splitlines()
    assert version == "none: torchvision's NMS and RoIAlign"
    assert "state='warning'" in check and 'stand in for them' in check
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("NotImplementedError: mmcv's operator softnms is not there")


def test_operators_that_are_compiled_come_first(tmp_path, monkeypatch):
    """Were a stand-in left behind beside a library, the library would be loaded."""
    monkeypatch.setattr(stack, 'package_folder', lambda _: tmp_path)
    assert stack.operators_file() is None and not stack.stands_in()
    (tmp_path / '_ext.py').write_text('')
    assert stack.stands_in()
    (tmp_path / f'_ext{importlib.machinery.EXTENSION_SUFFIXES[0]}').write_text('')
    assert not stack.stands_in()


# -- the set-up -----------------------------------------------------------------------------------


@pytest.fixture
def parts(monkeypatch):
    """The modules of the program, which is run as a folder and is not a package."""
    monkeypatch.syspath_prepend(str(PROGRAM))
    names = ('common', 'checks', 'stand_in')
    modules = {name: importlib.import_module(name) for name in names}
    spec = importlib.util.spec_from_file_location('stand_in_main', PROGRAM / '__main__.py')
    modules['main'] = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, 'stand_in_main', modules['main'])
    spec.loader.exec_module(modules['main'])
    return SimpleNamespace(**modules)


@pytest.fixture
def machine(parts, tmp_path, monkeypatch):
    """A set-up whose steps only note what they did, on a machine with a compiler, a GPU or neither."""
    state = SimpleNamespace(compiler=False, cuda=None, steps=[], mmcv={})
    monkeypatch.delenv('OPS', raising=False)
    main = parts.main

    def step(name):
        def note(setup):
            setup.python.parent.mkdir(parents=True, exist_ok=True)
            if not setup.python.exists():
                setup.python.symlink_to(sys.executable)
            state.steps.append(f'{name}, stand-in' if setup.without_operators else name)
            if name == 'mmcv':
                state.mmcv = {'onedl-mmcv': '2.3.6'}

        return note

    def check_compiler(about):
        if not state.compiler:
            raise parts.common.SetupError('no C++ compiler (c++)')

    monkeypatch.setattr(main, 'STEPS', {name: step(name) for name in main.STEPS})
    monkeypatch.setattr(main.checks, 'check_compiler', check_compiler)
    monkeypatch.setattr(main.mmcv_wheel, 'find_cuda', lambda: state.cuda)
    monkeypatch.setattr(main.mmcv_wheel, 'kept_wheel', lambda *_: None)
    monkeypatch.setattr(main.Setup, 'installed', lambda self: {'torch': '2.11.0', **state.mmcv})

    def call():
        state.steps.clear()
        state.setup = main.Setup(tmp_path / 'venv', 'onedl')
        main.set_up(state.setup)
        return [name for name in state.steps if name.startswith('mmcv')]

    state.call = call
    return state


def test_without_a_compiler_the_stand_in_is_taken_until_there_is_one(machine, capsys):
    assert machine.call() == ['mmcv, stand-in']
    said = [line for line in capsys.readouterr().out.splitlines() if 'NMS and RoIAlign' in line]
    assert len(said) == 1 and said[0].endswith('no C++ compiler (c++)')
    machine.call()
    assert machine.steps == [] and 'RoIAlign' not in capsys.readouterr().out
    machine.compiler = True
    assert machine.call() == ['mmcv']
    assert machine.steps == ['mmcv']
    machine.compiler = False  # what is compiled stays
    machine.call()
    assert machine.steps == []


def test_the_stand_in_on_request(machine, capsys, monkeypatch):
    machine.compiler = True
    monkeypatch.setenv('OPS', 'torchvision')
    assert machine.call() == ['mmcv, stand-in']
    assert capsys.readouterr().out.count('OPS=torchvision') == 1
    machine.call()
    assert machine.steps == []
    monkeypatch.delenv('OPS')
    assert machine.call() == ['mmcv']
    monkeypatch.setenv('OPS', 'torchvision')
    assert machine.call() == ['mmcv, stand-in']


def test_another_request_is_refused(parts, machine, monkeypatch):
    monkeypatch.setenv('OPS', 'numpy')
    with pytest.raises(parts.common.SetupError, match='OPS=numpy is unknown; say OPS=torchvision'):
        machine.call()
    assert machine.steps == []


def test_for_a_gpu_it_does_not_do(parts, machine, monkeypatch):
    machine.cuda = SimpleNamespace(home=Path('/cuda'), release='13.0', archs='9.0')
    with pytest.raises(parts.common.SetupError, match=r'no C\+\+ compiler'):
        machine.call()
    assert machine.steps == []
    monkeypatch.setenv('OPS', 'torchvision')
    assert machine.call() == ['mmcv, stand-in']


def test_in_somebody_elses_environment_their_mmcv_stays_and_the_stand_in_does_not(
    machine, tmp_path, monkeypatch
):
    (tmp_path / 'venv' / 'bin').mkdir(parents=True)
    (tmp_path / 'venv' / 'bin' / 'python').symlink_to(sys.executable)
    (tmp_path / 'venv' / 'pyvenv.cfg').write_text('')
    machine.mmcv = {'mmcv': '2.1.0'}
    monkeypatch.setenv('OPS', 'torchvision')
    assert machine.call() == ['mmcv'] and not machine.setup.ours
    machine.call()
    assert machine.steps == []
    monkeypatch.delenv('OPS')
    shutil.rmtree(tmp_path / 'venv' / '.mmlape')
    machine.mmcv = {}
    assert machine.call() == ['mmcv, stand-in'] and not machine.setup.ours
    machine.compiler = True
    assert machine.call() == ['mmcv']


def test_the_wheel_has_the_stand_in_and_hides_torch_from_mmcv(parts, tmp_path, monkeypatch):
    """A source whose set-up, as mmcv's, compiles where torch can be imported."""
    source = tmp_path / 'work' / 'source'
    setup = (
        'from setuptools import find_packages, setup\n'
        'try:\n    import torch\nexcept ModuleNotFoundError:\n    torch = None\n'
        'assert torch is None\n'
        'setup(name="mmcv", version="2.1.0", packages=find_packages())\n'
    )

    def fetch(*_, joined):
        (source / 'mmcv').mkdir(parents=True)
        (source / 'mmcv' / '__init__.py').write_text('')
        (source / 'setup.py').write_text(setup)
        return source

    monkeypatch.setattr(parts.stand_in, 'fetch_source', fetch)
    made = parts.stand_in.make_wheel(
        Path(sys.executable), dict(os.environ), 'mmcv', '2.1.0', tmp_path / 'work'
    )
    target = tmp_path / 'target'
    unpack = [sys.executable, '-m', 'zipfile', '-e', str(made), str(target)]
    subprocess.run(unpack, check=True)
    assert (target / 'mmcv' / '_ext.py').read_text() == SOURCE.read_text()
    assert not parts.main.mmcv_wheel.has_operators(made)
    shutil.rmtree(source)
    setup = 'raise SystemExit("error: no setuptools")\n'
    with pytest.raises(parts.common.SetupError, match=r'mmcv 2\.1\.0 without operators: '):
        parts.stand_in.make_wheel(
            Path(sys.executable), dict(os.environ), 'mmcv', '2.1.0', tmp_path / 'work'
        )


def test_its_stamp_is_no_other(parts):
    stamp = parts.stand_in.stamp('2.3.6')
    assert parts.stand_in.is_stamp(stamp) and stamp != parts.stand_in.stamp('2.3.7')
    assert not parts.stand_in.is_stamp(parts.common.digest('2.3.6'))
    assert not parts.stand_in.is_stamp(None)

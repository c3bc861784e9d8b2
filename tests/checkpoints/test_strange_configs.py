"""Configs of strangers' models: only data from explicit lists are read, and nothing that they name is run."""

import contextlib
import json
import pickle
import runpy
import shutil
import sys

import pytest
import torch
from crafted.maker import code, run
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, TASK_UTILS, TRANSFORMS
from mmseg.apis import MMSegInferencer
from safetensors.torch import save_file
from tool_runs import REPO

import mmlape
from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.contents import BuildLimit
from mmlape.checkpoints.strangers import PLAIN_DATASETS, TYPES, config_of_stranger, plain_config

BOXES = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64)),
    dict(type='PackDetInputs'),
]
MAPS = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64)), dict(type='PackSegInputs')]  # fmt: skip
NAMES = dict(classes=['a', 'b'], palette=[[1, 2, 3], [4, 5, 6]])
NEEDED = dict(data_preprocessor=dict(type='DetDataPreprocessor'), test_cfg=dict(
    nms_pre=10, min_bbox_size=0, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5), max_per_img=10,
))  # fmt: skip
STEM = dict(type='ResNet', depth=18, num_stages=1, out_indices=(0,), strides=(1,), dilations=(1,))
DETECTOR = dict(
    NEEDED, type='RetinaNet', backbone=STEM,
    neck=dict(type='FPN', in_channels=[64], out_channels=16, num_outs=1),
    bbox_head=dict(
        type='RetinaHead', num_classes=2, in_channels=16, feat_channels=16, stacked_convs=1,
        anchor_generator=dict(type='AnchorGenerator', scales=[4], ratios=[1.0], strides=[4]),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
    ),
)  # fmt: skip
SEGMENTOR = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
    backbone=dict(STEM, type='ResNetV1c', norm_cfg=dict(type='BN')),
    decode_head=dict(type='FCNHead', in_channels=64, channels=8, num_convs=1, num_classes=2),
    test_cfg=dict(mode='whole'),
)


def at(config, path, value):
    """A copy of nested dicts with another value at a path."""
    key, _, rest = path.partition('.')
    return {**config, key: at(config.get(key, {}), rest, value) if rest else value}


def detector(path=None, value=None, more='', names=NAMES, **top):
    """The text of a detector's config, with a value at a path."""
    data = dict(dataset=dict(type='CocoDataset', metainfo=names, pipeline=BOXES))
    drawn = dict(type='DetLocalVisualizer')
    whole = dict(
        default_scope='mmdet', model=DETECTOR, test_dataloader=data, visualizer=drawn, **top
    )
    whole = at(whole, path, value) if path else whole
    return ''.join(f'{name} = {each!r}\n' for name, each in whole.items()) + more


def segmentor(path=None, value=None):
    data = dict(dataset=dict(type='BaseSegDataset', metainfo=NAMES, pipeline=MAPS))
    whole = dict(default_scope='mmseg', model=SEGMENTOR, test_dataloader=data)
    whole = at(whole, path, value) if path else whole
    return ''.join(f'{name} = {each!r}\n' for name, each in whole.items())


class Traps:
    """Files of a stranger beside the weights: modules, scripts and data that write ``canary`` when they are run."""

    def __init__(self, folder):
        self.folder, self.canary = folder, folder / 'canary'
        package = folder / 'digits_trap'
        package.mkdir(exist_ok=True)
        (package / '__init__.py').touch()
        (package / 'evil.py').write_text(f'{code(self.canary)}\nf = dict\nclass C: pass\n')
        (folder / 'client').mkdir(exist_ok=True)
        (folder / 'client' / 'mc.py').write_text(code(self.canary))
        (folder / 'base.py').write_text(code(self.canary))
        (folder / 'list.pkl').write_bytes(pickle.dumps(run(self.canary)))
        (folder / 'list.yaml').write_text(
            f'!!python/object/apply:builtins.exec [{json.dumps(code(self.canary))}]\n'
        )
        self.module = 'digits_trap.evil'

    def file(self, name):
        return str(self.folder / name)

    def forget(self):
        """Let a module be imported again, and what it did be seen again."""
        for name in ('mc', 'digits_trap', self.module):
            sys.modules.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            self.canary.rmdir() if self.canary.is_dir() else self.canary.unlink()


SET = 'test_dataloader.dataset'
# Each runs code when MMEngine reads it, or builds what it stands for.
PAYLOADS = {
    'a statement': lambda t: detector(more=code(t.canary)),
    'an import': lambda t: detector(more=f'__import__({t.module!r})\n'),
    'a value': lambda t: detector(more=f'more = [{code(t.canary)}]\n'),
    'a function': lambda t: detector(more=f'def f(a={code(t.canary)}): pass\n'),
    'a class': lambda t: detector(more=f'class A: x = {code(t.canary)}\n'),
    'a comprehension': lambda t: detector(more=f'more = [{code(t.canary)} for _ in (1,)]\n'),
    'a default in a condition': lambda t: detector(more=f'if True: {code(t.canary)}\n'),
    'a base': lambda t: detector(more=f'_base_ = [{t.file("base.py")!r}]\n'),
    'a template': lambda t: detector(
        more=f"""a = '{{{{$NO_SUCH:x|\\047;__import__("os").mkdir("{t.canary}");\\047}}}}'\n"""
    ),
    'custom imports': lambda t: detector(custom_imports=dict(imports=[t.module])),
    'a scope': lambda t: detector('model._scope_', t.module),
    'a collate function': lambda t: detector('test_dataloader.collate_fn', f'{t.module}.f'),
    'a storage': lambda t: detector(SET, dict(
        type='MultiImageMixDataset', pipeline=BOXES, dataset=dict(
            type='CocoDataset', pipeline=[], ann_file='a.json', backend_args=dict(
                backend='memcached', server_list_cfg='', client_cfg='', sys_path=t.file('client'))))),
    'a data set': lambda t: detector(f'{SET}.type', f'{t.module}.C'),
    'a transform': lambda t: detector(f'{SET}.pipeline', [*BOXES, dict(type=f'{t.module}.f')]),
    'a visualizer': lambda t: detector('visualizer.type', f'{t.module}.C'),
    'a model': lambda t: detector('model', dict(type=f'{t.module}.C')),
    'a call': lambda t: detector('model', dict(type='os.mkdir', path=str(t.canary))),
    'a preprocessor': lambda t: detector('model.data_preprocessor.type', f'{t.module}.C'),
    'a backbone': lambda t: detector('model.backbone.type', f'{t.module}.C'),
    'an activation': lambda t: detector('model.neck', dict(DETECTOR['neck'], act_cfg=dict(type=f'{t.module}.C'))),
    'a norm': lambda t: detector('model.neck', dict(DETECTOR['neck'], norm_cfg=dict(type=f'{t.module}.C'))),
    'a loss': lambda t: detector('model.bbox_head.loss_cls', dict(type=f'{t.module}.C')),
    'a coder': lambda t: detector('model.bbox_head.bbox_coder.type', f'{t.module}.C'),
    'an assigner': lambda t: detector('model.train_cfg', dict(assigner=dict(type=f'{t.module}.C'))),
    "timm's norm": lambda t: detector('model.backbone', dict(
        type='mmpretrain.TIMMBackbone', model_name='resnet18', norm_layer=f'{t.module}.C')),
    "a teacher's config": lambda t: detector('model', dict(
        DETECTOR, type='KnowledgeDistillationSingleStageDetector', teacher_config=t.file('base.py'))),
    'pickled weights of classes': lambda t: segmentor('model.decode_head.loss_decode', dict(
        type='CrossEntropyLoss', class_weight=t.file('list.pkl'))),
    'YAML weights of classes': lambda t: segmentor('model.decode_head.loss_decode', dict(
        type='CrossEntropyLoss', class_weight=t.file('list.yaml'))),
    'pickled annotations': lambda t: detector(SET, dict(
        type='MultiImageMixDataset', pipeline=BOXES,
        dataset=dict(type='BaseDetDataset', pipeline=[], ann_file=t.file('list.pkl')))),
}  # fmt: skip


def saved(folder, text, kind):
    """Weights with this config, as a checkpoint, a .safetensors or a shared folder."""
    state = dict(weight=torch.zeros(1))
    if kind == 'folder':
        path = folder / 'digits'
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        (path / 'config.py').write_text(text)
        save_file(state, path / 'model.safetensors', dict(format='pt'))
        return path
    path = folder / f'digits{kind}'
    if kind == '.pth':
        torch.save(dict(meta=dict(cfg=text, dataset_meta=NAMES), state_dict=state), path)
    else:
        save_file(state, path, dict(format='pt', cfg=text))
    return path


def command(*arguments):
    def call(path):
        tool, *rest = arguments
        sys.argv = [f'{tool}.py', str(path), *map(str, rest)]
        runpy.run_path(str(REPO / 'tools' / f'{tool}.py'), run_name='__main__')

    return call


def entrances(folder):
    """What takes a model of somebody else."""
    image, out = folder / 'a.png', folder / 'out'
    return {
        'load': lambda path: mmlape.load(path, device='cpu'),
        'predict': command('predict', image, '--device', 'cpu', '--out', out),
        'share': command('share', out / 'shared'),
        'export': command('export', out / 'a.onnx'),
        'DetInferencer': lambda path: DetInferencer(weights=str(path), device='cpu'),
        'MMSegInferencer': lambda path: MMSegInferencer(weights=str(path), device='cpu'),
    }


@pytest.fixture
def traps(tmp_path, monkeypatch):
    found = Traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'argv', [])
    monkeypatch.setattr(sys, 'path', [str(REPO / 'tools'), *sys.path])
    (tmp_path / 'a.png').touch()
    yield found
    found.forget()


@pytest.mark.parametrize('case', PAYLOADS)
def test_nothing_that_a_config_names_is_run(case, traps, safe_loading, monkeypatch):
    text = PAYLOADS[case](traps)
    with contextlib.suppress(Exception), monkeypatch.context() as patch:
        # These weights do not fit, which would end it before the payload; what comes after it fails.
        patch.setattr('mmlape.apps.inference.upstream._check_weights', lambda *_: None)
        mmlape.load(saved(traps.folder, text, '.pth'), device='cpu', trust=True)
    if case == 'a visualizer':  # ours is another one
        with contextlib.suppress(Exception):
            DetInferencer(Config.fromstring(text, '.py'), device='cpu')
    assert traps.canary.exists(), 'the payload does nothing, so that nothing is shown'
    traps.forget()
    entries = {('.pth', name): enter for name, enter in entrances(traps.folder).items()}
    for container, name in (*entries, ('.safetensors', 'load'), ('folder', 'load')):
        # Upstream's inferencers end in errors of their own.
        with contextlib.suppress(Exception, SystemExit):
            entries['.pth', name](saved(traps.folder, text, container))
        assert not traps.canary.exists(), (container, name)


def test_the_message_names_what_is_refused(traps, safe_loading):
    text = segmentor(
        'model.decode_head.loss_decode', dict(type='CrossEntropyLoss', class_weight='a.pkl')
    )
    path = saved(traps.folder, text, 'folder')
    with pytest.raises(
        ValueError, match=r"model\.decode_head\.loss_decode\.class_weight='a\.pkl'.*--trust"
    ):
        mmlape.load(path)
    with pytest.raises(
        SystemExit, match=r"^error: '.*config\.py' is refused: model\..*--config\)$"
    ):
        command('predict', 'a.png', '--device', 'cpu')(path)


@pytest.mark.parametrize(
    ('path', 'value'),
    [
        ('model.backbone.style', 'os.system'), ('model.backbone.depth', 10**6), ('model.backbone.depth', float('nan')),
        ('model.backbone.base_channels', 10**9), ('model.backbone.base_channels', -(10**9)),
        ('model.backbone.plugins', [dict(cfg=dict(type='ContextBlock'))]), ('model.type', None),
        ('model.type', ['RetinaNet']), ('model.type', 'FCNHead'), ('model.type', 'mmseg.RetinaNet'),
        ('model.type', 'mmlape.Pretrained'), ('model.type', 'mmlape.CachedFeaturesHook'), ('model.type', 'DTN'),
        ('model.neck.type', 'mmdet.models.FPN'), ('model.backbone.type', 'mmlape.evil'), ('model.bbox_head.type', ''),
        ('model.__class__', 1), ('model._delete_', True), ('model.test_cfg.mode', 'print(1)'), ('model.x', b'1'),
        ('model.x', {1, 2}), ('model.x', 1j), ('model.x', '/etc/passwd'), ('model.x', 'http://a.org'),
        ('model.test_cfg.nms.type', 'print(1)'), ('model.test_cfg.nms.type', 'nms_match'),
        ('test_dataloader.dataset.pipeline', [dict(type='LoadImageFromFile', imdecode_backend='pickle')]),
        ('test_dataloader.dataset.pipeline', [dict(type='Resize', scale=(10**9, 64))]),
        ('test_dataloader.dataset.pipeline', [dict(type='LoadAnnotations', seg_map='a.npy')]),
        ('test_dataloader.dataset.pipeline', 'os.system'), ('test_dataloader', []), ('model', [1]), ('model', 1),
        ('default_scope', 'os'), ('default_scope', 1),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_in_no_list_is_refused(path, value):
    with pytest.raises(ValueError, match=r'model|pipeline|default_scope'):
        config_of_stranger(detector(path, value))


@pytest.mark.parametrize(
    'text',
    [
        'model = dict(', 'a, b = 1, 2', 'a: int = 1', 'a += 1', 'del a', 'a.b = 1', 'a["b"] = 1', 'a = b = 1',
        'from os import path', 'for a in (): pass', 'with a: pass', 'try: pass\nfinally: pass', 'f()',
        '@f\nclass A: pass', 'global a', 'assert f()', 'raise f', 'async def f(): pass',
        'match 1:\n  case _: pass', 'x = (y := 1)\nf()',
        'a = ' + '-' * 100_000 + '1', 'a = ' + '[' * 5_000 + ']' * 5_000, 'a' + '.a' * 200_000 + ' = 1', '\0', '\ud800',
        'a = ' + '1' * 2**24, b'a = 1', None, 1, ['a = 1'],
    ],
    ids=lambda text: repr(text)[:25],
)  # fmt: skip
def test_texts_that_are_not_assignments_of_data(text):
    with pytest.raises(ValueError):  # noqa: PT011
        config_of_stranger(
            detector(more=text) if isinstance(text, str) and len(text) < 2**24 else text
        )
    assert plain_config(text if isinstance(text, (str, bytes)) else None)[0] is None


def test_what_is_left_out_or_does_not_matter():
    more = "optim = f(1)\nwork_dir = '/a/b'\nmodel_name = 'os.system'\n# {{$HOME:x}}\n'words'\n"
    text = detector('model.backbone', dict(
        STEM, init_cfg=dict(type='os.system', command='true'), pretrained='a.pth',
        compile_blocks=dict(options={'a': 'b'}),
    ), more=more, names=dict(NAMES, colours='a.txt'))  # fmt: skip
    found = config_of_stranger(text)
    assert found.model == DETECTOR and found.get('work_dir') is None
    dataset = found.test_dataloader.dataset
    assert dataset == dict(type='BaseDetDataset', metainfo=NAMES, pipeline=BOXES)
    plain, reason = plain_config(text)
    assert reason is None and '{{' not in plain
    assert Config.fromstring(plain, '.py').to_dict() == found.to_dict()
    assert plain_config("default_scope = 'mmpretrain'\n") == (None, None)


@pytest.mark.parametrize(
    'names', ['a.txt', dict(classes='a.txt'), dict(classes=[1]), dict(palette=['red']), None, 1]
)
def test_names_of_classes_that_are_not_texts(names):
    assert config_of_stranger(detector(names=names)).test_dataloader.dataset.metainfo == {}


@pytest.mark.parametrize('way', ['load', 'DetInferencer'])
def test_a_plain_model_is_built(way, traps, safe_loading):
    """Ours also wants weights for it."""
    expected = contextlib.nullcontext()
    if way == 'load':
        expected = pytest.raises(CheckpointError, match=r'RetinaNet of the config: .* entries')
    with expected:
        assert entrances(traps.folder)[way](saved(traps.folder, detector(), '.pth')).visualizer


def test_every_listed_type_is_registered():
    """Of another name, MMEngine would import what it stands for."""
    import mmcv.ops
    import mmseg.datasets  # noqa: F401  registers its transforms

    for scope, names in TYPES.items():
        for name in names:
            found = []
            for registry in (MODELS, TRANSFORMS, TASK_UTILS):
                table = registry.children[scope] if scope else registry
                found.append(name in table.module_dict)
            assert any(found) or hasattr(mmcv.ops, name), (scope, name)
    for scope, name in PLAIN_DATASETS.items():
        assert name in DATASETS.children[scope].module_dict


def test_a_model_that_is_larger_than_its_weights_is_not_built(tmp_path):
    weights = saved(tmp_path, detector(), '.pth')
    for make in (
        lambda: [torch.nn.Linear(2, 2) for _ in range(10**6)],
        lambda: torch.nn.Linear(2**15, 2**15),
        lambda: torch.nn.Linear(2**20, 2**24),
    ):
        with (
            pytest.raises(CheckpointError, match='far larger than the weights'),
            BuildLimit(weights),
        ):
            make()
    with BuildLimit(weights):
        assert torch.nn.Linear(2**10, 2**10).weight.shape == (2**10, 2**10)
    path = 'model.neck.out_channels'
    with pytest.raises(CheckpointError, match='far larger than the weights'):
        mmlape.load(saved(tmp_path, detector(path, 2**17), '.pth'), device='cpu')

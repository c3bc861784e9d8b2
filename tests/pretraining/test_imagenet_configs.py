"""Every ImageNet config parses, builds, reads data, trains an epoch with MMPretrain's runner, and starts a detector."""

import copy
import re
from pathlib import Path

import pytest
import torch
import yaml
from config_utils import CONFIGS, REPO, classifier_configs, read_classifier, use_scope, write_image
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmpretrain.structures import DataSample

pytestmark = pytest.mark.usefixtures('cheap_values')
IMAGENET = CONFIGS / 'imagenet'
TEACHER = dict(type='TimmClassifier', model_name='pvt_v2_b0')
# Gradients of zero: what a class token leaves unread, as published; what compares the cells of a grid of one.
UNREAD = {
    'ceit': r'backbone\.blocks\.11\.mlp\.',
    'levit': r'backbone\.block3\.\d\.(attn\.(position|qkv)|norm\d\.(positions|ratio_mean|ratio_var))\.',
}
CLASSES = 3  # of the data set that is made here; models keep their 1000


def short(path: Path) -> str:
    return re.sub(r'_8xb\d+_in1k$', '', path.stem)


def find(name: str) -> Path:
    (path,) = IMAGENET.glob(f'{name}_8xb*_in1k.py')
    return path


# The smallest of each kind are trained; larger ones have another width and depth.
LARGER = r'(ceit-s|deit-s(?!-dtn)|deit-b|pvt-[sl]|swin-s|vit-[sb]-star)'
QUICK = ('deit-t-lape', 'vit-t-star-dtn', 'pvt-t', 't2t-vit-7-lape', 'swin-s-lape')
TRAINED = [path for path in classifier_configs() if not re.match(LARGER, path.stem)]


def of_size(larger: bool) -> list:
    found = [path for path in classifier_configs() if (path not in TRAINED) == larger]
    return [
        pytest.param(path, id=short(path), marks=() if short(path) in QUICK else pytest.mark.slow)
        for path in found
    ]


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """A folder in ImageNet's layout: images of noise, of several sizes."""
    root = tmp_path_factory.mktemp('imagenet')
    for split in ('train', 'val'):
        for label in range(CLASSES):
            for number in range(2):
                path = root / split / f'n{label:08}' / f'{number}.JPEG'
                write_image(path, (90, 70 + 9 * number), seed=label)
    return root


def small(path: Path, images: Path, work_dir: Path) -> Config:
    """A config as it is, but for the data, the size of images, and no teacher to download."""
    cfg = Config.fromfile(path)
    cfg.work_dir = str(work_dir)
    cfg.experiment_name = f'{path.stem}-{id(cfg)}'
    cfg.env_cfg.dist_cfg = None
    # One file, without the optimizer's state: those of large networks are a gigabyte, written and read again.
    cfg.default_hooks.checkpoint.update(save_best=None, save_optimizer=False)
    if 'teacher' in cfg.model:
        cfg.model.teacher = copy.deepcopy(TEACHER)
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(batch_size=3, num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(images)
        loader.dataset.metainfo = dict(classes=[f'class {label}' for label in range(CLASSES)])
        for step in loader.dataset.pipeline:
            if step.type == 'RandomResizedCrop':
                step.scale = 64
            elif step.type == 'ResizeEdge':
                step.scale = 73
            elif step.type == 'CenterCrop':
                step.crop_size = 64
    return cfg


class _OneEpoch(Hook):
    """Remembers the parameters that a training starts with, and ends it after an epoch of its 300."""

    def __init__(self, starts: dict) -> None:
        self.starts = starts

    def before_train_epoch(self, runner) -> None:
        self.starts.update({n: p.detach().clone() for n, p in runner.model.named_parameters()})

    def after_train_epoch(self, runner) -> None:
        runner.train_loop.stop_training = True


@pytest.mark.parametrize('path', of_size(larger=False))
def test_one_epoch_with_mmpretrains_runner(path, images, tmp_path):
    cfg = small(path, images, tmp_path)
    runner = Runner.from_cfg(cfg)
    model = runner.model
    waiting = {name for name, p in model.named_parameters() if p.requires_grad}
    for name in waiting.copy():
        model.get_parameter(name).register_post_accumulate_grad_hook(
            lambda _, name=name: waiting.discard(name)
        )
    starts = {}
    runner.register_hook(_OneEpoch(starts))
    runner.train()  # two steps, validation, a checkpoint

    assert not waiting, 'several processes (DDP) would wait for these gradients'
    unread = UNREAD.get(short(path).partition('-')[0], '$')
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, starts[n])}
    assert all(re.match(unread, name) for name in starts.keys() - moved)
    assert all(p.isfinite().all() for p in model.parameters())
    assert not any('teacher' in name for name in model.state_dict())
    check_decay(model, runner.optim_wrapper.optimizer)
    scalars = runner.message_hub.log_scalars
    assert 0 <= scalars['val/accuracy/top1'].current() <= 100
    assert (tmp_path / 'epoch_1.pth').is_file()


def check_decay(model, optimizer) -> None:
    """All parameters are in one group or another, those without weight decay as in DeiT."""
    groups = optimizer.param_groups
    decay = {id(p): group['weight_decay'] for group in groups for p in group['params']}
    for name, parameter in model.named_parameters():
        spared = parameter.ndim == 1 or re.search(r'(?<!layer_)position|(cls|dist)_token', name)
        full = optimizer.defaults['weight_decay']
        assert decay[id(parameter)] == (0 if spared else full), name


@pytest.mark.parametrize('path', of_size(larger=True))
def test_larger_ones_answer(path):
    cfg = read_classifier(path)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    check_decay(model, build_optim_wrapper(model, cfg.optim_wrapper).optimizer)
    assert model.eval()(torch.empty(2, 3, 224, 224, device='meta')).shape == (2, 1000)


def build(name: str, **changes) -> torch.nn.Module:
    """The classifier of a config, without a download."""
    cfg = read_classifier(find(name))
    if 'teacher' in cfg.model:
        cfg.model.teacher = copy.deepcopy(TEACHER)
    cfg.merge_from_dict(changes)
    return MODELS.build(cfg.model)


SEGMENTER = 'lape/segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512.py'
OUTPUT = {'norm.weight', 'norm.bias'}
# A classifier, the row that it starts, and what of it is left out.
STARTS = [
    ('deit-t-lape', SEGMENTER, set()),
    ('deit-t-lape', 'lape/mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco.py', {'cls_token', *OUTPUT}),
    ('deit-t-distilled-lape', SEGMENTER, {'dist_token'}),
    ('pvt-t-dtn', 'dtn/mask-rcnn_pvt-t-dtn_fpn_1x_coco.py', {'cls_token', *OUTPUT}),
    pytest.param('swin-t-lape', 'swin/mask-rcnn_swin-t-lape_fpn_1x_coco.py', OUTPUT, marks=pytest.mark.slow),
    pytest.param('swin-t-dtn', 'swin/mask-rcnn_swin-t-dtn_fpn_1x_coco.py', OUTPUT, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'config', 'left'), STARTS)
def test_a_checkpoint_starts_a_detector(name, config, left, tmp_path):
    classifier = build(name)
    checkpoint = tmp_path / 'epoch_300.pth'
    torch.save(dict(meta=dict(epoch=300), state_dict=classifier.state_dict()), checkpoint)
    cfg = Config.fromfile(CONFIGS / config)
    backbone = cfg.model.backbone
    start = dict(type='mmlape.Pretrained', source='mmlape', checkpoint=str(checkpoint))
    backbone.get('vit', backbone).init_cfg = start
    if 'pvt' in name:
        backbone.num_heads = [4, 4, 5, 8]
    use_scope(cfg.default_scope)
    model = MODELS.build(backbone)
    model.init_weights()
    ours = getattr(model, 'vit', model).state_dict()
    theirs = classifier.backbone.state_dict()
    assert theirs.keys() - ours.keys() == left
    taken = [key for key in ours.keys() & theirs.keys() if 'pos_embed' not in key]
    assert len(taken) > 100
    assert all(torch.equal(ours[key], theirs[key]) for key in taken)


def test_heads_see_what_their_names_say():
    image = torch.linspace(-2, 2, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
    for name in ('deit-t-lape', 'vit-t-star-dtn', 'pvt-t-dtn'):
        model = build(name).eval()
        (token,) = model.extract_feat(image)
        torch.testing.assert_close(model(image), model.head.layers.head(token))
    distilled = build('deit-t-distilled').eval()
    assert distilled.teacher_weight == 0.5
    ((cls_token, dist_token),) = distilled.extract_feat(image)
    heads = distilled.head.layers
    scores = (heads.head(cls_token) + heads.head_dist(dist_token)) / 2
    torch.testing.assert_close(distilled(image), scores)


def samples(labels):
    return [DataSample().set_gt_label(label) for label in labels]


def test_a_student_learns_from_labels_and_from_its_teacher():
    student = build('deit-t-distilled-lape', model=dict(teacher_weight=0.25))
    with pytest.raises(ValueError, match='init_weights'):
        student.loss(torch.zeros(1, 3, 64, 64), samples([1]))
    student.init_weights()
    teacher = student.teacher
    student.init_weights()
    assert student.teacher is teacher  # built once
    assert not any(p.requires_grad for p in teacher.parameters())
    images = torch.linspace(-2, 2, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
    before = copy.deepcopy(teacher.state_dict())
    student.train()
    assert not teacher.training
    losses = student.loss(images, samples([1, 2]))
    total, _ = student.parse_losses(losses)
    torch.testing.assert_close(total, losses['loss_label'] + losses['loss_teacher'])
    student.eval()  # the same function without draws
    losses = student.loss(images, samples([1, 2]))
    with torch.no_grad():
        cls_token, dist_token = student.head.pre_logits(student.extract_feat(images))
        answers = teacher(images, mode='tensor').argmax(1)
        scores = student.head.layers.head_dist(dist_token)
        hard = torch.nn.functional.cross_entropy(scores, answers)
        logits = student.head.layers.head(cls_token).log_softmax(1)
        target = torch.full_like(logits, 0.1 / 1000)
        target[[0, 1], [1, 2]] += 0.9
    torch.testing.assert_close(losses['loss_teacher'], 0.25 * hard)
    torch.testing.assert_close(losses['loss_label'], 0.75 * -(target * logits).sum(1).mean())
    assert all(torch.equal(before[key], value) for key, value in teacher.state_dict().items())
    assert student.to(torch.float64).teacher.state_dict()['head.weight'].dtype == torch.float64


def first_loss(student):
    student.init_weights()
    return student.loss(torch.zeros(1, 3, 64, 64), samples([1]))


@pytest.mark.parametrize(
    ('changes', 'error', 'message'),
    [
        (dict(model=dict(teacher=dict(num_classes=7))), ValueError, '7 scores, the head 1000'),
        (
            dict(model=dict(teacher=dict(num_classes=1001))),
            ValueError,
            '1001 scores, the head 1000',
        ),
        (dict(model=dict(teacher_weight=1.5)), ValueError, 'teacher_weight'),
        (dict(model=dict(head=dict(type='VisionTransformerClsHead'))), TypeError, 'DeiTClsHead'),
    ],
)
def test_a_student_that_cannot_learn_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        first_loss(build('deit-t-distilled', **changes))


def test_metafile_readme_and_configs_agree():
    meta = yaml.safe_load((IMAGENET / 'metafile.yml').read_text())
    readme = (IMAGENET / 'README.md').read_text()
    models = {entry['Name']: entry for entry in meta['Models']}
    for name, entry in models.items():
        path = REPO / entry['Config']
        (_, published, *_) = entry['Results']
        value = published['Metrics']['Top 1 Accuracy']
        paper = 'LaPE, ICCV 2023' if 'Table 1' in published['Published'] and 'lape' in name else ''
        assert published['Published'].startswith(paper)
        said = re.findall(r'Published \((.+?Table \d+)[^)]*\): top-1 ([\d.]+\d)', path.read_text())
        printed = {r['Published']: r['Metrics'].get('Top 1 Accuracy') for r in entry['Results'][1:]}
        assert said and all(printed[source] == float(figure) for source, figure in said)
        row = next(line for line in readme.splitlines() if f'[{name}]' in line)
        assert re.search(rf'\b{value}0?\b', row)
        early = published['Metrics'].get('Top 1 Accuracy (epoch 100)')
        if early is not None:
            assert f'{early:.2f}' in path.read_text() and f'| {early:.2f} |' in row

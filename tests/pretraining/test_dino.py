"""DINO: the loss is the published one, the teacher is the average of the student and never stale, neighbours vote."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from config_utils import CONFIGS, use_scope
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import MODELS
from mmengine.runner import IterBasedTrainLoop
from mmpretrain.structures import DataSample
from mmpretrain.utils import register_all_modules
from torch import nn

from mmlape.research.pretraining.dino import (
    DINOGradientsHook,
    DINOHead,
    DINOLoss,
    KNNHook,
    NearestNeighbours,
)

MICRO = CONFIGS / 'dino' / 'dino_vit-micro-dtn_1xb64_digit-images.py'
SIZES = [32, 32, 16, 16, 24]  # two global views
LENGTH = 10  # steps of a training


@pytest.fixture(autouse=True)
def scope():
    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')
    hub = MessageHub.get_current_instance()
    before = {name: hub.get_info(name) for name in ('iter', 'max_iters')}
    hub.update_info_dict(dict(iter=0, max_iters=LENGTH))
    yield
    hub.update_info_dict(before)


def build(backbone=(), head=(), **options):
    """The model of the micro config with two layers."""
    cfg = Config.fromfile(MICRO).model
    arch = dict(embed_dims=16, depth=2, num_heads=4, mlp_ratio=2)
    cfg.backbone.update(dict(arch=arch, patch_size=8))
    cfg.backbone.update(dict(backbone))
    cfg.head.update(in_channels=16, out_channels=24, hidden_channels=32, bottleneck_channels=8)
    cfg.head.update(dict(head))
    cfg.update(options)
    torch.manual_seed(0)
    return MODELS.build(cfg)


def views(batch=2, sizes=SIZES):
    torch.manual_seed(1)
    return [torch.randn(batch, 3, size, size) for size in sizes]


def train(model, steps=3, lr=0.1):
    """Yields the losses of some steps; the model is as after the update of the teacher and the student's step."""
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
    for _ in range(steps):
        losses = model.train().loss(views())
        optimizer.zero_grad()
        losses['loss'].backward()
        optimizer.step()
        yield losses


def test_the_loss_is_the_published_one():
    """Every global view of the teacher with every other view of the student, by loops, over two steps."""
    torch.manual_seed(0)
    criterion = DINOLoss(7, student_temperature=0.2, teacher_temperature=0.05, centre_momentum=0.8)
    centre = torch.zeros(7)
    for _ in range(2):
        student, teacher = torch.randn(4, 3, 7), torch.randn(2, 3, 7)
        terms, entropies = [], []
        for number, scores in enumerate(teacher):
            target = F.softmax((scores - centre) / 0.05, dim=-1)
            entropies.append(torch.special.entr(target).sum(-1).mean())
            for other, guess in enumerate(student):
                if other != number:
                    terms.append(-(target * F.log_softmax(guess / 0.2, dim=-1)).sum(-1).mean())
        assert len(terms) == 6
        expected, entropy = torch.stack(terms).mean(), torch.stack(entropies).mean()
        centre = 0.8 * centre + 0.2 * teacher.mean((0, 1))
        found = criterion(student, teacher)
        torch.testing.assert_close(found['loss'], expected)
        torch.testing.assert_close(found['teacher_entropy'], entropy)
        torch.testing.assert_close(found['divergence'], expected - entropy)
        torch.testing.assert_close(criterion.centre, centre)


def test_half_precision_compares_in_full():
    torch.manual_seed(0)
    student, teacher = torch.randn(3, 4, 16), torch.randn(2, 4, 16)
    expected = DINOLoss(16)(student, teacher)['loss']
    with torch.autocast('cpu', dtype=torch.bfloat16):
        found = DINOLoss(16)(student, teacher)['loss']
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize('norm_last_layer', [True, False])
def test_scores_are_cosines_with_prototypes(norm_last_layer):
    head = DINOHead(6, 5, hidden_channels=8, bottleneck_channels=4, norm_last_layer=norm_last_layer)
    features = torch.randn(3, 6)
    weight = head.last_layer.weight
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(
        head(features), F.cosine_similarity(head.mlp(features)[:, None], weight[None], dim=-1)
    )
    lengths = head.last_layer.parametrizations.weight.original0
    assert lengths.requires_grad is not norm_last_layer
    for number in (0, 2, 4):
        assert 0 < head.mlp[number].weight.std() < 0.03 and not head.mlp[number].bias.any()
    assert [type(layer) for layer in head.mlp] == [
        nn.Linear,
        nn.GELU,
        nn.Linear,
        nn.GELU,
        nn.Linear,
    ]
    twin = copy.deepcopy(head)
    torch.testing.assert_close(twin(features), head(features), rtol=0, atol=0)


def test_neighbours_vote_by_their_cosines():
    features = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [-1.0, 0.0]])
    neighbours = NearestNeighbours(features, torch.tensor([0, 1, 1, 2]), 3, k=3, temperature=0.5)
    scores = neighbours(torch.tensor([[5.0, 0.0]]))
    votes = [math.exp(1 / 0.5), math.exp(0) + math.exp(math.sqrt(0.5) / 0.5), 0]
    expected = torch.tensor([[vote / sum(votes) for vote in votes]])
    torch.testing.assert_close(scores, expected)
    everyone = NearestNeighbours(features, torch.tensor([0, 1, 1, 2]), 4)
    assert everyone.k == 4 and everyone(features).shape == (4, 4)


def test_the_teacher_is_the_average_of_students():
    """A copy at first, then momenta along a cosine from the given one, the published schedule."""
    model = build(momentum=0.6)
    parts = [(model.backbone, model.student['backbone']), (model.head, model.student['head'])]
    with torch.no_grad():
        for _, student in parts:
            for parameter in student.parameters():
                parameter.add_(torch.randn_like(parameter))
    expected = None
    for step in range(4):
        students = [p.detach().clone() for _, s in parts for p in s.parameters()]
        MessageHub.get_current_instance().update_info('iter', step)
        model.update_teacher()
        if expected is None:
            expected = students
        else:
            momentum = 1 - 0.4 * (1 + math.cos(math.pi * (step - 1) / LENGTH)) / 2
            expected = [
                momentum * a + (1 - momentum) * b for a, b in zip(expected, students, strict=True)
            ]
        teachers = [p for t, _ in parts for p in t.parameters()]
        torch.testing.assert_close(teachers, expected)
        with torch.no_grad():
            for _, student in parts:
                for parameter in student.parameters():
                    parameter.mul_(1.5).add_(0.1)


def test_a_training_from_a_finished_one_begins_with_a_copy():
    """Checkpoints up to version 0.2 hold the steps of their training."""
    model = build()
    model.load_state_dict({**model.state_dict(), 'steps': torch.tensor(LENGTH)})
    with torch.no_grad():
        for parameter in model.student.parameters():
            parameter.add_(1.0)
    model.update_teacher()
    for teacher, student in zip(
        model.backbone.parameters(), model.student['backbone'].parameters(), strict=True
    ):
        assert torch.equal(teacher, student)


VARIANTS = dict(
    dtn={},
    lape=dict(joining=dict(type='mmlape.LaPE'), norm_cfg=dict(type='mmlape.LN')),
    gabor=dict(attention_position=dict(type='mmlape.GaborAttention')),
    statistics=dict(norm_cfg=dict(type='mmlape.TokenBN')),
    mean=dict(out_type='avg', with_cls_token=False),
)


@pytest.mark.parametrize('variant', VARIANTS)
def test_the_teacher_equals_a_fresh_copy_at_every_step(variant):
    model = build(VARIANTS[variant])
    images = views(sizes=[32])[0]
    before = None
    for _ in train(model):
        fresh = build(VARIANTS[variant]).eval()
        fresh.load_state_dict(model.state_dict(), strict=True)
        with torch.no_grad():
            found = model.head(model.backbone(images)[-1])
            torch.testing.assert_close(
                found, fresh.head(fresh.backbone(images)[-1]), rtol=0, atol=0
            )
            assert before is None or not torch.equal(found, before)
        before = found
    assert not model.backbone.training and model.student['backbone'].training
    model.update_teacher()
    for name, value in model.student['backbone'].named_buffers():
        assert torch.equal(model.backbone.get_buffer(name), value)


def test_configs_of_parts_count():
    model = build(
        criterion=dict(type='mmlape.DINOLoss', teacher_temperature=0.07),
        data_preprocessor=dict(mean=[9.0] * 3, std=[2.0] * 3),
    )
    assert model.criterion.teacher_temperature == 0.07
    assert model.data_preprocessor.mean.flatten().tolist() == [9, 9, 9]


def test_only_the_student_learns():
    model = build()
    for losses in train(model, steps=1):
        assert set(losses) == {'loss', 'teacher_entropy', 'divergence'}
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(name.startswith('student.') for name in learning)
    without = {name for name, p in model.named_parameters() if p.grad is None}
    lengths = 'student.head.last_layer.parametrizations.weight.original0'
    assert without == {n for n, _ in model.named_parameters()} - learning
    assert lengths in without and len(learning) > 30


@pytest.mark.parametrize('num_global', [1, 2, 3])
def test_views_of_any_size_and_order_of_passes(num_global):
    """Runs of one size share a pass, which changes no score; one image is a batch."""
    model = build(num_global=num_global).eval()
    inputs = [
        torch.randn(1, 3, height, width)
        for height, width in [(32, 32), (32, 32), (16, 24), (16, 8)]
    ]
    model.update_teacher()
    teacher = torch.stack([model.head(model.backbone(view)[-1]) for view in inputs[:num_global]])
    net = model.student
    student = torch.stack([net['head'](net['backbone'](view)[-1]) for view in inputs])
    expected = copy.deepcopy(model.criterion)(student, teacher)['loss']
    torch.testing.assert_close(model.loss(inputs)['loss'], expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_done_is_said():
    """Types and ranges of single options: tests/test_checks.py."""
    for options, message in (
        (dict(momentum=1.0), r'momentum must be in \[0, 1\), got 1.0'),
        (dict(backbone=dict(out_type='featmap')), "out_type='featmap'.*'cls_token'"),
        (
            dict(backbone=dict(out_type='cls_and_dist', with_dist_token=True)),
            "'cls_and_dist'.*'avg'",
        ),
        (dict(head=dict(in_channels=17)), 'in_channels=17.*returns 16'),
        (dict(moment=0.9), "unexpected keyword argument 'moment'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            build(**options)
    for make in (
        lambda: DINOLoss(3, teacher_temperature=0),
        lambda: DINOLoss(3, centre_momentum=1),
        lambda: KNNHook(dataloader={}, temperature=0),
        lambda: DINOGradientsHook(max_norm=0),
    ):
        with pytest.raises(ValueError, match='must be'):
            make()
    model = build()
    with pytest.raises(ValueError, match='at least 2 views of every image, got no list'):
        model.loss(torch.zeros(2, 3, 32, 32))
    with pytest.raises(ValueError, match='at least 2 views of every image, got 1'):
        model.loss(views(sizes=[32]))
    with pytest.raises(ValueError, match=r'mmlape\.KNNHook'):
        model(torch.zeros(1, 3, 32, 32), mode='predict')
    runner = SimpleNamespace(model=nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r'mmlape\.DINO.*Linear'):
        DINOGradientsHook().before_train(runner)
    runner = SimpleNamespace(model=model, train_loop=IterBasedTrainLoop.__new__(IterBasedTrainLoop))
    with pytest.raises(ValueError, match='freeze_last_layer=1 counts epochs'):
        DINOGradientsHook().before_train(runner)
    runner = SimpleNamespace(
        model=model, train_loop=None, optim_wrapper=SimpleNamespace(_accumulative_counts=4)
    )
    with pytest.raises(ValueError, match='accumulative_counts must be 1 for DINO, got 4'):
        DINOGradientsHook().before_train(runner)
    runner = SimpleNamespace(model=nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r'mmlape\.DINO.*Linear'):
        KNNHook(dataloader={}).before_val_epoch(runner)
    model.update_teacher()
    MessageHub.get_current_instance().update_info('max_iters', None)
    with pytest.raises(RuntimeError, match='max_iters'):
        model.update_teacher()


class Features(nn.Module):
    """A model whose features are its inputs; batches of a loader are its list."""

    neighbours = None

    def data_preprocessor(self, batch, training):
        return batch

    def extract_feat(self, inputs):
        assert not self.training
        return inputs + 1, inputs


class Loader(list):
    """Of three images, the first of which is there again to fill up a batch."""

    def __init__(self, classes):
        sized = dict(metainfo=dict(classes=classes), __len__=lambda _: 3)
        self.dataset = type('Images', (), sized)()
        labels = torch.tensor([0, 2, 1, 0])
        for part in ((0, 1), (2, 3)):
            found = [DataSample().set_gt_label(labels[n]) for n in part]
            self.append(dict(inputs=torch.eye(4)[labels[[*part]]], data_samples=found))


@pytest.mark.parametrize('classes', [None, 'abcde'])
def test_neighbours_are_known_during_a_test(classes):
    built, model, loader = [], Features(), Loader(classes)
    runner = SimpleNamespace(
        model=model, seed=7, build_dataloader=lambda _, seed: (built.append(seed), loader)[1]
    )
    hook = KNNHook(dataloader={}, k=2, temperature=0.5)
    for training, part in ((True, 'val'), (False, 'test')):
        model.train(training)
        getattr(hook, f'before_{part}_epoch')(runner)
        assert model.training == training
        found = model.neighbours
        assert (found.k, found.temperature) == (2, 0.5)
        assert torch.equal(found.votes.argmax(1), torch.tensor([0, 2, 1]))
        assert found.votes.shape == (3, 5 if classes else 3)
        assert torch.equal(found.features, torch.eye(4)[[0, 2, 1]])
        getattr(hook, f'after_{part}_epoch')(runner)
        assert model.neighbours is None
    assert built == [7]


def test_predictions():
    model = build().eval()
    images = views(batch=3, sizes=[32])[0]
    features = model.extract_feat(images)[-1]
    model.neighbours = NearestNeighbours(features, torch.tensor([2, 0, 1]), 3, k=1)
    results = model(images, mode='predict')
    assert [sample.pred_label.item() for sample in results] == [2, 0, 1]
    assert all(sample.pred_score.sum().item() == pytest.approx(1) for sample in results)


@pytest.mark.parametrize(('epoch', 'max_norm'), [(0, 1.0), (1, 1.0), (1, None)])
def test_gradients_are_clipped_one_by_one_and_the_last_layer_waits(epoch, max_norm):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    runner = SimpleNamespace(
        model=model,
        epoch=epoch,
        optim_wrapper=SimpleNamespace(optimizer=optimizer),
        train_loop=None,
    )
    hook = DINOGradientsHook(max_norm)
    hook.before_train(runner)
    last = model.student['head'].last_layer.parametrizations.weight.original1
    before = last.detach().clone()
    given = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) / parameter.numel() ** 0.5
            given[parameter] = parameter.grad.clone()
    optimizer.step()
    norms = torch.stack([gradient.norm() for gradient in given.values()])
    assert (norms > 1).any() and (norms < 1).any()
    for parameter, gradient in given.items():
        if parameter is not last or epoch:
            scale = min(1.0, 1 / (gradient.norm().item() + 1e-6)) if max_norm else 1.0
            torch.testing.assert_close(parameter.grad, scale * gradient)
    assert torch.equal(last, before) == (epoch == 0)
    assert (last in optimizer.state) == (epoch == 1)
    hook.after_train(runner)
    given[last] = last.grad = torch.ones_like(last)
    optimizer.step()
    torch.testing.assert_close(last.grad, torch.ones_like(last))


def test_what_the_student_starts_from_is_the_teachers_start_too():
    """The init_cfg of the config: a standard deviation of 0.12."""
    model = build()
    assert model.student['backbone'].blocks[0].mlp.fc1.weight.std() < 0.03
    model.init_weights()
    ours, theirs = model.backbone.state_dict(), model.student['backbone'].state_dict()
    assert 0.1 < theirs['blocks.0.mlp.fc1.weight'].std() < 0.14
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())

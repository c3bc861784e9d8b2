"""What is derived from parameters lives for one pass, however they change: outputs are those of a fresh model."""

import copy

import pytest
import torch
from backbone_variants import VARIANTS, build_vit
from config_utils import marked
from mmengine.model import ExponentialMovingAverage
from registered import BACKBONES
from torch import nn
from torch.utils._pytree import tree_leaves

IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
BUILDS = {**VARIANTS, **BACKBONES}
# What derives something from parameters: rows of a joining, maps of DTN, biases of scores, angles, shares of two maps.
EVERY_WAY = (
    'vit-lape', 'adapter-dtn-with-prefix', 'vit-windows-relative', 'adapter-gabor-attention', 'QuadraticBias',
    'MixedRotaryPosition', 'SharedRelativePositionMlp', 'DifferentialAttention',
)  # fmt: skip


def set_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)


def add_to_data(model):
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)


def step_in_eval_mode(model):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()


@torch.no_grad()
def copy_(model):
    for parameter in model.parameters():
        parameter.copy_(parameter + 0.1 * torch.randn_like(parameter))


@torch.no_grad()
def foreach_add_(model):
    parameters = list(model.parameters())
    torch._foreach_add_(parameters, [torch.randn_like(p) for p in parameters], alpha=0.1)


def new_parameters(model):
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            changed = parameter.detach() + 0.1 * torch.randn_like(parameter)
            setattr(module, name, nn.Parameter(changed))


CHANGES = (set_data, add_to_data, step_in_eval_mode, copy_, foreach_add_, new_parameters)


def same(found, expected):
    return all(map(torch.equal, tree_leaves(found), tree_leaves(expected)))


@pytest.mark.parametrize('name', marked(BUILDS, BACKBONES))
@torch.no_grad()
def test_as_a_fresh_model_answers(name):
    """After the change that is hardest to see: neither addresses nor version counters say it."""
    model = BUILDS[name]().eval()
    foreach_add_(model)
    fresh = copy.deepcopy(model)
    before = tree_leaves(model(IMAGE))
    add_to_data(model)
    fresh.load_state_dict(model.state_dict(), strict=True)
    after = tree_leaves(model(IMAGE))
    assert same(after, fresh(IMAGE))
    assert not any(a.numel() and torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize('name', EVERY_WAY)
@torch.no_grad()
def test_after_every_way_of_a_change(name):
    """All ways one after the other, as each has an evaluation before it; the list of those that fail is empty."""
    pristine = BUILDS[name]().eval()
    model, failed = copy.deepcopy(pristine), []

    def check(way, call, state):
        """A model that has never run answers the same with these weights."""
        fresh = copy.deepcopy(pristine)
        fresh.load_state_dict(state, strict=True)
        if not same(call(IMAGE), fresh(IMAGE)):
            failed.append(way)

    foreach_add_(model)
    model(IMAGE)
    for change in CHANGES:
        with torch.enable_grad():
            change(model)
        check(change.__name__, model, model.state_dict())
    average = ExponentialMovingAverage(model, momentum=0.5, update_buffers=True)
    for _ in range(2):  # the first update copies
        average.update_parameters(model)
        check('average', average.eval(), average.module.state_dict())
        add_to_data(model)
    other = copy.deepcopy(model)
    add_to_data(other)
    parameters = dict(other.named_parameters())
    check(
        'functional_call',
        lambda image: torch.func.functional_call(model, parameters, (image,)),
        other.state_dict(),
    )
    check('afterwards', model, model.state_dict())
    if not torch.cuda.is_available():  # it would want the model on the first GPU
        parallel = nn.DataParallel(model)
        parallel(IMAGE)
        add_to_data(model)
        check('DataParallel', parallel, model.state_dict())
    assert failed == []


@pytest.fixture(
    params=[dict(joining=dict(type='mmlape.LaPE')), dict(norm_cfg=dict(type='mmlape.DTN'))]
)
def vit(request):
    model = build_vit(**request.param).eval()
    foreach_add_(model)
    with torch.no_grad():
        model(IMAGE)
    return model


def test_vmap_over_images_and_over_models(vit):
    images = torch.randn(3, 2, 3, 32, 48)
    with torch.no_grad():
        expected = torch.stack([vit(batch)[0] for batch in images])
        found = torch.vmap(lambda batch: vit(batch)[0])(images)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        models = [vit]
        for _ in range(2):
            models.append(copy.deepcopy(models[-1]))
            foreach_add_(models[-1])
        parameters, buffers = torch.func.stack_module_state(models)
        found = torch.vmap(lambda p, b: torch.func.functional_call(vit, (p, b), (images[0],))[0])(
            parameters, buffers
        )
        expected = torch.stack([model(images[0])[0] for model in models])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(vit(images[0])[0], expected[0])


def test_func_grad(vit):
    """Also per image, by vmap; the model trains as before afterwards."""
    images = torch.randn(3, 3, 32, 48)
    parameters = {name: parameter.detach() for name, parameter in vit.named_parameters()}

    def loss(parameters, image):
        return torch.func.functional_call(vit, parameters, (image[None],))[0].square().mean()

    def expected(image):
        vit.zero_grad()
        vit(image[None])[0].square().mean().backward()
        return {name: parameter.grad.clone() for name, parameter in vit.named_parameters()}

    gradients = [expected(image) for image in images]
    found = torch.func.grad(loss)(parameters, images[0])
    torch.testing.assert_close(found, gradients[0], rtol=1e-4, atol=1e-5)
    per_image = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, images)
    for index, wanted in enumerate(gradients):
        found = {name: gradient[index] for name, gradient in per_image.items()}
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert all(
        torch.equal(value, gradients[0][name]) for name, value in expected(images[0]).items()
    )

"""What is derived from parameters lives for one pass; only a deployed model keeps it."""

import pickle

import pytest
import torch
from backbone_variants import JOININGS, build_vit

from mmlape.position import LaPE

IMAGE = torch.randn(1, 3, 64, 64)


def lape(**options):
    model = build_vit(joining=dict(type='mmlape.LaPE'), **options).eval()
    for norm in model.position.joining.norms:
        torch.nn.init.normal_(norm.weight)
    return model


@pytest.fixture
def computed(monkeypatch):
    """How often a plan was computed."""
    calls, forward = [], LaPE.forward
    monkeypatch.setattr(LaPE, 'forward', lambda self, w: calls.append(w.shape) or forward(self, w))
    return calls


@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_once_per_pass(computed, mode):
    model = lape()
    with mode():
        for _ in range(3):
            model(IMAGE)
    assert len(computed) == 3


@pytest.mark.parametrize('joining', JOININGS.values(), ids=JOININGS.keys())
def test_deploy_is_equal_to_the_bit(joining):
    model = build_vit(joining=joining).eval()
    other = torch.randn(1, 3, 40, 100)
    expected = [model(image)[0].detach() for image in (IMAGE, other)]
    model.switch_to_deploy()
    for image, value in zip((IMAGE, other) * 2, expected * 2, strict=True):
        assert torch.equal(model(image)[0], value)
    assert not any(p.requires_grad for p in model.parameters())


def test_deploy_computes_once_even_with_gradients_on(computed):
    model = lape()
    model.switch_to_deploy()
    for mode in (torch.inference_mode, torch.enable_grad, torch.no_grad):
        with mode():
            assert not model(IMAGE)[0].requires_grad
    assert len(computed) == 1


def test_deployed_plans_of_autocast_and_full_precision_are_apart():
    model = lape()
    model.switch_to_deploy()
    expected = lape_again(model)(IMAGE)[0]
    with torch.autocast('cpu', dtype=torch.bfloat16):
        model(IMAGE)
    assert torch.equal(model(IMAGE)[0], expected)


def lape_again(model):
    """The same weights, not deployed."""
    again = lape()
    again.load_state_dict(model.state_dict())
    return again


@pytest.mark.parametrize(
    'change',
    [
        lambda m: m.load_state_dict({k: v + 0.5 for k, v in m.state_dict().items()}),
        lambda m: m.double(),
    ],
    ids=['load', 'move'],
)
def test_loading_and_moving_start_a_deployed_model_afresh(change):
    model = lape()
    model.switch_to_deploy()
    model(IMAGE)
    change(model)
    image = IMAGE.to(next(model.parameters()).dtype)
    assert torch.equal(model(image)[0], lape_again(model).to(image.dtype)(image)[0])


def test_a_deployed_model_keeps_no_more_than_its_bytes(computed):
    model = lape()
    model.switch_to_deploy()
    store = model.position._store
    one = 4 * 1 * 17 * 24 * 4  # layers x tokens x channels x bytes
    store.max_bytes = 2 * one
    for side in (16, 32, 48, 64):
        model(torch.randn(1, 3, side, side))
    assert 0 < store.num_bytes() <= 2 * one
    model(IMAGE)
    assert len(computed) == 4
    store.max_bytes = 10  # nothing fits
    model(torch.randn(1, 3, 80, 80))
    assert store.num_bytes() == 0


def test_a_deployed_model_can_be_pickled():
    model = lape()
    model.switch_to_deploy()
    expected = model(IMAGE)[0]
    assert torch.equal(pickle.loads(pickle.dumps(model))(IMAGE)[0], expected)

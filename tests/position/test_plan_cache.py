"""Position costs nothing per image at inference, and is never stale."""

import copy

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


def test_once_per_grid_without_gradients(computed):
    model = lape()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(3):
                model(IMAGE)
                model(torch.randn(2, 3, 32, 80))
    assert len(computed) == 2


def test_anew_in_every_step_with_gradients(computed):
    model = lape().train()
    for _ in range(3):
        model(IMAGE)
    assert len(computed) == 3


def change_by_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(IMAGE)[
        0
    ].square().sum().backward()  # in evaluation mode, as in fine-tuning with frozen statistics
    optimizer.step()


def change_by_loading(model):
    model.load_state_dict({k: v + 0.5 for k, v in model.state_dict().items()})


def change_as_the_ema_hook_does(model):
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data + 0.5)
    model.eval()


def change_by_moving(model):
    model.double()


@pytest.mark.parametrize(
    'change', [change_by_step, change_by_loading, change_as_the_ema_hook_does, change_by_moving]
)
@pytest.mark.parametrize('inside', [False, True])
def test_never_stale(change, inside):
    """``inside``: the change reaches the ViT through its parent."""
    model = lape()
    owner = torch.nn.Sequential(model) if inside else model
    with torch.no_grad():
        owner(IMAGE)
    change(owner)
    fresh = copy.deepcopy(model)
    image = IMAGE.to(next(model.parameters()).dtype)
    with torch.no_grad():
        assert torch.equal(model(image)[0], fresh(image)[0])


def test_autocast_and_full_precision_do_not_share_plans():
    model = lape()
    with torch.no_grad():
        expected = model(IMAGE)[0]
        with torch.autocast('cpu', dtype=torch.bfloat16):
            model(IMAGE)
        assert torch.equal(model(IMAGE)[0], expected)


def test_a_plan_from_inference_mode_serves_no_grad():
    model = lape()
    with torch.inference_mode():
        expected = model(IMAGE)[0].clone()
    with torch.no_grad():
        assert torch.equal(model(IMAGE)[0], expected)


@pytest.mark.parametrize('joining', JOININGS.values(), ids=JOININGS.keys())
def test_deploy_is_equal_to_the_bit(joining):
    model = build_vit(joining=joining).eval()
    other = torch.randn(1, 3, 40, 100)
    expected = [model(image)[0].detach() for image in (IMAGE, other)]
    model.switch_to_deploy()
    for image, value in zip((IMAGE, other), expected):
        assert torch.equal(model(image)[0], value)
    assert not any(p.requires_grad for p in model.parameters())


def test_deploy_computes_once_even_with_gradients_on(computed):
    model = lape()
    model.switch_to_deploy()
    for _ in range(3):
        model(IMAGE)
    assert len(computed) == 1


def test_no_layer_norm_on_position_per_image_at_inference(monkeypatch):
    """Counted in operators: 2 per block and the final one are what any ViT needs."""
    model, calls, original = lape(), [], torch.nn.functional.layer_norm
    monkeypatch.setattr(
        torch.nn.functional,
        'layer_norm',
        lambda x, *a, **k: calls.append(x.shape) or original(x, *a, **k),
    )
    with torch.no_grad():
        model(IMAGE)
        assert len(calls) == 2 * 4 + 1 + 4
        calls.clear()
        model(IMAGE)
    assert len(calls) == 2 * 4 + 1


def test_few_grids_are_kept():
    model = lape()
    model.position.plans.max_grids = 2
    with torch.no_grad():
        for side in (16, 32, 48, 64):
            model(torch.randn(1, 3, side, side))
    assert len(model.position.plans._plans) == 2

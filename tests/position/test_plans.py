"""What is derived from parameters is made once per pass; a deployed model caches it."""

import copy
import pickle

import pytest
import torch
from backbone_variants import JOININGS, build_adapter, build_vit, randomise

from mmlape.layout import MAX_BYTES
from mmlape.position.joining import PlanCachingModule

IMAGE = torch.randn(1, 3, 64, 64)
LAPE = dict(joining=dict(type='mmlape.LaPE'))
# Under autocast, the network of the second one has another result.
LAPE_AND_MLP = dict(LAPE, attention_position=dict(type='mmlape.SharedRelativePositionMlp'))


@pytest.fixture
def computed(monkeypatch):
    """A list that grows with every plan that is made."""
    made, planned = [], PlanCachingModule.planned

    def counted(make):
        plan = make()
        if plan is not None:  # as of a position that has no bias
            made.append(plan)
        return plan

    monkeypatch.setattr(
        PlanCachingModule,
        'planned',
        lambda self, key, make: planned(self, key, lambda: counted(make)),
    )
    return made


def gabor(parts):
    position = dict(type='mmlape.GaborAttention', parts=parts)
    return dict(attention_position=position, window_size=[2, None] * 2)


BUILDS = {
    **{
        name: lambda joining=joining: build_vit(joining=joining)
        for name, joining in JOININGS.items()
    },
    **{
        kind: lambda kind=kind: build_vit(attention_position=dict(type=f'mmlape.{kind}'))
        for kind in ('RotaryPosition', 'MixedRotaryPosition')
    },
    'gabor 2,3': lambda: build_vit(**gabor('2,3')),
    'gabor 2,3,4': lambda: build_vit(**gabor('2,3,4')),
    'gabor 4 in an adapter': lambda: build_adapter(gabor('4')),
}


@pytest.mark.parametrize('build', BUILDS.values(), ids=BUILDS.keys())
def test_deploy_is_equal_to_the_bit_and_computes_nothing_twice(build, computed):
    model = randomise(build())
    images = (IMAGE, torch.randn(1, 3, 40, 100))
    expected = [out.detach() for image in images for out in model(image)]
    once = len(computed)
    model.switch_to_deploy()
    for mode in (torch.inference_mode, torch.enable_grad, torch.no_grad):
        with mode():
            got = [out for image in images for out in model(image)]
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert once and len(computed) == 2 * once
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_once_per_pass(computed, mode):
    model = build_vit(**LAPE)
    with mode():
        for _ in range(3):
            model(IMAGE)
    assert len(computed) == 3


def copy_of(model):
    """The same weights, not deployed."""
    again = build_vit(**LAPE_AND_MLP).to(next(model.parameters()).dtype).eval()
    again.load_state_dict(model.state_dict())
    return again.requires_grad_(False)


def under_autocast(model):
    with torch.autocast('cpu', dtype=torch.bfloat16):
        model(IMAGE)


@pytest.mark.parametrize(
    'change',
    [
        lambda m: m.load_state_dict({k: v + 0.5 for k, v in m.state_dict().items()}),
        lambda m: m.double(),
        under_autocast,
    ],
    ids=['load', 'move', 'autocast'],
)
def test_a_deployed_model_answers_for_what_it_is_now(change):
    model = randomise(build_vit(**LAPE_AND_MLP))
    model.switch_to_deploy()
    if change is not under_autocast:
        model(IMAGE)
    change(model)
    image = IMAGE.to(next(model.parameters()).dtype)
    expected = copy_of(model)(image)[0]
    assert torch.equal(model(image)[0], expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(image)[0], expected)
    assert model.position._store.max_bytes == MAX_BYTES


def test_a_deployed_plan_is_of_one_dtype_of_autocast():
    model = randomise(build_vit(**LAPE_AND_MLP))
    other = copy.deepcopy(model)
    model.switch_to_deploy()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        model(IMAGE)
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.float16):
        assert torch.equal(model(IMAGE)[0], other(IMAGE)[0])

"""What models keep from one image to the next is bounded, however many sizes they see."""

import gc

import pytest
import torch
from backbone_variants import ATTENTION_POSITIONS, build_adapter, build_vit

from mmlape.layout import MAX_BYTES, GridCache

SIZES = [(4 * (8 + i), 4 * (27 - i)) for i in range(0, 20, 3)]
MODELS = {
    'lape': dict(joining=dict(type='mmlape.LaPE')),
    'shared': dict(joining=dict(type='mmlape.SharedJoining')),
    'relative': dict(
        attention_position=ATTENTION_POSITIONS['relative'], window_size=[2, None, None, (2, 3)]
    ),
    'gabor': dict(attention_position=ATTENTION_POSITIONS['gabor']),
}


def reachable(kind):
    """Objects of a class that have not been freed."""
    gc.unfreeze()  # what tests/conftest.py froze
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def num_bytes(tensors):
    """Of their storages."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize('options', MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(
    'mode', [torch.no_grad, pytest.param(torch.inference_mode, marks=pytest.mark.slow)]
)
def test_evaluation_of_many_sizes_keeps_nothing(options, mode):
    """A single relative bias of such a grid has more than a megabyte."""
    stores = reachable(GridCache)  # of what depends on sizes alone: the next test
    model = build_vit(**options, patch_size=4).eval()
    with mode():
        model(torch.randn(1, 3, *SIZES[-1]))
        before = reachable(torch.Tensor)
        for size in SIZES:
            model(torch.randn(1, 3, *size))
    for store in stores:
        store.clear()
    known = {id(tensor) for tensor in before}
    assert num_bytes(t for t in reachable(torch.Tensor) if id(t) not in known) < 2**16


def test_what_serves_all_models_is_bounded(monkeypatch):
    """Sinusoids, turns, offsets of DTN and reference points."""
    models = [
        build_vit(
            position=dict(type='mmlape.SinusoidalPosition', axes=2),
            attention_position=dict(type='mmlape.RotaryPosition'),
            norm_cfg=dict(type='mmlape.DTN'),
            patch_size=4,
        ),
        build_adapter(),
    ]
    stores, limit = reachable(GridCache), 2**17
    for store in stores:
        store.clear()
        monkeypatch.setattr(store, 'max_bytes', limit)
    with torch.no_grad():
        for model in models:
            for size in SIZES:
                model.eval()(torch.randn(1, 3, *size))
    kept = [store.num_bytes() for store in stores]
    assert max(kept) <= limit < 2 * sum(kept)  # one of them was full


def test_limits():
    assert all(store.max_bytes <= MAX_BYTES <= 2**26 for store in reachable(GridCache))

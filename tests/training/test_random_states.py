"""Positions in the data, and the random state of each."""

import pickle
import random

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler

from mmlape.training import exact_resume
from mmlape.training.exact_resume import (
    ResumedIterator,
    SeededBatch,
    SeededBatches,
    set_random_state,
)


def state():
    """An odd number of normal values, which leaves one in store, in NumPy and in Python."""
    normal = random.gauss(0, 1), float(np.random.randn())
    return *normal, random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_key_is_a_state():
    states = []
    for key in ((1, 2), (1, 3), (2, 1), (1, 2, 0), (1, 2)):
        set_random_state(*key)
        states.append(state())
    assert states[0] == states[-1] and len(set(states)) == 4
    assert all(len(set(column)) == 4 for column in zip(*states, strict=True))
    with pytest.raises(ValueError, match='non-negative'):
        set_random_state(-1)


def test_a_batch_sets_the_state_of_each_image_and_none_while_it_is_sent():
    batch = SeededBatch([5, 7], (3, 1), range(4, 8, 2))
    set_random_state(9)
    sent = pickle.loads(pickle.dumps(batch))
    after = state()
    set_random_state(9)
    assert after == state()
    seen = {index: state() for index in sent}
    assert list(seen) == [5, 7]
    set_random_state(3, 1, 6)
    assert seen[7] == state()


def batches(monkeypatch, rank, processes, size, skip=0, sampler=DefaultSampler, endless=False):
    """The batches of one process: per step (index, position)."""
    for module in ('mmlape.training.exact_resume', 'mmengine.dataset.sampler'):
        monkeypatch.setattr(f'{module}.get_dist_info', lambda: (rank, processes))
    inner = BatchSampler(sampler(range(24), shuffle=True, seed=5), size, drop_last=False)
    placed = SeededBatches(inner, seed=5, endless=endless)
    placed.skip = skip
    steps = []
    for batch in placed:
        steps.append(list(zip(batch.indices, batch.places, strict=True)))
        if len(steps) == 9:
            break
    return steps


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
def test_the_same_images_and_numbers_for_any_number_of_processes(monkeypatch, sampler):
    one = batches(monkeypatch, 0, 1, 4, sampler=sampler)
    two = [batches(monkeypatch, rank, 2, 2, sampler=sampler) for rank in range(2)]
    for step, whole in enumerate(one):
        assert sorted(whole) == sorted(two[0][step] + two[1][step])
        assert [place for _, place in sorted(whole, key=lambda pair: pair[1])] == list(
            range(4 * step, 4 * step + 4)
        )


@pytest.mark.parametrize('endless', [False, True])
def test_beginning_in_the_middle(monkeypatch, endless):
    whole = batches(monkeypatch, 1, 2, 2, endless=endless)
    assert len(whole) == (9 if endless else 6)
    assert batches(monkeypatch, 1, 2, 2, skip=2, endless=endless)[:4] == whole[2:6]
    if endless:  # the second pass is in another order, and its places go on
        assert [index for step in whole[:3] for index, _ in step] != [
            index for step in whole[6:] for index, _ in step
        ]
        assert whole[6][0][1] == 2 * 2 * 6 + 1


def test_what_is_skipped_is_taken_by_the_iterator_that_is_used():
    placed = SeededBatches(BatchSampler(range(6), 2, False), seed=0)
    placed.skip = 2
    iter(placed)
    assert [batch.indices for batch in placed] == [[4, 5]]
    assert [batch.indices for batch in placed] == [[0, 1], [2, 3], [4, 5]]


def test_a_resumed_loop_skips_batches():
    for skip in (lambda start: start.skip_iter(3), lambda start: [next(start) for _ in range(3)]):
        start = ResumedIterator([None] * 3, [10, 11])
        skip(start)
        assert next(start) == 10
    assert len({exact_resume.STEP, exact_resume.DATA, exact_resume.VALIDATION}) == 3

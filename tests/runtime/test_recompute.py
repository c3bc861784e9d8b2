"""Blocks that are computed again in the backward pass. Every token norm in them: tests/norm/test_every_norm.py."""

import threading

import pytest
import torch
from torch import Tensor, nn

from mmlape.norm import TokenBN
from mmlape.runtime.recompute import once_per_pass, recomputed


class Counting(nn.Module):
    """Multiplies by the number of what was counted before, which training increases."""

    keeps_statistics = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('counted', torch.tensor(0.0))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x * once_per_pass(self._count)).exp()

    def _count(self) -> Tensor:
        self.counted.add_(1)
        return self.counted.clone()


class Nested(nn.Module):
    """A recomputed block inside of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Counting()

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self.inner, recomputed(self.inner, x).sin()).sin()


def gradient(out: Tensor, x: Tensor, **options) -> Tensor:
    return torch.autograd.grad(out.sum(), x, **options)[0]


@pytest.fixture
def x():
    return torch.tensor([0.1, 0.2], requires_grad=True)


def test_counts_once_and_answers_as_before(x):
    block = Counting()
    for call in (1, 2, 3):
        out = recomputed(block, x)
        assert torch.equal(out, (x * call).exp())
        assert torch.equal(gradient(out, x), call * out)
        assert block.counted == call and block.calls == 2 * call


def test_backward_may_run_twice(x):
    """Each run recomputes the block, from the start of its record."""
    block = nn.Sequential(Counting(), Counting())
    out = recomputed(block, x)
    first, second = (gradient(out, x, retain_graph=True) for _ in range(2))
    assert torch.equal(first, second)
    assert [(part.calls, part.counted.item()) for part in block] == [(3, 1), (3, 1)]


def test_passes_of_several_blocks_before_their_backward_passes(x):
    block = Counting()
    outs = [recomputed(block, x) for _ in range(3)]
    for call in (2, 0, 1):
        torch.testing.assert_close(gradient(outs[call], x), (call + 1) * outs[call])
    assert block.counted == 3


@pytest.mark.parametrize('whole', [recomputed, lambda block, x: block(x)])
def test_blocks_inside_of_blocks(x, whole):
    block = Nested()
    out = whole(block, x)
    expected = ((x.exp().sin()) * 2).exp().sin()
    assert torch.equal(out, expected)
    wanted = gradient(expected, x)
    for _ in range(2):
        torch.testing.assert_close(gradient(out, x, retain_graph=True), wanted)
    assert block.inner.counted == 2


def test_a_pass_inside_of_a_recomputation_of_another_thread_counts(x):
    """Records belong to a thread: that of the backward pass must not answer others."""
    block, other = Counting(), Counting()

    class Meanwhile(nn.Module):
        keeps_statistics = True

        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=other, args=(x.detach(),))
            thread.start()
            thread.join()
            return block(x)

    out = recomputed(Meanwhile(), x)
    gradient(out, x)
    assert (other.counted, block.counted) == (2, 1)


def test_without_gradients_nothing_is_kept(x):
    block = Counting()
    with torch.no_grad():
        assert recomputed(block, x).grad_fn is None
    assert block.calls == 1


def test_in_evaluation(x):
    norm = TokenBN(2).eval()
    out = recomputed(norm, x.view(1, 1, 2))
    assert gradient(out, x).isfinite().all() and norm.num_batches_tracked == 0


def test_an_error_inside_leaves_nothing_behind(x):
    class Failing(Counting):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError('inside')

    with pytest.raises(KeyError, match='inside'):
        recomputed(Failing(), x)
    made = [once_per_pass(lambda: 1), once_per_pass(lambda: 2)]
    assert made == [1, 2]


def test_a_block_that_changes_in_between_is_refused(x):
    class Changing(Counting):
        times = 1

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = super().forward(x)
            return x

    block = Changing()
    # PyTorch stops a recomputation as soon as it has all that it needs.
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        out = recomputed(block, x) * 2
        block.times = 2
        with pytest.raises(RuntimeError, match='changed between'):
            gradient(out, x)

"""DTN in all of its options, shared by the tests of all ways to compute it."""

from torch import nn

OPTIONS = [
    dict(),
    dict(stabilize=False),
    dict(pool=2),
    dict(pool=3, stabilize=False),
    dict(variance_only=True),
    dict(ratio_mean=0.25, ratio_var=0.75),
    dict(positions='uniform'),
    dict(positions='banded', band=3, stabilize=False),
    dict(position_init='random'),
]


def randomised(norm):
    """Initial values hide errors."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter, std=0.5)
    return norm

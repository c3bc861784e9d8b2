"""Short names of the embeddings and joinings that the papers compare, for command lines, experiments and tests."""

from __future__ import annotations

POSITIONS: dict[str, dict] = {
    'learned': dict(type='mmlape.LearnedPosition'),
    'sinusoidal_1d': dict(type='mmlape.SinusoidalPosition', axes=1),
    'sinusoidal_2d': dict(type='mmlape.SinusoidalPosition', axes=2),
    'gabor': dict(type='mmlape.GaborPosition'),
    'none': dict(type='mmlape.NoPosition'),
}
# The rows of LaPE (ICCV 2023), Table 7.
JOININGS: dict[str, dict] = {
    'default': dict(type='mmlape.DefaultJoining'),
    'shared': dict(type='mmlape.SharedJoining'),
    'unshared': dict(type='mmlape.UnsharedJoining'),
    'lape_sharing': dict(type='mmlape.LaPE', progressive=False),
    'lape': dict(type='mmlape.LaPE'),
}

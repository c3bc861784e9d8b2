"""mmlape's own operators, compiled into the cache: seconds, and the environment works without it."""

from common import ROOT, say

BUILD = ROOT / 'mmlape' / 'ops' / 'build.py'
SOURCES = [BUILD, *sorted(ROOT.glob('mmlape/ops/csrc/*'))]


def compile_operators(setup) -> None:
    """By the file that compiles on first use, too; it finds what an earlier set-up on this machine compiled."""
    if not setup.run(setup.python, BUILD, quiet=True):
        say('      attention and DTN run on CPUs in their slower PyTorch form (reason above)')

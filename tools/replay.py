"""Removed: mmlape.StopAtNonFiniteHook names the first module that is not finite.

    python tools/replay.py

See docs/training.md.
"""

import argparse
import sys

parser = argparse.ArgumentParser(description='Was removed; see docs/training.md.')
parser.parse_known_args()
sys.stderr.write(
    'error: mmlape replay was removed; the error of mmlape.StopAtNonFiniteHook names iteration, loss and the first '
    'module (docs/training.md)\n'
)
sys.exit(2)

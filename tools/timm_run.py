#!/usr/bin/env python
"""Run a script of timm's repository, unmodified, with mmlape's models registered.

timm's train.py and validate.py are in timm's repository, not in its wheel, and know only timm's models. This registers
mmlape's first, so that ``--model lape_deit_tiny_patch16_224`` and the like work:

    mmlape timm_run pytorch-image-models/train.py data/imagenet --model lape_deit_tiny_patch16_224 ...
    torchrun --nproc_per_node 8 tools/timm_run.py pytorch-image-models/train.py ...

`mmlape docs pretraining` has whole commands.
"""

import os
import runpy
import sys

from mmlape.cli import run_program, wrong_usage
from mmlape.cpu.memory import keep_freed_memory
from mmlape.cpu.wait_policy import set_wait_policy


def main() -> None:
    """Run ``sys.argv[1]`` as the main program, with the arguments that follow."""
    if len(sys.argv) < 2 or sys.argv[1] in ('-h', '--help'):
        print(__doc__.strip())
        sys.exit(0 if len(sys.argv) > 1 else 2)
    script = sys.argv[1]
    if not os.path.isfile(script):
        wrong_usage(f'there is no script {script!r}: clone timm and name its train.py')
    set_wait_policy()
    import mmlape.timm_models  # noqa: F401  (registers; takes seconds, so not before the arguments are parsed)

    keep_freed_memory()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # like python itself
    runpy.run_path(script, run_name='__main__')


if __name__ == '__main__':
    run_program(main, logs=True)

"""Build Long ListOps: nested operations on lists of digits, whose result is the label; nothing is downloaded.

Example: mmlape build list_ops data/list_ops
"""

from mmlape.cli.builds import build_from_command_line
from mmlape.research.datasets import build_list_ops

if __name__ == '__main__':
    build_from_command_line(build_list_ops, 'data/list_ops', __doc__)

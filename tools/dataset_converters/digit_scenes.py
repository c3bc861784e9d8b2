"""Build the digit scenes: a small detection, instance and semantic segmentation data set; nothing is downloaded.

Example: mmlape build digit_scenes data/digit_scenes --num-train 5000
"""

from mmlape.cli.builds import build_from_command_line
from mmlape.research.datasets import build_digit_scenes


def main(arguments: list[str] | None = None) -> None:
    build_from_command_line(build_digit_scenes, 'data/digit_scenes', __doc__, arguments)


if __name__ == '__main__':
    main()

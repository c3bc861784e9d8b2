"""Comparison of timm's plain Vision Transformers with our networks, name by name: which have equal outputs.

    python tools/developers/timm_vits.py [--names PATTERN ...] [--check] [--page configs/foundation/README.md]

Builds each of timm's models and ours with 2 layers of 48 channels and random weights, loads timm's into ours, and
compares the tokens of two sizes of images. Writes the table of the page, or with --check fails if it differs.
"""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare timm's plain ViTs with ours.")
    parser.add_argument(
        '--names', nargs='+', metavar='PATTERN', help='only these names; write no page'
    )
    parser.add_argument(
        '--check', action='store_true', help='write nothing; fail if the page differs'
    )
    parser.add_argument('--page', type=Path, help='default configs/foundation/README.md')
    options = parser.parse_args()
    from timm_parts.comparison import PAGE, names, results_of, split_page, table

    wanted = [n for n in names() if any(fnmatch(n, p) for p in options.names or ['*'])]
    if not wanted:
        raise SystemExit(
            f'no plain Vision Transformer of timm is named {" or ".join(options.names)}'
        )
    results = {}
    for name, result in results_of(wanted):
        results[name] = result
        print(f'{name}: {result}')
    if options.names:
        return 0
    page = options.page or PAGE
    before, found, after = split_page(page)
    if options.check:
        return int(found != table(results))
    page.write_text(before + table(results) + after, encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""List the names in configs or scripts that moved or were removed, each with what to write instead.

    python tools/migrate.py FILE [FILE ...]

Files are read, never run or changed; bases of a config are files of their own. The exit code is 1 if there is something
to change.
"""

import argparse
import sys
from pathlib import Path

from mmlape.renamed import renamed_names


def main():
    parser = argparse.ArgumentParser(description='List names that moved or were removed.')
    parser.add_argument('files', nargs='+', type=Path, metavar='FILE', help='a config or script')
    files = parser.parse_args().files
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        sys.exit(f'error: there is no file {", ".join(missing)}')
    lines = [
        f'{path}:{number}: {name}: {instead}'
        for path in files
        for number, name, instead in renamed_names(path.read_text(encoding='utf-8'))
    ]
    print('\n'.join(lines) or 'nothing to change')
    if lines:
        sys.exit(1)


if __name__ == '__main__':
    main()

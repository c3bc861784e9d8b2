"""Compare every backbone of this clone with another revision: times, parameters, FLOPs, memory, and the import.

    python -m benchmarks.against REVISION [--only vit] [--repeats 9] [--quick] [--limit 2]

REVISION is a git revision, or a folder with another copy of this project. Each side has its own process with one
thread; both work in turns, so that other load affects both equally. Exits with 1 if this clone is slower or larger than
REVISION by more than ``--limit`` percent.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from .side_by_side import CLONE, commit_of, compared, in_turns, revision_of, write_record

WORKER = Path(__file__).with_name('against_worker.py')
BEFORE, NOW = 'before', 'now'
IMPORT = 'import mmlape'
TIMES = ('import', 'forward', 'train_step', 'deployed')
SIZES = {
    'parameters': (1e6, 'M'),
    'flops': (1e9, 'GFLOPs'),
    'saved_bytes': (1e6, 'MB for backward'),
}
TURN_MS = 50  # a turn repeats shorter calls
IMPORT_CODE = """
import sys, time
clock = time.process_time if sys.argv[1] == 'processor' else time.perf_counter
start = clock()
import mmlape
print('seconds', clock() - start)
"""

LN, DTN = dict(type='mmlape.LN', eps=1e-6), dict(type='mmlape.DTN')
LAPE = dict(type='mmlape.LaPE')
TINY = dict(type='mmlape.VisionTransformer', arch='deit-tiny')
PVT = dict(type='mmlape.PyramidVisionTransformer', norm_cfg=LN)


def adapter(flavour: dict, **vit: Any) -> dict:
    """ViT-Adapter-Ti as in configs/_base_/models, with one process's batch norm."""
    inside = dict(TINY, with_cls_token=False, final_norm=False, layer_scale=True, **vit)
    return dict(
        type='mmlape.ViTAdapter',
        vit=inside,
        conv_inplanes=64,
        deform_num_heads=6,
        cffn_ratio=0.25,
        deform_ratio=1.0,
        interaction_indexes=[[0, 2], [3, 5], [6, 8], [9, 11]],
        norm_cfg=dict(type='BN'),
        **flavour,
    )


# Name: backbone, side of the image, images.
CASES = {
    'vit-micro': (dict(TINY, arch=dict(embed_dims=24, depth=2, num_heads=3, mlp_ratio=2)), 64, 1),
    'vit-tiny 224': (TINY, 224, 2),
    'vit-tiny 512': (TINY, 512, 1),
    'vit-tiny lape 224': (dict(TINY, joining=LAPE), 224, 2),
    'vit-tiny lape 512': (dict(TINY, joining=LAPE), 512, 1),
    'vit-tiny gabor-attention 224': (
        dict(TINY, attention_position=dict(type='mmlape.GaborAttention')),
        224,
        2,
    ),
    'vit-tiny relative 224': (
        dict(TINY, attention_position=dict(type='mmlape.RelativePositionBias')),
        224,
        2,
    ),
    'vit-tiny-star dtn 224': (dict(TINY, arch='vit-tiny-star', norm_cfg=DTN), 224, 2),
    'adapter-tiny segmentation 512': (adapter(dict(vit_feature='per_stage')), 512, 1),
    'adapter-tiny detection 512': (
        adapter(dict(vit_feature='last'), window_size=[14, 14, None] * 4),
        512,
        1,
    ),
    'pvt-tiny dtn 224': (
        dict(PVT, arch='tiny', num_heads=[4, 4, 5, 8], norm_cfg=DTN),
        224,
        2,
    ),
    'pvt-small 512': (dict(PVT, arch='small'), 512, 1),
    'pvtv2-b0 512': (dict(PVT, type='mmlape.PyramidVisionTransformerV2', arch='b0'), 512, 1),
}


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(
        1
    )  # nothing is computed here; the record has the number of threads of the workers
    warm_up, repeats = (1, 3) if options.quick else (2, options.repeats)
    ask = partial(compare_case, clock=options.clock, repeats=repeats, warm_up=warm_up)
    with ExitStack() as stack:
        folders = {BEFORE: stack.enter_context(copy_of(options.revision)), NOW: CLONE}
        sides = {name: stack.enter_context(Side(name, path)) for name, path in folders.items()}
        about = {name: side.ask('about') for name, side in sides.items()}
        for name, path in folders.items():
            if Path(about[name].pop('folder')) != path.resolve():
                raise SystemExit(f'error: the mmlape of {name!r} was imported from elsewhere')
        about = {
            BEFORE: dict(about[BEFORE], revision=revision_of(options.revision)),
            NOW: dict(about[NOW], revision=revision_of(CLONE)),
        }
        found = {}
        for name in options.names:
            print(f'{name} ...', file=sys.stderr, flush=True)
            if name == IMPORT:
                found[name] = compare_imports(folders, 1 if options.quick else 5, options.clock)
            else:
                found[name] = ask(sides, *CASES[name])
    settings = dict(clock=options.clock, repeats=repeats, warm_up=warm_up)
    write_record(options.out, {**about, **settings, 'cases': found}, show=False)
    print(table(found))
    return report(found, options.limit)


def parse_arguments() -> argparse.Namespace:
    summary, usage = __doc__.splitlines()[0], __doc__.split('\n\n')[2]
    parser = argparse.ArgumentParser('python -m benchmarks.against', None, summary, usage)
    parser.add_argument('revision', metavar='REVISION', help='a revision of git, or a folder')
    parser.add_argument('--only', default='', metavar='SUBSTRING', help='cases with it in the name')
    parser.add_argument('--repeats', type=int, default=9, help='measured turns (default: 9)')
    parser.add_argument('--quick', action='store_true', help='3 turns, one import')
    parser.add_argument('--limit', type=float, default=2, help='accepted loss in percent')
    parser.add_argument(
        '--clock', choices=('wall', 'processor'), default='wall',
        help="'processor' excludes the time of other processes, for a machine that is not idle",
    )  # fmt: skip
    parser.add_argument('--out', type=Path, default=CLONE / 'benchmarks/records/against.json')
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f'--repeats {options.repeats}: expected a positive number')
    options.names = [name for name in (IMPORT, *CASES) if options.only in name]
    if not options.names:
        names = ', '.join((IMPORT, *CASES))
        parser.error(f'--only {options.only}: no case has that in its name; there are {names}')
    return options


# -- the two copies -------------------------------------------------------------------------------


@contextmanager
def copy_of(revision: str) -> Iterator[Path]:
    """The folder, or a temporary one with the package of a revision."""
    folder = Path(revision)
    if folder.is_dir():
        if not (folder / 'mmlape' / '__init__.py').is_file():
            raise SystemExit(f'error: there is no mmlape in the folder {revision}')
        yield folder.resolve()
        return
    commit = commit_of(revision)
    if commit is None:
        raise SystemExit(f'error: {revision!r} is neither a folder nor a revision of this clone')
    command = ['git', 'archive', '--format=zip', commit, 'mmlape']
    archive = subprocess.run(command, cwd=CLONE, stdout=subprocess.PIPE, check=True).stdout
    with TemporaryDirectory(prefix='against-') as temporary:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            file.extractall(temporary)
        yield Path(temporary).resolve()


def environment(folder: Path) -> dict[str, str]:
    """Environment of a process that imports the ``mmlape`` of ``folder`` and uses one thread."""
    paths = [str(folder), *filter(None, [os.environ.get('PYTHONPATH')])]
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(paths), 'OMP_NUM_THREADS': '1'}


class Side:
    """A worker process, idle between requests."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def __enter__(self) -> Side:
        self.process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', str(WORKER)], cwd=self.folder, text=True,
            env=environment(self.folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def ask(self, what: str, **arguments: Any) -> Any:
        """The answer; raises RuntimeError with the reason on failure."""
        try:
            self.process.stdin.write(json.dumps(dict(ask=what, **arguments)) + '\n')
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ''
        if not line:
            raise RuntimeError(
                f'{self.name}: the process ended with exit code {self.process.wait()}'
            )
        answer = json.loads(line)
        if isinstance(answer, dict) and 'error' in answer:
            raise RuntimeError(f'{self.name}: {answer["error"]}')
        return answer


# -- comparing ------------------------------------------------------------------------------------


def compare_case(
    sides: dict[str, Side],
    config: dict,
    size: int,
    batch: int,
    *,
    clock: str,
    repeats: int,
    warm_up: int,
) -> dict[str, Any]:
    """All measurements of one backbone on both sides, or the reason why one side does not support it."""
    case = dict(size=[size, size], batch=batch)
    try:
        built = {name: side.ask('build', config=config, **case) for name, side in sides.items()}
        for what in filter('import'.__ne__, TIMES):
            calls = {name: partial(side.ask, what, clock=clock) for name, side in sides.items()}
            once = {name: partial(call, number=1) for name, call in calls.items()}
            shortest = min(map(min, in_turns(once, warm_up, warm_up=1).values()))
            number = max(1, round(TURN_MS / shortest)) if shortest > 0 else 1
            turns = {name: partial(call, number=number) for name, call in calls.items()}
            case[what] = compared(in_turns(turns, repeats, warm_up=0))
    except RuntimeError as error:
        return dict(case, error=str(error))
    for what in SIZES:
        before, now = built[BEFORE][what], built[NOW][what]
        case[what] = {
            BEFORE: before,
            NOW: now,
            'ratio': round(now / before, 4) if before and now else None,
        }
    return case


def compare_imports(folders: dict[str, Path], repeats: int, clock: str) -> dict[str, Any]:
    """Time ``import mmlape`` in fresh processes."""

    def milliseconds(folder: Path) -> float:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', IMPORT_CODE, clock], cwd=folder,
            env=environment(folder), stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        return 1e3 * float(done.stdout.rpartition('seconds')[2])

    calls = {name: partial(milliseconds, folder) for name, folder in folders.items()}
    return {'import': compared(in_turns(calls, repeats, warm_up=1))}


# -- reporting ------------------------------------------------------------------------------------


def ratio_of(both: dict[str, Any]) -> float | None:
    """Ratio of now to before, None if one of them is unknown."""
    return both[NOW]['ratio'] if isinstance(both[NOW], dict) else both['ratio']


def table(found: dict[str, dict]) -> str:
    """A line for each case: medians and interquartile ranges, before -> now, and the ratio."""
    width = max(map(len, found))
    return '\n'.join(f'{name:{width}}  {cells(case)}' for name, case in found.items())


def cells(case: dict[str, Any]) -> str:
    """The cells of one case."""
    if 'error' in case:
        return case['error']
    parts = []
    for what in filter(case.__contains__, TIMES):
        times = ' -> '.join(
            f'{t["median_ms"]:.1f} ± {t["iqr_ms"]:.1f}' for t in case[what].values()
        )
        parts.append(f'{what.replace("_", " ")} {times} ms ({ratio_of(case[what]):.3f})')
    for what, (scale, unit) in filter(lambda size: size[0] in case, SIZES.items()):
        before, now, ratio = case[what].values()
        if ratio is None:
            continue
        known = '=' if before == now else f'from {before / scale:.3f}, {ratio:.3f}'
        parts.append(f'{now / scale:.3f} {unit} ({known})')
    return ', '.join(parts)


def report(found: dict[str, dict], limit: float) -> int:
    """Print cases over the limit or without a comparison; return the exit code."""
    faults = [f'{name}: {case["error"]}' for name, case in found.items() if 'error' in case]
    for name, case in found.items():
        for what in filter(case.__contains__, (*TIMES, *SIZES)):
            ratio = ratio_of(case[what])
            if ratio is not None and ratio > 1 + limit / 100:
                faults.append(f'{name}: {what.replace("_", " ")} x {ratio:.3f}')
    lines = [f'worse by more than {limit:g} %, or not compared:', *(f'  {each}' for each in faults)]
    print('\n'.join(lines) if faults else f'nothing is worse by more than {limit:g} %')
    return int(bool(faults))


if __name__ == '__main__':
    sys.exit(main())

"""Several processes: ``mmlape train`` and ``mmlape test`` start themselves by torchrun or by srun. No slow imports."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from .arguments import at_least, checked
from .program import wrong_usage

_OPTIONS = ('--gpus', '--nodes', '--slurm', '--max-restarts')


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`launch` reads."""
    group = parser.add_argument_group('several processes (`mmlape docs training`)')
    group.add_argument(
        '--gpus', type=at_least(1), metavar='N', help='of each machine, with a process for each'
    )
    group.add_argument(
        '--nodes', type=checked(_nodes), metavar='N',
        help='machines (default: 1); without SLURM, the command is started on each',
    )  # fmt: skip
    group.add_argument('--slurm', metavar='PARTITION', help='start the processes by srun')
    group.add_argument(
        '--max-restarts', type=at_least(1), metavar='N',
        help='start the processes again, N times, when one or a machine is lost, and resume',
    )  # fmt: skip


def launch(options: argparse.Namespace, command: str) -> None:
    """Run ``mmlape COMMAND`` in several processes, instead of this one, if ``options`` ask for it.

    The processes get the arguments of this one, with ``--launcher`` instead of those of :func:`add_launch_options`.
    Addresses and the like are read from the environment: ``NODE_RANK``, ``MASTER_ADDR``, ``PORT``; with SLURM
    ``CPUS_PER_TASK``, ``SRUN_ARGS``.
    """
    asked = [options.gpus, options.nodes, options.slurm, options.max_restarts]
    if asked == [None] * 4:
        return
    if options.launcher:
        wrong_usage(
            '--gpus, --nodes, --slurm and --max-restarts start the processes: leave out --launcher'
        )
    arguments = _arguments('pytorch' if options.slurm is None else 'slurm')
    if options.slurm is not None:
        if options.max_restarts or ':' in (options.nodes or ''):
            wrong_usage('--max-restarts and --nodes MIN:MAX are for torchrun; SLURM requeues jobs')
        _by_srun(options, command, arguments)
    if options.max_restarts is None and ':' in (options.nodes or ''):
        wrong_usage('--nodes MIN:MAX needs --max-restarts')
    names = ['MASTER_ADDR'] if options.max_restarts else ['NODE_RANK', 'MASTER_ADDR']
    if options.nodes not in (None, '1') and not all(name in os.environ for name in names):
        wrong_usage(
            f'--nodes {options.nodes} without SLURM needs {" and ".join(names)} in the environment of each machine'
        )
    if options.max_restarts and command == 'train' and options.resume is None:
        arguments.append('--resume')  # a machine that comes back does not know of the restart
    _by_torchrun(options, command, arguments)


def _arguments(launcher: str) -> list[str]:
    """Return the arguments of this process, with ``--launcher`` in the places of our options.

    An option of open length that stands before ours, such as ``--resume``, must not get what stands behind.
    """
    arguments, given = [], iter(sys.argv[1:])
    for each in given:
        name, equals, _ = each.partition('=')
        # They may be shortened; the parser has refused what could be two.
        if len(name) > 2 and any(option.startswith(name) for option in _OPTIONS):
            if not equals:
                next(given)
            each = f'--launcher={launcher}'
        arguments.append(each)
    return arguments


def _nodes(text: str) -> str:
    found = re.fullmatch(r'([1-9]\d*)(?::([1-9]\d*))?', text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise ValueError(f'must be a number of machines, or MIN:MAX, got {text!r}')
    return text


def _number(name: str, default: int, least: int = 1, most: float = math.inf) -> int:
    """A variable of the environment."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        limits = f'of at least {least}' if most == math.inf else f'from {least} to {most}'
        wrong_usage(f'{name} must be a number {limits}, got {text!r}')
    return int(text)


def _port(default: int) -> int:
    return _number('PORT', default, most=65535)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


def _check_address(name: str) -> None:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        wrong_usage(f'MASTER_ADDR must be the address of a machine, got {name!r}: {error}')


def _by_torchrun(options: argparse.Namespace, command: str, arguments: Sequence[str]) -> NoReturn:
    """Run torchrun without its tracebacks: processes that end with an error, or by Ctrl-C, have said why."""
    gpus, environ = options.gpus or 1, os.environ
    address = environ.get('MASTER_ADDR', '127.0.0.1')
    several = options.nodes not in (None, '1')
    # On one machine, trainings beside each other need different ones.
    port = _port(29500 if several else _free_port())
    if options.max_restarts:
        # The only rendezvous that a lost machine can join again; with torch 2.11 only where the store is not shared, as
        # those that stay tell its address once.
        environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
        where = ['--rdzv-backend=c10d', f'--rdzv-endpoint={address}:{port}']
        where.append(f'--max-restarts={options.max_restarts}')
    else:
        rank = _number('NODE_RANK', 0, least=0, most=int(options.nodes or 1) - 1)
        where = [f'--node-rank={rank}', f'--master-addr={address}', f'--master-port={port}']
    if several:
        _check_address(address)
    # Slow, so after all that refuses.
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main as torchrun

    if gpus > 1:  # what torchrun sets then, with a warning of five lines
        environ.setdefault('OMP_NUM_THREADS', '1')
    for name in ('agent.server.api', 'multiprocessing.api'):
        logging.getLogger(f'torch.distributed.elastic.{name}').setLevel(logging.CRITICAL)
    if several:  # PyTorch waits for minutes, and says nothing
        sys.stderr.write(f'waiting for {options.nodes} machines at {address}:{port}\n')
    count = [f'--nnodes={options.nodes or 1}', f'--nproc-per-node={gpus}']
    program = ['-m', 'mmlape', command, *arguments]
    try:
        torchrun([*count, *where, *program])
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except DistError as error:
        sys.exit(f'error: {address}:{port} (MASTER_ADDR:PORT): {str(error).splitlines()[0]}')
    except RendezvousError as error:
        sys.exit(
            f'error: the machines have lost one another, or not met at {address}:{port}: {error}'
        )
    except ChildFailedError as error:
        failed, failure = error.get_first_failure()
        sys.stderr.write(f'process {failed} ended with exit code {failure.exitcode}\n')
        sys.exit(failure.exitcode if failure.exitcode > 0 else 1)
    sys.exit()


def _by_srun(options: argparse.Namespace, command: str, arguments: Sequence[str]) -> NoReturn:
    if shutil.which('srun') is None:
        wrong_usage('--slurm needs srun, which is not on this machine')
    gpus, nodes = options.gpus or 1, int(options.nodes or 1)
    environ = os.environ
    # Jobs on one machine need different ports.
    job = _number('SLURM_JOB_ID', os.getpid())
    environ['MASTER_PORT'] = str(_port(20000 + job % 20000))
    try:
        own = shlex.split(given := environ.get('SRUN_ARGS', ''))
    except ValueError as error:
        wrong_usage(f'SRUN_ARGS={given}: {error}')
    os.execvp(
        'srun',
        [
            'srun',
            f'--partition={options.slurm}',
            f'--job-name={os.path.basename(options.config)}',
            f'--gres=gpu:{gpus}',
            f'--ntasks={gpus * nodes}',
            f'--ntasks-per-node={gpus}',
            f'--cpus-per-task={_number("CPUS_PER_TASK", 5)}',
            '--kill-on-bad-exit=1',
            '--wait=300',  # without it, srun hangs if SLURM's own process on a node has died with the tasks
            *own,
            *(sys.executable, '-u', '-m', 'mmlape', command, *arguments),
        ],
    )

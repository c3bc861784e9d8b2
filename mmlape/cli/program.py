"""The frame of every command: how it ends, and what other packages print meanwhile. No slow imports.

Exit status: 0, 1 for a failure or a bad answer (``doctor``, ``export``), 2 for wrong usage, 130 for Ctrl-C,
141 where the reader of the output has gone (``| head``).
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from types import FrameType
from typing import Any, NoReturn, TextIO

from mmlape.failures import explained

USAGE, STOPPED, UNREAD = 2, 130, 141
# Lines that every command would show.
_PRINTED = re.compile(
    '|'.join(
        (
            'Could not import OneDL',  # data sets of a company's service
            'Failed to search registry with scope',  # functions have no registry in mmdet, by design
            '"FileClient" will be deprecated',  # MMEngine calls it itself
            '"HardDiskBackend" is the alias',  # the same
            'The prefix is not set in metric class IoUMetric',  # as upstream has it
            'Loads checkpoint by local backend from path',  # printed a second time as a log line
            # pycocotools, of each annotation file and evaluation
            'loading annotations into memory', 'creating index', 'index created!',
            'Loading and preparing results', r'D(one|ONE) \(t=', 'Running per image evaluation',
            'Evaluate annotation type', 'Accumulating evaluation results', r'^ Average (Precision|Recall) ',
        )
    )
)  # fmt: skip
# Warnings, by their beginnings.
_WARNINGS = (
    'faster_coco_eval is not installed',  # a metric that no config of ours uses
    'Setting (OMP|MKL)_NUM_THREADS environment',  # MMEngine, of what it does in every run
    'Default ``avg_non_ignore`` is False',  # upstream's default, with which recipes were published
    'For binary segmentation, we suggest',  # label maps of two classes are trained as those of more
    '`reduce_zero_label` will be deprecated',  # upstream's data sets still set it in their pipelines
    '`create_unbacked_symint` is deprecated',  # torchvision calls torch so, in an export
    '`isinstance\\(treespec, LeafSpec\\)` is deprecated',  # torch calls itself so, in an export
)


MISTAKES = (ValueError, TypeError, OSError)


class _State:
    """The running command."""

    active = False
    logs = False
    interrupted: float | None = None
    continuation: str | None = None


def run_program(main: Callable[[], Any], logs: bool = False) -> None:
    """Run the ``main`` of a command in :func:`framed`; its result is the exit status.

    Args:
        main: Without arguments.
        logs: Whether it is a run with a log. Default False: it prints an answer, and no log lines but warnings; each of
            :data:`MISTAKES` ends it with one line, since no log could hold a traceback.
    """
    with framed():
        _State.logs = logs
        if not logs:
            logging.disable(logging.INFO)
        try:
            with nullcontext() if logs else stop_with_message():
                status = main()
        finally:
            logging.disable(logging.NOTSET)
    if status:
        sys.exit(status)


@contextmanager
def framed() -> Iterator[None]:
    """End the process with one line after Ctrl-C, and at errors that the user can mend (:mod:`mmlape.failures`).

    Others keep their traceback. A second Ctrl-C, after a second, kills the process.
    """
    if _State.active:
        yield
        return
    _State.active, _State.interrupted, _State.continuation = True, None, None
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if in_main and handler is signal.default_int_handler:  # ignored in the background of a shell
        signal.signal(signal.SIGINT, _interrupt)
    streams = sys.stdout, sys.stderr
    # doctor turns one into the other; a stream that is closed is None
    sys.stdout, sys.stderr = (
        Screen(each or open(os.devnull, 'w'))  # noqa: SIM115
        for each in streams
    )
    try:
        with warnings.catch_warnings():
            for beginning in _WARNINGS:
                warnings.filterwarnings('ignore', beginning)
            try:
                yield
            finally:
                sys.stdout.flush()  # may end the program, as a write does
    except BaseException as error:
        # Ctrl-C during an import may end it with another error.
        if isinstance(error, KeyboardInterrupt) or _State.interrupted is not None:
            _stop(error)
        text = explained(error) if isinstance(error, Exception) else None
        if text is None:
            raise
        _to_log_files(error)
        sys.exit(f'error: {f"process {rank}: " if (rank := _rank()) else ""}{text}')
    finally:
        (sys.stdout, sys.stderr), _State.active = streams, False
        if in_main and _State.interrupted is None:
            signal.signal(signal.SIGINT, handler)
        if in_main and handler is signal.default_int_handler:
            # Python takes seconds to end, and would write a traceback for each module that Ctrl-C meets.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


@contextmanager
def stop_with_message(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with one line, not a traceback, at errors of these ``kinds`` (default: :data:`MISTAKES`)."""
    handled = kinds or MISTAKES
    try:
        yield
    except handled as error:
        plain = error.args[0] if type(error) is KeyError and error.args else error
        # One process of each machine, which may be the only one that fails.
        says = _rank() == 0 or os.environ.get('LOCAL_RANK') == '0'
        sys.exit(f'error: {explained(error) or plain}' if says else 1)


@contextmanager
def usage() -> Iterator[None]:
    """End the program by :func:`wrong_usage` at a ValueError or OSError: for checks before anything is loaded."""
    try:
        yield
    except (ValueError, OSError) as error:
        wrong_usage(str(error))


def wrong_usage(text: str) -> NoReturn:
    """End the program as ``argparse`` does."""
    sys.stderr.write(f'error: {text}\n')
    sys.exit(USAGE)


def continue_with(how: str) -> None:
    """Say how this command is continued after Ctrl-C."""
    _State.continuation = how


def command_line(name: str, arguments: Sequence[str] | None = None) -> str:
    """A command in a message: ``mmlape NAME``, by default with the arguments of the one that runs."""
    given = sys.argv[1:] if arguments is None else arguments
    return f'`{shlex.join(["mmlape", *name.split(), *given])}`'


def _stop(error: BaseException) -> NoReturn:
    if getattr(error, 'code', None) != STOPPED and os.environ.get('RANK', '0') == '0':
        again = f' Continue: {_State.continuation}' if _State.continuation else ''
        start = '\n' if sys.stderr.isatty() else ''  # after the terminal's ^C
        print(f'{start}Stopped.{again}', file=sys.stderr, flush=True)
    sys.exit(STOPPED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _State.interrupted is None:
        _State.interrupted = time.monotonic()
        raise KeyboardInterrupt
    if time.monotonic() - _State.interrupted > 1:  # torchrun passes the terminal's signal on
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _rank() -> int:
    """The number of this process in its group; 0 before there is one."""
    group = sys.modules.get('torch.distributed')
    return group.get_rank() if group and group.is_available() and group.is_initialized() else 0


def _to_log_files(error: BaseException) -> None:
    """Write the traceback to the files of MMEngine's loggers."""
    module = sys.modules.get('mmengine.logging')
    for logger in module.MMLogger._instance_dict.values() if module else ():
        for handler in logger.handlers:
            if isinstance(handler, logging.FileHandler):
                what = (type(error), error, error.__traceback__)
                handler.handle(logger.makeRecord('mmlape', logging.ERROR, '', 0, '', (), what))


class Screen:
    """A standard stream without the lines of ``_PRINTED``.

    It escapes what the terminal's encoding lacks, such as class names, and ends the program when its reader has gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.dropped = stream, False
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')

    def write(self, text: str) -> int:
        if self.dropped and text == '\n':  # print writes it on its own
            self.dropped = False
        elif _PRINTED.search(text) and '\n' not in text.rstrip('\n'):
            self.dropped = not text.endswith('\n')
        else:
            self.dropped = False
            with self._read():
                self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._read():
            self.stream.flush()

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of this stream, not of a worker process
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), self.stream.fileno()
            )  # for Python's last flush
            if isinstance(error, BrokenPipeError):
                sys.exit(UNREAD)
            if not _State.logs:  # a training goes on, and its log file says the same
                sys.exit(f'error: the output cannot be written: {error.strerror}')

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

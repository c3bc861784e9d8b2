"""Processes that note in the process group's store where they stand, and which of them keeps the others waiting."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

import torch
from torch.distributed import PrefixStore, TCPStore, distributed_c10d

__all__ = ['Board', 'Note', 'Watch', 'hung_processes']

# Where torch waits for other processes or for the GPU.
_TORCH = Path(torch.__file__).parent
_WAITING = tuple(str(_TORCH / name) for name in ('distributed', 'nn/parallel', 'autograd', 'cuda'))
_FRAMES = 12
# A thread that falls asleep and wakes more often than that in a second, works: it reads files, for example.
_WAKES = 2
# A warning that nobody is named comes later than a name would.
_LATE = 1.2


@dataclass(frozen=True)
class Note:
    """What a process says of itself.

    Args:
        place: Iteration and part of it, in the order in which every process passes them.
        doing: The same in words.
        is_slow: Whether it may take longer than a training step.
        has_ended: Whether it does not answer any more, and rightly so.
        stands: For how many seconds its place and its stack have been the same, while it did not read or write either.
        waits: Whether it visibly waits for others, or for the GPU.
        stack: Where its Python stands, innermost last.
        beat: Grows with each note; 0 if there was none.
        silent: For how many seconds the others have not heard of it; they note that themselves.
    """

    host: str = 'unknown'
    pid: int = 0
    place: tuple[int, int] = (-2, 0)
    doing: str = 'it has not begun to train'
    is_slow: bool = True
    has_ended: bool = False
    stands: float = 0
    waits: bool = False
    stack: list[str] = field(default_factory=list)
    beat: int = 0
    silent: float = 0


def hung_processes(notes: Sequence[Note], limit: float, slow_limit: float) -> list[int]:
    """Ranks of the processes that others wait for: none while somebody moves, or if all stand alike.

    They are those that came least far; of these, those that do not themselves wait for others.

    Args:
        notes: Of all processes, by rank.
        limit: For how many seconds all must have stood still.
        slow_limit: For how many those that are waited for, where it may take longer.
    """
    running = [rank for rank, note in enumerate(notes) if not note.has_ended]
    if not all(notes[rank].stands >= limit for rank in running):
        return []
    last = min(notes[rank].place for rank in running)
    behind = [rank for rank in running if notes[rank].place == last]
    behind = [rank for rank in behind if not notes[rank].waits] or behind
    due = all(notes[rank].stands >= slow_limit for rank in behind if notes[rank].is_slow)
    return behind if due and len(behind) < len(running) else []


class Board:
    """Notes of all processes in the store of the process group.

    Args:
        name: The same in all processes, and another one for each run.
        rank: Of this process.
        size: How many there are.
    """

    def __init__(self, name: str, rank: int, size: int) -> None:
        store = distributed_c10d._get_default_store()
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        if isinstance(store, TCPStore):
            # A connection of its own: the group's is blocked while somebody waits for a key.
            store = TCPStore(store.host, store.port, is_master=False, wait_for_workers=False)
        self._store = PrefixStore(f'mmlape/{name}', store)
        self.rank, self.notes = rank, [Note()] * size

    def exchange(self, note: Note) -> list[Note]:
        """Put up one's own note, and read everybody's. May block for as long as the store's process does not answer.

        Raises:
            RuntimeError: If the store cannot be reached.
        """
        self._store.set(str(self.rank), json.dumps(asdict(note)))
        there = [
            rank
            for rank, known in enumerate(self.notes)
            if known.beat or self._store.check([str(rank)])
        ]
        for rank, text in zip(there, self._store.multi_get([*map(str, there)]), strict=True):
            values = json.loads(text)
            self.notes[rank] = Note(**{**values, 'place': tuple(values['place'])})
        return list(self.notes)


class Watch:
    """Threads that compare where this process stands with where the others do.

    Args:
        board: Where the others' notes are; None for a single process.
        limit: For how many seconds a training step may stand still.
        slow_limit: For how many anything else may.
        hung: Called once, with the ranks that keep others waiting and the notes of all.
        still: Called with the notes of all when this process has stood still for longer than it may, and none is hung.
        within: A call of this thread; when it has ended, also by an error, so has the watch.
    """

    def __init__(
        self,
        board: Board | None,
        limit: float,
        slow_limit: float,
        hung: Callable[[list[int], list[Note]], None],
        still: Callable[[list[Note]], None],
        within: FrameType,
    ) -> None:
        self.limit, self.slow_limit = limit, slow_limit
        # Rare, so that it costs nothing: every 15 seconds for 5 minutes.
        self.beat = min(limit / 20, 15)
        self._hung, self._still = hung, still
        self._main, self._main_id = threading.get_ident(), threading.get_native_id()
        self._own = Note(host=socket.gethostname(), pid=os.getpid(), beat=1)
        self._place = self._own.place, self._own.doing, self._own.is_slow
        self._seen: tuple = ()
        self._wakes = 0
        # The frame itself would keep all that is in it, and its number is given to another one.
        self._within = within.f_code, len(_frames(within))
        self._told: tuple | None = None
        self._others = _Others(board) if board is not None else None
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        if self._others is not None:
            talk = partial(self._talk, self._others)
            self._threads.append(threading.Thread(target=talk, daemon=True))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End. A thread that is in the store while Python ends could take the process down."""
        self._end.set()
        for thread in self._threads:
            thread.join(5)

    def at(self, place: tuple[int, int] | None, doing: str, is_slow: bool) -> None:
        """Note where this process is; None for the same place as before."""
        self._place = place or self._place[0], doing, is_slow

    def _talk(self, others: _Others) -> None:
        """In a thread of its own, since the store blocks when the process that has it is stopped."""
        try:
            others.hear(self._own)
            while not self._end.wait(self.beat):
                others.hear(self._own)
            others.hear(replace(self._own, has_ended=True))
        except RuntimeError:  # the store is gone, for good; the other thread counts the seconds
            return

    def _run(self) -> None:
        before = time.monotonic()
        while not self._end.wait(self.beat):
            now = time.monotonic()
            # If this process was stopped itself, or the machine slept, it saw nothing meanwhile.
            passed, before = min(now - before, 2 * self.beat), now
            frames = _frames(sys._current_frames().get(self._main))
            code, depth = self._within
            if len(frames) < depth or frames[-depth].f_code is not code:
                self._end.set()
                return
            self._look_at_oneself(frames, passed)
            del frames
            self._judge(passed)

    def _judge(self, passed: float) -> None:
        hung, notes = [], [self._own]
        if self._others is not None:
            hung, notes = self._others.silent(passed, self._limit_of), self._others.notes
        if self._own.stands < self.limit:
            return
        hung = hung or hung_processes(notes, self.limit, self.slow_limit)
        if hung:
            self._hung(hung, notes)  # it ends the process; the others still hear of this one
        elif self._told != self._seen and self._own.stands >= _LATE * self._limit_of(self._own):
            self._told = self._seen
            self._still(notes)

    def _limit_of(self, note: Note) -> float:
        return self.slow_limit if note.is_slow else self.limit

    def _look_at_oneself(self, frames: list[FrameType], passed: float) -> None:
        place, doing, is_slow = self._place
        seen = (place, doing, [(id(frame.f_code), frame.f_lasti) for frame in frames])
        waits = frames[0].f_code.co_filename.startswith(_WAITING)
        before, self._wakes = self._wakes, _wakes(self._main_id)
        stands = seen == self._seen and (waits or self._wakes - before <= _WAKES * passed)
        self._own = replace(
            self._own,
            place=place,
            doing=doing,
            is_slow=is_slow,
            stands=self._own.stands + passed if stands else 0,
            waits=waits,
            stack=[_line(frame) for frame in reversed(frames[:_FRAMES])],
            beat=self._own.beat + 1,
        )
        self._seen = seen


class _Others:
    """What was heard of the processes, and for how long nothing was."""

    def __init__(self, board: Board) -> None:
        self.notes = list(board.notes)
        self._board = board
        self._heard: list[Note] | None = None
        self._unanswered = 0.0

    def hear(self, note: Note) -> None:
        """Exchange notes; for the thread that talks."""
        self._heard = self._board.exchange(note)

    def silent(self, passed: float, limit_of: Callable[[Note], float]) -> list[int]:
        """Ranks of which nothing was heard for as long as they may stand; ``passed`` seconds after the last call."""
        heard, self._heard = self._heard, None
        self._unanswered += passed
        if heard is not None:
            pairs = zip(self.notes, heard, strict=True)
            self.notes = [self._compared(before, note) for before, note in pairs]
            self._unanswered = 0
        elif self._board.rank and self._unanswered >= limit_of(self.notes[0]):
            # It has the store, or torchrun has it beside it.
            self.notes[0] = replace(self.notes[0], silent=self._unanswered)
            return [0]
        return [rank for rank, note in enumerate(self.notes) if note.silent >= limit_of(note)]

    def _compared(self, before: Note, note: Note) -> Note:
        is_new = note.beat > before.beat or note.has_ended
        return note if is_new else replace(note, silent=before.silent + self._unanswered)


def _frames(frame: FrameType | None) -> list[FrameType]:
    """From the innermost outwards."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _line(frame: FrameType) -> str:
    """As in a traceback, without reading the file, whose disk may be what hangs."""
    code = frame.f_code
    return f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}'


def _wakes(thread: int) -> int:
    """How often a thread has fallen asleep, where the system says so (Linux)."""
    try:
        text = Path(f'/proc/self/task/{thread}/status').read_text()
    except OSError:
        return 0
    return int(text.partition('\nvoluntary_ctxt_switches:')[2].split(maxsplit=1)[0])

"""Screen output of the demo: lines, progress and remaining time; everything else goes to a log file."""

import contextlib
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from mmlape.apps.inference.progress import clock

# Seconds between two progress reports: one rewritten line on a terminal, separate lines elsewhere.
TERMINAL_INTERVAL = 0.5
LINE_INTERVAL = 15.0
WIDTH = 100


class Screen:
    """Shared screen of parallel consoles, with one line of progress for all of them."""

    def __init__(self) -> None:
        # Saved, because sys.stdout is redirected while OpenMMLab works.
        self.stream = sys.stdout
        self.on_terminal = self.stream.isatty()
        self.clear = '\r\033[K' if self.on_terminal else ''
        self.consoles: list[Console] = []
        self.shown = 0.0

    def say(self, text: str = '') -> None:
        """Print a permanent line."""
        self.stream.write(f'{self.clear}{text}\n')
        self.stream.flush()

    def progress(self, console: 'Console', now: float) -> None:
        """Show the progress of this console (on a terminal, of all), at most once per interval."""
        last = self.shown if self.on_terminal else console.shown
        if now - last < (TERMINAL_INTERVAL if self.on_terminal else LINE_INTERVAL):
            return
        self.shown = console.shown = now
        left = f'  about {clock(max(each.seconds_left(now) for each in self.consoles))} left in all'
        if self.on_terminal:
            running = [each.status() for each in self.consoles if each.step]
            columns = shutil.get_terminal_size().columns - 1
            self.stream.write(self.clear + '  |'.join([left, *running])[:columns])
        else:
            self.stream.write(f'{console.status():<{WIDTH - 30}}{left}\n')
        self.stream.flush()


class Console:
    """Progress of sequential steps, with an estimate of the remaining time.

    Args:
        steps: Name and expected seconds of every step that is still to be done.
        screen: Shared with parallel consoles. Default None: its own.
    """

    def __init__(self, steps: dict[str, float], screen: Screen | None = None) -> None:
        self.screen = screen or Screen()
        self.screen.consoles.append(self)
        self.expected = dict(steps)
        self.spent = self.spent_expected = 0.0
        self.step = self.detail = ''
        self.fraction = self.resumed = self.started = self.shown = 0.0

    def say(self, text: str = '') -> None:
        """Print a permanent line."""
        self.screen.say(text)

    def begin(self, step: str) -> None:
        """Announce a step."""
        self.step, self.started, self.shown = step, time.monotonic(), 0.0
        self.progress(0.0)

    def progress(self, fraction: float, detail: str = '', resumed: float = 0.0) -> None:
        """Report that ``fraction`` (0 to 1) of the step is done, ``resumed`` of it by an earlier call of the demo."""
        self.fraction, self.detail, self.resumed = fraction, detail, resumed
        self.screen.progress(self, time.monotonic())

    def status(self) -> str:
        """The progress of the step."""
        return f'  {self.step}  {self.fraction:4.0%}  {self.detail}'.rstrip()

    def end(self, result: str, typical: bool = True) -> None:
        """Close the step with its result; ``typical`` ones measure the speed of this machine."""
        seconds = time.monotonic() - self.started
        expected = self.expected.pop(self.step, 0.0)
        if typical:
            self.spent += seconds
            self.spent_expected += expected
        self.say(f'  {self.step}  {result}  [{clock(seconds)}]')
        self.step = ''

    def skip(self, step: str, result: str) -> None:
        """Report a step that an earlier call completed."""
        self.expected.pop(step, None)
        self.say(f'  {step}  {result}  [done before]')

    def seconds_left(self, now: float) -> float:
        """Expected seconds of what is left, scaled by how fast this machine has been up to now."""
        if not self.step:
            return self._pace(0.0, 0.0) * sum(self.expected.values())
        whole, elapsed = self.expected.get(self.step, 0.0), now - self.started
        done = max(self.fraction - self.resumed, 0.0) * whole
        pace = self._pace(elapsed, done)
        if done > 0.05 * whole:
            # The step's own pace predicts its rest better than other kinds of steps do.
            own = elapsed / done
            others = sum(self.expected.values()) - whole
            return own * (1 - self.fraction) * whole + pace * others
        return pace * (sum(self.expected.values()) - self.fraction * whole)

    def _pace(self, elapsed: float, done: float) -> float:
        """Actual seconds per expected second."""
        known = self.spent_expected + done
        return (self.spent + elapsed) / known if known >= 2 else 1.0


@contextlib.contextmanager
def output_to(log_file: Path) -> Iterator[None]:
    """Redirect output and warnings of OpenMMLab and its libraries to a file."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with (
        log_file.open('a', encoding='utf-8') as stream,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
        warnings.catch_warnings(),
    ):
        yield

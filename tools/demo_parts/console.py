"""What the demo says on screen: lines, a progress line and the time left; everything else goes to a log file."""

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

# Seconds between two progress reports: rewritten in place on a terminal, lines of their own elsewhere.
TERMINAL_INTERVAL = 0.5
LINE_INTERVAL = 15.0
WIDTH = 100


class Console:
    """Writes to the screen, knows how much work there is and how fast it went so far.

    Args:
        steps: Name and expected seconds of every step of the demo that is still to be done.
    """

    def __init__(self, steps: dict[str, float]) -> None:
        # Kept, because sys.stdout is redirected while OpenMMLab works.
        self.stream = sys.stdout
        self.on_terminal = self.stream.isatty()
        self.expected = dict(steps)
        self.spent = 0.0
        self.spent_expected = 0.0
        self.step = ''
        self.started = self.shown = 0.0

    def say(self, text: str = '') -> None:
        """A line that stays."""
        self._clear()
        self.stream.write(text + '\n')
        self.stream.flush()

    def begin(self, step: str) -> None:
        """Announce a step."""
        self.step, self.started, self.shown = step, time.monotonic(), 0.0
        self.progress(0.0)

    def progress(self, fraction: float, detail: str = '', resumed: float = 0.0) -> None:
        """Report that ``fraction`` (0 to 1) of the step is done, ``resumed`` of it by an earlier call of the demo."""
        now = time.monotonic()
        if now - self.shown < (TERMINAL_INTERVAL if self.on_terminal else LINE_INTERVAL):
            return
        self.shown = now
        left = clock(self._seconds_left(now - self.started, fraction, resumed))
        text = f'  {self.step}  {fraction:4.0%}  {detail}'
        text = f'{text:<{WIDTH - 30}}  about {left} left in all'
        if self.on_terminal:
            self.stream.write('\r' + text[:WIDTH].ljust(WIDTH))
        else:
            self.stream.write(text + '\n')
        self.stream.flush()

    def end(self, result: str, typical: bool = True) -> None:
        """Close the step with its result; ``typical`` ones tell how fast this machine is."""
        seconds = time.monotonic() - self.started
        expected = self.expected.pop(self.step, 0.0)
        if typical:
            self.spent += seconds
            self.spent_expected += expected
        self.say(f'  {self.step}  {result}  [{clock(seconds)}]')

    def skip(self, step: str, result: str) -> None:
        """A step that an earlier call has done."""
        self.expected.pop(step, None)
        self.say(f'  {step}  {result}  [done before]')

    def _seconds_left(self, elapsed: float, fraction: float, resumed: float) -> float:
        """Expected seconds of what is left, scaled by how fast this machine has been up to now."""
        whole = self.expected.get(self.step, 0.0)
        done = max(fraction - resumed, 0.0) * whole
        pace = (self.spent + elapsed) / max(self.spent_expected + done, 1e-6)
        if self.spent_expected + done < 2:
            pace = 1.0
        if done > 0.05 * whole:
            # The step's own pace tells more about its rest than that of steps of another kind.
            own = elapsed / done
            others = sum(self.expected.values()) - whole
            return own * (1 - fraction) * whole + pace * others
        return pace * (sum(self.expected.values()) - fraction * whole)

    def _clear(self) -> None:
        if self.on_terminal:
            self.stream.write('\r' + ' ' * WIDTH + '\r')


def clock(seconds: float) -> str:
    """Seconds as ``m:ss``."""
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'


@contextlib.contextmanager
def output_to(log_file: Path) -> Iterator[None]:
    """Send what OpenMMLab and its libraries write and warn to a file."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with (
        log_file.open('a', encoding='utf-8') as stream,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
        warnings.catch_warnings(),
    ):
        yield

"""What a check answers, running all of them, and how that is shown. Only the standard library is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

OK, WARNING, ERROR = 'ok', 'warning', 'error'
_ANSWER = 'mmlape-doctor:'


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Args:
        name: What was looked at.
        state: ``'ok'``, ``'warning'`` or ``'error'``.
        found: What there is, in one line.
        advice: What to do, in one line; empty if there is nothing to do.
    """

    name: str
    state: str
    found: str
    advice: str = ''

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def examine(config: str | None = None, work_dir: str | None = None) -> list[Check]:
    """Run all checks.

    Args:
        config: A file, or the name of a config that comes with mmlape, to be checked as well; or None.
        work_dir: Where a training would write; default: the config's, else ``work_dirs``.
    """
    from .machine import Machine, machine_checks
    from .packages import package_checks

    machine = Machine()
    found = _run(package_checks(machine))
    if config is None:
        return found + _run(machine_checks(machine, None, work_dir))
    if any(check.state == ERROR for check in found):
        found += _run(machine_checks(machine, None, work_dir))
        advice = 'mend the packages first (below), then ask again'
        return [*found, Check('config', ERROR, f'{config} was not looked at', advice)]
    from .training import load_config, training_checks

    loaded, check = load_config(config)
    found.append(check)
    found += _run(machine_checks(machine, loaded, work_dir))
    return found if loaded is None else found + _run(training_checks(machine, loaded))


def exit_code(checks: Iterable[Check]) -> int:
    """1 if there is an error, else 0."""
    return int(any(check.state == ERROR for check in checks))


def table(checks: list[Check]) -> str:
    """The report as text: what is well, then warnings and errors with what to do."""
    width = max(len(check.name) for check in checks)
    fine = [check for check in checks if check.state == OK]
    lines = [f'{OK:<8} {check.name:<{width}}  {check.found}' for check in fine]
    indent = ' ' * (9 + width + 2)
    for state in (WARNING, ERROR):
        for check in (check for check in checks if check.state == state):
            lines += ['', f'{state:<8} {check.name:<{width}}  {check.found}']
            lines += [f'{indent}{check.advice}'] if check.advice else []
    numbers = {state: sum(check.state == state for check in checks) for state in (WARNING, ERROR)}
    counted = [f'{n} {state}{"s" * (n != 1)}' for state, n in numbers.items() if n]
    return '\n'.join([*lines, '', ', '.join(counted) or 'all is well', ''])


def ask(code: str, timeout: int = 300) -> tuple[dict[str, Any] | None, str]:
    """Run Python code that sets ``answer`` in a process of its own, which may crash.

    Returns:
        The answer and '', or None and why there is none.
    """
    code = f'import json\nanswer = {{}}\n{code}\nprint({_ANSWER!r} + json.dumps(answer))'
    # What this program can import, that one can: paths may have been added here.
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, *_own_options(), '-c', code],
            capture_output=True, text=True, errors='replace', timeout=timeout, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f'no answer after {timeout} s'
    for line in done.stdout.splitlines():
        if line.startswith(_ANSWER):
            return json.loads(line.removeprefix(_ANSWER)), ''
    if done.returncode < 0:
        return None, f'the process was ended by signal {-done.returncode}'
    return None, (done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]


def _own_options() -> list[str]:
    return ['-S'] if sys.flags.no_site else []


def _run(checks: Iterable[Callable[[], Check | list[Check]]]) -> list[Check]:
    """The answers; a check that fails itself is an error, and does not hide the others."""
    found: list[Check] = []
    for check in checks:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            try:
                answer = check()
            except Exception as error:  # whatever is broken: that is what the program is for
                name = getattr(check, '__name__', 'check').strip('_').replace('_', ' ')
                answer = Check(name, ERROR, f'{type(error).__name__}: {first_line(error)}')
        found += answer if isinstance(answer, list) else [answer]
    return found


def first_line(error: BaseException | str) -> str:
    """Of a message."""
    return (str(error).strip().splitlines() or [''])[0]

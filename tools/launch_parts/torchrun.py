"""torchrun without its tracebacks: processes that end with an error, or by Ctrl-C, have said why."""

import logging
import sys

from mmlape.cli import run_program


def main() -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    for name in ('agent.server.api', 'multiprocessing.api'):
        logging.getLogger(f'torch.distributed.elastic.{name}').setLevel(logging.CRITICAL)
    try:
        torchrun()
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f'process {rank} ended with exit code {failure.exitcode}', file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 1)


if __name__ == '__main__':
    run_program(main, logs=True)

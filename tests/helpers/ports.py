"""A port of this machine for the processes of one test, while other tests run beside it."""

import socket


def free_port() -> int:
    """One that the system has just handed out, so that no test beside this one gets the same."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]

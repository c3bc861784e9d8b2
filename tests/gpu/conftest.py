"""Tests that need a GPU: ``make test-gpu``. They write a report; with ``--device cpu`` they try themselves."""

import os
import time
from pathlib import Path

import pytest
import torch
from gpu_report import machine, write_report

REPO = Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    group = parser.getgroup('GPU')
    group.addoption('--device', choices=['cuda', 'cpu'], default='cuda', help='default: cuda')
    group.addoption('--all-rows', action='store_true', help='memory of all configs: hours')
    group.addoption(
        '--report', type=Path, default=REPO / 'work_dirs/gpu_report',
        help='without its suffix (default: %(default)s)',
    )  # fmt: skip


def pytest_configure(config):
    if config.option.device == 'cpu':
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    elif not torch.cuda.is_available():
        raise pytest.UsageError('PyTorch finds no GPU; make test-gpu DEVICE=cpu tries the tests')
    # Small networks on the CPU: on 16 cores, 8 threads took five times as long as 4.
    torch.set_num_threads(min(4, torch.get_num_threads()))
    # Outputs are compared with those of a CPU.
    torch.backends.cudnn.allow_tf32 = False
    config.pluginmanager.register(Results(config.option))


@pytest.fixture(scope='session')
def device(request):
    """Where to run."""
    return torch.device(request.config.option.device)


@pytest.fixture
def gpu(device):
    """The same, for what a CPU cannot stand in for."""
    if device.type == 'cpu':
        pytest.skip('not measured on a CPU')
    return device


class Results:
    """What each test has recorded by ``record_property``, for the report."""

    def __init__(self, options):
        self.options, self.found, self.started = options, [], time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == 'call' or report.outcome != 'passed':
            title = item.function.__doc__.partition('\n')[0]
            why = call.excinfo.exconly().removeprefix('Skipped: ') if call.excinfo else ''
            self.found.append(
                dict(
                    test=report.nodeid,
                    title=title.strip('.'),
                    case=item.callspec.id if hasattr(item, 'callspec') else '',
                    outcome=report.outcome,
                    seconds=round(report.duration, 2),
                    figures=dict(report.user_properties),
                    why=why.partition('\n')[0][:300],
                )
            )
        return report

    def pytest_terminal_summary(self, terminalreporter):
        record = dict(
            machine=machine(self.options.device),
            seconds=round(time.monotonic() - self.started),
            results=sorted(self.found, key=lambda each: each['test']),
        )
        path = write_report(self.options.report, record)
        terminalreporter.write_line(f'the report: {path} and .json beside it')

"""MMEngine's state is reset between tests: these two run in this order, and the second one finds none."""

import logging

from config_utils import use_scope
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

LEFT = 'left by a test'


def known():
    return {kind: LEFT in kind._instance_dict for kind in (MMLogger, Visualizer)}


def test_scopes_visualizers_and_loggers_are_made(tmp_path):
    use_scope('mmseg')
    Visualizer.get_instance(LEFT)
    logger = MMLogger.get_instance(LEFT, log_file=str(tmp_path / 'log'))
    assert DefaultScope.get_current_instance().scope_name == 'mmseg' and all(known().values())
    test_scopes_visualizers_and_loggers_are_made.handlers = logger.handlers


def test_and_the_next_test_finds_none():
    scope = DefaultScope.get_current_instance()
    assert scope is None or scope.scope_name != 'mmseg'
    assert not any(known().values())
    handlers = getattr(test_scopes_visualizers_and_loggers_are_made, 'handlers', [])
    assert all(h.stream is None for h in handlers if isinstance(h, logging.FileHandler))

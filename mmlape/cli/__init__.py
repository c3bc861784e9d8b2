"""Command lines of training and testing: configs by name, options, processes, resuming."""

from mmlape.lazy import lazy_names

# Imported on first use: commands parse their options before anything that takes time is imported.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'arguments': (
            'AMP_DTYPES', 'add_common_options', 'add_config_of_model', 'add_device', 'add_trust',
        ),
        'children': ('run_child',),
        'options': (
            'add_metric', 'add_report', 'config_of', 'enable_amp', 'enable_lr_scaling', 'first_images',
            'keep_predictions', 'log_to', 'merge_overrides', 'show_predictions', 'use_tta',
        ),
        'errors': ('weights_only',),
        'progress': ('show_progress', 'show_scores'),
        'program': ('command_line', 'continue_with', 'run_program', 'stop_with_message', 'usage', 'wrong_usage'),
        '.training.processes': (
            'all_see', 'build_runner', 'joined', 'lock_work_dir', 'log_notes', 'main_process_says',
            'make_runner', 'optimize_on_cpu', 'set_resume', 'start_run',
        ),
    },
)  # fmt: skip

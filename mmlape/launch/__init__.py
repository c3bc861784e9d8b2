"""What the command lines of training and testing share: configs by name, options, processes, resuming."""

from mmlape.lazy import lazy_names
from mmlape.shipped import find_config, shipped_configs, shipped_folder

# Imported on first use: commands parse their options before anything that takes time is imported.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'arguments': ('AMP_DTYPES', 'add_common_options'),
        'options': ('config_of', 'enable_amp', 'enable_lr_scaling', 'existing_checkpoint'),
        'processes': (
            'all_see',
            'joined',
            'main_process_says',
            'optimize_on_cpu',
            'stop_with_message',
        ),
        'resume': ('build_runner', 'last_complete_checkpoint', 'set_resume'),
        'testing': ('add_metric', 'keep_predictions', 'show_predictions', 'use_tta'),
        'weights': ('weights_only',),
    },
)
__all__ += ['find_config', 'shipped_configs', 'shipped_folder']

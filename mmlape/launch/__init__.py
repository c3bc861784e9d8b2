"""What the command lines of training and testing share: configs by name, options, processes, resuming."""

from mmlape.imports import on_first_use
from mmlape.shipped import find_config, shipped_configs, shipped_folder

__getattr__, __dir__, __all__ = on_first_use(
    __name__,
    {
        'arguments': ('AMP_DTYPES', 'add_common_options'),
        'options': ('config_of', 'enable_amp', 'enable_lr_scaling', 'existing_checkpoint'),
        'processes': ('all_see', 'joined', 'main_process_says', 'stop_with_message'),
        'resume': ('build_runner', 'last_complete_checkpoint', 'set_resume'),
        'testing': ('add_metric', 'keep_predictions', 'show_predictions', 'use_tta'),
        'weights': ('weights_only',),
    },
)
__all__ += ['find_config', 'shipped_configs', 'shipped_folder']

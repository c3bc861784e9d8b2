"""Weights from elsewhere (timm, DeiT, PVT, ViT-Adapter, MMSegmentation, ...), with an account of every entry."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'conversion': ('convert', 'convert_with_report'),
        'formats': ('FORMATS',),
        'pretrained': ('Pretrained',),
        'reading': ('read_checkpoint',),
        'report': ('CheckpointError', 'LoadReport'),
        'loaders': ('safe_loading',),
        'lora_files': ('load_lora', 'save_lora'),
    },
)

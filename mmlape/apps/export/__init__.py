"""Trained detectors and segmentors as files that run without mmlape."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'network': ['Network'],
        'files': [
            'export_program',
            'finish',
            'run_package',
            'write_half',
            'write_int8',
            'write_onnx',
        ],
        'settings': ['runtime_settings'],
        'verify': ['compare', 'made_images'],
    },
)

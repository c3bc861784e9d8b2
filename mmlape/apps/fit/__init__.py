"""``mmlape fit``: from a folder of images to a trained model."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'config': ('config_text',),
        'data': ('OwnData', 'Part', 'find_data'),
        'models': ('MODELS', 'FitModel', 'find_model'),
        'options': ('FitOptions',),
        'report': ('compare_with_truth', 'truths'),
    },
)

"""Report at the end of a training: curves, and `report.html`."""

from mmlape.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'curves': (
            'best_scores',
            'draw_curves',
            'line_style',
            'read_curves',
            'save_figure',
            'write_table',
        ),
        'hook': ('ReportHook',),
        'names': ('for_people', 'names_of'),
        'pictures': ('PictureHook',),
        'tally': ('Example', 'Tally'),
    },
)

"""The page of ``mmlape app``: what a model finds in an image, where a token of it looks, and which positions are alike.

Nothing of the page comes from another host, and the browser is told to ask none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit

import cv2
import gradio as gr
import numpy as np
from fastapi import FastAPI, Request, Response
from matplotlib.figure import Figure
from PIL import Image

from mmlape.apps.inference import Model, Result
from mmlape.apps.inference.about import about
from mmlape.apps.inference.results import read_image

MOST_PIXELS = 40_000_000  # per image
MOST_BYTES = 15_000_000  # per file
# The pages of gradio name other hosts.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; form-action 'self'"
_BUTTONS: list = ['download', 'fullscreen']  # and none that shares on another host
_LONGEST = 300  # letters of a fact: 150 names of classes are no introduction
_KEPT = (300, 1800)  # seconds: how often files of users are looked through, and how old they may be


class Panels(Protocol):
    """Pictures of the inside of a model; they raise ValueError where there is nothing to see."""

    layers: int  #: with a position; 0 for none

    def attention(self, found: Result, x: float, y: float) -> np.ndarray:
        """The image, RGB, under the attention of the token at a pixel."""

    def correlation(self, layer: int) -> Figure:
        """How alike the positions of a layer are."""


class Answers:
    """Answers of a model to the requests of the page."""

    def __init__(self, model: Model, panels: Panels) -> None:
        self.model, self.panels = model, panels

    def find(self, image: np.ndarray | None, score: float) -> tuple[Any, list, Result | None]:
        """Picture and table of what is found in an image ``(H, W, 3)``, RGB, and all of it for :meth:`draw`."""
        if image is None:
            return None, [], None
        _check_size(*image.shape[:2])
        (found,) = self.model.predict(np.ascontiguousarray(image[..., ::-1]), score=0)
        return *self.draw(found, score), found

    def open(self, path: str | None, score: float) -> tuple[Any, Any, list, Result | None]:
        """Picture of a file's image of any channels and bits, and as :meth:`find`."""
        if path is None:
            return None, None, [], None
        pixels = _read(self.model.read, path)
        _check_size(*pixels.shape[:2])
        (found,) = self.model.predict(pixels, score=0)
        return found.image[..., ::-1], *self.draw(found, score), found

    def draw(self, found: Result | None, score: float) -> tuple[Any, list]:
        """Picture and table of what has at least this score."""
        if found is None:
            return None, []
        count = int((found.scores >= score).sum())
        crops = None if found.crops is None else found.crops[:count]
        shown = replace(
            found, boxes=found.boxes[:count], scores=found.scores[:count],
            labels=found.labels[:count], crops=crops,
        )  # fmt: skip
        rows = [
            [self.model.classes[label], round(float(value), 3), *box.round().astype(int).tolist()]
            for label, value, box in zip(shown.labels, shown.scores, shown.boxes, strict=True)
        ]
        if found.label_map is not None:
            labels, counts = np.unique(found.label_map, return_counts=True)
            shares = sorted(zip(counts / counts.sum(), labels), reverse=True)
            rows = [[self.model.classes[k], round(float(share), 3)] for share, k in shares]
        return shown.picture()[..., ::-1], rows

    def look(self, found: Result | None, place: gr.SelectData) -> Any:
        """The image under the attention of the token at the place that was clicked."""
        return None if found is None else _or_error(self.panels.attention, found, *place.index)

    def correlate(self, layer: float) -> Figure:
        """The position correlation of a layer, of the token in the middle."""
        return _or_error(self.panels.correlation, int(layer))


def _error(text: str) -> gr.Error:
    """For the user, not for the terminal."""
    return gr.Error(text, print_exception=False)


def _check_size(height: int, width: int) -> None:
    if height * width > MOST_PIXELS:
        raise _error(
            f'at most {MOST_PIXELS // 10**6} megapixels; `mmlape predict --tile` takes larger images'
        )


def _or_error(panel: Callable, *options: Any) -> Any:
    """A panel; an error for the user where the network has nothing to show."""
    try:
        return panel(*options)
    except ValueError as error:
        raise _error(str(error)) from None


def _read(read: Callable, payload: Any) -> Any:
    """Read an uploaded file; errors for the user do not show a path of the server."""
    try:
        return read(payload)
    except gr.Error:  # a ValueError too
        raise
    except (OSError, ValueError, Image.DecompressionBombError):
        raise _error('this file is no image that can be read') from None


def _pixels(otherwise: Callable, payload: Any) -> Any:
    """Pixels ``(H, W, 3)``, RGB, of an upload, as ``mmlape predict`` reads a file: gradio makes 16 bits white."""
    if payload is None or payload.path is None:
        return otherwise(payload)
    with Image.open(payload.path) as header:
        _check_size(header.height, header.width)
    return read_image(payload.path)[..., ::-1]


def _described(facts: Mapping[str, str]) -> str:
    """Facts as Markdown, in which their texts, such as names of classes of others, are only texts."""
    texts = {
        name: fact if len(fact) <= _LONGEST else f'{fact[:_LONGEST]} ...'
        for name, fact in facts.items()
    }
    plain = {name: re.sub(r'([^\w\s,.])', r'\\\1', text) for name, text in texts.items()}
    return '\n\n'.join(f'**{name}**: {text}' for name, text in plain.items())


def build(
    answers: Answers, title: str, facts: Mapping[str, str], examples: Sequence[str]
) -> gr.Blocks:
    """The page; ``facts``: what the model is, by name; ``examples``: image files to try it with."""
    boxes = answers.model.finds_boxes
    head = ['class', 'score', 'x1', 'y1', 'x2', 'y2'] if boxes else ['class', 'share']
    with gr.Blocks(analytics_enabled=False, title=title, delete_cache=_KEPT) as page:
        gr.Markdown(f'# {title}')
        gr.Markdown(_described(facts))
        found = gr.State(None, time_to_live=_KEPT[1])
        with gr.Row():
            own = answers.model.loader is not None
            file = gr.File(label='image file', visible=own)
            image = gr.Image(
                label='image',
                sources=['upload', 'clipboard'],
                buttons=_BUTTONS,
                interactive=not own,
            )
            # A subclass would make gradio write a file beside this one.
            image.preprocess = partial(_read, partial(_pixels, image.preprocess))  # type: ignore[method-assign]
            picture = gr.Image(
                label='prediction', interactive=False, format='png', buttons=_BUTTONS
            )
        if examples:
            gr.Examples([*examples], file if own else image, cache_examples=False)
        score = gr.Slider(
            0, 1, answers.model.score, step=0.001, label='minimum score', visible=boxes
        )
        rows = gr.Dataframe(headers=head, interactive=False, label='table')
        if own:
            file.change(answers.open, [file, score], [image, picture, rows, found], api_name='open')
        else:
            image.change(answers.find, [image, score], [picture, rows, found], api_name='find')
        score.release(answers.draw, [found, score], [picture, rows], api_name='draw')
        gr.Markdown(
            'Click the image to show the attention of that token (last layer, mean over heads).'
        )
        heat = gr.Image(label='attention', interactive=False, format='png', buttons=_BUTTONS)
        image.select(answers.look, [found], [heat])
        if layers := answers.panels.layers:
            layer = gr.Slider(0, layers - 1, 0, step=1, label='layer')
            gr.Markdown('Position correlation of all tokens, and with the one in the middle.')
            plot = gr.Plot(show_label=False)  # a label would hide the titles on a telephone
            layer.release(answers.correlate, [layer], [plot], api_name='correlate')
            page.load(answers.correlate, [layer], [plot])
    return page


def drawn_nuclei() -> np.ndarray:
    """An image to try ``nuclei`` with: bright ellipses on black, drawn here, because no data come with the package."""
    rng, image = np.random.default_rng(1), np.full((256, 320), 8, np.uint8)
    for x, y in itertools.product(range(30, 320, 52), range(30, 256, 48)):
        place = (x + int(rng.integers(-8, 9)), y + int(rng.integers(-8, 9)))
        axes, turned = rng.integers(7, 13, 2).tolist(), float(rng.integers(180))
        cv2.ellipse(image, place, axes, turned, 0, 360, int(rng.integers(70, 160)), -1)
    return cv2.GaussianBlur(image, (7, 7), 0)


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether a ``Host`` header is ours: ``localhost``, an IP address, or one of ``names``.

    A page of another host can let its own name lead to this machine (DNS rebinding), but no address.
    """
    try:
        name = urlsplit(f'//{header}').hostname or ''
        if name in ('localhost', *names):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True


def application(
    model: Model,
    title: str,
    panels: Panels,
    names: Collection[str] = (),
    examples: Sequence[str] = (),
) -> FastAPI:
    """The page as a server's application, which answers to ``localhost``, IP addresses and ``names`` alone."""
    server = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    own = {name.lower() for name in names}

    @server.middleware('http')
    async def own_host_alone(request: Request, proceed: Callable) -> Response:
        # gradio writes the others into its pages.
        headers = ('host', 'x-forwarded-host', 'x-gradio-server')
        given = [request.headers[name] for name in headers if name in request.headers]
        if not all(is_own_host(name.rpartition('://')[2], own) for name in given):
            return Response('unknown host: start mmlape app with --allow-host NAME', 421)
        response = await proceed(request)
        response.headers['Content-Security-Policy'] = _POLICY
        return response

    fonts: list = ['system-ui', 'sans-serif']  # fonts of the machine
    return gr.mount_gradio_app(
        server,
        build(Answers(model, panels), title, about(model), examples),
        path='/',
        max_file_size=MOST_BYTES,
        ssr_mode=False,
        show_error=False,
        footer_links=[],
        theme=gr.themes.Default(font=fonts, font_mono=['monospace']),
    )

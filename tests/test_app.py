"""The page of `mmlape app`, by its own interface: answers, wrong and large files, two users, and no other host."""

import json
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

os.environ['GRADIO_ANALYTICS_ENABLED'] = 'False'  # read on import, as the command sets it

import cv2
import gradio as gr
import gradio_client
import httpx
import numpy as np
import pytest
import torch
import uvicorn
from backbone_variants import build_vit
from PIL import Image
from ports import free_port

import mmlape
from mmlape.apps.app import (
    Answers,
    _described,
    _pixels,
    application,
    build,
    drawn_nuclei,
    is_own_host,
)
from mmlape.apps.export.verify import made_images
from mmlape.apps.inference import Result
from mmlape.research.analysis import ModelPanels


def answers_of(model):
    return Answers(model, ModelPanels(model))


@pytest.fixture(scope='module')
def model():
    return mmlape.load('nuclei', None, 'cpu', False)


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp('images'), []
    for seed, size in enumerate(((101, 158), (120, 90))):
        pixels = made_images(1, size, seed)[0].transpose(1, 2, 0).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f'{seed}.png')
        found.append(folder / f'{seed}.png')
    return found


@pytest.fixture(scope='module')
def address(model, pictures):
    """Of a server in a thread; every connection of this process is to this machine."""
    strangers, connect = [], socket.socket.connect

    def watched(self, place):
        if isinstance(place, tuple) and place[0] not in ('127.0.0.1', '::1', 'localhost'):
            strangers.append(place)
        return connect(self, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, 'connect', watched)
        examples = [str(pictures[0])]
        page = application(model, 'nuclei', ModelPanels(model), examples=examples)
        port = free_port()
        server = uvicorn.Server(
            uvicorn.Config(page, port=port, log_level='error', timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
        yield f'http://127.0.0.1:{port}/'
        server.should_exit = True
        thread.join(10)
    assert not strangers


def client(address):
    return gradio_client.Client(address, verbose=False, analytics_enabled=False)


def find(user, path, score=0.3):
    picture, rows = user.predict(gradio_client.handle_file(path), score, api_name='/find')
    return Path(picture), rows['data']


def test_two_users_get_their_own_answers(address, model, pictures):
    users = [client(address), client(address)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(find, users, pictures, [0.05, 0.05]))
    for path, (picture, rows), user in zip(pictures, answers, users, strict=True):
        (found,) = model.predict(path, score=0.05)
        assert [row[1] for row in rows] == [round(float(value), 3) for value in found.scores]
        assert len(rows) > 3 and Image.open(picture).size[0] >= Image.open(path).size[0]
        _, fewer = user.predict(0.5, api_name='/draw')
        assert len(fewer['data']) == int((found.scores >= 0.5).sum()) < len(rows)
    assert users[0].predict(2, api_name='/correlate')['type'] == 'matplotlib'


@pytest.mark.parametrize('name', ['a.tif', 'a.png', 'a.jpg'])
def test_a_file_is_read_as_predict_reads_it(name, address, model, tmp_path):
    """16 bits of grey, of which MMCV keeps the upper 8, and CMYK."""
    image = drawn_nuclei()
    if name == 'a.jpg':
        Image.fromarray(np.stack([image] * 3, -1)).convert('CMYK').save(tmp_path / name)
    else:
        cv2.imwrite(str(tmp_path / name), image.astype(np.uint16) * 257)
    (found,) = model.predict(tmp_path / name, score=0.3)
    rows = find(client(address), tmp_path / name)[1]
    assert len(rows) == len(found.boxes) > 20
    assert [row[1] for row in rows] == [round(float(value), 3) for value in found.scores]


def test_colours_stay_and_a_huge_file_is_not_decoded(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'a.png')
    upload = SimpleNamespace(path=str(tmp_path / 'a.png'))
    assert np.array_equal(_pixels(None, upload), pixels)
    monkeypatch.setattr('mmlape.apps.app.MOST_PIXELS', 34)
    monkeypatch.setattr('mmlape.apps.app.read_image', None)
    with pytest.raises(gr.Error, match='at most'):
        _pixels(None, upload)


def test_the_page_says_what_the_model_is_and_has_an_example(address, model, pictures):
    text = json.dumps(httpx.get(f'{address}config').json())
    assert 'M parameters' in text and 'classes**: nucleus' in text and 'fit 512 x 512' in text
    (example,) = set(re.findall(rf'"path": "([^"]+{pictures[0].name})"', text))
    assert httpx.get(f'{address}gradio_api/file={example}').content == pictures[0].read_bytes()
    (found,) = model.predict(np.stack([drawn_nuclei()] * 3, -1), score=0.9)
    assert len(found.boxes) > 20
    # Names of classes are no Markdown.
    assert _described({'classes': '![a](http://b)'}) == r'**classes**: \!\[a\]\(http\:\/\/b\)'


def test_label_maps_have_shares_of_classes():
    answers = Answers(SimpleNamespace(classes=('sky', 'road')), None)
    labels = np.array([[0, 1], [1, 1]], np.uint8)
    found = Result(np.zeros((2, 2, 3), np.uint8), 'a', ('sky', 'road'), label_map=labels)
    assert answers.draw(found, 0.3)[1] == [['road', 0.75], ['sky', 0.25]]


def test_wrong_and_large_files(address, tmp_path, capfd):
    user = client(address)
    (tmp_path / 'wrong.png').write_text('no image')
    with pytest.raises(gradio_client.exceptions.AppError, match='this file is no image'):
        find(user, tmp_path / 'wrong.png')
    large = dict(files=('large.png', bytes(20_000_000)))
    assert httpx.post(f'{address}gradio_api/upload', files=large).status_code == 413
    Image.new('RGB', (64, 48)).save(tmp_path / 'right.png')
    assert find(user, tmp_path / 'right.png')[0].is_file()
    Image.new('1', (7000, 6000)).save(tmp_path / 'huge.png')
    with pytest.raises(gradio_client.exceptions.AppError, match='at most 40 megapixels'):
        find(user, tmp_path / 'huge.png')
    Image.new('1', (20_000, 10_000)).save(tmp_path / 'bomb.png')
    with pytest.raises(gradio_client.exceptions.AppError, match='no image that can be read'):
        find(user, tmp_path / 'bomb.png')
    assert 'Traceback' not in capfd.readouterr().err


def test_the_browser_is_told_to_ask_no_other_host(address):
    page = httpx.get(address)
    assert page.headers['content-security-policy'].startswith("default-src 'self' ")
    assert 'fonts.googleapis' not in page.text


def test_a_backbone_of_another_package_has_no_position_to_show():
    network = SimpleNamespace(backbone=torch.nn.Conv2d(3, 8, 3))
    answers = answers_of(SimpleNamespace(model=network, finds_boxes=True, loader=None, score=0.3))
    assert answers.panels.layers == 0 and len(build(answers, 'a', {}, ()).blocks) > 5


def test_correlations_of_positions_that_join_in_several_places_or_not_everywhere():
    joinings = (dict(type='mmlape.LaPEWarmStart'), dict(type='mmlape.LaPE', layers=[1]))
    for joining in joinings:
        network = SimpleNamespace(backbone=build_vit(joining=joining).eval())
        answers = answers_of(
            SimpleNamespace(model=network, finds_boxes=True, loader=None, score=0.3)
        )
        titles = [axes.get_title() for axes in answers.correlate(1).axes]
        assert 'layer 1' in titles and 'layer 0' not in titles
    with pytest.raises(gr.Error, match='layer'):
        answers.correlate(0)


def test_attention_lies_over_its_part_of_the_image(model, monkeypatch):
    """One cell of all attention, in an image that is not square, of a colour, and that the network sees in others."""
    image = np.full((80, 130, 3), (10, 60, 200), np.uint8)
    pixels = np.full_like(image, 255)
    tensor, scale = model.network_input(pixels)
    asked = []

    def attention(backbone, seen, place):
        asked.extend([torch.equal(seen, tensor), place])
        weights = np.zeros((tensor.shape[2] // 16, tensor.shape[3] // 16), np.float32)
        weights[1, 3] = 0.5
        return weights

    monkeypatch.setattr('mmlape.research.analysis.panels.token_attention', attention)
    found = Result(image, 'a', ['x'], pixels=pixels)
    drawn = ModelPanels(model).attention(found, 12, 70)
    assert asked == [True, (70 * scale[0], 12 * scale[1])]
    hottest, coldest = cv2.applyColorMap(np.array([[255, 0]], np.uint8), cv2.COLORMAP_INFERNO)[0]
    for (row, column), heat in {
        (1.5, 3.5): hottest,
        (1.5, 2.5): coldest,
        (2.5, 3.5): coldest,
    }.items():
        seen = drawn[round(16 * row / scale[0]), round(16 * column / scale[1])]
        assert np.allclose(seen, (0.4 * image[0, 0] + 0.6 * heat)[::-1], atol=1)
    assert (drawn[70, 12] == 255).all()


def test_a_click_shows_where_the_token_looks(model, pictures):
    answers = answers_of(model)
    _, _, found = answers.find(np.asarray(Image.open(pictures[0])), 0.3)
    drawn = answers.look(found, SimpleNamespace(index=(157, 100)))
    assert drawn.shape == (101, 158, 3) and drawn.std() > 0
    assert answers.look(None, SimpleNamespace(index=(0, 0))) is None
    assert answers.find(None, 0.3) == (None, [], None) and answers.draw(None, 0.3) == (None, [])


def test_names_of_other_hosts_are_refused(address):
    """A page of another host, whose name leads to this machine, neither reads the page nor is named in it."""
    port = address.rpartition(':')[2].strip('/')
    evil = ('evil.example', f'evil.example:{port}', 'localhost.evil.example')
    forged = (*evil, '127.0.0.1.evil.example', '', '@', '[')
    for name in ('Host', 'X-Forwarded-Host', 'X-Gradio-Server'):
        for host in forged:
            answer = httpx.get(address, headers={name: host})
            assert answer.status_code in (400, 421), (name, host)
            assert 'evil' not in answer.text
        for host in (f'localhost:{port}', '127.0.0.1', '[::1]:80', '192.168.0.7:7860', 'LOCALHOST'):
            assert httpx.get(address, headers={name: host}).status_code == 200, (name, host)
    answer = httpx.post(f'{address}gradio_api/upload', headers={'Host': 'evil.example'})
    assert answer.status_code == 421
    assert is_own_host('gpu-box.lan:7860', {'gpu-box.lan'})
    assert not is_own_host('gpu-box.lan:7860', {'lan'})

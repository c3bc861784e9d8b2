"""Configs that we write are data, whatever texts they hold: every writer, and every reader."""

import contextlib
import os
import string
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from tiny_training import tiny_config

from mmlape.apps.fit import MODELS, FitOptions, OwnData, Part
from mmlape.apps.fit import config_text as fit_text
from mmlape.checkpoints.strangers import config_of_stranger
from mmlape.cli import make_runner
from mmlape.config_text import PlainConfig, config_text, read_config_text, value_text

TEXTS = st.text(max_size=40) | st.text(alphabet='{}$:\\\'"# \n_base.file|x', max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each) | st.lists(each).map(tuple) | st.dictionaries(TEXTS | st.integers(), each)
    ),
    max_leaves=12,
)
# What runs when a reader replaces it or a writer does not quote it; `{0}` is a folder that is made.
EVIL = (
    # MMEngine makes a pattern of the default, whose empty alternative matches everywhere, and inserts it there.
    '{{{{$NO_SUCH:__import__("os").mkdir("{0}")#|()|x}}}}',
    '{{{{$NO_SUCH:x|\\047;__import__("os").mkdir("{0}");\\047}}}}',
    "{{{{$NO_SUCH:' + str(__import__('os').mkdir('{0}')) + '}}}}",
    '{{{{ $NO_SUCH:"+str(__import__("os").mkdir("{0}"))+" }}}}',
    '{{{{ fileDirname }}}}', '{{{{_base_.model}}}}', '{{{{{{{{$A:b}}}}}}}}',
    "'''", '"""', '"""\n__import__("os").mkdir("{0}")\n"""',
    "'); __import__('os').mkdir('{0}'); ('", '\\', "\\'", '# coding: utf-7', '\u2028', '\u202e', '日本',
    'ﬁ', '{{', '}}', '%(a)s', '$HOME',
)  # fmt: skip


def evil(folder):
    return [text.format(folder) for text in EVIL]


@given(VALUES)
@settings(deadline=None, max_examples=30)
@example({'class': 1, 'a b': 2, 'ﬁ': 3, '': 4, "a'": 5})
def test_a_value_is_read_as_it_was_written(value):
    text = value_text(value)
    assert '{{' not in text
    assert eval(text) == value
    assert type(eval(text)) is type(value)


@given(st.dictionaries(st.text(string.ascii_lowercase, min_size=1), VALUES, max_size=3))
@settings(deadline=None, max_examples=10)
def test_a_config_is_read_as_it_was_written(config):
    config = {f'x_{name}': value for name, value in config.items()}
    read = Config.fromfile(written(config_text(config))).to_dict()
    assert read == Config(config).to_dict()


def written(text):
    path = Path(os.environ['PYTEST_TEXTS'], 'config.py')
    path.write_text(text, encoding='utf-8')
    return path


@pytest.fixture(autouse=True, scope='module')
def _folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PYTEST_TEXTS', str(tmp_path_factory.mktemp('texts')))
        yield


def test_a_payload_works_where_a_text_is_only_quoted(tmp_path):
    """Else nothing is shown."""
    made = tmp_path / 'made'
    with contextlib.suppress(Exception):  # of what comes after it
        Config.fromfile(written(f'a = {evil(made)[0]!r}\n'))
    assert made.exists()


def test_names_that_a_config_cannot_have():
    for name in ('a b', 'dict', 'float', 'class', '', 'ﬁ', 1):
        with pytest.raises(ValueError, match='cannot be a name in a config'):
            config_text({name: 1})
    with pytest.raises(TypeError, match='a config holds data'):
        config_text(dict(a=object()))
    # What is more than data keeps MMEngine's text.
    assert PlainConfig(dict(a=dict)).pretty_text == 'a=dict'


@pytest.mark.parametrize('name', ['micro-adapter', 'micro-segmenter'])
def test_fit(name, tmp_path):
    """Names of classes in all; of folders and files, half of the texts in each."""
    texts, made = evil(tmp_path / 'made'), tmp_path / 'made'
    boxes = name == 'micro-adapter'
    for place in texts[boxes::2]:
        folder = f'/d/{place}'
        part = Part(
            f'{folder}/images',
            f'{folder}/a.json' if boxes else '',
            9,
            '' if boxes else f'{folder}/maps',
        )
        data = OwnData(
            'instance' if boxes else 'segment',
            'COCO',
            tuple(texts),
            part,
            part,
            f'{place}.jpg',
            f'{place}.png',
        )
        text = fit_text(data, MODELS[name], FitOptions(), tmp_path / f'x{place}'.replace('/', ''))
        for read in (read_config_text(text), Config.fromfile(written(text))):
            assert read.classes == tuple(texts)
            assert read.data_root.startswith(os.path.abspath(folder))
            read = Config.fromfile(written(PlainConfig(read.to_dict()).pretty_text))  # resolved.py
            assert tuple(read.test_dataloader.dataset.metainfo.classes) == tuple(texts)
    assert not made.exists()


def test_work_dirs_and_checkpoints(tmp_path):
    """The config beside the log, and the texts in a checkpoint, by which upstream's inferencers build a model."""
    texts = evil(tmp_path / 'made')
    cfg = tiny_config(tmp_path / 'work')
    cfg.names = texts
    cfg.by_name = {text: text for text in texts}
    make_runner(cfg).train()
    content = torch.load(next((tmp_path / 'work').glob('*.pth')), weights_only=False)
    (beside,) = (tmp_path / 'work').glob('*.py')
    found = [
        beside.read_text(),
        content['meta']['cfg'],
        content['message_hub']['runtime_info']['cfg'],
    ]
    for text in found:
        assert '{{' not in text
        read = Config.fromfile(written(text))
        assert read.names == texts and list(read.by_name.values()) == sorted(texts)
    assert not (tmp_path / 'made').exists()


def test_a_stranger_reads_what_we_write(tmp_path):
    """Names of classes of all kinds come back from a shared config."""
    texts = evil(tmp_path / 'made')
    cfg = dict(
        default_scope='mmseg', model=dict(type='EncoderDecoder'),
        test_dataloader=dict(dataset=dict(metainfo=dict(classes=texts), pipeline=[])),
    )  # fmt: skip
    assert config_of_stranger(config_text(cfg)).test_dataloader.dataset.metainfo.classes == texts

"""Long ListOps: hand-evaluated expressions, an independent evaluator, the files, and mistakes."""

import random
import re

import numpy as np
import pytest

from mmlape.research.datasets import ListOps, build_list_ops
from mmlape.research.datasets.list_ops import IDS, OPERATORS, draw_expression

SMALL = dict(num_train=20, num_val=5, num_test=5, length=(5, 60))


def evaluate(tokens):
    """With a stack, and with operators of its own."""
    own = {
        '[MIN': lambda v: sorted(v)[0],
        '[MAX': lambda v: sorted(v)[-1],
        '[MED': lambda v: (sorted(v)[(len(v) - 1) // 2] + sorted(v)[len(v) // 2]) // 2,
        '[SM': lambda v: int(str(sum(v))[-1]),
    }
    stack = [[]]
    for token in tokens:
        if token == ']':
            name, *values = stack.pop()
            stack[-1].append(own[name](values))
        elif token in own:
            stack.append([token])
        else:
            stack[-1].append(int(token))
    ((result,),) = stack
    return result


@pytest.mark.parametrize(
    ('source', 'result'),
    [
        ('7', 7),
        ('[MAX 2 9 ]', 9),
        ('[MIN 4 [MAX 1 3 ] 8 ]', 3),
        ('[MED 1 2 ]', 1),
        ('[MED 9 0 4 ]', 4),
        ('[MED 1 8 5 2 ]', 3),
        ('[SM 9 9 [SM 5 6 ] ]', 9),
        ('[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]', 5),
    ],
)
def test_known_values(source, result):
    """By hand; of the generator's operators and of the evaluator that it is compared with."""
    assert evaluate(source.split()) == result
    inner = source
    while '[' in inner:
        inner = re.sub(
            r'\[(\w+) ([\d ]+)\]',
            lambda found: str(OPERATORS[found[1]]([int(digit) for digit in found[2].split()])),
            inner,
        )
    assert int(inner) == result


def test_an_independent_evaluator_agrees_on_400_expressions():
    rng, count, depths, arguments = random.Random(0), 0, set(), set()
    while count < 400:
        tokens, result = draw_expression(rng, max_length=2000) or ((), 0)
        if len(tokens) > 1:
            count += 1
            assert evaluate(tokens) == result
            depth, stack = 0, []
            for token in tokens:
                if token == ']':
                    arguments.add(stack.pop())
                else:
                    if stack:
                        stack[-1] += 1
                    if token.startswith('['):
                        stack.append(0)
                depth = max(depth, len(stack))
            depths.add(depth)
    assert max(depths) == 9 and min(depths) == 1, 'digits at depth 10 are the deepest'
    assert (min(arguments), max(arguments)) == (2, 10)


def test_what_is_too_long_is_given_up():
    rng = random.Random(1)
    drawn = [draw_expression(rng, max_length=30) for _ in range(300)]
    assert None in drawn and max(len(each[0]) for each in drawn if each) <= 30


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return build_list_ops(tmp_path_factory.mktemp('data') / 'list_ops', **SMALL)


def read(root, split='train', **options):
    return ListOps(data_root=str(root), ann_file=f'annotations/basic_{split}.tsv', **options)


def test_files_and_data_set(root):
    sources = []
    for split, count in (('train', 20), ('val', 5), ('test', 5)):
        head, *lines = (root / f'annotations/basic_{split}.tsv').read_text().splitlines()
        assert head == 'Source\tTarget' and len(lines) == count
        dataset = read(root, split)
        assert dataset.metainfo['classes'] == tuple('0123456789')
        for index, line in enumerate(lines):
            source, target = line.split('\t')
            sources.append(source)
            item = dataset[index]
            assert 5 <= len(source.split()) <= 60 and evaluate(source.split()) == int(target)
            assert item['gt_label'] == int(target)
            assert item['img'].ravel().tolist() == [IDS[token] for token in source.split()]
            assert item['img'].shape[::2] == (1, 1)
    assert len(set(sources)) == 30, 'none is there twice'
    words = [*'0123456789', '[MIN', '[MAX', '[MED', '[SM', ']']
    assert {word: number for number, word in enumerate(words, 1)} == IDS, 'padding is 0'


def test_options_of_the_data_set(root):
    whole, words, cut = read(root), read(root, brackets=False), read(root, max_length=4)
    for one, other, first in zip(whole, words, cut, strict=True):
        ids = one['img'].ravel()
        assert np.array_equal(other['img'].ravel(), ids[ids != IDS[']']])
        assert np.array_equal(first['img'].ravel(), ids[:4])


def test_the_published_files_are_read(tmp_path):
    """With their parentheses."""
    line = '( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )\t9'
    (tmp_path / 'a.tsv').write_text(f'Source\tTarget\n{line}\n')
    (item,) = ListOps(data_root=str(tmp_path), ann_file='a.tsv')
    tokens = ['[MAX', '2', '9', '[MIN', '4', '7', ']', ']']
    assert item['img'].ravel().tolist() == [IDS[token] for token in tokens]


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('[ADD 2 3 ]\t5', r"line 2: expected tokens of .*, a tab and a digit, got '\[ADD'"),
        ('[SM 2 3 ]', r"got '\[SM 2 3 \]'"),
        ('[SM 2 3 ]\t15', 'a tab and a digit'),
        ('\t5', 'a tab and a digit'),
    ],
)
def test_wrong_lines(line, message, tmp_path):
    (tmp_path / 'a.tsv').write_text(f'Source\tTarget\n{line}\n')
    with pytest.raises(ValueError, match=message):
        ListOps(data_root=str(tmp_path), ann_file='a.tsv')
    (tmp_path / 'b.tsv').write_text(f'{line}\n')
    with pytest.raises(ValueError, match="its first line must be 'Source"):
        ListOps(data_root=str(tmp_path), ann_file='b.tsv')


def test_the_grammar():
    """A quarter of the roots are operators."""
    rng = random.Random(0)
    lengths = [len(draw_expression(rng, max_depth=2)[0]) for _ in range(4000)]
    assert abs(np.mean([length > 1 for length in lengths]) - 0.25) < 0.03
    assert {*lengths} == {1, *range(4, 13)}


def test_options_of_the_files(tmp_path):
    options = dict(num_train=150, num_val=2, num_test=2, max_depth=2, max_args=3, length=(4, 9))
    path = build_list_ops(tmp_path / 'a', **options) / 'annotations/basic_train.tsv'
    lines = [line.partition('\t')[0] for line in path.read_text().splitlines()[1:]]
    assert len({*lines}) == 150
    assert {len(line.split()) for line in lines} == {4, 5}  # two or three digits
    assert all(line.count('[') == 1 for line in lines)


def test_sizes_are_the_published_ones():
    defaults = build_list_ops.__kwdefaults__
    assert defaults == dict(
        num_train=96_000, num_val=2000, num_test=2000,
        length=(501, 1999), max_depth=10, max_args=10, seed=0,
    )  # fmt: skip


def test_lengths_that_do_not_exist(tmp_path, monkeypatch):
    monkeypatch.setattr('mmlape.research.datasets.list_ops.TRIES', 100)
    with pytest.raises(
        ValueError, match='100 expressions of max_depth=2 and max_args=2 had no new'
    ):
        build_list_ops(tmp_path / 'a', **{**SMALL, 'length': (50, 60)}, max_depth=2, max_args=2)
    assert not (tmp_path / 'a').exists()

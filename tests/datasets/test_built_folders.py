"""Every data set that is built: the same each time, once, again when damaged, and from options that are checked."""

import hashlib
from pathlib import Path

import pytest

from mmlape.research.datasets import build_digit_cells, build_digit_scenes, build_list_ops

FEW = dict(num_train=3, num_val=1, seed=3)
LISTS = dict(FEW, num_test=1, length=(5, 60))
# The builder, few options, others, a file that may be lost, how its images or lines are found, the name of its kind.
BUILT = {
    'scenes': (build_digit_scenes, FEW, dict(digit_size=(30, 40)), 'images/val/000000.jpg', 'digit scenes'),
    'scenes-coco': (build_digit_scenes, FEW, dict(seed=4), 'annotations/instances_train.json', 'digit scenes'),
    'cells': (build_digit_cells, FEW, dict(digits=(3,)), 'images/val/000000.png', 'digit cells'),
    'lists': (build_list_ops, LISTS, dict(seed=4), 'annotations/basic_val.tsv', 'list operations'),
}  # fmt: skip
BAD = {
    build_digit_scenes: [
        ('num_train', 0), ('num_val', 2.5), ('num_train', True), ('image_size', 16), ('digits_per_image', (3, 2)),
        ('digits_per_image', 3), ('digit_size', (24, 97)), ('digit_size', (4, 20)), ('min_visible', 1.5),
        ('min_contrast', 'much'), ('seed', -1),
    ],
    build_digit_cells: [
        ('num_train', 0), ('cells', 3), ('cells', 'many'), ('cell_size', 4), ('digit_size', (8, 9)), ('digits', ()),
        ('digits', (1, 1)), ('digits', (1, 10)), ('occupied', 1.5), ('seed', -1),
    ],
    build_list_ops: [('num_train', 0), ('num_test', 0), ('length', (60, 5)), ('max_args', 1), ('max_depth', True)],
}  # fmt: skip
each_kind = pytest.mark.parametrize(
    ('build', 'options', 'others', 'file', 'name'), BUILT.values(), ids=BUILT
)


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


@each_kind
def test_same_bytes_once_and_again_when_damaged(
    build, options, others, file, name, tmp_path, monkeypatch
):
    root = build(tmp_path / 'one', **options)
    before = digests(root)
    assert digests(build(tmp_path / 'two', **options)) == before
    seed = digests(build(tmp_path / 'three', **{**options, 'seed': 5}))
    drawn = [key for key in seed if key.endswith(('.jpg', '.tsv')) or key.startswith('images/')]
    assert drawn and not any(seed[key] == before[key] for key in drawn)
    with monkeypatch.context() as patch:
        patch.setattr(
            'mmlape.research.datasets.building._swap_in', lambda *_: pytest.fail('built again')
        )
        assert build(root, **options) == root
    (root / file).unlink()
    assert digests(build(root, **options)) == before
    changed = digests(build(root, **{**options, **others}))
    assert changed.keys() == before.keys() and changed != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ['one', 'three', 'two']


@each_kind
def test_a_folder_of_something_else_is_left_alone(build, options, others, file, name, tmp_path):
    (tmp_path / 'thesis.tex').write_text('precious')
    with pytest.raises(FileExistsError, match=f'not a {name} folder'):
        build(tmp_path, **options)
    assert (tmp_path / 'thesis.tex').read_text() == 'precious'


@each_kind
def test_what_others_put_into_a_folder_is_not_removed(build, options, others, file, name, tmp_path):
    root = build(tmp_path / 'one', **options)
    (root / 'predictions').mkdir()
    assert build(root, **options) == root
    with pytest.raises(FileExistsError, match=r"holds \['predictions'\] beside the"):
        build(root, **{**options, **others})
    assert (root / 'predictions').is_dir() and build(root, **options) == root
    assert [path.name for path in tmp_path.iterdir()] == ['one']


@pytest.mark.parametrize(
    ('build', 'option', 'value'),
    [(build, *case) for build, cases in BAD.items() for case in cases],
)
def test_bad_options_are_named(tmp_path, build, option, value):
    with pytest.raises((ValueError, TypeError), match=f'^{option} ?(must|=)'):
        build(tmp_path / 'a', **{option: value})
    assert not list(tmp_path.iterdir())

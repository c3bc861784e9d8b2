"""Damaged files, and what is no checkpoint."""

import json
import os
import struct
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

from .maker import BROKEN, Call, changed, crafted, put, run, table

_reconstruct = np.array(0.0).__reduce__()[0]


def _bytes(content):
    return lambda m: m.path.write_bytes(content) and None


def _cut(share, **options):
    def cut(m):
        torch.save(m.whole, m.path, **options)
        os.truncate(m.path, int(m.path.stat().st_size * share))

    return cut


def _flip(where):
    """One bit in the middle of a record."""

    def flip(m):
        torch.save(m.whole, m.path)
        with zipfile.ZipFile(m.path) as archive:
            (record,) = (r for r in archive.infolist() if r.filename.endswith(f'/{where}'))
            middle = archive.read(record)[record.file_size // 2 :]
        data = bytearray(m.path.read_bytes())
        place = data.index(middle, record.header_offset)
        data[place] ^= 1
        m.path.write_bytes(data)

    return flip


def _beside(save, digest):
    def write(m):
        save(m)
        m.path.with_name(m.path.name + '.sha256').write_text(digest)

    return write


def _whole(m):
    torch.save(m.whole, m.path)


def _tensors(m):
    save_file(dict(m.state), m.path)


def _archive(**records):
    def write(m):
        with zipfile.ZipFile(m.path, 'a', zipfile.ZIP_DEFLATED) as archive:
            for name, content in records.items():
                archive.writestr(f'archive/data/{name}', content)

    return write


def _bomb(m):
    _whole(m)
    _archive(large=bytes(2**26))(m)


def _header(header, data=bytes(8), length=None):
    """A .safetensors file with this header."""

    def write(m):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        m.path.write_bytes(struct.pack('<Q', len(text) if length is None else length) + text + data)

    return write


def _tensor(begin, end, shape=(2,), dtype='F32'):
    return dict(dtype=dtype, shape=list(shape), data_offsets=[begin, end])


ZEROS = f'{"0" * 64}  file\n'
table(
    BROKEN,
    nothing=_bytes(b''),
    a_page=_bytes(b'<!DOCTYPE html><html><body>Log in, please</body></html>'),
    an_answer=_bytes(b'{"error": "no such file"}'),
    a_pointer_of_git_lfs=_bytes(b'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n'),
    words=_bytes(b'these are words'),
    noise=_bytes(np.random.default_rng(0).bytes(5000)),
    zeros=_bytes(bytes(5000)),
    an_old_list=lambda m: [torch.zeros(2)],
    a_text=lambda m: 'weights',
    one_tensor=lambda m: torch.zeros(3),
    a_module=lambda m: torch.nn.Linear(2, 2),
    a_tensor_larger_than_its_storage=lambda m: changed(m, a=torch.ones(1).expand(10**6, 10**6)),
    many_tensors_larger_than_their_storage=lambda m: changed(
        m, **{f'a{i}': torch.ones(1).expand(2**13, 2**10) for i in range(100)}
    ),
    a_quantized_tensor=lambda m: changed(
        m, **{'head.bias': torch.quantize_per_tensor(m.state['head.bias'], 0.1, 0, torch.qint8)}
    ),
    a_sparse_tensor=lambda m: changed(m, **{'head.weight': m.state['head.weight'].to_sparse()}),
    a_tensor_without_values=lambda m: changed(m, **{'head.weight': m.state['head.weight'].to('meta')}),
    cut_in_the_old_format=_cut(0.5, _use_new_zipfile_serialization=False),
    another_file_than_its_digest_says=_beside(_whole, ZEROS),
    a_digest_that_is_none=_beside(_whole, '404: not found'),
    another_archive=_archive(readme='nothing else'),
    an_archive_that_unpacks_to_much_more=_bomb,
    a_folder=lambda m: m.path.mkdir(),
    a_link_to_nothing=lambda m: m.path.symlink_to(m.folder / 'gone.pth'),
    a_pipe=lambda m: os.mkfifo(m.path),
    **{f'cut_at_{share}': _cut(share) for share in (0.001, 0.1, 0.5, 0.9, 0.999)},
    **{f'one_bit_of_{where}': _flip(where) for where in ('0', '1', 'data.pkl', 'version')},
)  # fmt: skip
table(
    BROKEN,
    '.safetensors',
    another_safetensors_than_its_digest_says=_beside(_tensors, ZEROS),
    a_pickle_as_safetensors=lambda m: put(m.state, run(m.canary)),
    no_safetensors=_bytes(b''),
    a_header_longer_than_the_file=_header({'a': _tensor(0, 8)}, length=10**6),
    a_huge_header=_header({'a': _tensor(0, 8)}, length=2**63),
    a_header_of_all_memory=_header({'a': _tensor(0, 8)}, length=2**64 - 1),
    a_header_that_is_no_json=_header(b'{"a": '),
    a_header_that_is_a_list=_header([1, 2]),
    tensors_that_overlap=_header({'a': _tensor(0, 8), 'b': _tensor(4, 12)}, bytes(12)),
    a_tensor_beyond_the_file=_header({'a': _tensor(0, 8 * 10**9, (2 * 10**9,))}),
    a_tensor_that_ends_before_it_begins=_header({'a': _tensor(8, 0)}),
    a_shape_that_is_not_the_size=_header({'a': _tensor(0, 8, (200,))}),
    a_shape_that_overflows=_header({'a': _tensor(0, 8, (2**62, 4))}),
    an_empty_shape_that_overflows=_header({'a': _tensor(0, 0, (0, 2**62, 2**62))}, b''),
    an_empty_shape_of_huge_sides=_header({'a': _tensor(0, 0, (0, 2**40, 2**40))}, b''),
    numbers_of_4_bits=_header({'a': _tensor(0, 2, (4,), 'F4')}, bytes(2)),
    an_unknown_type=_header({'a': _tensor(0, 8, dtype='CODE')}),
    data_that_is_no_tensor_s=_header({'a': _tensor(0, 8)}, bytes(64)),
)  # fmt: skip


@crafted(BROKEN)
def a_script(m):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(m.path))


@crafted(BROKEN)
def an_array_of_a_made_up_type(m):
    """A type of eight bytes that says of itself to hold a pointer: whoever reads the field follows it."""
    fields = ('a',), {'a': (Call(np.dtype, 'O'), 0)}
    made_up = Call(np.dtype, 'f8', False, True, state=(3, '<', None, *fields, -1, -1, 0))
    pointer = struct.pack('<Q', 0x4141)
    content = (1, (1,), made_up, False, pointer)
    return put(m.whole, Call(_reconstruct, np.ndarray, (0,), b'b', state=content))


@crafted(BROKEN)
def many_views_of_one_storage(m):
    """Of a megabyte: each looks harmless, and all of them take minutes to read."""
    whole = torch.zeros(2**18)
    return changed(m, **{f'a{i}': whole[:] for i in range(400)})


@crafted(BROKEN)
def shared_dicts(m):
    """Each level holds the one below twice: 2^40 of them for whoever does not remember what was seen."""
    level = {}
    for _ in range(40):
        level = dict(a=level, b=level)
    return dict(m.whole, optimizer=level)


@crafted(BROKEN)
def a_dict_in_itself(m):
    whole = m.whole
    whole['state_dict']['state_dict'] = whole['state_dict']
    return whole


@crafted(BROKEN)
def shards_in_a_folder(m):
    m.path.mkdir()
    for rank in range(2):
        torch.save(put(m.whole, run(m.canary)), m.path / f'rank{rank}.pth')


@crafted(BROKEN)
def shards_with_an_index(m):
    m.path.mkdir()
    shards = {name: f'part-{i % 2}.bin' for i, name in enumerate(m.state)}
    (m.path / 'pytorch_model.bin.index.json').write_text(json.dumps(dict(weight_map=shards)))
    for part in set(shards.values()):
        torch.save(put(m.state, run(m.canary)), m.path / part)

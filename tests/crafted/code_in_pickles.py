"""Code in pickles, in every place and format."""

import functools
import io
import os
import pickle
import tarfile
from collections import OrderedDict

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from .maker import CODE, Call, code, crafted, put, put_into, run, table

table(
    CODE,
    beside_the_weights=put_into,
    among_the_weights=lambda m: put_into(m, 'state_dict'),
    in_meta=lambda m: put_into(m, 'meta'),
    in_the_optimizer=lambda m: put_into(m, 'optimizer', 'state'),
    in_the_message_hub=lambda m: put_into(m, 'message_hub', 'runtime_info'),
    in_the_averaged_weights=lambda m: dict(m.whole, ema_state_dict={'module.x': run(m.canary)}),
    deep_inside=lambda m: put(m.whole, [({'a': [[(1, {'b': run(m.canary)})]]},)]),
    as_a_key=lambda m: put(m.whole, {(1, run(m.canary)): 1}),
    in_an_array=lambda m: put(m.whole, np.array([run(m.canary)], dtype=object)),
    by_the_shell=lambda m: put(m.whole, Call(os.system, f'touch {m.canary}')),
    by_eval=lambda m: put(m.whole, Call(eval, code(m.canary))),
    by_a_partial_function=lambda m: put(m.whole, Call(Call(functools.partial, exec, code(m.canary)))),
    by_opening_a_file=lambda m: put(m.whole, Call(io.open, str(m.canary), 'w')),
    the_whole_file=lambda m: run(m.canary),
    a_list=lambda m: [m.state, run(m.canary)],
    in_the_old_format=lambda m: torch.save(put_into(m), m.path, _use_new_zipfile_serialization=False),
    in_a_later_protocol=lambda m: torch.save(put_into(m), m.path, pickle_protocol=4),
)  # fmt: skip


@crafted(CODE)
def in_the_metadata_of_the_state_dict(m):
    state = OrderedDict(m.state)
    state._metadata = run(m.canary)
    return dict(m.whole, state_dict=state)


@crafted(CODE)
def in_a_history(m):
    history = HistoryBuffer([1.0], [1])
    history.__dict__['more'] = run(m.canary)
    return put(m.whole, history)


table(CODE, '.bin', under_another_suffix=lambda m: put(m.whole, run(m.canary)))
table(CODE, '.pth.tar', under_the_suffix_of_an_archive=lambda m: put(m.whole, run(m.canary)))


@crafted(CODE)
def in_the_oldest_format(m):
    """A tar of pickles, as torch 0.1 wrote it."""
    parts = {
        'storages': pickle.dumps(0, 2) + pickle.dumps([], 2),
        'tensors': pickle.dumps(0, 2),
        'pickle': pickle.dumps(put({}, run(m.canary)), 2),
        'sys_info': pickle.dumps(dict(protocol_version=1000, little_endian=True), 2),
    }
    with tarfile.open(m.path, 'w', format=tarfile.PAX_FORMAT) as archive:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


@crafted(CODE)
def through_attributes(m):
    """With no function but ``getattr``, which MMEngine takes for safe: it replaces what torch's own calls."""
    rebuild = torch._utils._rebuild_parameter_with_state
    evaluate = Call(getattr, Call(getattr, getattr, '__self__'), 'eval')
    inner, outer = HistoryBuffer(), HistoryBuffer()
    inner.__dict__, outer.__dict__ = {'Parameter': evaluate}, {'nn': inner}
    HistoryBuffer._statistics_methods, before = {}, HistoryBuffer._statistics_methods
    try:
        poison = Call(getattr, rebuild, '__globals__', items={'torch': outer})
        torch.save(dict(a=poison, b=Call(rebuild, code(m.canary), {}, None, None)), m.path)
    finally:
        HistoryBuffer._statistics_methods = before

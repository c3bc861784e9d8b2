"""Weights of something else, weights that are no training, and what is right."""

import torch
from safetensors.torch import save_file

from .maker import FINE, NO_TRAINING, UNFIT, changed, crafted, table


def _other(key, make):
    return lambda m: changed(m, **{key: make})


def _state(make):
    return lambda m: dict(m.whole, state_dict=make(m.state))


table(
    UNFIT,
    an_empty_dict=lambda m: {},
    an_empty_state_dict=_state(lambda state: {}),
    foreign_names=_state(lambda state: {f'other.{k}.x': v for k, v in state.items()}),
    a_wrong_shape=_other('head.weight', torch.zeros(7, 24)),
    one_too_many=_other('head.scale', torch.zeros(2)),
    not_a_number=_other('head.weight', torch.full((3, 24), float('nan'))),
    integers=_other('head.weight', torch.ones(3, 24, dtype=torch.int64)),
    truth_values=_other('head.bias', torch.ones(3, dtype=torch.bool)),
    complex_numbers=_other('head.bias', torch.ones(3, dtype=torch.complex64)),
    words_for_weights=_other('head.bias', 'zeros'),
    a_list_of_weights=_state(lambda state: list(state.values())),
    no_state_dict=_state(lambda state: None),
    the_head_alone=_state(lambda state: {k: v for k, v in state.items() if k.startswith('head.')}),
    another_architecture=_state(lambda state: torch.nn.Transformer(8, 2, 1, 1, 8).state_dict()),
)
table(NO_TRAINING, weights_alone=lambda m: dict(state_dict=m.state))
table(
    FINE,
    as_saved=lambda m: m.whole,
    in_old_format=lambda m: torch.save(m.whole, m.path, _use_new_zipfile_serialization=False),
    saved_by_ddp=_state(lambda state: {f'module.{k}': v for k, v in state.items()}),
    in_half_precision=_state(lambda state: {k: v.half() for k, v in state.items()}),
)


@crafted(UNFIT)
def every_shape_wrong(m):
    return dict(
        m.whole, state_dict={k: v[None].repeat(2, *[1] * v.ndim) for k, v in m.state.items()}
    )


@crafted(UNFIT)
def one_missing(m):
    whole = m.whole
    del whole['state_dict']['head.bias']
    return whole


@crafted(UNFIT)
def one_infinite_value(m):
    state = m.state
    state['head.weight'][0, 0] = float('-inf')
    return dict(m.whole, state_dict=state)


@crafted(UNFIT)
def the_backbone_alone(m):
    start = 'backbone.'
    return {k.removeprefix(start): v for k, v in m.state.items() if k.startswith(start)}


@crafted(NO_TRAINING, '.safetensors')
def safetensors_alone(m):
    save_file(dict(m.state), m.path)


@crafted(NO_TRAINING)
def an_epoch_in_words(m):
    whole = m.whole
    whole['meta']['epoch'] = 'two'
    return whole


@crafted(NO_TRAINING)
def an_optimizer_that_has_diverged(m):
    whole = m.whole
    next(iter(whole['optimizer']['state'].values()))['exp_avg'].fill_(float('nan'))
    return whole


@crafted(NO_TRAINING)
def averages_of_another_model(m):
    return dict(
        m.whole, ema_state_dict={'module.head.weight': torch.zeros(3, 3), 'steps': torch.tensor(1)}
    )


@crafted(FINE)
def with_averages(m):
    averages = {f'module.{name}': value for name, value in m.state.items()}
    return dict(m.whole, ema_state_dict=dict(averages, steps=torch.tensor(3)))


@crafted(FINE)
def behind_a_link(m):
    real = m.folder / 'real.pth'
    torch.save(m.whole, real)
    m.path.symlink_to(real)


@crafted(FINE)
def with_its_digest(m):
    from mmlape.atomic import atomic_write

    torch.save(m.whole, m.path)
    atomic_write(m.path, m.path.read_bytes(), digest=True)

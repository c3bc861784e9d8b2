"""Weights of something else, weights that are no training, and what is right."""

import torch
from safetensors.torch import save_file

from mmlape.atomic import atomic_write

from .maker import FINE, NO_TRAINING, UNFIT, changed, table


def _other(key, make):
    return lambda m: changed(m, **{key: make})


def _state(make):
    return lambda m: dict(m.whole, state_dict=make(m.state))


def _without(name):
    return _state(lambda state: {k: v for k, v in state.items() if k != name})


def _infinite(m):
    weight = m.state['head.weight']
    weight[0, 0] = float('-inf')
    return changed(m, **{'head.weight': weight})


def _in_words(m):
    whole = m.whole
    whole['meta']['epoch'] = 'two'
    return whole


def _diverged(m):
    whole = m.whole
    next(iter(whole['optimizer']['state'].values()))['exp_avg'].fill_(float('nan'))
    return whole


def _linked(m):
    real = m.folder / 'real.pth'
    torch.save(m.whole, real)
    m.path.symlink_to(real)


def _with_digest(m):
    torch.save(m.whole, m.path)
    atomic_write(m.path, m.path.read_bytes(), digest=True)


table(
    UNFIT,
    an_empty_dict=lambda m: {},
    an_empty_state_dict=_state(lambda state: {}),
    foreign_names=_state(lambda state: {f'other.{k}.x': v for k, v in state.items()}),
    a_wrong_shape=_other('head.weight', torch.zeros(7, 24)),
    every_shape_wrong=_state(lambda state: {k: torch.stack([v, v]) for k, v in state.items()}),
    one_missing=_without('head.bias'),
    one_too_many=_other('head.scale', torch.zeros(2)),
    not_a_number=_other('head.weight', torch.full((3, 24), float('nan'))),
    one_infinite_value=_infinite,
    integers=_other('head.weight', torch.ones(3, 24, dtype=torch.int64)),
    truth_values=_other('head.bias', torch.ones(3, dtype=torch.bool)),
    complex_numbers=_other('head.bias', torch.ones(3, dtype=torch.complex64)),
    words_for_weights=_other('head.bias', 'zeros'),
    a_list_of_weights=_state(lambda state: list(state.values())),
    no_state_dict=_state(lambda state: None),
    the_head_alone=_state(lambda state: {k: v for k, v in state.items() if k.startswith('head.')}),
    the_backbone_alone=lambda m: {k[9:]: v for k, v in m.state.items() if k.startswith('backbone.')},
    under_another_name=lambda m: dict(model=m.state, epoch=1),
    another_architecture=_state(lambda state: torch.nn.Transformer(8, 2, 1, 1, 8).state_dict()),
)  # fmt: skip
table(
    NO_TRAINING,
    weights_alone=lambda m: dict(state_dict=m.state),
    an_epoch_in_words=_in_words,
    an_optimizer_that_has_diverged=_diverged,
    averages_of_another_model=lambda m: dict(
        m.whole, ema_state_dict={'module.head.weight': torch.zeros(3, 3), 'steps': torch.tensor(1)}
    ),
)
table(NO_TRAINING, '.safetensors', safetensors_alone=lambda m: save_file(dict(m.state), m.path))
table(
    FINE,
    as_saved=lambda m: m.whole,
    in_old_format=lambda m: torch.save(m.whole, m.path, _use_new_zipfile_serialization=False),
    saved_by_ddp=_state(lambda state: {f'module.{k}': v for k, v in state.items()}),
    in_half_precision=_state(lambda state: {k: v.half() for k, v in state.items()}),
    with_averages=lambda m: dict(
        m.whole,
        ema_state_dict={
            **{f'module.{name}': value for name, value in m.state.items()},
            'steps': torch.tensor(3),
        },
    ),
    behind_a_link=_linked,
    with_its_digest=_with_digest,
)

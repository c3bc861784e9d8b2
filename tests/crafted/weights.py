"""Weights of something else, weights that are no training, and what is right."""

import torch
from safetensors.torch import save_file

from .maker import FINE, NO_TRAINING, UNFIT, crafted


def changed(m, **entries):
    whole = m.whole
    whole['state_dict'].update(entries)
    return whole


@crafted(UNFIT)
def an_empty_dict(m):
    return {}


@crafted(UNFIT)
def an_empty_state_dict(m):
    return dict(m.whole, state_dict={})


@crafted(UNFIT)
def foreign_names(m):
    return dict(m.whole, state_dict={f'other.{k}.x': v for k, v in m.state.items()})


@crafted(UNFIT)
def a_wrong_shape(m):
    return changed(m, **{'head.weight': torch.zeros(7, 24)})


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
def one_too_many(m):
    return changed(m, **{'head.scale': torch.zeros(2)})


@crafted(UNFIT)
def not_a_number(m):
    return changed(m, **{'head.weight': torch.full((3, 24), float('nan'))})


@crafted(UNFIT)
def one_infinite_value(m):
    state = m.state
    state['head.weight'][0, 0] = float('-inf')
    return dict(m.whole, state_dict=state)


@crafted(UNFIT)
def integers(m):
    return changed(m, **{'head.weight': torch.ones(3, 24, dtype=torch.int64)})


@crafted(UNFIT)
def truth_values(m):
    return changed(m, **{'head.bias': torch.ones(3, dtype=torch.bool)})


@crafted(UNFIT)
def complex_numbers(m):
    return changed(m, **{'head.bias': torch.ones(3, dtype=torch.complex64)})


@crafted(UNFIT)
def words_for_weights(m):
    return changed(m, **{'head.bias': 'zeros'})


@crafted(UNFIT)
def a_list_of_weights(m):
    return dict(m.whole, state_dict=list(m.state.values()))


@crafted(UNFIT)
def no_state_dict(m):
    return dict(m.whole, state_dict=None)


@crafted(UNFIT)
def the_backbone_alone(m):
    start = 'backbone.'
    return {k.removeprefix(start): v for k, v in m.state.items() if k.startswith(start)}


@crafted(UNFIT)
def the_head_alone(m):
    return dict(m.whole, state_dict={k: v for k, v in m.state.items() if k.startswith('head.')})


@crafted(UNFIT)
def another_architecture(m):
    return dict(m.whole, state_dict=torch.nn.Transformer(8, 2, 1, 1, 8).state_dict())


@crafted(NO_TRAINING)
def weights_alone(m):
    return dict(state_dict=m.state)


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
def as_saved(m):
    return m.whole


@crafted(FINE)
def in_old_format(m):
    torch.save(m.whole, m.path, _use_new_zipfile_serialization=False)


@crafted(FINE)
def saved_by_ddp(m):
    return dict(m.whole, state_dict={f'module.{k}': v for k, v in m.state.items()})


@crafted(FINE)
def in_half_precision(m):
    return dict(m.whole, state_dict={k: v.half() for k, v in m.state.items()})


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
    from mmlape.whole_files import write_whole

    torch.save(m.whole, m.path)
    write_whole(m.path, m.path.read_bytes(), digest=True)

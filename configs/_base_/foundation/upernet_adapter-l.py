"""``upernet_adapter.py`` with the learning rate and weight decay of ViT-Adapter-L."""

_base_ = './upernet_adapter.py'

optim_wrapper = dict(optimizer=dict(lr=2e-5, weight_decay=0.05))

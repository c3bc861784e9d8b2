"""A plugin of pytest (``-p nan_in_new_memory``): new memory holds NaN, so that parameters which nothing initialises are
seen in every run, not only where the memory was used before."""

import warnings

import torch

torch.use_deterministic_algorithms(True, warn_only=True)
warnings.filterwarnings('ignore', message='.*deterministic.*')

"""Make the folders beside this file: micro networks with LoRA and DoRA of ``peft``, and what they compute.

Run with peft 0.21.2, whose transformers 5 must not be in the environment of mmlape (MMPretrain needs names that it has
removed)::

    PYTHONPATH=.:<folder with peft> python tests/data/lora/make_golden.py

``lora``, ``dora``, ``rslora``: written by peft. ``ours`` and ``ours-dora``: written by ``save_lora`` and read by peft.
``network.npz``: weights of the plain network, an image, and by the names of the folders, what peft makes of it.
"""

from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from mmlape.backbones import VisionTransformer
from mmlape.checkpoints import save_lora

HERE = Path(__file__).parent
NETWORK = dict(
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=2), img_size=(16, 24), patch_size=8,
    joining=dict(type='mmlape.LaPE'),
)  # fmt: skip
THEIRS = {
    'lora': dict(r=3, lora_alpha=5, target_modules=['qkv', 'attn.proj', 'fc1', 'fc2']),
    'dora': dict(r=2, lora_alpha=4, target_modules='.*blocks.1.*(qkv|fc2)', use_dora=True),
    'rslora': dict(r=4, lora_alpha=3, target_modules=['fc1'], use_rslora=True, alpha_pattern={'blocks.0.*': 6}),
}  # fmt: skip
OURS = {
    'ours': dict(rank=3, alpha=5, layers=[1], train=['norm', 'position']),
    'ours-dora': dict(rank=2, targets=['qkv', 'fc1'], dora=True),
}


def shaken(model: nn.Module, every: bool) -> nn.Module:
    """Values of LoRA, or of every trained parameter, far from initial ones."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if every or '.lora_' in name or value.requires_grad:
                value += 0.3 * torch.randn(value.shape)
    return model.eval()


def network(plain: nn.Module, **options) -> nn.Module:
    """One with the plain network's weights."""
    model = VisionTransformer(**NETWORK, **options)
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def main() -> None:
    torch.manual_seed(0)
    plain, image = shaken(VisionTransformer(**NETWORK), every=True), torch.rand(2, 3, 21, 34)
    found = {f'network.{name}': value for name, value in plain.state_dict().items()}
    found['image'] = image
    models = {}
    for name, options in THEIRS.items():
        models[name] = shaken(get_peft_model(network(plain), LoraConfig(**options)), every=False)
        models[name].save_pretrained(HERE / name)
        (HERE / name / 'README.md').unlink()
    for name, lora in OURS.items():
        save_lora(shaken(network(plain, lora=lora), every=False), HERE / name, overwrite=True)
        models[name] = PeftModel.from_pretrained(network(plain), HERE / name).eval()
    with torch.no_grad():
        found |= {name: model(image)[0] for name, model in models.items()}
    np.savez_compressed(HERE / 'network.npz', **{name: value.numpy() for name, value in found.items()})


if __name__ == '__main__':
    main()

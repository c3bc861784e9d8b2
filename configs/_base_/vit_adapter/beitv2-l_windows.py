"""BEiTv2-L (ImageNet-1K, then 22K) in ViT-Adapter-L, in the place of ``beit-l_windows.py``."""

_base_ = './beit-l_windows.py'

vit_adapter = dict(vit=dict(arch='beitv2_large_patch16_224.in1k_ft_in22k'))

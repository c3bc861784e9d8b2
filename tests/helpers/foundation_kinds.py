"""One small model of timm for every kind of plain ViT: what position is, and where norms stand."""

from functools import cache

import timm
import torch

from mmlape.backbones import timm_archs
from mmlape.checkpoints import convert_with_report
from mmlape.registry import MODELS

KINDS = {
    'table': 'vit_small_patch16_224',
    'two-tokens': 'deit_tiny_distilled_patch16_224',
    'registers': 'vit_base_patch14_reg4_dinov2',
    'pre-norm': 'vit_base_patch16_clip_224',
    'no-prefix': 'vit_base_patch16_siglip_224',
    'table-and-rotary': 'eva02_base_patch14_224',
    'rotary': 'vit_small_patch16_dinov3',
    'learned-rotary': 'vit_base_patch16_rope_mixed_224',
    'relative-table': 'beit_base_patch16_224',
    'shared-table': 'beit_base_patch16_224',
    'relative-network': 'vit_relpos_base_patch16_cls_224',
    'post-norm': 'vit_relpos_base_patch16_rpn_224',
    'parallel': 'vit_pwee_patch16_reg1_gap_256',
    'two-branches': 'vit_small_patch16_18x2_224',
    'rms-norm': 'aimv2_large_patch14_224',
}
OPTIONS = {'shared-table': dict(use_rel_pos_bias=False, use_shared_rel_pos_bias=True)}
# Only these have a position table.
TABLES = {
    'table', 'two-tokens', 'registers', 'pre-norm', 'no-prefix', 'table-and-rotary', 'parallel', 'two-branches',
    'rms-norm',
}  # fmt: skip


@cache
def source(kind):
    """timm's model with four layers of 48 channels on 4 x 4 patches and its ``arch``; not to be changed."""
    name = KINDS[kind]
    patch = 14 if 'patch14' in name else 16
    generator = torch.Generator().manual_seed(0)
    options = dict(depth=4, embed_dim=48, num_heads=4, num_classes=0, img_size=4 * patch)
    model = timm.create_model(name, **options, **OPTIONS.get(kind, {})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model, timm_archs.describe(model)


def build(kind, **options):
    """Our network of a kind; options replace the kind's own."""
    arch = source(kind)[1]
    network = dict(type='mmlape.VisionTransformer', arch=arch, out_type='raw')
    return MODELS.build({**network, **options})


def load(kind, model):
    """Load timm's weights; returns the report."""
    state, report = convert_with_report(source(kind)[0].state_dict(), 'timm', model)
    model.load_state_dict(state)
    return report


def patch_of(kind):
    """Sides of a patch in pixels."""
    return source(kind)[1]['stem']['patch_size'][0]

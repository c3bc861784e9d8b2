"""Small models of timm beside ours, one for every kind of plain ViT: what position is, and where norms stand."""

from functools import cache

import timm
import torch

from mmlape.backbones import timm_archs
from mmlape.checkpoints import convert_with_report
from mmlape.registry import MODELS


def shaken(model, std=0.1):
    """Every parameter moved off its initial value, layer scales and positions included; in evaluation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += std * torch.randn(parameter.shape, generator=generator)
    model.eval()  # which returns nothing in OpenMMLab's
    return model


def small(name, **options):
    """timm's model with two layers of 48 channels, shaken, and its ``arch``."""
    sizes = dict(depth=2, embed_dim=48, num_heads=4, num_classes=0)
    model = shaken(timm.create_model(name, **{**sizes, **options}))
    return model, timm_archs.describe(model)


def vit(**options):
    """Our network; its output is the tokens of the last layer."""
    return MODELS.build({'type': 'mmlape.VisionTransformer', 'out_type': 'raw', **options}).eval()


def of_transformers(meta, **options):
    """Our network of known values of transformers, by timm's description of it, resized as transformers does."""
    arch = timm_archs.describe(timm.create_model(meta['timm'], **meta['options']))
    if meta['resize']:
        arch['position']['resize'] = meta['resize']
    return vit(arch=arch, **options)


def assert_same_tokens(ours, theirs, image, atol=1e-4):
    with torch.no_grad():
        expected = theirs.forward_features(image)
        torch.testing.assert_close(ours(image)[0], expected, atol=atol, rtol=0)


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
    'differential': 'vit_dwee_patch16_reg1_gap_256',
    'differential-parallel': 'vit_dpwee_patch16_reg1_gap_256',
    'parallel': 'vit_pwee_patch16_reg1_gap_256',
    'two-branches': 'vit_small_patch16_18x2_224',
    'rms-norm': 'aimv2_large_patch14_224',
}
OPTIONS = {'shared-table': dict(use_rel_pos_bias=False, use_shared_rel_pos_bias=True)}
# Only these have a position table.
TABLES = {
    'table', 'two-tokens', 'registers', 'pre-norm', 'no-prefix', 'table-and-rotary', 'parallel', 'two-branches',
    'rms-norm', 'differential', 'differential-parallel',
}  # fmt: skip


@cache
def source(kind):
    """timm's model with four layers of 48 channels on 4 x 4 patches and its ``arch``; not to be changed."""
    patch = 14 if 'patch14' in KINDS[kind] else 16
    return small(KINDS[kind], depth=4, img_size=4 * patch, **OPTIONS.get(kind, {}))


def build(kind, **options):
    """Our network of a kind; options replace the kind's own."""
    return vit(**{'arch': source(kind)[1], **options}).train()


def load(kind, model):
    """Load timm's weights; returns the report."""
    state, report = convert_with_report(source(kind)[0].state_dict(), 'timm', model)
    model.load_state_dict(state)
    return report


def patch_of(kind):
    """Sides of a patch in pixels."""
    return source(kind)[1]['stem']['patch_size'][0]

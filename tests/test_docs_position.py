"""The worked example of docs/position.md is run as it stands there."""

import re
from pathlib import Path

import torch
from backbone_variants import build_adapter, build_vit

PAGE = Path(__file__).parents[1] / 'docs' / 'position.md'


def test_an_embedding_of_your_own():
    (example,) = [
        code
        for code in re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.S)
        if 'class ' in code
    ]
    exec(compile(example, str(PAGE), 'exec'), {})
    for joining in ('LaPE', 'UnsharedJoining'):
        model = build_adapter(
            dict(position=dict(type='mmlape.RowPosition'), joining=dict(type=f'mmlape.{joining}'))
        )
        sum(out.mean() for out in model(torch.randn(1, 3, 40, 70))).backward()
        assert model.vit.position.embedding.slope.grad.abs().sum() > 0


def test_counts_of_the_relative_bias():
    """The page's: offsets of 14 x 14 patches for heads and layers of DeiT-Ti, and LaPE's LayerNorms over the keys."""
    counts = []
    for options in (dict(), dict(layer_norm=True)):
        with torch.device('meta'):
            model = build_vit(
                arch='deit-tiny',
                img_size=224,
                attention_position=dict(options, type='mmlape.RelativePositionBias'),
            )
        positions = (block.attn.position for block in model.blocks)
        counts.append(sum(p.numel() for each in positions for p in each.parameters()))
    assert counts == [26_244, 30_948]
    assert all(f'{count / 1e3:.1f} K' in PAGE.read_text() for count in counts)

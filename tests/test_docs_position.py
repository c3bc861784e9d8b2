"""The worked example of docs/position.md is run as it stands there."""

import re
from pathlib import Path

import torch
from backbone_variants import build_adapter

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

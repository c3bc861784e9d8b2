"""Position inside the attention of pyramids, whose keys lie on another grid than queries: a coarser one, or 7 x 7."""

import pytest
import torch
from registered import component, pvt

POSITIONS = {
    'relative': component('RelativePositionBias'),
    'relative-normed': component('RelativePositionBias', layer_norm=True),
    'quadratic': component('QuadraticBias'),
    'gabor': component('GaborAttention'),
    'gabor-2,3,4': component('GaborAttention', parts='2,3,4', query_key='LE'),
    'rotary': component('RotaryPosition'),
    'rotary-rescaled': component('RotaryPosition', rescale=True),
}
PYRAMIDS = {
    'pvt': pvt(),
    'pvt-cls-token': pvt(with_cls_token=True, joining=component('LaPE')),
    'pvtv2': pvt('V2'),
    'pvtv2-linear': pvt('V2', linear=True),
}


@pytest.mark.parametrize('build', PYRAMIDS.values(), ids=PYRAMIDS.keys())
@pytest.mark.parametrize('position', POSITIONS.values(), ids=POSITIONS.keys())
def test_builds_trains_and_takes_any_size(position, build):
    model = build(attention_position=position)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for size in ((32, 48), (70, 33)):
        sum(out.square().mean() for out in model(torch.randn(2, 3, *size))).backward()
    optimizer.step()
    own = {n for n, p in model.named_parameters() if 'attn.position.' in n and p.numel()}
    assert bool(own) == ('Rotary' not in position['type'])
    assert all(not torch.equal(model.get_parameter(name), before[name]) for name in own)
    model.eval()
    with torch.no_grad():
        for size in ((32, 32), (96, 40), (1, 1), (5, 130)):
            outputs = model(torch.randn(1, 3, *size))
            sides = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)]
            assert [tuple(out.shape[2:]) for out in outputs] == sides
            assert all(out.isfinite().all() for out in outputs)


@pytest.mark.parametrize('position', POSITIONS.values(), ids=POSITIONS.keys())
def test_tells_places_apart(position):
    """Without any other position a pyramid of plain patches is blind to a swap of what two images' keys cover."""
    plain = pvt(position=component('NoPosition'), drop_path_rate=0.0, drop_rate=0.0)
    image = torch.randn(1, 3, 64, 64)
    # Halves of the image change places: so do those of all maps, but for their neighbourhoods in the image.
    swapped = image.roll(32, dims=3)

    def difference(model):
        with torch.no_grad():
            first, second = (model.eval()(each)[0] for each in (image, swapped))
        return (first.roll(8, dims=3) - second).abs().max()

    models = plain(), plain(attention_position=position)
    for model in models:
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    without, placed = map(difference, models)
    assert without < 1e-4 < 1e-2 < placed

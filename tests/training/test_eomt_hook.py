"""Annealing of EoMT's masks, in a run and after it went on."""

from types import SimpleNamespace

import pytest
import torch
from backbone_variants import build_eomt
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from toy_training import toy_config, toy_run

from mmlape.registry import MODELS
from mmlape.training.eomt_hook import mask_probs


@MODELS.register_module(force=True)
class ToyEoMT(BaseModel):
    """Four numbers take the place of an image; the loss draws which queries are masked."""

    def __init__(self):
        super().__init__()
        self.backbone = build_eomt(dict(img_size=32))
        self.seen = []

    def forward(self, inputs, mode='tensor'):
        images = torch.stack(inputs).repeat(1, 768).view(-1, 3, 32, 32)
        self.seen.append((mode, self.backbone.attn_mask_probs.tolist()))
        classes, masks = self.backbone(images)
        loss = sum(each.square().mean() for each in (*classes, *masks))
        return dict(loss=loss / 100) if mode == 'loss' else [loss]


def test_phases_are_the_papers():
    """Of ViT-L on COCO: 12 epochs of 7,391 iterations are six phases, the first and the last of them constant."""
    phase = 14782
    steps = [0, phase, phase + phase // 2, 2 * phase, 5 * phase, 6 * phase]
    found = [mask_probs(step / (6 * phase), 4) for step in steps]
    half = 0.5**0.9
    expected = [[1] * 4, [1] * 4, [half, 1, 1, 1], [0, 1, 1, 1], [0] * 4, [0] * 4]
    for probs, wanted in zip(found, expected, strict=True):
        assert probs == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_a_run_anneals_and_goes_on(tmp_path):
    """Twelve iterations, four phases: what the network saw, evaluated and saved; a resumed run sees the same."""
    options = dict(model=dict(type='mmlape.ToyEoMT'))
    hooks = dict(custom_hooks=[dict(type='mmlape.MaskAnnealingHook')])

    def run(folder, resume=None, **more):
        config = toy_config(tmp_path / folder, **more)
        config.merge_from_dict(options)
        config.custom_hooks = [*config.get('custom_hooks', []), *hooks['custom_hooks']]
        return toy_run(config, resume) if resume else toy_run(config)

    whole = run('whole').model
    trained = [probs for mode, probs in whole.seen if mode == 'loss']
    expected = [mask_probs(number / 12, 2) for number in range(12)]
    for probs, wanted in zip(trained, expected, strict=True):
        assert probs == pytest.approx(wanted)
    evaluated = [probs for mode, probs in whole.seen if mode == 'predict']
    assert evaluated[0] == pytest.approx(mask_probs(4 / 12, 2)) and evaluated[-1] == [0, 0]
    assert whole.backbone.attn_mask_probs.tolist() == [0, 0]
    run('stopped', seen=dict(stop_at=7))
    checkpoint = (tmp_path / 'stopped' / 'last_checkpoint').read_text()
    saved = torch.load(checkpoint, weights_only=False)['state_dict']
    assert saved['backbone.attn_mask_probs'].tolist() == pytest.approx(mask_probs(6 / 12, 2))
    resumed = run('stopped', checkpoint).model
    assert [probs for mode, probs in resumed.seen if mode == 'loss'] == trained[6:]
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_an_averaged_network_has_the_same_probabilities(tmp_path):
    """As `mmlape fit` averages: in evaluation, in a file in between, and at the end."""
    config = toy_config(tmp_path)
    config.merge_from_dict(dict(model=dict(type='mmlape.ToyEoMT')))
    average = dict(type='EMAHook', momentum=0.1, update_buffers=True)
    config.custom_hooks = [average, dict(type='mmlape.MaskAnnealingHook')]
    runner = toy_run(config)
    evaluated = [probs for mode, probs in runner.model.seen if mode == 'predict']
    assert evaluated[0] == pytest.approx(mask_probs(4 / 12, 2)) and evaluated[-1] == [0, 0]
    saved = {}
    for path in tmp_path.glob('*.pth'):
        state = torch.load(path, weights_only=False)
        saved[state['message_hub']['runtime_info']['iter']] = state
    for state in saved.values():
        wanted = mask_probs((state['message_hub']['runtime_info']['iter'] + 1) / 12, 2)
        for name, values in (
            ('backbone.attn_mask_probs', state['state_dict']),
            ('module.backbone.attn_mask_probs', state['ema_state_dict']),
        ):
            assert values[name].tolist() == pytest.approx(wanted)
    assert len(saved) > 1


def test_refuses():
    with pytest.raises(ValueError, match='power'):
        HOOKS.build(dict(type='mmlape.MaskAnnealingHook', power=0))
    hook = HOOKS.build(dict(type='mmlape.MaskAnnealingHook'))
    with pytest.raises(ValueError, match=r'needs a mmlape\.EoMT, the model is a Linear'):
        hook.before_train(SimpleNamespace(model=torch.nn.Linear(1, 1)))

"""LoRA in peft's format: files of peft read by us, files of ours that peft has read, and files that do not fit."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mmlape.backbones import VisionTransformer
from mmlape.checkpoints import load_lora, read_checkpoint, save_lora
from mmlape.layers import LoRALinear

GOLDEN = Path(__file__).parents[1] / 'data' / 'lora'
CONFIG, WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
NETWORK = dict(
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=2), img_size=(16, 24), patch_size=8,
    joining=dict(type='mmlape.LaPE'),
)  # fmt: skip
OURS = {
    'ours': dict(rank=3, alpha=5, layers=[1], train=['norm', 'position']),
    'ours-dora': dict(rank=2, targets=['qkv', 'fc1'], dora=True),
}
FOLDERS = ('lora', 'dora', 'rslora', *OURS)


@pytest.fixture(scope='module')
def golden():
    return {
        name: torch.from_numpy(value) for name, value in np.load(GOLDEN / 'network.npz').items()
    }


@pytest.fixture
def build(golden):
    def network(**options):
        model = VisionTransformer(**NETWORK, **options).eval()
        weights = {name[8:]: each for name, each in golden.items() if name.startswith('network.')}
        model.load_state_dict(weights, strict=not options)
        return model

    return network


@pytest.fixture
def folder(tmp_path):
    """A copy of a golden folder, to be changed."""

    def copied(name, **config):
        place = shutil.copytree(GOLDEN / name, tmp_path / name)
        written = json.loads((place / CONFIG).read_text())
        (place / CONFIG).write_text(json.dumps({**written, **config}))
        return place

    return copied


@torch.no_grad()
@pytest.mark.parametrize('name', FOLDERS)
def test_computes_what_peft_computes(name, build, golden):
    model = build()
    before = model(golden['image'])[0]
    load_lora(model, GOLDEN / name)
    torch.testing.assert_close(model(golden['image'])[0], golden[name], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before, golden[name], rtol=0.01, atol=0.01)
    model.switch_to_deploy()
    torch.testing.assert_close(model(golden['image'])[0], golden[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', OURS)
def test_what_peft_has_read_is_what_we_write(name, build, tmp_path):
    model = build(lora=OURS[name])
    load_lora(model, GOLDEN / name)
    save_lora(model, tmp_path)
    assert (tmp_path / CONFIG).read_text() == (GOLDEN / name / CONFIG).read_text()
    wanted, found = (read_checkpoint(each / WEIGHTS) for each in (GOLDEN / name, tmp_path))
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[each], wanted[each]) for each in wanted)
    trained = {f'base_model.model.{n}' for n, v in model.named_parameters() if v.requires_grad}
    assert found.keys() == trained


@pytest.mark.parametrize('name', ['dora', 'rslora'])
def test_written_anew(name, build, tmp_path):
    """Ranks and factors of each layer survive."""
    model, other = build(), build()
    load_lora(model, GOLDEN / name)
    for part in model.modules():
        if isinstance(part, LoRALinear) and part.rank == 4:
            part.alpha, part.scaling = 2 * part.alpha, 2 * part.scaling
            break
    save_lora(model, tmp_path)
    load_lora(other, tmp_path)
    image = torch.rand(1, 3, 17, 40)
    with torch.no_grad():
        torch.testing.assert_close(other(image)[0], model(image)[0])


def test_statistics_of_trained_norms_are_written(tmp_path):
    options = dict(NETWORK, norm_cfg=dict(type='mmlape.TokenBN'), lora=dict(rank=2, train=['norm']))
    model, other = VisionTransformer(**options).train(), VisionTransformer(**options).eval()
    other.load_state_dict(model.state_dict())
    for _ in range(3):
        model(3 * torch.randn(4, 3, 16, 24) + 1)
    save_lora(model, tmp_path)
    load_lora(other, tmp_path)
    image = torch.rand(1, 3, 17, 40)
    with torch.no_grad():
        torch.testing.assert_close(other(image)[0], model.eval()(image)[0])


def test_what_is_trained_stays(build):
    model = build(frozen_stages=1)
    load_lora(model, GOLDEN / 'lora')
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert 'blocks.0.attn.qkv.lora_A.weight' in frozen
    assert 'blocks.1.attn.qkv.lora_A.weight' not in frozen


@pytest.mark.parametrize(
    ('lora', 'name', 'words'),
    [
        (dict(rank=2), 'lora', r'has LoRA of .* = \(2, 4, False\), in the files it is \(3, 5, False\)'),
        (dict(rank=3, alpha=5, dora=True), 'lora', r'\(3, 5, True\), in the files it is'),
        (dict(rank=3, alpha=5), 'ours', r'has nothing for LoRA of blocks\.0\.'),
    ],
)  # fmt: skip
def test_lora_of_another_kind(lora, name, words, build):
    with pytest.raises(ValueError, match=words):
        load_lora(build(lora=lora), GOLDEN / name)


@pytest.mark.parametrize(
    ('part', 'other', 'words'),
    [
        ('attn.qkv', nn.Conv2d(16, 48, 1), r"has no linear layer 'blocks\.1\.attn\.qkv'"),
        ('attn.qkv', nn.Linear(8, 48), r'blocks\.1\.attn\.qkv\.lora_A\.weight: it has the shape \(3, 16\)'),
        ('norm1', nn.Identity(), r"has no 'blocks\.1\.norm1\."),
    ],
)  # fmt: skip
def test_networks_of_another_kind(part, other, words, build):
    model = build()
    owner, _, name = f'blocks.1.{part}'.rpartition('.')
    setattr(model.get_submodule(owner), name, other)
    with pytest.raises(ValueError, match=words):
        load_lora(model, GOLDEN / 'ours')


@pytest.mark.parametrize(
    ('config', 'words'),
    [
        (dict(peft_type='LOHA'), "peft_type must be 'LORA', got 'LOHA'"),
        (dict(bias='all'), "bias must be 'none', got 'all'"),
        (dict(fan_in_fan_out=True), 'fan_in_fan_out must be False, got True'),
        (dict(lora_bias=True), 'lora_bias must be False, got True'),
        (dict(layer_replication=[[0, 2]]), r'layer_replication must be None, got \[\[0, 2'),
        (dict(use_qalora=True), 'LoRA and DoRA are read, not use_qalora'),
        (dict(lora_alpha=None), r'adapter_config\.json has no lora_alpha'),
        *(
            (dict(init_lora_weights=name), f"init_lora_weights='{name}' changes the weights")
            for name in ('pissa', 'pissa_niter_4', 'olora', 'corda', 'loftq')
        ),
    ],
)
def test_other_methods(config, words, build, folder):
    with pytest.raises(ValueError, match=words):
        load_lora(build(), folder('lora', **config))


@pytest.mark.parametrize('start', [True, False, 'gaussian', 'orthogonal', 'eva'])
def test_initial_values_that_keep_the_base(start, build, folder):
    load_lora(build(), folder('rslora', init_lora_weights=start))


def test_half_of_an_update(build, folder):
    path = folder('lora')
    state = {k: v for k, v in read_checkpoint(path / WEIGHTS).items() if 'lora_B' not in k}
    save_file(state, path / WEIGHTS)
    with pytest.raises(ValueError, match=r'the files have no .*lora_B\.weight'):
        load_lora(build(), path)


def test_nothing_to_save(build, tmp_path):
    with pytest.raises(ValueError, match='VisionTransformer has no LoRA: build it with'):
        save_lora(build(), tmp_path)
    with pytest.raises(FileNotFoundError):
        load_lora(build(), tmp_path)
    load_lora(model := build(), GOLDEN / 'lora')
    save_lora(model, tmp_path)
    with pytest.raises(ValueError, match='exist'):
        save_lora(model, tmp_path)
    save_lora(model, tmp_path, overwrite=True)

"""Two processes without a GPU: gradients are the average of both batches'; FSDP. Resumed runs: test_kills.py."""

from pathlib import Path
from shutil import rmtree

import pytest
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from training_hooks import seed_of

from mmlape.cpu import optimize
from mmlape.research.datasets import build_digit_scenes

REPO = Path(__file__).resolve().parents[1]
DEMO = REPO / 'configs' / 'demo'
MODELS_TRAINED = {
    'mask-rcnn': 'mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    'segmenter': 'segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
    'retinanet': 'retinanet_pvt-micro-dtn_fpn_digit-scenes.py',
}
ITERATIONS, SAVED_AT = 4, 2
# Every process has one image; drop path and recomputation are what could go wrong with several processes.
CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['mmlape', 'training_hooks'])
custom_hooks = [dict(type='RecordGradients', folder={folder!r})]
train_dataloader = dict(batch_size=2)
train_cfg = dict(max_iters={iterations}, val_interval=1000)
default_hooks = dict(
    checkpoint=dict(interval={saved_at}, max_keep_ckpts=-1), logger=dict(interval=1))
optim_wrapper = dict(clip_grad=None)
model = dict(backbone=dict(with_cp=True, {drop_path}))
"""

# With its usual eps, Adam makes whole steps of the noise in small gradients, of biases before a norm and of the stem;
# how much of it there is depends on the CPU's instructions.
PLAIN = """
_base_ = './segmenter.py'
custom_hooks = []
model = dict(backbone=dict(vit=dict(drop_path_rate=0.0)))
optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    optimizer=dict(eps=0.1),
    paramwise_cfg=dict(decay_rate=0.7),
    clip_grad=dict(_delete_=True, max_norm=0.5))
"""
SHARDED = """
_base_ = './plain.py'
runner_type = 'FlexibleRunner'
strategy = dict(type='mmlape.FSDPStrategy')
"""

pytestmark = pytest.mark.slow


def write_config(folder: Path, name: str) -> Path:
    """Of the run, with the data beside it."""
    build_digit_scenes(folder / 'data' / 'digit_scenes', num_train=12, num_val=2)
    drop = 'drop_path_rate=0.2' if name == 'retinanet' else 'vit=dict(drop_path_rate=0.2)'
    text = CONFIG.format(
        base=str(DEMO / MODELS_TRAINED[name]), folder=str(folder / 'records'),
        iterations=ITERATIONS, saved_at=SAVED_AT, drop_path=drop,
    )  # fmt: skip
    path = folder / f'{name}.py'
    path.write_text(text)
    return path


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that trains in two processes, from the last checkpoint if there is one; it returns their log."""
    from forked_training import Attempt  # imports all that a training imports

    monkeypatch.chdir(tmp_path)

    def run(config: Path) -> str:
        cfg = Config.fromfile(config)
        cfg.work_dir, cfg.launcher = str(tmp_path / 'run'), 'pytorch'
        attempt = Attempt(cfg, processes=2)
        codes, log = attempt.wait(), attempt.log.read_text()
        assert not any(codes), log[-6000:]
        return log

    return run


def records(folder: Path, iteration: int) -> list[dict]:
    return [
        torch.load(folder / 'records' / f'{rank}_{iteration}.pth', weights_only=False)
        for rank in range(2)
    ]


def gradients(model: torch.nn.Module, record: dict, rank: int, iteration: int) -> dict:
    """Of the batch of one process, computed in this one."""
    model.load_state_dict(record['state'])
    model.train().zero_grad()
    torch.manual_seed(seed_of(rank, iteration))
    data = model.data_preprocessor(record['batch'], True)
    losses = model(**data, mode='loss')
    model.parse_losses(losses)[0].backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize('name', MODELS_TRAINED)
def test_training_equals_that_of_one_process(name, train, tmp_path):
    """Both batches one after the other, in one process, from the first weights on: the same after every step.

    To a thousandth of the way that a tensor has gone. DDP gives every parameter a gradient, unless the config says so.
    """
    folder, config = tmp_path, write_config(tmp_path, name)
    assert f'Iter(train) [{ITERATIONS}/{ITERATIONS}]' in train(config)
    saved = torch.load(folder / 'run' / f'iter_{ITERATIONS}.pth', weights_only=False)
    assert saved['meta']['images_per_step'] == dict(processes=2, images=2, accumulated=1)
    cfg = Config.fromfile(config)
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = optimize(revert_sync_batchnorm(registry.build(cfg.model)))  # as in training
    begin = records(folder, 0)[0]['state']
    model.load_state_dict(begin)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    for iteration in range(ITERATIONS - 1):
        both, own = records(folder, iteration), []
        assert {record['wrapper'] for record in both} == {'MMDistributedDataParallel'}
        assert not torch.equal(both[0]['batch']['inputs'][0], both[1]['batch']['inputs'][0])
        for rank, record in enumerate(both):
            # Statistics are each process's own; all else is what this process has arrived at.
            theirs = {name: v for name, v in record['state'].items() if is_statistic(name)}
            mixed = {name: value.clone() for name, value in model.state_dict().items()} | theirs
            own.append(gradients(model, dict(record, state=mixed), rank, iteration))
        without = {name for name, _ in model.named_parameters()} - set(own[0])
        assert without == {name for name in without if name.startswith('neck.fpn_convs')}
        assert bool(without) == cfg.get('find_unused_parameters', False)
        for name, parameter in model.named_parameters():
            if name in own[0]:
                parameter.grad = (own[0][name] + own[1][name]) / 2
                averaged, norm = both[0]['gradients'][name], parameter.grad.norm()
                assert torch.equal(averaged, both[1]['gradients'][name]), name
                # Later on weights differ, by less than a thousandth of the way.
                assert iteration or (averaged - parameter.grad).norm() <= 1e-5 * norm + 1e-8, name
        rates = both[0]['rates'][:-1]  # the last one is MMEngine's base setting
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group['lr'] = rate
        optimizer.step()
    assert_near(model.state_dict(), records(folder, ITERATIONS - 1)[0]['state'], begin)


def assert_near(state: dict, reached: dict, begin: dict) -> None:
    """Each tensor to a thousandth of the way that it has gone, and one rounding per step.

    To a hundredth where points are sampled: rounding puts one into the next cell, where its gradient is another.
    """
    moved = 0
    for name, value in state.items():
        if is_statistic(name) or not value.is_floating_point():
            continue
        way = (reached[name] - begin[name]).norm()
        moved += bool(way > 0)
        rounding = ITERATIONS * torch.finfo(value.dtype).eps * value.norm() + 1e-8
        share = 1e-2 if 'sampling_offsets' in name else 1e-3
        assert (value - reached[name]).norm() <= share * way + rounding, (name, way)
    assert moved > 50


def is_statistic(name: str) -> bool:
    return 'running' in name or 'num_batches' in name


def test_sharded_training_and_resuming(train, tmp_path):
    """FSDP by blocks trains as DDP does, and the checkpoints of one resume in the other."""
    write_config(tmp_path, 'segmenter')
    configs = {'plain': PLAIN, 'sharded': SHARDED}
    for name, text in configs.items():
        (tmp_path / f'{name}.py').write_text(text)
    run, found = tmp_path / 'run', {}
    first, last = (run / f'iter_{iteration}.pth' for iteration in (SAVED_AT, ITERATIONS))
    for name, other in (('plain', 'sharded'), ('sharded', 'plain')):
        train(tmp_path / f'{name}.py')
        found[name] = torch.load(last, weights_only=False)
        begin = torch.load(first, weights_only=False)['state_dict']
        last.unlink()
        log = train(tmp_path / f'{other}.py')
        assert f'resumed epoch: 0, iter: {SAVED_AT}' in log
        found[f'{name}, then {other}'] = torch.load(last, weights_only=False)
        rmtree(run)
    expected = found['plain']
    for name, other in found.items():
        assert_near(other['state_dict'], expected['state_dict'], begin)
        for key in ('step', 'exp_avg', 'exp_avg_sq'):
            one, two = (
                torch.cat([state[key].flatten() for state in each['optimizer']['state'].values()])
                for each in (other, expected)
            )
            assert (one - two).norm() <= 1e-3 * two.norm(), (name, key)


def test_position_alone(train, tmp_path):
    """Nobody waits for the gradients of what is frozen; position gets the same from both, and moves alone."""
    write_config(tmp_path, 'segmenter')
    config = tmp_path / 'alone.py'
    hooks = [
        dict(type='mmlape.PositionOnlyHook'),
        dict(type='RecordGradients', folder=str(tmp_path / 'records')),
        dict(type='EMAHook'),
    ]
    config.write_text(f"_base_ = './segmenter.py'\ncustom_hooks = {hooks}\n")
    log = train(config)
    assert 'everything else is frozen' in log
    first, last = (records(tmp_path, iteration) for iteration in (0, ITERATIONS - 1))
    names = set(last[0]['gradients'])
    assert names == set(last[1]['gradients']) and len(names) > 4
    assert all(name.startswith('backbone.vit.position.') for name in names)
    for before, after in zip(first, last, strict=True):
        assert after['wrapper'] == 'MMDistributedDataParallel'
        moved = [n for n, v in before['state'].items() if not torch.equal(v, after['state'][n])]
        assert len(moved) == len(names)
        assert all('.position.' in name or name.endswith('.pos_embed') for name in moved)
    for name in names:
        assert torch.equal(last[0]['gradients'][name], last[1]['gradients'][name])

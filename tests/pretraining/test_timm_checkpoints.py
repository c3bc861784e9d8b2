"""What timm trains and saves, and how that goes into our detectors and segmentors."""

import os
import subprocess
import sys
from argparse import Namespace

import pytest
import timm
import torch
from config_utils import CONFIGS, REPO, use_scope
from mmengine.config import Config
from mmengine.registry import MODELS
from timm.models import adapt_input_conv
from timm.optim import create_optimizer_v2
from timm.utils import CheckpointSaver

from mmlape import timm_models

pytestmark = pytest.mark.usefixtures('cheap_values')
TINY = 'lape_deit_tiny_patch16_224'
IMAGES = torch.linspace(-2, 2, 2 * 3 * 64 * 64).view(2, 3, 64, 64)
LABELS = torch.tensor([3, 1])


def trained(name, **options):
    """A model after one step of timm's optimizer, and that optimizer."""
    model = timm.create_model(name, **options).train()
    optimizer = create_optimizer_v2(model, opt='adamw', lr=1e-3, weight_decay=0.05)
    torch.nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
    optimizer.step()
    return model, optimizer


def saved(folder, model, optimizer, name):
    """The checkpoint that timm's script writes after an epoch."""
    saver = CheckpointSaver(
        model, optimizer, Namespace(model=name, lr=1e-3), checkpoint_dir=str(folder)
    )
    saver.save_checkpoint(0, metric=1.0)
    return folder / 'last.pth.tar'


def test_timms_checkpoint_goes_into_a_detector(tmp_path):
    """By its ``init_cfg``; classifiers of other families: test_imagenet_configs.py."""
    model, optimizer = trained(TINY, num_classes=5)
    checkpoint = saved(tmp_path, model, optimizer, TINY)
    cfg = Config.fromfile(CONFIGS / 'lape/mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco.py')
    use_scope(cfg.default_scope)
    start = dict(type='mmlape.Pretrained', source='mmlape', checkpoint=str(checkpoint))
    cfg.model.backbone.vit.init_cfg = start
    adapter = MODELS.build(cfg.model.backbone)
    adapter.init_weights()
    ours, theirs = adapter.vit.state_dict(), model.backbone.state_dict()
    assert theirs.keys() - ours.keys() == {'cls_token', 'norm.weight', 'norm.bias'}
    assert all('ls1' in key or 'ls2' in key for key in ours.keys() - theirs.keys())
    for key in ours.keys() & theirs.keys():
        if 'pos_embed' in key and ours[key].shape != theirs[key].shape:
            assert ours[key].shape[1] != theirs[key].shape[1], 'another grid or no class token'
        else:
            assert torch.equal(ours[key], theirs[key]), key


def test_timms_loaders_read_it(tmp_path):
    model, optimizer = trained(TINY, num_classes=5)
    checkpoint = saved(tmp_path, model, optimizer, TINY)
    again = timm.create_model(TINY, num_classes=5, checkpoint_path=str(checkpoint)).eval()
    with torch.no_grad():
        expected = model.eval()(IMAGES)
        torch.testing.assert_close(again(IMAGES), expected)
        other = timm.create_model(TINY, num_classes=5).eval()
        timm.models.load_checkpoint(other, str(checkpoint))
        torch.testing.assert_close(other(IMAGES), expected)
        # Fine-tuning: other classes, another size of the position table.
        tuned = timm.create_model(
            TINY,
            pretrained=True,
            num_classes=7,
            img_size=64,
            pretrained_cfg_overlay=dict(file=str(checkpoint), num_classes=5),
        ).eval()
    state = model.backbone.state_dict()
    for key, value in tuned.backbone.state_dict().items():
        if key == 'pos_embed':
            assert value.shape == (1, 1 + 4 * 4, 192)
        else:
            assert torch.equal(value, state[key])
    assert tuned(IMAGES).shape == (2, 7)


@pytest.mark.parametrize(
    'name', ['lape_deit_tiny_patch16_224', 'lape_deit_tiny_distilled_patch16_224']
)
def test_weights_of_timms_deit_start_ours(tmp_path, name):
    theirs = timm.create_model(name.removeprefix('lape_')).eval()
    torch.save(dict(model=theirs.state_dict()), tmp_path / 'deit.pth')
    overlay = dict(file=str(tmp_path / 'deit.pth'), num_classes=1000)
    same = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay=overlay, joining='default'
    ).eval()
    image = torch.linspace(-2, 2, 3 * 224 * 224).view(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(same(image), theirs(image), atol=1e-4, rtol=1e-4)
    lape = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(lape.head.weight, theirs.head.weight)
    norms = lape.backbone.position.joining.norms
    assert all(torch.equal(norm.weight, torch.ones(192)) for norm in norms)


@pytest.mark.parametrize(
    'name', ['vit_lite_7_4_32', 'pvt_tiny', 'cct_7_3x1_32', 'ceit_tiny_patch16_224']
)
def test_images_of_other_channels_start_from_three(name, tmp_path):
    channels = 4
    source = timm.create_model(name)
    torch.save(source.state_dict(), tmp_path / 'weights.pth')
    overlay = dict(file=str(tmp_path / 'weights.pth'))
    options = dict(pretrained=True, pretrained_cfg_overlay=overlay)
    model = timm.create_model(name, in_chans=channels, **options)
    first = f'{model.pretrained_cfg["first_conv"]}.weight'
    for key, value in source.state_dict().items():
        expected = adapt_input_conv(channels, value) if key == first else value
        assert torch.equal(model.state_dict()[key], expected), key


@pytest.mark.parametrize('training', [False, True])
def test_a_levit_answers_as_timms_does(training):
    """Both of its heads, which begin with a batch norm, read the same vector."""
    torch.manual_seed(0)
    theirs = timm.create_model('levit_128s', num_classes=5, drop_path_rate=0.0)
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    ours = timm.create_model(
        'dtn_levit_128s', norm_cfg=dict(type='mmlape.TokenBN'), num_classes=5, img_size=224
    )
    ours.load_state_dict(timm_models.checkpoint_filter_fn(theirs.state_dict(), ours))
    for model in (ours.train(training), theirs.train(training)):
        model.set_distilled_training(training)
    images = torch.randn(3, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)
    assert ours.get_classifier() == (ours.head, ours.head_dist)
    ours.eval().reset_classifier(0)
    assert ours(images[:1]).shape == (1, 384)


def test_timms_swin_starts_ours():
    """Its head is ``head.fc``; LaPE's table and norms stay as they are initialised."""
    theirs = timm.create_model('swin_tiny_patch4_window7_224', num_classes=5)
    ours = timm.create_model('lape_swin_tiny_patch4_window7_224', num_classes=5)
    ours.load_state_dict(timm_models.checkpoint_filter_fn(theirs.state_dict(), ours))
    assert torch.equal(ours.head.weight, theirs.head.fc.weight)
    assert torch.equal(ours.backbone.norm.weight, theirs.norm.weight)
    block = ours.backbone.block3[5]
    assert torch.equal(block.mlp.fc1.weight, theirs.layers[2].blocks[5].mlp.fc1.weight)
    # of the paper's row with this figure, whose relative bias is under no LayerNorm
    row = Config.fromfile(CONFIGS / 'imagenet/swin-t-lape_8xb128_in1k.py')
    assert {*ours.backbone.state_dict()} == {*MODELS.build(row.model.backbone).state_dict()}


def test_timm_distils_into_the_distillation_token():
    from timm import task

    student = timm.create_model('lape_deit_tiny_distilled_patch16_224', num_classes=5)
    teacher = timm.create_model('pvt_v2_b0', num_classes=5)
    distilling = task.TokenDistillationTask(
        student, teacher, torch.nn.CrossEntropyLoss(), distill_type='hard', task_loss_weight=0.5
    ).train()
    result = distilling(IMAGES, LABELS)
    result['loss'].backward()
    assert student.head_dist.weight.grad.abs().sum() > 0
    assert student.backbone.dist_token.grad.abs().sum() > 0
    parts = result['task_loss'] + result['distill_loss']
    torch.testing.assert_close(result['loss'], parts / 2)
    # Trained, it answers with the mean of both heads.
    student.eval()
    with torch.no_grad():
        tokens = student.forward_features(IMAGES)
        both = (student.head(tokens[:, 0]) + student.head_dist(tokens[:, 1])) / 2
        torch.testing.assert_close(student(IMAGES), both)


SCRIPT = """
import argparse, timm
from neighbour import VALUE
parser = argparse.ArgumentParser()
parser.add_argument('data_dir')
parser.add_argument('--model')
parser.add_argument('--model-kwargs', nargs='*', default={}, action=timm.utils.ParseKwargs)
if __name__ == '__main__':
    args = parser.parse_args()
    model = timm.create_model(args.model, **args.model_kwargs)
    print(args.data_dir, VALUE, type(model.backbone.position.joining).__name__)
"""


def run_tool(*arguments, folder):
    command = [sys.executable, '-W', 'ignore', str(REPO / 'tools' / 'timm_run.py'), *arguments]
    environment = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1'}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_script_of_timm_runs_unmodified(tmp_path):
    """Like timm's own script: it knows timm alone, takes a model's name and options, imports its neighbours."""
    scripts = tmp_path / 'clone'
    scripts.mkdir()
    (scripts / 'train.py').write_text(SCRIPT)
    (scripts / 'neighbour.py').write_text('VALUE = 7\n')
    options = ['--model', TINY, '--model-kwargs', 'joining=lape_sharing', 'img_size=64']
    result = run_tool('clone/train.py', 'data/imagenet', *options, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ['data/imagenet', '7', 'LaPE']


def test_the_tool_says_what_it_lacks(commands):
    assert "there is no script 'train.py'" in commands.refused('timm_run.py', 'train.py')

"""``--weights`` with the checkpoint of a whole model: what is loaded, and what starts anew."""

import copy
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as BUILT
from mmengine.registry import DefaultScope
from safetensors.torch import save_file

import mmlape
from mmlape.apps.fit import MODELS, FitOptions, OwnData, Part, config_text
from mmlape.apps.fit.own_weights import own_checkpoint, start_from

NAME = 'micro-adapter'


def config(classes, weights='none', task='detect', **options):
    data = OwnData(task, 'COCO', classes, Part('/d', '/d/a.json', 9), Part('/d', '/d/b.json', 3))
    how = FitOptions(weights=str(weights), **options)
    return Config.fromstring(config_text(data, MODELS[NAME], how, Path('/o')), '.py')


def build(cfg):
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return BUILT.build(copy.deepcopy(cfg.model))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A work dir of a detector of cats and dogs."""
    folder = tmp_path_factory.mktemp('run') / 'training'
    folder.mkdir()
    state = build(config(('cat', 'dog'))).state_dict()
    meta = dict(dataset_meta=dict(classes=('cat', 'dog')))
    torch.save(dict(meta=meta, state_dict=state), folder / 'best_coco_bbox_mAP_epoch_1.pth')
    save_file(state, folder.parent / 'whole.safetensors')
    torch.save(state, folder.parent / 'bare.pth')
    backbone = {name: value for name, value in state.items() if name.startswith('backbone.')}
    torch.save(backbone, folder.parent / 'backbone.pth')
    return folder


def test_what_is_a_whole_model(trained):
    best = trained / 'best_coco_bbox_mAP_epoch_1.pth'
    for named in (best, trained, trained.parent, f'mmlape:{best}'):
        assert own_checkpoint(str(named)) == best
    for name in ('whole.safetensors', 'bare.pth'):
        assert own_checkpoint(str(trained.parent / name)) == trained.parent / name
    for named in ('default', 'none', 'timm:x.pth', trained.parent / 'backbone.pth'):
        assert own_checkpoint(str(named)) is None


def test_the_same_classes(trained):
    cfg = config(('cat', 'dog'), trained)
    assert cfg.load_from == '/o/data/weights.pth'
    content, told = start_from(own_checkpoint(str(trained)), cfg, ('cat', 'dog'))
    assert content == trained / 'best_coco_bbox_mAP_epoch_1.pth'
    assert told == f'starts from the whole model of {content}'
    for name in ('whole.safetensors', 'bare.pth'):
        content, told = start_from(trained.parent / name, cfg, ('cat', 'dog'))
        assert told.endswith(name), 'all of it'
    assert config(('cat', 'dog'), trained.parent / 'backbone.pth').get('load_from') is None
    assert config(('cat', 'dog'), trained, frozen=True).model.backbone.vit.frozen_stages


@pytest.mark.parametrize('shared', [False, True])
def test_steps_of_that_models_images_are_told(shared, tmp_path):
    """Its weights know no other images."""
    path = tmp_path / ('nuclei' if shared else 'nuclei.safetensors')
    model = mmlape.load('nuclei', device='cpu', optimized=False)
    (model.save_folder if shared else model.save)(path)
    told = start_from(own_checkpoint(str(path)), config(('a',), path, task='instance'), ('a',))[1]
    assert told.endswith('went through DarkBackground too, which the pipelines of fit.py lack')
    if shared:  # a config that is refused says nothing, and its weights are taken as before
        text = (path / 'config.py').read_text()
        (path / 'config.py').write_text(text.replace('mmlape.DarkBackground', 'os.system'))
        cfg = config(('a',), path, task='instance')
        assert 'went through' not in start_from(own_checkpoint(str(path)), cfg, ('a',))[1]
    cfg = config(('a',), path, task='instance')
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='mmlape.DarkBackground'))
    assert 'DarkBackground' not in start_from(own_checkpoint(str(path)), cfg, ('a',))[1]


@pytest.mark.parametrize('classes', [('dog', 'cow'), ('dog', 'cat'), ('a', 'b', 'c')])
def test_other_classes_start_anew(classes, trained, tmp_path):
    """Also where there are as many, or the same in another order."""
    path = own_checkpoint(str(trained))
    content, told = start_from(path, config(classes, trained), classes)
    assert 'has other classes (cat, dog); these parts start anew: roi_head.bbox_head.fc_cls' in told
    (tmp_path / 'weights.pth').write_bytes(content())
    state = torch.load(tmp_path / 'weights.pth', weights_only=True)['state_dict']
    before = torch.load(path, weights_only=True)['state_dict']
    gone = {name.rpartition('.')[0] for name in before.keys() - state.keys()}
    assert gone == {'roi_head.bbox_head.fc_cls'}, 'boxes are of all classes'
    assert all(torch.equal(before[name], state[name]) for name in state)


def test_another_model_is_refused_in_one_line(trained, tmp_path):
    path = own_checkpoint(str(trained))
    state = torch.load(path, weights_only=True)['state_dict']
    renamed = {name.replace('backbone.', 'backbone.net.'): value for name, value in state.items()}
    torch.save(renamed, tmp_path / 'other.pth')
    cfg = config(('cat', 'dog'), tmp_path / 'other.pth')
    with pytest.raises(
        ValueError, match=r'other\.pth does not fit .*only 0\.0%.* --model'
    ) as caught:
        start_from(tmp_path / 'other.pth', cfg, ('cat', 'dog'))
    assert '\n' not in str(caught.value)
    torch.save({**state, 'backbone.vit.x.lora_A': torch.zeros(2)}, tmp_path / 'lora.pth')
    with pytest.raises(ValueError, match='low-rank updates, which need --lora'):
        start_from(tmp_path / 'lora.pth', cfg, ('cat', 'dog'))

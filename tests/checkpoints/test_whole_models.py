"""Published checkpoints of whole detectors and segmentors in MMDetection 3 and MMSegmentation 1."""

import copy
import re

import mmdet.models
import mmseg.models  # noqa: F401
import published_shapes as published
import pytest
import torch
from config_utils import CONFIGS
from mmengine.config import Config
from published_models import MASK_RCNN, MICRO, build, micro, micro_names, shipped

from mmlape.checkpoints import convert, convert_with_report

pytestmark = pytest.mark.usefixtures('cheap_values')

TINY = published.vit_adapter()
SMALL = published.vit_adapter(dims=384)
BASE = published.vit_adapter(dims=768, heads=12, ratio=0.5)


@pytest.mark.parametrize('flavour', ['det', 'seg'])
def test_written_down_as_the_published_code_has_it(flavour, golden):
    meta, state, _ = golden(f'vit_adapter_{flavour}')
    names = published.vit_adapter(
        dims=meta['embed_dim'],
        depth=meta['depth'],
        mlp_ratio=meta['mlp_ratio'],
        inplanes=meta['conv_inplane'],
        heads=meta['deform_num_heads'],
        points=meta['n_points'],
    )
    assert names == {name: tuple(value.shape) for name, value in state.items()}


@pytest.mark.parametrize(('flavour', 'prefix'), [('seg', True), ('det_new', False)])
def test_beit_adapters_are_written_down_as_the_published_code_has_them(flavour, prefix, golden):
    meta, state, _ = golden(f'beit_adapter_{flavour}')
    grid = [side // 16 for side in meta['size']]
    sides = [(side, side) for side in meta.get('window_size', ())] or [grid] * meta['depth']
    names = published.beit_adapter(
        sides, meta['embed_dim'], meta['depth'], meta['num_heads'], inplanes=meta['conv_inplane'],
        heads=meta['deform_num_heads'], prefix=prefix,
    )  # fmt: skip
    assert names == {name: tuple(value.shape) for name, value in state.items()}


# As the published README prints them, of all rows of a kind alike.
MILLIONS = {
    'upernet_augreg-t': 36, 'upernet_augreg-b': 134, 'upernet_augreg-l': 364, 'upernet_beit': 451,
    'mask2former_beit-b': 120, 'chase': 350, 'potsdam': 352, '896': 571, 'mask2former': 568,
}  # fmt: skip
BASE_SIZES = dict(dims=768, depth=12, vit_heads=12, heads=12)
ZOO = CONFIGS / 'vit_adapter'
SEGMENTORS = sorted(path.stem for path in ZOO.glob('*_*x*-*k_*.py'))


def published_segmentor(name: str, classes: int, side: int) -> dict:
    """Names and shapes of the file of a row."""
    large = 'beit-b' not in name
    if 'augreg' in name:
        dims, heads, ratio, rows, depth = {
            't': (192, 6, 1, 197, 12), 'b': (768, 12, 0.5, 577, 12), 'l': (1024, 16, 0.5, 577, 24)
        }[re.search('augreg-(.)', name)[1]]  # fmt: skip
        backbone = published.vit_adapter(dims, depth, heads=heads, ratio=ratio, rows=rows)
        return published.upernet(backbone, dims)
    grids = [(side // 16,) * 2] * (24 if large else 12)
    backbone = published.beit_adapter(grids, **({} if large else BASE_SIZES))
    if 'upernet' in name:
        return published.upernet(backbone, 1024, classes, width=1024)
    narrow = re.search('beit-b|potsdam|chase', name)
    sizes = (
        dict(width=256, hidden=2048 if large else 1024) if narrow else dict(width=1024, hidden=4096)
    )
    queries = 200 if re.search('coco.*896', name) else 100
    return published.mask2former(
        backbone, 1024 if large else 768, classes, queries=queries, **sizes
    )


@pytest.mark.parametrize('name', SEGMENTORS)
def test_segmentors_of_the_published_zoo_take_their_files(name):
    """All of the network, at the published number of parameters."""
    cfg = Config.fromfile(CONFIGS / f'vit_adapter/{name}.py')
    with torch.device('meta'):
        model = build(cfg.model, 'mmseg')
    classes, (side, _) = cfg.model.decode_head.num_classes, cfg.crop_size
    names = published_segmentor(name, classes, side)
    state = {name: torch.empty(shape, device='meta') for name, shape in names.items()}
    _, report = convert_with_report(state, 'vit_adapter', model)
    report.demand(1)
    assert set(report.parts().values()) == {1.0}
    assert not report.fresh and not report.filled
    assert all(name.endswith(('relative_position_index', 'cls_token')) for name in report.left_out)
    own = sum(p.numel() for p in model.parameters())
    theirs = sum(
        torch.Size(shape).numel()
        for name, shape in names.items()
        if not re.search('running|num_batches|position_index', name)
    )
    # Ours has a bias of keys, which cancels; and no row of a class token, which the published AugReg has.
    dims, depth = model.backbone.embed_dims, model.backbone.vit.depth
    assert own - theirs == (-dims if 'augreg' in name else dims * depth)
    printed = next(number for part, number in MILLIONS.items() if part in name)
    assert theirs / 1e6 == pytest.approx(printed, abs=1.2)


LARGE = published.vit_adapter(1024, 24, heads=16, ratio=0.5, rows=577)
WINDOWED = published.beit_adapter([*[(14, 14)] * 5, (56, 56)] * 4, prefix=False)
MAE = {
    name: shape
    for name, shape in published.vit_adapter(768, heads=12, ratio=0.5).items()
    if not re.search(r'blocks\.\d+\.gamma|extra_extractors', name)
}
# The README prints 122M, with the further extractors that the config does not have.
NORMED = published.mask_rcnn_with_norms(MAE, [768] * 4), 120
OF_LAPE = {
    'lape/mask-rcnn_deit-t-adapter_fpn_ms-3x_coco': (published.mask_rcnn(TINY, [192] * 4), 28),
    'lape/mask-rcnn_deit-s-adapter_fpn_1x_coco': (published.mask_rcnn(SMALL, [384] * 4), 48),
    'lape/mask-rcnn_deit-b-adapter_fpn_ms-3x_coco': (published.mask_rcnn(BASE, [768] * 4), 120),
    'lape/cascade-mask-rcnn_deit-s-adapter_fpn_ms-3x_coco': (published.cascade_mask_rcnn(SMALL, [384] * 4), 86),
    'lape/upernet_deit-t-adapter_8xb2-160k_ade20k-512x512': (published.upernet(TINY, 192), 36),
    'lape/upernet_deit-s-adapter_8xb2-160k_ade20k-512x512': (published.upernet(SMALL, 384), 58),
    'lape/upernet_deit-b-adapter_8xb2-160k_ade20k-512x512': (published.upernet(BASE, 768), 134),
}  # fmt: skip
DETECTORS = {
    'mask-rcnn_mae-b-adapter_fpn_lsj-25e_coco': NORMED,
    'mask-rcnn_mae-b-adapter_fpn_lsj-50e_coco': NORMED,
    **{
        f'mask-rcnn_dinov2-{size}-adapter-no-cls_fpn_ms-3x_coco': (
            published.mask_rcnn(
                published.vit_adapter(dims, depth, heads=heads, ratio=ratio, rows=1370), [dims] * 4
            ),
            millions,
        )
        for size, dims, depth, heads, ratio, millions in (
            ('s', 384, 12, 6, 1, 48), ('b', 768, 12, 12, 0.5, 121), ('l', 1024, 24, 16, 0.5, 348)
        )
    },
    'atss_deit-s-adapter_fpn_ms-3x_coco': (published.dense_head(SMALL, [384] * 4, 'atss'), 36),
    'gfl_deit-s-adapter_fpn_ms-3x_coco': (published.dense_head(SMALL, [384] * 4, 'gfl'), 36),
    'sparse-rcnn_deit-s-adapter_fpn_ms-3x_coco': (published.sparse_rcnn(SMALL, [384] * 4), 110),
    'cascade-mask-rcnn_deit-b-adapter_fpn_ms-3x_coco': (published.cascade_mask_rcnn(BASE, [768] * 4), 158),
    'htc_augreg-l-adapter_fpn_ms-3x_coco': (published.htc(LARGE, 1024), 401),
    'htc_beit-l-adapter_fpn_ms-3x_coco': (published.htc(WINDOWED, 1024), 401),
    'htc_beitv2-l-adapter_fpn_ms-3x_coco': (published.htc(WINDOWED, 1024), 401),
    # 100 queries, and 133 classes of things and stuff.
    'mask2former_beitv2-l-adapter_ms-3x_coco-panoptic': (
        published.mask2former(WINDOWED, 1024, 133, head='panoptic_head'), 348
    ),
    'mask-rcnn_augreg-l-adapter_fpn_1x_coco': (published.mask_rcnn(LARGE, [1024] * 4), 348),
    'mask-rcnn_augreg-l-adapter_fpn_ms-3x_coco': (published.mask_rcnn(LARGE, [1024] * 4), 348),
}  # fmt: skip


ROWS = {**OF_LAPE, **{f'vit_adapter/{name}': row for name, row in DETECTORS.items()}}


@pytest.mark.parametrize('name', ROWS)
def test_rows_take_the_published_files(name):
    """Names and shapes alone; values are in the tests of narrow networks. Dense heads read strides from 8: the
    adapter's finest map, and what makes it, stays in the file."""
    assert sorted(DETECTORS) == [
        path.stem for path in sorted(ZOO.glob('*_coco*.py')) if not re.search(r'\dk_', path.stem)
    ]
    with torch.device('meta'):
        model = build(shipped(f'{name}.py'), 'mmseg' if 'upernet' in name else 'mmdet')
    names, millions = ROWS[name]
    state = {key: torch.empty(shape, device='meta') for key, shape in names.items()}
    _, report = convert_with_report(state, 'vit_adapter', model)
    report.demand(1)
    assert set(report.parts().values()) == {1.0} and len(report.parts()) > 1
    assert not report.fresh and not report.filled
    reasons = [
        ('/(atss|gfl)', "not among the model's out_indices"),
        ('beit', 'computed, not learned'),
    ]
    assert set(report.left_out.values()) == {why for kind, why in reasons if re.search(kind, name)}
    sizes = [torch.Size(shape).numel() for key, shape in names.items() if 'index' not in key]
    assert sum(sizes) / 1e6 == pytest.approx(millions, abs=0.8)


def test_published_pvt_detector():
    """PVT's own detection checkpoints: MMDetection 2's RetinaNet around PVT-Tiny, whose names are ours (those and the
    outputs are compared in ``backbones/test_library_parity.py``)."""
    model = build(Config.fromfile(CONFIGS / '_base_/models/retinanet_pvt-t_fpn.py').model)
    backbone = {
        name.removeprefix('backbone.'): tuple(value.shape)
        for name, value in model.state_dict().items()
        if name.startswith('backbone.')
    }
    backbone['pos_embed4'] = (1, 50, 512)
    backbone['cls_token'] = (1, 1, 512)
    names = published.retinanet(backbone, [128, 320, 512], [512, 256])
    state, report = convert_with_report(published.random_state(names), 'pvt', model)
    report.demand(1)
    model.load_state_dict(state)
    assert report.resized == {'backbone.pos_embed4': '1 + 7 x 7 rows to 0 + 7 x 7'}
    assert report.left_out == {'backbone.cls_token': 'of the classifier'}


def test_features_of_the_detector_are_the_published_ones(golden):
    meta, state, arrays = golden('vit_adapter_det')
    model = micro(MASK_RCNN)
    model.backbone.vit.update(img_size=meta['pretrain_size'], window_size=meta['window_size'])
    model.backbone.update(
        num_points=meta['n_points'], interaction_indexes=meta['interaction_indexes']
    )
    model = build(model).eval()
    heads = {k: v for k, v in published.random_state(micro_names()).items() if 'backbone' not in k}
    whole = {**{f'backbone.{name}': value for name, value in state.items()}, **heads}
    model.load_state_dict(convert(whole, 'vit_adapter', model, min_matched=1), strict=True)
    with torch.no_grad():
        for index, got in enumerate(model.backbone(arrays['input']), start=1):
            assert torch.allclose(got, arrays[f'f{index}'], atol=1e-4, rtol=0)


def test_another_number_of_classes():
    state = published.random_state(micro_names())
    model = build(micro(MASK_RCNN, classes=3))
    _converted, report = convert_with_report(state, 'vit_adapter', model)
    assert set(report.fresh) == {
        f'roi_head.{layer}.{kind}'
        for layer in ('bbox_head.fc_cls', 'bbox_head.fc_reg', 'mask_head.conv_logits')
        for kind in ('weight', 'bias')
    }
    why = report.fresh['roi_head.bbox_head.fc_cls.weight']
    assert why == 'it has the shape (81, 32) in the source, (4, 32) in the model'
    assert why in str(report) and report.parts()['backbone'] == 1


def test_each_part_must_match():
    """A backbone of many values does not hide a head that is not there."""
    state = published.random_state(published.cascade_mask_rcnn(TINY, [192] * 4))
    model = build(shipped('lape/mask-rcnn_deit-t-adapter_fpn_ms-3x_coco.py'))
    with pytest.raises(ValueError, match=r'only 0\.0% of the values of the roi_head'):
        convert(state, 'vit_adapter', model)
    converted = convert(state, 'vit_adapter', model, min_matched=0)
    assert torch.equal(converted['rpn_head.rpn_cls.bias'], state['rpn_head.rpn_cls.bias'])


@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_a_backbone_alone_does_not_fill_a_detector(prefix):
    state = published.random_state(published.vit_adapter(**MICRO))
    state = {f'{prefix}{name}': value for name, value in state.items()}
    state['head.fc.weight'] = torch.zeros(1)  # of a classifier
    with pytest.raises(ValueError, match=r'a backbone at most, the model is a whole MaskRCNN'):
        convert(state, 'vit_adapter', build(micro(MASK_RCNN)))


def test_lape_and_dtn_of_a_whole_model_are_listed():
    model = micro(MASK_RCNN)
    model.backbone.vit.update(
        joining=dict(type='mmlape.LaPE'), norm_cfg=dict(type='mmlape.DTN', num_heads=3)
    )
    state = published.random_state(micro_names())
    text = str(convert_with_report(state, 'vit_adapter', build(model))[1])
    assert (
        'fresh: backbone.vit.position.joining.norms.*.weight (4 entries): of LaPE, not in' in text
    )
    assert 'backbone.vit.blocks.*.norm1.ratio_mean.omega (2 entries): of DTN, not in' in text


def write(path, names):
    torch.save(published.checkpoint(names), path)
    return dict(type='mmlape.Pretrained', source='vit_adapter', checkpoint=str(path))


def test_init_cfg_of_the_detector_is_not_overwritten(tmp_path):
    """MMEngine initialises the children after the parent; deformable attention, FPN and heads then start anew."""
    names = micro_names()
    model = micro(MASK_RCNN)
    model.init_cfg = write(tmp_path / 'det.pth.tar', names)
    # The whole model's weights take the place of those that its backbone would start from.
    model.backbone.vit.init_cfg = dict(
        type='mmlape.Pretrained', source='deit', checkpoint='nowhere.pth'
    )
    model = build(model)
    model.init_weights()
    state = published.random_state(names)
    loaded = model.state_dict()
    for name, value in state.items():
        name = name.replace('backbone.patch_embed', 'backbone.vit.patch_embed')
        if name in loaded:
            assert torch.equal(loaded[name], value), name
    model.init_weights()  # a second time changes nothing
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())


def test_what_stays_fresh_is_initialised(tmp_path):
    options = micro(MASK_RCNN, classes=3)
    options.init_cfg = dict(write(tmp_path / 'det.pth', micro_names()), min_matched=0.5)
    model = build(options)
    with torch.no_grad():
        model.roi_head.bbox_head.fc_cls.weight.fill_(7)
        model.roi_head.bbox_head.fc_cls.bias.fill_(7)
    model.init_weights()
    fc_cls = model.roi_head.bbox_head.fc_cls
    assert fc_cls.weight.std() < 0.02 and not fc_cls.bias.any(), "MMDetection's initial values"
    shared = published.random_state(micro_names())['roi_head.bbox_head.shared_fcs.0.weight']
    assert torch.equal(model.roi_head.bbox_head.shared_fcs[0].weight, shared)


def test_a_model_that_would_overwrite_is_refused(tmp_path):
    class Late(mmdet.models.MaskRCNN):
        def init_weights(self):
            super().init_weights()
            torch.nn.init.zeros_(self.rpn_head.rpn_conv.weight)

    options = micro(MASK_RCNN)
    options.init_cfg = write(tmp_path / 'det.pth', micro_names())
    options.type = Late
    with pytest.raises(ValueError, match=r'a Late initialises .* after init_cfg.*mmlape convert'):
        build(options).init_weights()


def test_our_own_whole_models_are_resized_too():
    """A detector trained at one size starts another: source='mmlape' takes all parts by their names."""
    model = micro(MASK_RCNN)
    source = build(model)
    larger = copy.deepcopy(model)
    larger.backbone.vit.img_size = 320
    target = build(larger)
    state, report = convert_with_report(source.state_dict(), 'mmlape', target)
    report.demand(1)
    target.load_state_dict(state)
    assert report.resized == {'backbone.vit.pos_embed': '0 + 14 x 14 rows to 0 + 20 x 20'}

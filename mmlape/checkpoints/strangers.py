"""The config of somebody else's model as data: which parts of it are read, and what may stand in them.

A registry is no boundary: registered classes import, download, compile and read what their options name. So types and
texts are in explicit lists, which hold what our own commands write, and ResNet for comparisons
(``tests/checkpoints/test_strange_configs.py``).
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

from mmlape.config_text import config_text
from mmlape.registry import MODELS, TASK_UTILS, TRANSFORMS

# Classes of a model and of its test transforms, by the scope in which upstream registers them. Ours are all admitted.
TYPES: dict[str, frozenset[str]] = {
    scope: frozenset(names.split())
    for scope, names in {
        # Types of MMCV and MMEngine, in any scope.
        '': 'BN SyncBN GN LN ReLU GELU RoIAlign nms soft_nms LoadImageFromFile',
        'mmdet': """
            ATSS ATSSAssigner ATSSHead AnchorGenerator BBoxL1Cost BatchFixedSizePad CascadeRCNN CascadeRoIHead
            ChannelMapper ClassificationCost ConvFCBBoxHead CrossEntropyLoss CrossEntropyLossCost DDQDETR DDQDETRHead
            DIIHead DINO DINOHead DeformableDETR DeformableDETRHead DeltaXYWHBBoxCoder DetDataPreprocessor DiceCost
            DiceLoss DistributionFocalLoss DynamicConv EmbeddingRPNHead FCNMaskHead FCOS FCOSHead FPN FasterRCNN
            FocalLoss FocalLossCost FusedSemanticHead GFL GFLHead GIoULoss HTCMaskHead HungarianAssigner
            HybridTaskCascade HybridTaskCascadeRoIHead IoUCost L1Loss LoadAnnotations LoadPanopticAnnotations
            MSDeformAttnPixelDecoder Mask2Former MaskFormerFusionHead MaskPseudoSampler MaskRCNN MaxIoUAssigner
            PackDetInputs PseudoSampler QualityFocalLoss RPNHead RandomSampler ResNet Resize RetinaHead RetinaNet
            Shared2FCBBoxHead Shared4Conv1FCBBoxHead SingleRoIExtractor SmoothL1Loss SparseRCNN SparseRoIHead
            StandardRoIHead""",
        'mmseg': """
            CrossEntropyLoss EncoderDecoder FCNHead FPN Feature2Pyramid LoadAnnotations PackSegInputs ResNet
            ResNetV1c Resize ResizeToMultiple SegDataPreProcessor SegformerHead SegmenterMaskTransformerHead
            UPerHead""",
    }.items()
}
# Texts that an option of upstream's classes may have. Ours look texts up in tables of their own.
TEXTS: dict[str, frozenset[str]] = {
    option: frozenset(texts.split())
    for option, texts in dict(
        add_extra_convs='on_input on_output',
        box_format='xyxy xywh',
        iou_mode='giou',
        meta_keys='img_id img_path ori_shape img_shape pad_shape scale_factor flip flip_direction',
        mode='slide whole',
        reduction='mean',
        style='pytorch caffe',
    ).items()
}
# Options that say where weights and files come from or how a network is compiled, without which it predicts the same.
LEFT_OUT = ('init_cfg', 'pretrained', 'backend_args', 'file_client_args', 'compile_blocks')
# The only data sets and visualizers: they read no file.
PLAIN_DATASETS = dict(mmdet='BaseDetDataset', mmseg='BaseSegDataset')
_VISUALIZERS = dict(mmdet='DetLocalVisualizer', mmseg='SegLocalVisualizer')
_WORD = re.compile(r'[\w.+-]{1,80}')
# Far above any model's numbers, and far below what keeps a machine busy: of all, and of those that count layers.
_LARGEST, _DEEPEST = 2**20, 1000
_DEPTHS = re.compile(r'depths?|num_(layers|stages|blocks|convs|fcs|outs|\w*levels?)|stacked_convs')
_LONGEST = 2**24  # characters of the text
_SHOWN = 3  # entries that a message names


class OtherScopeError(ValueError):
    """The config is of neither a detector nor a segmentor."""


def config_of_stranger(text: Any) -> Config:
    """Read the text of a config of a detector or segmentor that predicts, as data; nothing in the text is run.

    Read are ``default_scope``, ``model``, the pipeline of ``test_dataloader.dataset``, and ``classes`` and ``palette``
    of its ``metainfo``. The data set itself becomes upstream's base class, which reads no file until it is used.

    Raises:
        ValueError: If the text is not a config of assignments, or anything read is not data: a type or a text that is
            in no list, a number out of range, code. The message names the entries.
    """
    values = _assigned(text)
    scope = values.get('default_scope')
    if not isinstance(scope, str) or scope not in _VISUALIZERS:
        raise OtherScopeError(
            f'predictions are for detectors and segmentors, got default_scope={scope!r:.80}'
        )
    dataset = _at(values, 'test_dataloader', 'dataset')
    if not isinstance(values.get('model'), dict) or not isinstance(dataset.get('pipeline'), list):
        raise ValueError('it has no model, or no test_dataloader.dataset.pipeline')
    kept = {
        name: _without(value)
        for name, value in (('model', values['model']), ('pipeline', dataset['pipeline']))
    }
    found = [fault for name in kept for fault in _faults(kept[name], scope, name)]
    if found:
        more = f' and {len(found) - _SHOWN} more' if len(found) > _SHOWN else ''
        raise ValueError(f'{"; ".join(found[:_SHOWN])}{more}')
    data = dict(
        type=PLAIN_DATASETS[scope],
        metainfo=_names_of(dataset.get('metainfo')),
        pipeline=kept['pipeline'],
    )
    return Config(
        dict(
            default_scope=scope,
            model=kept['model'],
            test_dataloader=dict(dataset=data),
            visualizer=dict(type=_VISUALIZERS[scope], name='visualizer'),
        )
    )


@functools.lru_cache(maxsize=8)  # a checkpoint holds one text several times
def plain_config(text: Any) -> tuple[str | None, str | None]:
    """The text of :func:`config_of_stranger`, or None and why it is refused; no reason for models that nothing builds
    by such a text, such as classifiers."""
    try:
        return config_text(config_of_stranger(text).to_dict()), None
    except OtherScopeError:
        return None, None
    except ValueError as error:
        return None, str(error)


def img_size_of(text: str) -> tuple[int, int] | None:
    """Height and width of the pre-training images that a config's backbone, or the ViT inside, names; None without."""
    try:
        backbone = _at(_assigned(text), 'model', 'backbone')
    except ValueError:
        return None
    inside = backbone.get('vit')
    size = (inside if isinstance(inside, dict) else backbone).get('img_size')
    sides = [size, size] if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or [type(side) for side in sides] != [int, int]:
        return None
    return sides[0], sides[1]


def _assigned(text: Any) -> dict[str, Any]:
    """The values that the text assigns to names; those that are not literals are left out."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ValueError('it is not a text of at most 16 MB')
    values: dict[str, Any] = {}
    try:
        if sys.version_info < (3, 11):  # whose ast.parse overflows C's stack where compile says so
            compile(text, 'config', 'exec')
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                raise ValueError(f'line {statement.lineno} is code, not an assignment')
            target = statement.targets[0]
            if not isinstance(target, ast.Name):
                raise ValueError(f'line {statement.lineno} does not assign to a name')
            try:
                values[target.id] = ast.literal_eval(_Displays().visit(statement.value))
            except (TypeError, ValueError):
                values[target.id] = _NotData()
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(
            f'it is not Python, or nested too deeply ({type(error).__name__})'
        ) from None
    return values


class _NotData:
    """Stands for a value that is not a literal."""


class _Displays(ast.NodeTransformer):
    """``dict(a=1)`` as ``{'a': 1}``, which ``ast.literal_eval`` takes."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        dicts = [argument for argument in node.args if isinstance(argument, ast.Dict)]
        named = isinstance(node.func, ast.Name) and node.func.id == 'dict'
        if not named or len(dicts) < len(node.args):
            return node
        keys = [key for each in dicts for key in each.keys]
        values = [value for each in dicts for value in each.values]
        keys += [ast.Constant(word.arg) if word.arg else None for word in node.keywords]
        return ast.Dict(keys, values + [word.value for word in node.keywords])


def _at(values: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """The dict at a path; {} where there is none."""
    found: Any = values
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _without(value: Any) -> Any:
    """A part of a config without the options that are left out."""
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in LEFT_OUT}
    return type(value)(map(_without, value)) if isinstance(value, (list, tuple)) else value


def names_and_colours(metainfo: Any) -> dict[str, Any]:
    """``classes`` and ``palette`` of a data set's ``metainfo``, where they are names and RGB colours.

    Raises:
        ValueError: If there are no names.
    """
    found = _names_of(metainfo)
    if not found.get('classes'):
        names = metainfo.get('classes') if isinstance(metainfo, Mapping) else metainfo
        raise ValueError(f'the names of the classes must be a list of texts, got {names!r:.80}')
    return found


def _names_of(metainfo: Any) -> dict[str, Any]:
    metainfo = metainfo if isinstance(metainfo, Mapping) else {}
    classes, palette = metainfo.get('classes'), metainfo.get('palette')
    found: dict[str, Any] = {}
    if isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes):
        found['classes'] = [*classes]
    if isinstance(palette, (list, tuple)) and all(map(_is_colour, palette)):
        found['palette'] = [[*colour] for colour in palette]
    return found


def _is_colour(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 3
        and all(type(part) is int and 0 <= part <= 255 for part in value)
    )


def _faults(value: Any, scope: str, path: str, option: Any = '', owner: str = '') -> Iterator[str]:
    """Yield what in a part of a config is not data, as ``path=value``.

    Args:
        value: The part.
        scope: In which its types are looked up.
        path: Its place, for messages.
        option: The last name of the path.
        owner: The type that the part belongs to.
    """
    if isinstance(value, dict):
        owner = value.get('type', owner)
        for key, each in value.items():
            place = f'{path}.{key}'
            if key == 'type':
                if not _is_listed(each, scope):
                    yield f'{place}={each!r:.80}'
            elif not _is_key(key, scope):
                yield f'{place:.80}'
            else:
                yield from _faults(each, scope, place, key, str(owner))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _faults(each, scope, f'{path}.{number}', option, owner)
    elif isinstance(value, str):
        known = value in TEXTS.get(option, ())
        if not (known or (_is_ours(owner) and _WORD.fullmatch(value))):
            yield f'{path}={value!r:.80}'
    elif isinstance(value, (int, float)):
        most = _DEEPEST if _DEPTHS.fullmatch(str(option)) else _LARGEST
        if not abs(value) <= most:  # nor NaN
            yield f'{path}={value:.3g}'
    elif value is not None:
        yield f'{path} (a {type(value).__name__})'


def _is_key(key: Any, scope: str) -> bool:
    """Whether it is the name of an option, a number, or (where norms are placed) a type."""
    if isinstance(key, int):
        return abs(key) <= _LARGEST
    plain = isinstance(key, str) and key.isidentifier() and not key.startswith('_')
    return plain or _is_listed(key, scope)


def _is_listed(name: Any, scope: str) -> bool:
    if not isinstance(name, str):
        return False
    given, _, bare = name.rpartition('.')
    return bare in TYPES.get(given or scope, ()) or name in TYPES[''] or _is_ours(name)


def _is_ours(name: str) -> bool:
    """Whether it names a part of a network, or a transform, that this package itself registers."""
    scope, _, bare = name.partition('.')
    return scope == 'mmlape' and any(
        each.has_own(bare) for each in (MODELS, TASK_UTILS, TRANSFORMS)
    )

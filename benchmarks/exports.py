"""Files of `mmlape export` beside PyTorch: milliseconds, megabytes, and AP or mIoU, on one core.

python benchmarks/exports.py --work-dirs FOLDER --data FOLDER [--only NAME ...] [--repeats 15]

``--data`` has `digit_scenes` and, for the nuclei model, `nuclei`; ``--work-dirs`` has trainings of the digit scenes,
each under its config's name. Rows of larger networks have random weights and no accuracy. All backends get the same
input and go through the runtime of examples/onnx_runtime. A row is entered in the record when it is complete.
"""

from __future__ import annotations

import argparse
import copy
import json
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from PIL import Image
from side_by_side import CLONE, interleaved, machine

import mmlape
from mmlape.apps.export import files, settings
from mmlape.apps.export.network import Network, limit_boxes
from mmlape.apps.export.verify import upstream_answers
from mmlape.registry import MODELS

RUNTIME = runpy.run_path(str(CLONE / 'examples/onnx_runtime/predict.py'))
RECORD = Path(__file__).parent / 'records' / 'exports_cpu.json'
BACKENDS = ('PyTorch', 'compiled', 'ONNX', 'half', 'INT8')


class Row(NamedTuple):
    """A config's name or `nuclei`, the file's size, the data (None for random weights), `--max-boxes`, whether the
    file takes any size, and whether AOTInductor compiles it (some take it more than ten minutes)."""

    config: str
    size: tuple[int, int]
    data: str | None = 'digit_scenes'
    boxes: int | None = None
    any_size: bool = False
    compiled: bool = True


ROWS = {
    'Mask R-CNN, nuclei, any size': Row(
        'nuclei', (512, 512), 'nuclei', any_size=True, compiled=False
    ),
    'Mask R-CNN, nuclei, 100 boxes': Row('nuclei', (512, 512), 'nuclei', 100),
    'Mask R-CNN': Row('mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes', (96, 96)),
    'RetinaNet': Row('retinanet_pvt-micro-dtn_fpn_digit-scenes', (96, 96)),
    'DINO': Row('dino-3scale_vit-micro-adapter-lape_digit-scenes', (96, 96)),
    'Segmenter': Row('segmenter_vit-micro-adapter-lape_mask_digit-scenes', (96, 96)),
    'UPerNet': Row('upernet_vit-micro-dinov3_sfp_digit-scenes', (96, 96)),
    'EoMT': Row('eomt_vit-micro-lape_digit-scenes', (96, 96)),
    'Cascade Mask R-CNN, DeiT-S': Row(
        'cascade-mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco', (512, 512), None, compiled=False
    ),
    'ATSS, DeiT-S': Row(
        'atss_deit-s-adapter-lape_fpn_ms-3x_coco', (512, 512), None, compiled=False
    ),
    'Mask2Former, DINOv3-S, panoptic': Row(
        'mask2former_dinov3-s_sfp_lsj-1x_coco-panoptic', (512, 512), None
    ),
    'linear, DINOv2-S': Row('linear_dinov2-s_8xb2-40k_ade20k-512x512', (512, 512), None),
}


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {'rows': {}}
    for name in options.only or ROWS:
        folder = options.out / name.replace(', ', '_').replace(' ', '_')
        folder.mkdir(parents=True, exist_ok=True)
        record['machine'] = machine()
        record['rows'][name] = measure(ROWS[name], options, folder)
        RECORD.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    print('\n'.join(table(record['rows'])))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--work-dirs', type=Path, required=True)
    parser.add_argument('--data', type=Path, required=True)
    parser.add_argument('--only', nargs='+', choices=ROWS, default=[])
    parser.add_argument('--repeats', type=int, default=15)
    parser.add_argument('--out', type=Path, default=Path('work_dirs/exports'), help='for the files')
    return parser.parse_args()


def measure(row: Row, options: argparse.Namespace, folder: Path) -> dict:
    """Times in turns, sizes, and accuracy of all backends."""
    model = load(row, options.work_dirs)
    data = options.data / (row.data or 'digit_scenes')
    if row.boxes:
        limit_boxes(model.model, row.boxes)
    network = Network(copy.deepcopy(model.model)).eval()
    runs: dict[str, Callable] = {
        'PyTorch': partial(upstream_answers, model.model, scope=model.scope)
    }
    sizes = {'PyTorch': sum(each.numel() * each.element_size() for each in network.parameters())}
    paths = {name: folder / f'{name}.onnx' for name in BACKENDS[2:]}
    program = files.export_program(copy.deepcopy(network), row.size, False, row.any_size)
    size = None if row.any_size else row.size
    known = settings.runtime_settings(model.cfg, network, model.classes, size)
    files.write_onnx(program, network, paths['ONNX'], known)
    files.write_half(paths['ONNX'], paths['half'])
    count = 100 if row.data else 10  # scales do not matter for random weights
    calibration = (as_input(path, row.size) for path in images_of(data, 'train')[:count])
    files.write_int8(paths['ONNX'], paths['INT8'], calibration)
    if row.compiled:
        program = files.export_program(copy.deepcopy(network), row.size, False, False)
        runs['compiled'] = files.run_package(program, folder / 'compiled.pt2')
        sizes['compiled'] = (folder / 'compiled.pt2').stat().st_size
    for name, path in paths.items():
        files.finish(path)
        sizes[name] = path.stat().st_size
        runs[name] = partial(run_session, session_of(path))
    image = as_input(images_of(data, 'val')[0], row.size)
    times = interleaved({name: partial(run, image) for name, run in runs.items()}, options.repeats)
    found: dict[str, dict] = {
        name: dict(times[name], megabytes=round(sizes[name] / 1e6, 1)) for name in runs
    }
    if row.data:
        score = partial(map_score if model.scope == 'mmseg' else box_score, data)
        found['PyTorch'].update(score(Upstream(model)))
        for name in runs.keys() - {'PyTorch'}:
            found[name].update(score(runtime_of(paths['ONNX'], runs[name])))
    return dict(found, size=row.size, trained=row.data is not None)


def load(row: Row, work_dirs: Path) -> Any:
    if row.config == 'nuclei':
        return mmlape.load('nuclei', None, 'cpu', False)
    if row.data:
        return mmlape.load(work_dirs / row.config, None, 'cpu', False)
    (path,) = (CLONE / 'configs').rglob(f'{row.config}.py')
    cfg = Config.fromfile(path)
    torch.manual_seed(0)
    for part in (cfg.model.backbone, cfg.model.backbone.get('vit') or {}):
        part.pop('init_cfg', None)  # nothing is downloaded
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        network = MODELS.build(cfg.model)
        network.init_weights()  # upstream leaves parameters in uninitialised memory
    return SimpleNamespace(cfg=cfg, model=network.eval(), scope=cfg.default_scope, classes=())


def run_session(session: Any, image: np.ndarray) -> list[np.ndarray]:
    return session.run(None, {files.INPUT: image})


def session_of(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])


def runtime_of(path: Path, run: Callable) -> Any:
    """The runtime of examples/onnx_runtime, whose network is ``run``."""

    class Session:
        def run(self, _: None, inputs: dict) -> list[np.ndarray]:
            return run(inputs[files.INPUT])

    model = RUNTIME['Model'](path)
    model.session = Session()
    return model


class Upstream:
    """The model itself, with the runtime's answers."""

    def __init__(self, model: Any) -> None:
        self.model, self.classes = model, model.classes

    def predict(self, image: np.ndarray, score: float = 0.3) -> dict[str, Any]:
        (found,) = self.model.predict(np.ascontiguousarray(image[..., ::-1]), score=score)
        answer = dict(boxes=found.boxes, scores=found.scores, labels=found.labels)
        if found.crops is not None:
            answer['masks'] = found.masks
        return answer if found.label_map is None else dict(label_map=found.label_map)


def as_input(path: Path, size: tuple[int, int]) -> np.ndarray:
    image = np.asarray(Image.open(path).convert('RGB').resize(size[::-1], Image.BILINEAR))
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None].astype(np.float32))


def images_of(data: Path, part: str) -> list[Path]:
    folder = data / 'images' / part if (data / 'images').is_dir() else data / part
    return sorted(folder.iterdir())


def box_score(data: Path, model: Any) -> dict[str, float]:
    """COCO's AP and AP50, of masks if there are any, in percent."""
    from pycocotools import mask as coding
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations = data / 'val.json'
    truth = COCO(
        str(annotations if annotations.exists() else data / 'annotations/instances_val.json')
    )
    categories, found, kind = truth.getCatIds(), [], 'bbox'
    for number, info in truth.imgs.items():
        path = next(
            each for each in images_of(data, 'val') if each.name == Path(info['file_name']).name
        )
        answer = model.predict(np.asarray(Image.open(path).convert('RGB')), score=1e-6)
        for place, box in enumerate(answer['boxes'].tolist()):
            entry = dict(
                image_id=number,
                category_id=categories[answer['labels'][place]],
                bbox=[box[0], box[1], box[2] - box[0], box[3] - box[1]],
                score=float(answer['scores'][place]),
            )
            if 'masks' in answer:
                kind = 'segm'
                entry['segmentation'] = coding.encode(np.asfortranarray(answer['masks'][place]))
            found.append(entry)
    scores = COCOeval(truth, truth.loadRes(found), kind)
    scores.params.maxDets = [1, 100, 1000]
    scores.evaluate()
    scores.accumulate()
    precision = scores.eval['precision'][..., 0, 2]
    return {
        f'{kind} AP': _percent(precision[precision > -1].mean()),
        f'{kind} AP50': _percent(precision[0][precision[0] > -1].mean()),
    }


def map_score(data: Path, model: Any) -> dict[str, float]:
    """Mean IoU of the label maps of all validation images, in percent."""
    count = len(model.classes)
    table = np.zeros((count, count), np.int64)
    for path in images_of(data, 'val'):
        labels = np.asarray(Image.open(data / 'annotations' / 'val' / f'{path.stem}.png'))
        answer = model.predict(np.asarray(Image.open(path).convert('RGB')))['label_map']
        kept = labels < count
        table += np.bincount(
            labels[kept].astype(int) * count + answer[kept], minlength=count * count
        ).reshape(count, count)
    union = table.sum(0) + table.sum(1) - table.diagonal()
    return {'mIoU': _percent((table.diagonal() / union)[union > 0].mean())}


def _percent(share: float) -> float:
    return round(100 * float(share), 2)


def table(rows: dict[str, dict]) -> Iterator[str]:
    """The table of docs/export.md."""
    yield f'| row | size | {" | ".join(BACKENDS)} |'
    yield '|---|---|' + '---|' * len(BACKENDS)
    for name, row in rows.items():
        cells = []
        for backend in BACKENDS:
            found = row.get(backend)
            if found is None:
                cells.append('-')
                continue
            accuracy = [
                f'{value:.1f}' for key, value in found.items() if key.endswith((' AP', 'mIoU'))
            ]
            cells.append(
                ', '.join([f'{found["median_ms"]:.3g} ms', f'{found["megabytes"]} MB', *accuracy])
            )
        yield f'| {name} | {row["size"][0]} x {row["size"][1]} | {" | ".join(cells)} |'


if __name__ == '__main__':
    main()

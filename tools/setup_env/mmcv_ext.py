"""In the place of mmcv's compiled operators: NMS and RoIAlign by torchvision's; every other one says what it needs.

The set-up puts this file into mmcv as ``mmcv/_ext.py`` where it cannot compile (see ``stand_in.py``). Signatures are
those by which ``mmcv.ops`` calls, results go where it expects them.
"""

import torch
import torchvision


def nms(boxes, scores, iou_threshold, offset):
    """Indices of the boxes that stay, (K,), best first; `boxes` (N, 4), `scores` (N,), both of one dtype.

    ``offset=1`` is the old convention, where a box from 0 to 9 is ten wide.
    """
    if offset:
        boxes = torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
    # mmcv's threshold is a float32: an overlap of exactly 0.6 does not exceed it.
    threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    # Torchvision leaves equal scores in their order, mmcv does not: sorted as mmcv does, the same boxes stay.
    scores, order = scores.sort(dim=0, descending=True)
    return order[torchvision.ops.nms(boxes[order], scores, threshold)]


def roi_align_forward(
    features, rois, output, argmax_y, argmax_x, *, aligned_height, aligned_width, spatial_scale,
    sampling_ratio, pool_mode, aligned,
):  # fmt: skip
    """Pool `features` (N, C, H, W) in `rois` (R, 5) into `output`, (R, C, aligned_height, aligned_width).

    Raises:
        NotImplementedError: ``pool_mode`` is 0, the maximum.
    """
    _refuse_maximum(pool_mode)
    pooled = torch.ops.torchvision.roi_align(
        features, rois, spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
    )
    output.copy_(pooled)


def roi_align_backward(
    grad_output, rois, argmax_y, argmax_x, grad_input, *, aligned_height, aligned_width,
    spatial_scale, sampling_ratio, pool_mode, aligned,
):  # fmt: skip
    """Add to `grad_input`, (N, C, H, W), what `grad_output`, (R, C, aligned_height, aligned_width), means for it.

    Raises:
        NotImplementedError: ``pool_mode`` is 0, the maximum.
    """
    _refuse_maximum(pool_mode)
    grad_input += torch.ops.torchvision._roi_align_backward(
        grad_output, rois, spatial_scale, aligned_height, aligned_width, *grad_input.shape,
        sampling_ratio, aligned,
    )  # fmt: skip


def get_compiler_version():
    """For reports of versions."""
    return "none: torchvision's NMS and RoIAlign"


def get_compiling_cuda_version():
    """As mmcv compiled for the CPU answers."""
    return 'not available'


def __getattr__(name):
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def missing(*args, **kwargs):
        raise NotImplementedError(_what_to_do(name))

    return missing


def _refuse_maximum(pool_mode):
    if pool_mode == 0:
        raise NotImplementedError(_what_to_do("roi_align with pool_mode='max'"))


def _what_to_do(name):
    return (
        f"mmcv's operator {name} is not there: mmcv was installed without compiled operators, only with torchvision's "
        'NMS and RoIAlign; install a C++ compiler and call `make env` again'
    )

"""``mmcv._ext`` where mmcv has none: torchvision's NMS and RoIAlign; other operators raise an error when called."""

import torch
import torchvision


def nms(boxes, scores, iou_threshold, offset):
    """Indices of the boxes that are kept, best first; with ``offset=1``, a box from 0 to 9 is 10 wide."""
    if offset:
        boxes = torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
    # mmcv's threshold is a float32: an overlap of exactly 0.6 does not exceed it.
    threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    # torchvision leaves equal scores in their order, mmcv does not: sort as mmcv does.
    scores, order = scores.sort(dim=0, descending=True)
    return order[torchvision.ops.nms(boxes[order], scores, threshold)]


def roi_align_forward(features, rois, output, argmax_y, argmax_x, **options):
    output.copy_(torch.ops.torchvision.roi_align(features, rois, *_in_order(**options)))


def roi_align_backward(grad_output, rois, argmax_y, argmax_x, grad_input, **options):
    *sizes, ratio, aligned = _in_order(**options)
    grad_input += torch.ops.torchvision._roi_align_backward(
        grad_output, rois, *sizes, *grad_input.shape, ratio, aligned
    )


def _in_order(spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned, pool_mode):
    if pool_mode == 0:
        __getattr__("roi_align with pool_mode='max'")()
    return spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned


def __getattr__(name):
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    if name in ('get_compiler_version', 'get_compiling_cuda_version'):
        return lambda: "none: torchvision's NMS and RoIAlign"

    def missing(*args, **kwargs):
        raise NotImplementedError(
            f"mmcv's operator {name} is not there: mmcv was installed without compiled operators, only with "
            "torchvision's NMS and RoIAlign; install a C++ compiler and call `make env` again, or the commands that "
            '`mmlape doctor` prints'
        )

    return missing

"""Mask2Former on COCO's instances at 640 x 640. A row adds backbone and channels."""

_base_ = ['./mask2former_coco.py', '../datasets/coco_instance_lsj-640.py']

"""EoMT on COCO's instances at 640 x 640. A row adds the ViT."""

_base_ = ['./eomt_coco.py', '../datasets/coco_instance_lsj-640.py']

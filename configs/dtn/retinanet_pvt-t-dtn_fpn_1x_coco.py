"""RetinaNet, PVT-Tiny with DTN in stages 1 to 3. COCO, 12 epochs, 8 GPUs x 2 images.

Published (DTN, ICLR 2022, Table 11; the network pre-trained with DTN): box AP 38.0.
"""

_base_ = './retinanet_pvt-t_fpn_1x_coco.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))

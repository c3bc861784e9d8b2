"""RetinaNet, PVT-Small with DTN in stages 1 to 3. COCO, 12 epochs, 8 GPUs x 2 images.

Published (DTN, ICLR 2022, Table 11; the network pre-trained with DTN): box AP 41.8.
"""

_base_ = './retinanet_pvt-s_fpn_1x_coco.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))

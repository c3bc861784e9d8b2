# UPerNet's demo with SegFormer's head, which only fuses the four maps.
_base_ = './upernet_vit-micro-dinov3_sfp_digit-scenes.py'

head = {
    key: value
    for key, value in _base_.model.decode_head.items()
    if key not in ('pool_scales', '_delete_')
}
model = dict(decode_head=dict(head, _delete_=True, type='SegformerHead'))
del head
train_cfg = dict(val_interval=200)

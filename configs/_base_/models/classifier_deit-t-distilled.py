"""DeiT-Ti with a distillation token, which learns the answers of a RegNetY-16GF (DeiT, ICML 2021, section 4)."""

_base_ = './classifier_deit-t.py'

model = dict(
    type='mmlape.DistilledClassifier',
    # 82.9 top-1 (published); timm downloads it when training starts.
    teacher=dict(type='TimmClassifier', model_name='regnety_160.deit_in1k', pretrained=True),
    backbone=dict(with_dist_token=True, out_type='cls_and_dist'),
    head=dict(type='DeiTClsHead'),
)

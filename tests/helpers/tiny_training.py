"""A training that takes milliseconds: one of our backbones and a head, on random images, by MMEngine's runner."""

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from mmengine.runner import Runner

VIT = dict(
    type='mmlape.VisionTransformer',
    arch=dict(embed_dims=24, depth=1, num_heads=3, mlp_ratio=1),
    img_size=32,
    out_type='cls_token',
)


def _register():
    for registry, part in ((MODELS, TinyModel), (DATASETS, TinyData), (METRICS, TinyMetric)):
        registry.register_module(module=part, force=True)


class TinyModel(BaseModel):
    """A backbone, a norm with statistics, and a head with three scores."""

    def __init__(self, backbone=None, init_cfg=None, data_preprocessor=None):
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build(backbone or VIT)
        self.norm = torch.nn.BatchNorm1d(24)
        self.head = torch.nn.Linear(24, 3)

    def forward(self, inputs, labels=None, mode='tensor'):
        scores = self.head(self.norm(self.backbone(inputs)[-1]))
        if mode == 'loss':
            return dict(loss=torch.nn.functional.cross_entropy(scores, labels))
        return [scores] if mode == 'predict' else scores


class TinyData(torch.utils.data.Dataset):
    """Four images of 32 x 32."""

    metainfo = dict(classes=('a', 'b', 'c'))

    def __len__(self):
        return 4

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return dict(inputs=torch.randn(3, 32, 32, generator=generator), labels=index % 3)


class TinyMetric(BaseMetric):
    """The mean score."""

    def process(self, data_batch, data_samples):
        self.results.append(data_samples[0].mean().item())

    def compute_metrics(self, results):
        return dict(mean=sum(results) / len(results))


def short_runner(folder, model, data, hooks, iterations, optimizer, interval=1, **options):
    """A runner of a few iterations of two items of ``data``, with a checkpoint at every ``interval``."""
    loader = dict(dataset=data, sampler=dict(type='InfiniteSampler'), batch_size=2, num_workers=0)
    checkpoint = dict(type='CheckpointHook', by_epoch=False, interval=interval)
    return Runner(
        model=model,
        work_dir=str(folder),
        train_dataloader=loader,
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(optimizer=optimizer),
        default_hooks=dict(checkpoint=checkpoint),
        custom_hooks=hooks,
        default_scope='mmengine',
        # MMEngine keeps loggers by this name for as long as the process lives.
        experiment_name=f'{folder.parent.name}_{folder.name}_{iterations}',
        log_level='WARNING',
        **options,
    )


def tiny_config(work_dir, **options):
    """A config of one epoch, two steps, and a test; its parts are registered with it."""
    _register()
    collate = dict(type='default_collate')
    loader = dict(dataset=dict(type='TinyData'), batch_size=2, num_workers=0, collate_fn=collate)
    config = dict(
        model=dict(type='TinyModel'),
        work_dir=str(work_dir),
        train_dataloader=dict(loader, sampler=dict(type='DefaultSampler', shuffle=True)),
        test_dataloader=dict(loader, sampler=dict(type='DefaultSampler', shuffle=False)),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        test_cfg=dict(),
        test_evaluator=dict(type='TinyMetric'),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
        default_hooks=dict(check_weights=dict(type='mmlape.CheckWeightsHook')),
        default_scope='mmengine',
        load_from=None,
        resume=False,
        randomness=dict(seed=0),
    )
    return Config({**config, **options})

"""EoMT (CVPR 2025): a plain ViT that segments, with queries among the tokens of its last blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from mmlape.checks import check_options, check_positive_int, check_rate
from mmlape.layers import Attention, fast_memory_format
from mmlape.layout import Layout
from mmlape.position import AttentionPlan
from mmlape.registry import MODELS

from .adapter import build_vit
from .base import Backbone
from .stage import Stage, StagePlan

Predictions = tuple[list[Tensor], list[Tensor]]


@MODELS.register_module()
class EoMT(Backbone):
    """Encoder-only Mask Transformer (Your ViT is Secretly an Image Segmentation Model, CVPR 2025), around any plain ViT
    of ours, with any position, joining and norm.

    Learned queries enter as prefix tokens, without a position, before the last ``num_blocks`` blocks (section 3.2).
    Before each of these, and after the last one, the ViT's output norm, two heads and an upscaling of the patches
    predict a class and a mask per query. A query then reads only patches inside of its last mask, with a probability
    per block that training anneals to 0 (section 3.3, :class:`~mmlape.training.MaskAnnealingHook`). In evaluation,
    blocks of probability 0 have neither a mask nor a prediction before them: an annealed model is a plain ViT.

    Parameter names are the published ones: ``q``, ``class_head``, ``mask_head``, ``upscale``, ``attn_mask_probs``.

    Args:
        vit: Config of a ``mmlape.VisionTransformer`` (default type) or another network of ours with one stage and an
            output norm. Prefix tokens that have not entered before the queries (DTN) enter with them.
        num_classes: Classes; one for "no object" is added.
        num_queries: Queries Q. Default 200, the paper's for COCO; its value for ADE20K and Cityscapes is 100.
        num_blocks: Last blocks that queries run through. Default 3, the paper's for ViT-S and ViT-B; 4 for L, 5 for g.
        with_cp: Recompute ViT blocks in the backward pass. Default False.
        compile_blocks: Compile them, see :class:`StagedTransformer`. Default False.
        init_cfg: Initialisation of the whole; ``vit`` has its own ``init_cfg`` for ViT weights.

    Returns (``forward``):
        Two lists, of class logits ``(B, Q, num_classes + 1)`` and of mask logits ``(B, Q, ceil(H / s), ceil(W / s))``,
        s = 4 for patches of 16 pixels; the last prediction is the result. In training there are ``num_blocks + 1``.

    Shape:
        ``attn_mask_probs``: ``(num_blocks,)``, a buffer, initially 1.

    Raises:
        ValueError: If a number is out of range, or the ViT has no output norm, or other attention than
            ``mmlape.Attention`` without windows in its last blocks.
        TypeError: If an option has the wrong type.
    """

    attn_mask_probs: Tensor

    def __init__(
        self,
        vit: dict,
        num_classes: int,
        *,
        num_queries: int = 200,
        num_blocks: int = 3,
        with_cp: bool = False,
        compile_blocks: bool | dict = False,
        init_cfg: dict | None = None,
    ) -> None:
        check_options(EoMT, dict(vit=vit, with_cp=with_cp, init_cfg=init_cfg))
        super().__init__(init_cfg)
        self.vit = build_vit(vit, with_cp=with_cp, compile_blocks=compile_blocks)
        self.embed_dims = dims = self.vit.embed_dims
        (stage,) = self.vit.stages()
        self.num_classes = check_positive_int('num_classes', num_classes)
        self.num_queries = check_positive_int('num_queries', num_queries)
        self.num_blocks = check_positive_int('num_blocks', num_blocks, maximum=len(stage.blocks))
        _check_vit(self.vit.norm, stage, num_blocks)
        self.q = nn.Embedding(num_queries, dims)
        self.class_head = nn.Linear(dims, num_classes + 1)
        layers = [nn.Linear(dims, dims), nn.GELU(), nn.Linear(dims, dims), nn.GELU()]
        self.mask_head = nn.Sequential(*layers, nn.Linear(dims, dims))
        doublings = max(1, int(math.log2(max(stage.embed.stride))) - 2)
        self.upscale = nn.Sequential(*(ScaleBlock(dims) for _ in range(doublings)))
        self.register_buffer('attn_mask_probs', torch.ones(num_blocks))
        self._probs, self._deployed = [1.0] * num_blocks, False
        self.register_load_state_dict_post_hook(_read_probs)

    def forward(self, image: Tensor) -> Predictions:
        """Predict for images ``(B, 3, height, width)``."""
        (stage,) = self.vit.stages()
        tokens, layout, plan = stage.begin(image)
        first = len(stage.blocks) - self.num_blocks
        tokens, layout = stage.run(tokens, layout, plan, 0, first)
        queries = self.q.weight.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        stage, tokens, layout, plan = stage.add_queries(tokens, layout, plan, queries)
        predictions = []
        for layer, prob in enumerate(self._probs, first):
            masked = plan
            if self.training or prob > 0:
                predictions.append(self._predict(tokens, layout))
                if prob > 0:
                    mask = self._attention_mask(predictions[-1][1].detach(), layout, prob)
                    masked = _with_mask(plan, layout, mask)
            tokens, layout = stage.run(tokens, layout, masked, layer, layer + 1)
        predictions.append(self._predict(tokens, layout))
        scale = 2 ** len(self.upscale)
        height, width = (
            (side * scale + step - 1) // step
            for side, step in zip(image.shape[-2:], stage.embed.stride)
        )
        classes, masks = zip(*predictions)
        return list(classes), [mask[..., :height, :width] for mask in masks]

    def stages(self) -> list[Stage]:
        """The ViT's. All other parameters are deepest for layer-wise learning rates: they are new."""
        return [stage.within('vit') for stage in self.vit.stages()]

    def set_mask_probs(self, probs: Sequence[float]) -> None:
        """Set the probability that a query's attention is masked, one from 0 to 1 per block; ValueError for others."""
        probs = [check_rate('probs', prob, with_one=True) for prob in probs]
        if len(probs) != self.num_blocks:
            raise ValueError(f'probs must be one for each of {self.num_blocks} blocks, got {probs}')
        self._probs = probs
        self.attn_mask_probs.copy_(self.attn_mask_probs.new_tensor(probs))

    def switch_to_deploy(self) -> None:
        """Switch to deployment as all backbones do; attention is not masked any more, as after annealing."""
        super().switch_to_deploy()
        self._deployed = True
        self.set_mask_probs([0.0] * self.num_blocks)

    def _predict(self, tokens: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Class logits ``(B, Q, classes + 1)`` and mask logits of the padded image ``(B, Q, h, w)``."""
        normed = self.vit.finish(self.vit.num_units - 1, tokens, layout)
        queries = normed[:, : self.num_queries]
        maps = self.upscale(layout.to_maps(normed))
        masks = torch.einsum('bqc,bchw->bqhw', self.mask_head(queries), maps)
        return self.class_head(queries), masks

    def _attention_mask(self, masks: Tensor, layout: Layout, prob: float) -> Tensor:
        """``(B, 1, N, N)``: minus infinity where a query meets a patch outside of its mask, else 0.

        With a probability of ``1 - prob`` a query sees all patches. It always sees all queries and prefix tokens.
        """
        cells = F.interpolate(masks, layout.grid, mode='bilinear', align_corners=False).flatten(2)
        hidden = cells <= 0
        if prob < 1:
            hidden = (
                hidden & (torch.rand(hidden.shape[:2], device=hidden.device) <= prob)[..., None]
            )
        rows = torch.zeros_like(cells).masked_fill(hidden, -math.inf)
        above = layout.num_tokens - layout.num_cells
        return F.pad(rows, (above, 0, 0, layout.num_tokens - self.num_queries)).unsqueeze(1)


class ScaleBlock(nn.Module):
    """Doubles the sides of a map ``(B, C, H, W)``: a transposed convolution, GELU, a depthwise one and a LayerNorm."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(dims, dims, 2, stride=2)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(dims, dims, 3, padding=1, groups=dims, bias=False)
        self.norm = LayerNorm2d(dims)

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C, 2 * H, 2 * W)``."""
        return self.norm(self.conv2(self.act(self.conv1(fast_memory_format(maps, self.training)))))


def _with_mask(plan: StagePlan, layout: Layout, mask: Tensor) -> StagePlan:
    """A plan whose attention adds a mask to the scores, beside any position."""
    own = plan.attention_plans.get(layout.num_prefix, AttentionPlan(None, None))
    return plan._replace(attention_plans={layout.num_prefix: own._replace(mask=mask)})


def _check_vit(norm: nn.Module | None, stage: Stage, num_blocks: int) -> None:
    """ValueError if a ViT has no output norm, or its last blocks cannot mask what a query reads."""
    if norm is None:
        raise ValueError(
            "vit's final_norm must be left out or True: predictions are made of normed tokens"
        )
    for block in stage.blocks[-num_blocks:]:
        attention = block.attn
        if not isinstance(attention, Attention) or attention.window_size is not None:
            windows = getattr(attention, 'window_size', None)
            raise ValueError(
                f'the last num_blocks={num_blocks} blocks of vit must have mmlape.Attention with window_size=None, '
                f'got {type(attention).__name__} with window_size={windows}'
            )


def _read_probs(module: EoMT, _: object) -> None:
    """Copy the buffer to numbers after loading: comparing the buffer would wait for the device in every pass."""
    if module._deployed:
        module.set_mask_probs([0.0] * module.num_blocks)
    elif not module.attn_mask_probs.is_meta:
        module._probs = module.attn_mask_probs.tolist()

"""A network of stages; a subclass describes a family: its parts, its architectures, and how its outputs are counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_not
from typing import Any, ClassVar, Literal, TypedDict, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from mmlape.checks import (
    check_grid,
    check_keys,
    check_option,
    check_options,
    check_outputs,
    check_positive_int,
)
from mmlape.layers.basic import build_dropout, init_linear
from mmlape.layout import Layout
from mmlape.norm import build_token_norm
from mmlape.runtime.compile import check_compile_blocks

from .base import DENSE, Backbone, alias_state_dict, build_pooling
from .builder import (
    build_across_layers,
    build_first_norm,
    build_stage,
    check_carried,
)
from .lora import LoRAOptions
from .spec import (
    ARCH_PARTS,
    LAYER_NORM,
    NO_PARTS,
    STAGE_PARTS,
    NormLayers,
    Parts,
    PrefixSpec,
    StageSpec,
    layers_of_units,
    override,
    plan_norms,
    plan_prefix,
    plan_stages,
)
from .stage import OUTPUTS, Stage
from .timm_rows import TimmRow

# The prefix tokens without which an out_type that reads some is refused.
_READS_PREFIX = {
    'featmap_and_prefix': (),
    'featmap_and_cls': ('cls_token',),
    'raw': (),
    'cls_token': ('cls_token',),
    'cls_and_dist': ('cls_token', 'dist_token'),
}


class NetworkOptions(TypedDict, total=False):
    """Options of every network, see :class:`StagedTransformer`."""

    position: dict | Sequence[dict | None] | Literal[False] | None
    joining: dict | Sequence[dict] | None
    attention_position: dict | Sequence[dict | None] | Literal[False] | None
    norm_cfg: dict | Sequence | None
    stem: dict | Sequence[dict] | None
    prefix: dict | None
    attention: dict | Sequence | None
    mlp: dict | Sequence | None
    block: dict | Sequence | None
    out_type: str | dict
    out_indices: int | Sequence[int]
    final_norm: bool | None
    pre_norm: dict | bool
    drop_rate: float
    attn_drop_rate: float
    drop_path_rate: float
    frozen_stages: int
    lora: dict | None
    with_cp: bool
    compile_blocks: bool | dict
    init_cfg: dict | list[dict] | None


class StagedTransformer(Backbone):
    """Any number of stages, each on a grid of its own; works on images of any size.

    A family is a subclass with these class attributes:

    * ``archs``: architectures by name, ``default_arch``, and ``sizes``: the keys of an architecture with defaults, or
      ``...``. :meth:`stage_sizes` turns them into the sizes of each stage.
    * ``parts``: default configs of ``stem``, ``attention``, ``mlp``, ``block`` and ``norm_cfg`` (LayerNorm wherever no
      other norm goes); of ``position``, ``joining``, ``attention_position`` and ``prefix`` if there are any.
    * ``carries_position``: a single position belongs to the first stage, whose tokens carry it on.
    * ``norm_places``: default options (its layers, heads) of a norm by its type; ``norm_covers_output``: the output
      norm is of the kind of the last layer's, else LayerNorm.
    * ``counts``: whether ``out_indices`` and ``frozen_stages`` count ``'layers'`` or ``'stages'``; ``outputs``: the
      default of ``out_indices``.
    * ``stage_norm``: a LayerNorm at the end of every stage; ``map_norm``: one for every map that is returned, which the
      next stage does not see; ``final_norm``: one for the last output (None: only for a classifier).
    * ``pooling``: the ``out_type`` of classifiers, unless the architecture has its own; ``normed_head``: their heads
      begin with a batch norm; ``source``: the format (:mod:`mmlape.checkpoints`) of their published weights.
    * ``timm_rows``, ``timm_cfg``: names of its classifiers in timm (a subclass has its own), and what timm's tools are
      told of them, where that differs from a model of one stage on ImageNet.
    * ``names``: names of modules; ``{}`` is the number of the stage.

    Its constructor spells out the family's own options, and passes them as :class:`Parts`.

    Args:
        arch: Name of an architecture, or a dict with its sizes; it may hold any of the following, and ``norm_places``.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grids of stored
            position tables. Default None: the architecture's, usually 224.
        position: Config of a position embedding, for all stages or a list with one each (None in it for no position).
            Default None: the family's; False for none.
        joining: Config of a joining method, likewise. Default ``mmlape.DefaultJoining``.
        attention_position: Config of a position inside the attention, likewise, e.g.
            ``dict(type='mmlape.GaborAttention')``; its key ``layers`` (None for all, a number of first layers, or a
            list) selects layers of a stage. Default None: the family's, usually none; False for none.
        norm_cfg: Token norm of the blocks: one, a list with one for each stage, or for each layer of the only stage,
            with one more for the output if there is one. Its key ``layers`` (a number of first layers, negative for all
            but so many last ones, or a list) selects layers of a stage; the others keep LayerNorm. Default LayerNorm.
        stem: Config of a :class:`~mmlape.layers.Stem`, e.g. ``dict(type='mmlape.PatchEmbed', patch_size=16)``.
        prefix: ``dict(cls_token=False, dist_token=False, registers=0, after=None, across_layers=None)``: tokens before
            the grid of the last stage. ``after``: how many layers of it run before they are inserted; None: all up to
            the last layer whose norm depends on position (DTN), or 0 if no layer follows. Tokens that no built layer
            sees are not built. ``across_layers``, in a network counted by layers: config of a module that computes the
            class token of the output from those after every layer, e.g. ``dict(type='mmlape.LayerClassAttention')``.
        attention: Config of the attention layers: one, a list with one for each stage, or for each layer.
        mlp: Config of the feed-forward networks, likewise; its ``ratio`` is that of hidden channels to C.
        block: Config of the blocks, likewise.
        own: For families: options of parts under names of the family's own.
        common: Any of the above, and

            * ``out_type``: ``'featmap'`` (default): maps ``(B, C, H, W)``; ``'raw'``: tokens ``(B, P + H * W, C)``;
              ``'featmap_and_prefix'``: pairs of map and prefix tokens ``(B, P, C)``; ``'featmap_and_cls'``: of map and
              class token ``(B, C)``, as MMSegmentation's ``DPTHead`` takes them. For classifiers: ``'cls_token'``
              ``(B, C)``; ``'cls_and_dist'``: both ``(B, C)``; ``'avg'``: the mean ``(B, C)`` of the cells; the
              config of a pooling, ``dict(type='mmlape.SequencePooling')``; or ``'pooled'``: the architecture's own.
            * ``out_indices``: layers or stages whose output is returned; later ones are not built. ``final_norm``:
              normalise the very last output, and vectors of earlier layers; False for no norm of any output.
            * ``pre_norm``: config of a norm of tokens before the first layer (CLIP), True for LayerNorm. Default False.
            * ``drop_rate``: dropout of position-added tokens, projections and MLPs; ``attn_drop_rate``: of attention
              weights; ``drop_path_rate``: stochastic depth of the last block, growing linearly from 0. All 0.
            * ``frozen_stages``: -1 (default): nothing is frozen; 0: stem and position embedding; n: also the first n
              layers or stages, and prefix tokens that enter before the next one.
            * ``lora``: ``dict(rank=8)`` to train only low-rank updates of linear layers, see :class:`LoRAOptions`.
              Default None.
            * ``with_cp``: recompute each block in the backward pass to save memory. Default False.
            * ``compile_blocks``: True for ``torch.compile``, one graph for each kind of block and all sizes; or its
              arguments, ``dict(mode='max-autotune-no-cudagraphs')``. Default False.
            * ``init_cfg``: e.g. ``dict(type='mmlape.Pretrained', source='timm', model='deit_tiny_patch16_224')``.

    Returns (``forward``):
        A tuple with one entry per ``out_indices``.

    Raises:
        ValueError: If an option is out of range.
        TypeError: If an option is unknown, or has the wrong type.
    """

    archs: ClassVar[Mapping[str, dict]] = {}
    default_arch: ClassVar[str | None] = None
    sizes: ClassVar[Mapping[str, Any]] = dict(
        embed_dims=..., depths=..., num_heads=..., mlp_ratios=...
    )
    parts: ClassVar[Mapping[str, Any]] = dict(
        stem=dict(type='mmlape.PatchEmbed'),
        attention=dict(type='mmlape.Attention'),
        mlp=dict(type='mmlape.Mlp'),
        block=dict(type='mmlape.Block'),
        position=dict(type='mmlape.LearnedPosition'),
        norm_cfg=LAYER_NORM,
    )
    carries_position: ClassVar[bool] = False
    norm_places: ClassVar[NormLayers] = {}
    norm_covers_output: ClassVar[bool] = False
    counts: ClassVar[str] = 'stages'
    outputs: ClassVar[int | Sequence[int]] = -1
    stage_norm: ClassVar[bool] = False
    map_norm: ClassVar[bool] = False
    final_norm: ClassVar[bool | None] = None
    pooling: ClassVar[str | dict] = 'avg'
    normed_head: ClassVar[bool] = False
    source: ClassVar[str] = 'mmlape'
    timm_rows: ClassVar[tuple[TimmRow, ...]] = ()
    timm_cfg: ClassVar[Mapping[str, Any]] = {}
    names: ClassVar[Mapping[str, str]] = dict(
        embed='patch_embed{}', position='position{}', attention_position='inside{}', blocks='block{}', norm='norm{}',
        table='pos_embed{}', first_norm='norm_pre',
    )  # fmt: skip

    # Cache of stages(): the parts of the network, and the stages that were made of them.
    _stages: tuple[list[Any], list[Stage]] = [], []

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | tuple[int, int] | None = None,
        own: Parts = NO_PARTS,
        **common: Unpack[NetworkOptions],
    ) -> None:
        check_options(type(self), dict(common, arch=arch, img_size=img_size))
        super().__init__(common.get('init_cfg'))
        self.arch_name = arch if isinstance(arch, str) else None
        self.arch, default = self.resolve_arch(arch, own.sizes)
        options: dict[str, Any] = {**default, **common}
        for name in default.keys() & common.keys():
            options[name] = override(default[name], options[name], name in STAGE_PARTS)
        sizes = self.stage_sizes(self.arch)
        if self.carries_position and isinstance(options.get('position'), dict):
            merged = dict(type='mmlape.MergedPosition')
            options['position'] = [options['position'], *[merged] * (len(sizes) - 1)]
        dims = [size['embed_dims'] for size in sizes]
        self.embed_dims: Any = dims if self.counts == 'stages' else dims[0]
        self.with_cp = options.get('with_cp', False)
        self.compile_blocks = check_compile_blocks(options.get('compile_blocks', False))
        built = self._count(sizes, options.get('out_indices', self.outputs))
        self.frozen_stages = check_positive_int(
            'frozen_stages', options.get('frozen_stages', -1), minimum=-1, maximum=self.num_units
        )
        plain, layers_by_norm = self.parts['norm_cfg'], options.get('norm_places', self.norm_places)
        norms, output_norm = plan_norms(
            options.get('norm_cfg'), plain, layers_by_norm, sizes, built, self.norm_covers_output
        )
        prefix = plan_prefix(self.parts, options.get('prefix'), own, norms[-1], built[-1])
        specs = plan_stages(sizes, self.parts, options, own, built, prefix)
        self.drop_path_rate = options.get('drop_path_rate', 0.0)
        out_type, pooled = options.get('out_type', 'featmap'), default.get('pooling', self.pooling)
        self.out_type = pooled if out_type == 'pooled' else out_type
        self._check_outputs(specs[-1].prefix)
        self.drop_after_position = build_dropout('drop_rate', options.get('drop_rate', 0.0))
        final_norm = options.get('final_norm', self.final_norm)
        grid = check_grid(
            'img_size', default.get('img_size', 224) if img_size is None else img_size
        )
        self.num_stages = len(specs)
        for number, spec in enumerate(specs):
            channels = specs[number - 1].embed_dims if number else None
            stage = build_stage(spec, norms[number], channels, grid)
            grid = self._add_stage(number, spec, stage, grid, final_norm)
        check_carried(specs)
        self.grid = grid
        first_norm = build_first_norm(options.get('pre_norm', False), plain, dims[0], self.counts)
        self.add_module(self.names['first_norm'], first_norm)
        self._finish(specs[-1], final_norm, output_norm)
        self.init_parameters()
        self._add_lora(options.get('lora'))
        self.freeze()

    @classmethod
    def resolve_arch(
        cls, arch: str | dict | None, sizes: Mapping[str, Any] | None = None
    ) -> tuple[dict, dict]:
        """Sizes of an architecture, and the configs of parts that it names.

        Args:
            arch: A name in ``archs``, a dict, or None for the default.
            sizes: Sizes instead of the architecture's; None keeps one.

        Raises:
            ValueError: If the name is unknown, or keys are unknown or missing.
        """
        found: Any = cls.default_arch if arch is None else arch
        if isinstance(found, str):
            found = cls.archs[check_option('arch', found, cls.archs)]
        parts = {key: value for key, value in found.items() if key in ARCH_PARTS}
        known = {key: value for key, value in cls.sizes.items() if value is not ...}
        known.update((key, value) for key, value in found.items() if key not in parts)
        known.update((key, value) for key, value in (sizes or {}).items() if value is not None)
        return check_keys('arch', known, cls.sizes), parts

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        """``embed_dims``, ``depth``, ``num_heads`` of each stage, and options of its parts under their names."""
        raise NotImplementedError

    def forward(self, image: Tensor) -> tuple:
        """Outputs of ``out_indices`` for images ``(B, in_channels, height, width)``."""
        output = OUTPUTS[cast(str, self.out_type)] if self.pool is None else self.pool
        outputs = [
            output(self.finish(unit, tokens, layout), layout)
            for unit, (tokens, layout) in enumerate(self.walk(image))
            if unit in self.out_indices
        ]
        return tuple(outputs)

    def walk(self, image: Tensor) -> Iterator[tuple[Tensor, Layout]]:
        """Tokens ``(B, P + H * W, C)`` and layout after each unit that is built, a layer or a stage."""
        maps, position = image, None
        stages = self.stages()
        for stage in stages:
            tokens, layout, plan = stage.begin(maps, position)
            depth = len(stage.blocks)
            step = depth if self.counts == 'stages' else 1
            class_tokens: list[Tensor] = []
            for first in range(0, depth, step):
                tokens, layout = stage.run(tokens, layout, plan, first, first + step)
                if self.across_layers is not None and layout.num_prefix:
                    class_tokens.append(tokens[:, :1])
                if first + step == depth:
                    tokens = stage.end(tokens, layout)
                    if self.across_layers is not None:
                        summary = self.across_layers(torch.cat(class_tokens, dim=1))
                        tokens = torch.cat([summary, tokens[:, 1:]], dim=1)
                yield tokens, layout
            if stage is not stages[-1]:
                maps, position = layout.to_maps(tokens), stage.carried(plan, layout)

    def finish(self, unit: int, tokens: Tensor, layout: Layout) -> Tensor:
        """Tokens of an output after its norm, if it has one."""
        shares = unit == self.num_units - 1 or self.out_type not in DENSE
        norm = self.norm if shares and self.norm is not None else self.norm_of_map(unit)
        return tokens if norm is None else norm(tokens, layout)

    def stages(self) -> list[Stage]:
        """Return a stage for each grid; they are cached until a part of the network is replaced."""
        tokens = [*self.parameters(recurse=False)]
        # Stages must not hold the tensors by which torch.func replaces parameters beyond a pass.
        if torch.compiler.is_compiling() or not {*map(type, tokens)} <= {nn.Parameter}:
            return self._make_stages()
        parts = [*self.children(), *tokens, self.with_cp, self.compile_blocks]
        known, stages = self._stages
        if len(known) != len(parts) or any(map(is_not, known, parts)):
            stages = self._make_stages()
            self._stages = parts, stages
        return stages

    def _make_stages(self) -> list[Stage]:
        prefix = tuple(getattr(self, name) for name in self.prefix_names)
        stages, dims = [], self.embed_dims
        frozen = 0  # whose positions have no dropout; frozen_stages=0 are the stem and the first position
        if self.counts == 'stages' and self.frozen_stages >= 0:
            frozen = max(self.frozen_stages, 1)
        for number in range(1, self.num_stages + 1):
            names = {part: name.format(number) for part, name in self.names.items()}
            modules: dict = {
                part: getattr(self, names[part], None)
                for part in ('embed', 'position', 'attention_position', 'blocks', 'first_norm')
            }
            last = number == self.num_stages
            stages.append(
                Stage(
                    names['blocks'],
                    names['position'],
                    dims if isinstance(dims, int) else dims[number - 1],
                    **modules,
                    prefix=prefix if last else (),
                    prefix_after=self.prefix_after if last else 0,
                    dropout=self.drop_after_position if number > frozen else nn.Identity(),
                    norm=getattr(self, names['norm'], None) if self.stage_norm else None,
                    with_cp=self.with_cp,
                    compile_blocks=self.compile_blocks,
                )
            )
        return stages

    @property
    def num_prefix_tokens(self) -> int:
        """Number ``P`` of prefix tokens of the last stage."""
        return sum(getattr(self, name).shape[1] for name in self.prefix_names)

    def init_parameters(self) -> None:
        """Initial values of linear layers of stems and blocks; embeddings and norms have their own."""
        parts: list = [part for stage in self.stages() for part in (stage.embed, stage.blocks)]
        for part in parts if self.across_layers is None else [*parts, self.across_layers]:
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    init_linear(module)

    def frozen_modules(self) -> list[nn.Module]:
        """The first ``frozen_stages`` layers or stages with all modules that serve them, and the stem."""
        if self.lora is not None:
            return self.lora.with_fixed_statistics(self)
        if self.frozen_stages < 0:
            return []
        counts, stages = self._frozen_layers(), self.stages()
        if counts == [len(stage.blocks) for stage in stages]:
            return list(self.children())
        frozen = [
            module
            for number, (stage, count) in enumerate(zip(stages, counts))
            if count or not number
            for module in (*stage.up_to(count), self.norm_of_map(number) if count else None)
            if module is not None
        ]
        return [*frozen, self.drop_after_position] if self.counts == 'layers' else frozen

    def _add_lora(self, config: dict | None) -> None:
        self.lora = None if config is None else LoRAOptions.of(config)
        if self.lora is not None:
            if self.frozen_stages >= 0:
                raise ValueError(
                    'lora freezes all that it does not train: frozen_stages must be -1 with it, '
                    f'got {self.frozen_stages}'
                )
            self.lora.add_to(self)

    def _frozen_layers(self) -> list[int]:
        """Number of frozen first layers of each stage."""
        depths = [len(stage.blocks) for stage in self.stages()]
        return layers_of_units(self.frozen_stages, depths, self.counts)

    def freeze(self) -> None:
        """Switch gradients off up to ``frozen_stages``, also of prefix tokens that enter before the next layer; with
        ``lora``, of all that it does not train."""
        if self.lora is not None:
            trained = self.lora.trained(self)
            for parameter in self.parameters():
                parameter.requires_grad_(parameter in trained)
            return
        super().freeze()
        count = self._frozen_layers()[-1] if self.frozen_stages >= 0 else 0
        stem = self.frozen_stages == 0 and self.num_stages == 1
        if (count or stem) and count >= self.prefix_after:
            for name in self.prefix_names:
                getattr(self, name).requires_grad_(False)

    def _count(self, sizes: Sequence[dict], out_indices: int | Sequence[int]) -> list[int]:
        """Set the number of units and the outputs; return how many layers of each stage are built."""
        depths = [size['depth'] for size in sizes]
        self.num_units = sum(depths) if self.counts == 'layers' else len(depths)
        self.out_indices = check_outputs(out_indices, self.num_units, self.counts)
        return layers_of_units(self.out_indices[-1] + 1, depths, self.counts)

    def _check_outputs(self, prefix: PrefixSpec) -> None:
        """Raise ValueError if ``out_type`` is unknown, or needs prefix tokens or a stage that the outputs lack."""
        out_type, by_stage = self.out_type, self.counts == 'stages'
        if not isinstance(out_type, dict):
            check_option('out_type', out_type, (*OUTPUTS, 'pooled'))
            seen = prefix.sizes if by_stage or self.out_indices[0] >= prefix.after else ()
            needed = _READS_PREFIX.get(out_type, ())
            missing = [f'with_{name}=True' for name in needed if name not in seen]
            if missing:
                raise ValueError(
                    f'out_type={out_type!r} needs {" and ".join(missing)}, '
                    'and outputs (out_indices) of layers that these tokens have joined'
                )
        if by_stage and out_type not in DENSE and self.out_indices != (self.num_units - 1,):
            raise ValueError(
                f'out_type={out_type!r} is for a classifier, which sees the last stage alone: '
                f'out_indices must be {self.num_units - 1}, got {self.out_indices}'
            )

    def _add_stage(
        self,
        number: int,
        spec: StageSpec,
        modules: dict[str, Any],
        grid: tuple[int, int],
        final_norm: bool | None,
    ) -> tuple[int, int]:
        """Register the modules of a stage for maps of ``grid`` by their names; return the grid of its tokens."""
        names = {part: name.format(number + 1) for part, name in self.names.items()}
        self.prefix_names, self.prefix_after = tuple(spec.prefix.sizes), spec.prefix.after
        for name, token in modules.pop('prefix').items():
            setattr(self, name, token)
        for part, module in modules.items():
            if module is not None:
                self.add_module(names[part], module)
        if spec.position is not None:
            alias_state_dict(self, {names['table']: f'{names["position"]}.embedding.pos_embed'})
        if self.stage_norm or self._has_map_norm(number, final_norm):
            norm = build_token_norm(self.parts['norm_cfg'], spec.embed_dims)
            self.add_module(names['norm'], norm)
        return modules['embed'].grid_of(grid)

    def _has_map_norm(self, unit: int, final_norm: bool | None) -> bool:
        """Whether the map of a unit has a norm of its own, which the norm of the last output replaces."""
        dense = self.out_type in DENSE and unit in self.out_indices
        replaced = final_norm is False or (final_norm and unit == self.num_units - 1)
        return self.map_norm and dense and not replaced

    def norm_of_map(self, unit: int) -> nn.Module | None:
        """The norm of an output's map alone."""
        return getattr(self, self.names['norm'].format(unit + 1), None) if self.map_norm else None

    def _finish(self, last: StageSpec, final_norm: bool | None, output_norm: dict) -> None:
        """Build the pooling, the output norm, and ``across_layers``."""
        ends = self.num_units - 1 in self.out_indices
        shown = ends and not isinstance(self.out_type, dict) and self.out_type in _READS_PREFIX
        if last.prefix.across_layers and self.counts == 'stages':
            raise ValueError(
                f'across_layers needs a network counted by layers, {type(self).__name__} is by stages'
            )
        self.across_layers = build_across_layers(last, shown)
        self.pool = build_pooling(self.out_type, last.embed_dims)
        vectors = self.out_type not in DENSE
        wanted = vectors if final_norm is None else final_norm and (ends or vectors)
        self.norm = build_token_norm(output_norm, last.embed_dims) if wanted else None

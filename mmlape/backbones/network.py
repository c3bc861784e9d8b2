"""A network of stages, which a family describes: its parts, its architectures, and how its results are counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import is_not
from typing import Any, ClassVar, Literal, TypedDict, cast

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from mmlape.checks import check_grid, check_options, check_outputs, check_positive_int
from mmlape.layers.basic import build_dropout
from mmlape.layout import Layout
from mmlape.norm import build_token_norm
from mmlape.runtime.compile import check_compile_blocks

from .base import (
    DENSE,
    READ_PREFIX,
    Backbone,
    alias_state_dict,
    build_pooling,
    check_out_type,
    check_vector,
    frozen_parts,
    frozen_tokens,
)
from .builder import build_across_layers, build_first_norm, build_stage, init_linear
from .spec import (
    LAYER_NORM,
    NO_PARTS,
    NormPlaces,
    Parts,
    PrefixSpec,
    StageSpec,
    find_arch,
    given_over,
    layers_of_units,
    place_norms,
    plan_prefix,
    plan_stages,
)
from .stage import OUTPUTS, Stage


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
    with_cp: bool
    compile_blocks: bool | dict
    init_cfg: dict | list[dict] | None


class StagedTransformer(Backbone):
    """Any number of stages, each on a grid of its own; works on images of any size.

    A family is a subclass that says what its parts are, in class attributes:

    * ``archs``: architectures by name, ``default_arch``, and ``sizes``: the keys of their sizes, with defaults, else
      ``...``. :meth:`stage_sizes` says what they are of each stage.
    * ``parts``: default configs of ``stem``, ``attention``, ``mlp``, ``block``; of ``position``, ``joining``,
      ``attention_position`` and ``prefix`` where they differ from none, ``mmlape.DefaultJoining``, none and none;
      ``norm_cfg`` is its LayerNorm, which stands wherever no other norm goes.
    * ``carries_position``: whether one position given to all stages is that of the first, from where it goes on.
    * ``norm_places``: where a norm goes that one ``norm_cfg`` names; ``norm_covers_output``: whether the norm of the
      output is of the kind of the last layer's, else it is LayerNorm.
    * ``counts``: ``'layers'`` or ``'stages'``: what ``out_indices`` and ``frozen_stages`` count; ``outputs``: the
      default of ``out_indices``.
    * ``stage_norm``: whether there is a LayerNorm at the end of every stage; ``map_norm``: whether every map that is
      returned has one of its own, which the stage after does not see. ``final_norm``: whether the last output is
      normalised; None for: if it goes to a classifier.
    * ``pooling``: what a classifier sees of the last tokens, an ``out_type`` for such; an architecture may have its
      own. ``normed_head``: whether its heads begin with a batch norm. ``source``: the format
      (:mod:`mmlape.checkpoints`) of classifiers' weights that are not our own.
    * ``names``: under which name a module is kept, with the number of its stage.

    Its constructor names the options that are its own, hands those of parts on as :class:`Parts`, and takes those of
    every network as ``**common``.

    Args:
        arch: Name of an architecture, or a dict with its sizes; it may hold any of the following, and ``norm_places``.
        img_size: Pre-training image size in pixels, one integer or (height, width); it sets the grids of stored
            position tables. Default None: the architecture's, of most 224.
        position: Config of a position embedding, for all stages or a list with one each (None in it for no position).
            Default None: the family's; False for none.
        joining: Config of a joining method, likewise.
        attention_position: Config of what position does inside the attention, likewise, e.g.
            ``dict(type='mmlape.GaborAttention')``; its key ``layers`` (None for all, a number of first layers, or a
            list) says in which layers of a stage. Default None: the family's, of most none; False for none.
        norm_cfg: Token norm of the blocks: one, a list with one for each stage, or for each layer of the only stage,
            with one more for the output if there is one. Default the family's LayerNorm. Its key ``layers`` (a number
            of first layers, negative for all but so many last ones, or a list) says where in a stage; LayerNorm is
            elsewhere.
        stem: Config of what makes the tokens of a stage, a :class:`~mmlape.layers.Stem`, e.g.
            ``dict(type='mmlape.PatchEmbed', patch_size=16)``.
        prefix: ``dict(cls_token=False, dist_token=False, registers=0, after=None, across_layers=None)``: tokens before
            those of the grid of the last stage, and the number of its first layers that run without them. None: up to
            the last one whose norm sees places (DTN), which is none where no layer follows. They take their rows of the
            position along. Tokens that no built layer sees are not built. ``across_layers``, in a network counted by
            layers: config of what makes the class token of the last layer's output from those after every layer, e.g.
            ``dict(type='mmlape.LayerClassAttention')``; where the output shows none it is not built.
        attention: Config of the attention layers: one, a list with one for each stage, or for each layer.
        mlp: Config of the feed-forward networks, likewise; its ``ratio`` is that of hidden channels to C.
        block: Config of the blocks, likewise.
        own: For families: options of parts by names of the family's own.
        common: Any of the above, and

            * ``out_type``: ``'featmap'`` (default): maps ``(B, C, H, W)``; ``'raw'``: tokens ``(B, P + H * W, C)``;
              ``'featmap_and_prefix'``: pairs of map and prefix tokens ``(B, P, C)``. For classifiers: ``'cls_token'``
              ``(B, C)``; ``'cls_and_dist'``: both ``(B, C)``; ``'avg'``: the mean ``(B, C)`` of the cells; the
              config of a pooling, ``dict(type='mmlape.SequencePooling')``; or ``'pooled'``: the architecture's own.
            * ``out_indices``: layers or stages whose output is returned; what comes after the last one named is not
              built. ``final_norm``: normalise the very last output; False for no norm of any output.
            * ``pre_norm``: config of a norm of tokens before the first layer (CLIP), True for LayerNorm. Default False.
            * ``drop_rate``: dropout of position-added tokens, projections and MLPs; ``attn_drop_rate``: of attention
              weights; ``drop_path_rate``: stochastic depth of the last block, growing linearly from 0. All 0.
            * ``frozen_stages``: -1 (default): nothing is frozen; 0: what makes the first tokens, and the embedding of
              their position; n: the first n layers or stages too, and prefix tokens that have joined by then.
            * ``with_cp``: recompute each block in the backward pass to save memory. Default False.
            * ``compile_blocks``: True for blocks by ``torch.compile``, a graph for each kind of block that serves all
              sizes; or its arguments, ``dict(mode='max-autotune-no-cudagraphs')``. Default False.
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
    norm_places: ClassVar[NormPlaces] = {}
    norm_covers_output: ClassVar[bool] = False
    counts: ClassVar[str] = 'stages'
    outputs: ClassVar[int | Sequence[int]] = -1
    stage_norm: ClassVar[bool] = False
    map_norm: ClassVar[bool] = False
    final_norm: ClassVar[bool | None] = None
    pooling: ClassVar[str | dict] = 'avg'
    normed_head: ClassVar[bool] = False
    source: ClassVar[str] = 'mmlape'
    names: ClassVar[Mapping[str, str]] = dict(
        embed='patch_embed{}', position='position{}', inside='inside{}', blocks='block{}', norm='norm{}',
        table='pos_embed{}', first_norm='norm_pre',
    )  # fmt: skip

    # Parts of the network, and the stages that were made of them.
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
            options[name] = given_over(default[name], options[name])
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
        plain, places = self.parts['norm_cfg'], options.get('norm_places', self.norm_places)
        norms, output_norm = place_norms(
            options.get('norm_cfg'), plain, places, sizes, built, self.norm_covers_output
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
        self.grid = grid
        first_norm = build_first_norm(options.get('pre_norm', False), plain, dims[0], self.counts)
        self.add_module(self.names['first_norm'], first_norm)
        self._finish(specs[-1], final_norm, output_norm)
        self.init_parameters()
        self.freeze()

    @classmethod
    def resolve_arch(
        cls, arch: str | dict | None, override: Mapping[str, Any] | None = None
    ) -> tuple[dict, dict]:
        """Sizes of an architecture (None: the default) with some in their place, and the parts that it names."""
        arch = cls.default_arch if arch is None else arch
        return find_arch(arch, cls.archs, cls.sizes, override or {})

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        """Of each stage ``embed_dims``, ``depth``, ``num_heads``, and options of parts under their names."""
        raise NotImplementedError

    def forward(self, image: Tensor) -> tuple:
        """Outputs of ``out_indices`` for images ``(B, in_channels, height, width)``."""
        output = OUTPUTS[cast(str, self.out_type)] if self.pool is None else self.pool
        return tuple(
            output(self.finish(unit, tokens, layout), layout)
            for unit, (tokens, layout) in enumerate(self.walk(image))
            if unit in self.out_indices
        )

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
                maps, position = layout.to_maps(tokens), stage.passed(plan, layout)

    def finish(self, unit: int, tokens: Tensor, layout: Layout) -> Tensor:
        """Tokens of an output after its norm; where it has none they pass."""
        last = unit == self.num_units - 1
        norm = self.norm if last and self.norm is not None else self.norm_of_map(unit)
        return tokens if norm is None else norm(tokens, layout)

    def stages(self) -> list[Stage]:
        """One for each grid. They are made once, and anew where a part of the network has become another object."""
        tokens = [*self.parameters(recurse=False)]
        # Tensors that stand in for parameters (torch.func) are not kept beyond a pass.
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
        for number in range(1, self.num_stages + 1):
            names = {part: name.format(number) for part, name in self.names.items()}
            modules: dict = {
                part: getattr(self, names[part], None)
                for part in ('embed', 'position', 'inside', 'blocks', 'first_norm')
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
                    dropout=self.drop_after_position,
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
        """Initial values of linear layers, in what makes tokens too; embeddings and norms have their own."""
        stages = self.stages()
        parts = [part for stage in stages for part in (stage.embed, stage.blocks)]
        for part in (*parts, self.across_layers):
            for module in () if part is None else part.modules():
                if isinstance(module, nn.Linear):
                    init_linear(module)

    def frozen_modules(self) -> list[nn.Module]:
        """The first ``frozen_stages`` layers or stages with what serves them, and what makes the first tokens."""
        return frozen_parts(self)

    def freeze(self) -> None:
        """Switch gradients off up to ``frozen_stages``, prefix tokens included that have joined by then."""
        super().freeze()
        for token in frozen_tokens(self):
            token.requires_grad_(False)

    def _count(self, sizes: Sequence[dict], out_indices: int | Sequence[int]) -> list[int]:
        """Units of the architecture and outputs among them; returns how many layers of each stage are built."""
        depths = [size['depth'] for size in sizes]
        self.num_units = sum(depths) if self.counts == 'layers' else len(depths)
        self.out_indices = check_outputs(out_indices, self.num_units, self.counts)
        return layers_of_units(self.out_indices[-1] + 1, depths, self.counts)

    def _check_outputs(self, prefix: PrefixSpec) -> None:
        """Whether what is returned is there: prefix tokens where outputs show them, and the last stage for a vector."""
        by_stage = self.counts == 'stages'
        seen_by_all = by_stage or self.out_indices[0] >= prefix.after
        check_out_type(self.out_type, tuple(prefix.sizes) if seen_by_all else ())
        if by_stage:
            check_vector(self.out_type, self.out_indices, self.num_units)

    def _add_stage(
        self,
        number: int,
        spec: StageSpec,
        modules: dict[str, Any],
        grid: tuple[int, int],
        final_norm: bool | None,
    ) -> tuple[int, int]:
        """Put the modules of a stage on ``grid`` under their names; return the grid of its tokens."""
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
        """Whether the map of a unit gets a norm of its own, which the norm of the last output replaces."""
        dense = self.out_type in DENSE and unit in self.out_indices
        replaced = final_norm is False or (final_norm and unit == self.num_units - 1)
        return self.map_norm and dense and not replaced

    def norm_of_map(self, unit: int) -> nn.Module | None:
        """The norm of an output's map alone."""
        return getattr(self, self.names['norm'].format(unit + 1), None) if self.map_norm else None

    def _finish(self, last: StageSpec, final_norm: bool | None, output_norm: dict) -> None:
        """What the class tokens of all layers make, the output norm and the pooling."""
        ends = self.num_units - 1 in self.out_indices
        shown = ends and self.out_type in READ_PREFIX
        if last.prefix.across_layers and self.counts == 'stages':
            raise ValueError(
                f'across_layers needs a network counted by layers, {type(self).__name__} is by stages'
            )
        self.across_layers = build_across_layers(last, shown)
        self.pool = build_pooling(self.out_type, last.embed_dims)
        wanted = self.out_type not in DENSE if final_norm is None else final_norm
        self.norm = build_token_norm(output_norm, last.embed_dims) if wanted and ends else None

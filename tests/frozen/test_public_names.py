"""What users write (types, imports, commands, options) and what their checkpoints hold is still there, name by name."""

import ast
import gzip
import json

import pytest
from frozen.public_names import commands, parser_of, public_names
from frozen.work_dirs import FOLDER

from mmlape.registry import MODELS

NAMES = json.loads((FOLDER / 'names.json').read_text())
STATES = json.loads(gzip.decompress((FOLDER / 'states.json.gz').read_bytes()))
# What was taken out on purpose, as tests/data/frozen/names.json has it: {kind: {name: why, and what to write instead}}.
# A kind that is gone as a whole has the one entry '*'.
GONE: dict[str, dict[str, str]] = {
    'command replay': {
        '*': 'removed: it ran code out of files; StopAtNonFiniteHook names the first module'
    },
    'command timm_vits': {'*': 'moved: tools/developers/timm_vits.py'},
    'command zoo_table': {'*': 'moved: tools/developers/zoo_table.py'},
    'commands': {
        'replay': 'removed, see `command replay`',
        'timm_vits': 'moved to tools/developers',
        'zoo_table': 'moved to tools/developers',
    },
    'package mmlape': {
        'datasets': 'moved: mmlape.research.datasets',
        'engine': 'moved: mmlape.training',
        'pretraining': 'moved: mmlape.research.pretraining',
        'stack': 'internal: versions of the packages underneath',
    },
    'package mmlape.engine': {
        '*': 'moved: mmlape.training, see MOVED',
        'HungProcessHook': 'removed, as in HOOKS',
        **dict.fromkeys(
            ('environment_options', 'vit_arch', 'vit_weights'),
            'removed with configs/custom: mmlape fit --dry-run writes a config',
        ),
    },
    'package mmlape.launch': {
        '*': 'moved: mmlape.cli, see MOVED',
        **dict.fromkeys(
            ('find_config', 'shipped_configs', 'shipped_folder'), 'moved: mmlape.shipped'
        ),
        **dict.fromkeys(
            ('existing_checkpoint', 'last_complete_checkpoint'), 'moved: mmlape.training'
        ),
    },
    'package mmlape.ops': {
        '*': 'moved: operators are mmlape.cpu.optimize, the rest internal to mmlape.runtime'
    },
    'package mmlape.research.analysis': {
        'save_figure': 'moved: mmlape.apps.report',
        'LayerPosition': 'layer_positions returns a dict of arrays by name',
        'PredictionSplit': 'split_predictions returns a dict of indices by kind',
        'compare_predictions': 'split_predictions takes what read_predictions returns',
        'correlation_map': 'a row of cosine_matrix',
        'pick_stage': 'position_stages',
        'token_magnitudes': 'magnitude_maps',
    },
    'package mmlape.research.pretraining': {'timm_models': 'moved: import mmlape.timm_models'},
    'package mmlape.norm': {'check_norm_cfg': 'norm_class refuses the same'},
    'package mmlape.position': {
        'InsidePlan': 'renamed: AttentionPlan',
        'PlanKeeper': 'renamed: PlanCachingModule',
    },
    'registry HOOKS': {
        'HungProcessHook': 'removed: it did nothing; env_cfg.dist_cfg.timeout ends a training that hangs'
    },
    'registry FUNCTIONS': {
        'wrap_blocks': 'FSDP2 has no policies: mmlape.FSDPStrategy alone, or mmlape.training.wrap_blocks(model)'
    },
}
# Packages that have another name now, with all their names in it.
MOVED = {
    'package mmlape.engine': 'package mmlape.training',
    'package mmlape.launch': 'package mmlape.cli',
}


def test_no_public_name_is_missing():
    present = public_names()
    missing, back = [], []
    for kind, names in NAMES.items():
        gone, found = GONE.get(kind, {}), present.get(kind, [])
        missing += [
            f'{kind}: {name}' for name in names if name not in [*found, *gone] and '*' not in gone
        ]
        back += [f'{kind}: {name}' for name in gone if name in found or name not in [*names, '*']]
    assert not missing, '\n'.join(['gone without an entry in GONE:', *missing])
    assert not back, '\n'.join(['in GONE, but there, or never there:', *back])
    assert GONE.keys() <= NAMES.keys()
    for old, new in MOVED.items():
        assert '*' in GONE[old] and new not in NAMES
        assert set(NAMES[old]) - set(GONE[old]) <= set(present[new]), new


@pytest.mark.parametrize('variant', STATES)
def test_states_have_the_same_names_and_shapes(variant):
    """Of a micro variant of each network and part, built from its config: checkpoints load, optimizers go by order."""
    recorded = STATES[variant]
    model = MODELS.build(ast.literal_eval(recorded['config']))
    state = {name: list(value.shape) for name, value in model.state_dict().items()}
    before = recorded['state']
    assert [f'{n} {s}' for n, s in before.items() if n not in state] == [], 'gone'
    assert [f'{n} {s}' for n, s in state.items() if n not in before] == [], 'not in checkpoints'
    assert state == before
    assert list(state) == list(before)


# Numbers that commands take without an option; the documentation has them too.
NUMBERS = {
    'app': dict(port=7860),
    'build digit_scenes': dict(
        num_train=2400, num_val=200, image_size=96, min_visible=0.8, min_contrast=60
    ),
    'build list_ops': dict(num_train=96000, num_val=2000, num_test=2000, max_depth=10, max_args=10),
    'convert': dict(min_matched=0.95),
    'experiment dino': dict(seeds=3),
    'experiment list_ops': dict(seeds=3),
    'experiment position': dict(seeds=3),
    'experiment robustness': dict(seeds=3, images=40),
    'fit': dict(epochs=24, batch=2, val=0.2, workers=2),
    'picture position_flow': dict(count=3),
    'predict': dict(overlap=0.2, batch=1),
    'test': dict(wait_time=2),
}


def test_numbers_of_commands():
    parsers = {name: parser_of(path) for name, path in commands().items() if path.suffix == '.py'}
    found = {
        name: {
            a.dest: a.default
            for a in parser._actions
            if isinstance(a.default, int | float) and a.default
        }
        for name, parser in parsers.items()
        if parser
    }
    numbers = {
        name: {key: value for key, value in values.items() if value is not True}
        for name, values in found.items()
    }
    assert {name: values for name, values in numbers.items() if values} == NUMBERS

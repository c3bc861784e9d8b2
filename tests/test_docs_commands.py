"""What the pages tell people to type exists: targets, programs, configs, sub-commands."""

import re

import pytest
from config_utils import (
    REPO,
    ablation_configs,
    cifar_configs,
    classifier_configs,
    dino_configs,
    foundation_configs,
    listops_configs,
    shipped_configs,
)
from docs_pages import PAGES, read_page

from mmlape.__main__ import commands

BY_NAME = {path.relative_to(REPO).as_posix(): path for path in PAGES}
MAKEFILE = (REPO / 'Makefile').read_text(encoding='utf-8')
TARGETS = set(re.findall(r'^([a-z][a-z-]*):', MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r'^#   ([A-Z_]+)=', MAKEFILE, re.MULTILINE))
FOLDERS = 'benchmarks|configs|docs|mmlape|tests|tools'
FILE = rf'(?<![\w/.$}}-])((?:{FOLDERS})/[\w./-]+\.(?:py|sh|md|json|yml))(?![\w<*{{])'
MAKERS = (
    shipped_configs,
    foundation_configs,
    classifier_configs,
    cifar_configs,
    ablation_configs,
    dino_configs,
    listops_configs,
)
CONFIGS = {path.stem for configs in MAKERS for path in configs()}
# Such a name is a config of the zoo, of ours or of upstream, wherever it stands.
CONFIG_NAME = r'(?<![\w/-])([a-z][\w-]*_[\w-]+_(?:\w+-)*(?:coco|ade20k|in1k|digit-\w+)[\w-]*)(?:\.py)?(?![\w-])'

MAKE = r'(?:^|(?<=[\s;&`]))make ([a-z][\w-]*)((?: \w+=\S+)*)'
# At the beginning of a line or after variables; not `mmlape cannot be imported`, which is a message.
COMMAND = r"^ *(?:\w+=(?:'[^']*'|\S*) )*mmlape ([a-z]\w*)\b(?! be )"
COMMANDS = commands()
# A command with its options, lines that go on joined; timm's tools have options of their own.
CALL = r'(?:mmlape |tools/(?:\w+/)?)(\w+)(?:\.py|\.sh)?((?: +[^\n|`#;]*)?)'
SHARED = '\n'.join(
    path.read_text(encoding='utf-8')
    for pattern in ('mmlape/cli/*.py', 'mmlape/analysis/frame.py', 'tools/t*.py')
    for path in REPO.glob(pattern)
)


def unknown(text: str) -> list[str]:
    """What a piece of code in a page names and does not exist."""
    problems = []
    for target, options in re.findall(MAKE, text, re.MULTILINE):
        if target not in TARGETS:
            problems.append(f'make {target}')
        names = re.findall(r'(\w+)=', options)
        problems += [f'make {target} {name}=' for name in names if name not in VARIABLES]
    problems += [
        f'mmlape {name}' for name in re.findall(COMMAND, text, re.MULTILINE) if name not in COMMANDS
    ]
    for name, rest in re.findall(CALL, text.replace('\\\n', ' ')):
        if name in COMMANDS and name != 'timm_run':
            known = COMMANDS[name].read_text(encoding='utf-8') + SHARED
            options = re.findall(r'(?<!\S)(--[a-z][\w-]*)', rest)
            problems += [f'{name} {option}' for option in options if f"'{option}'" not in known]
    problems += [name for name in re.findall(FILE, text) if not (REPO / name).is_file()]
    return problems + [name for name in re.findall(CONFIG_NAME, text) if name not in CONFIGS]


@pytest.mark.parametrize('name', BY_NAME)
def test_commands_exist(name):
    assert [problem for code in read_page(BY_NAME[name]).code for problem in unknown(code)] == []


@pytest.mark.parametrize(
    'text',
    [
        'make tests',
        'cd mmlape && make demo MODELS=segmenter',
        'python tools/analysis_tools/magnitude.py',
        'mmlape train CONFIG \\\n    --work-dir x --auto-scale',
        'PORT=1 mmlape dist_trian CONFIG 8',
        'mmlape train mask-rcnn_deit-x-adapter_fpn_ms-3x_coco',
    ],
)
def test_a_command_that_does_not_exist_is_found(text):
    assert len(unknown(text)) == 1

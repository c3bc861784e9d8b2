"""Print a script that completes commands and options in bash or zsh.

    eval "$(mmlape completion bash)"     # in ~/.bashrc; for zsh in ~/.zshrc

Files are completed as usual.
"""

import contextlib
import io
import re
import runpy
import sys

from mmlape import cli
from mmlape.__main__ import FAMILIES, commands
from mmlape.cli.arguments import Parser

SCRIPT = """_mmlape() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=''
    if [ "$COMP_CWORD" = 1 ]; then
        words='{names}'
    else
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}} " in
{cases}
        esac
    fi
    if [[ $words == -* && $word != -* ]]; then words=''; fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _mmlape mmlape
"""
ZSH = 'autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n'


def options_of(path):
    """The options in the help of a command."""
    if path.suffix != '.py' or path.stem == 'timm_run':
        return ''
    text = io.StringIO()
    sys.argv = [str(path), '--help']
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        runpy.run_path(str(path), run_name='__main__')
    return ' '.join(dict.fromkeys(re.findall(r'(?<![\w-])--[a-z][\w-]*', text.getvalue())))


def main():
    parser = Parser('completion', __doc__.splitlines()[0], 'bash', 'zsh')
    parser.add_argument('shell', choices=('bash', 'zsh'))
    shell = parser.parse_args().shell
    found = {name: options_of(path) for name, path in commands().items()}
    lines = {name: words for name, words in found.items() if ' ' in name}  # the longer ones first
    for family in FAMILIES:
        own = [name.split()[1] for name in lines if name.split()[0] == family]
        lines[family] = ' '.join([*own, found.pop(family, '')]).strip()
    lines.update(found)
    cases = '\n'.join(
        f"            '{name} '*) words='{words}' ;;" for name, words in lines.items()
    )
    names = ' '.join(dict.fromkeys(name.split()[0] for name in [*lines, 'help']))
    print((ZSH if shell == 'zsh' else '') + SCRIPT.format(names=names, cases=cases), end='')


if __name__ == '__main__':
    cli.run_program(main)

"""Code in the text of a config, which MMEngine executes."""

import os

from .maker import CONFIGS, code, crafted, table


def with_config(m, text, place='meta'):
    whole = m.whole
    if place == 'meta':
        whole['meta']['config'] = text
    else:
        whole['message_hub']['runtime_info']['cfg'] = text
    return whole


def _text(template, place='meta'):
    return lambda m: with_config(m, template.format(code(m.canary), m.canary), place)


table(
    CONFIGS,
    a_statement=_text('a = 1\n{0}\n'),
    a_value=_text('model = dict(type="A", b=[{0}])\n'),
    an_import=_text('import_it = __import__("os").system("touch {1}")\n'),
    a_function=_text('def f():\n    {0}\nf()\n'),
    a_decorator=_text('class A(dict(a=[{0}])["a"][0].__class__): pass\n'),
    in_the_runtime=_text('a = [{0}]\n', 'runtime'),
)


@crafted(CONFIGS)
def a_base(m):
    base = m.folder / 'base_with_code.py'
    base.write_text(code(m.canary))
    return with_config(m, f'_base_ = [{str(base)!r}]\n')


@crafted(CONFIGS)
def a_custom_import(m):
    name = f'module_with_code_{os.getpid()}'
    (m.folder / f'{name}.py').write_text(code(m.canary))
    return with_config(m, f'custom_imports = dict(imports=[{name!r}])\n')


@crafted(CONFIGS)
def a_template(m):
    """Only text, until MMEngine puts the default of a variable in its place, by a pattern made of that default."""
    call = f'__import__("os").mkdir("{m.canary}")'
    return with_config(m, f"a = '{{{{$NO_SUCH_VARIABLE:x|\\047;{call};\\047}}}}'\n")

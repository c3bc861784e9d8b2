"""Code in the text of a config, which MMEngine executes."""

import os

from .maker import CONFIGS, code, crafted


def with_config(m, text, place='meta'):
    whole = m.whole
    if place == 'meta':
        whole['meta']['config'] = text
    else:
        whole['message_hub']['runtime_info']['cfg'] = text
    return whole


@crafted(CONFIGS)
def a_statement(m):
    return with_config(m, f'a = 1\n{code(m.canary)}\n')


@crafted(CONFIGS)
def a_value(m):
    return with_config(m, f'model = dict(type="A", b=[{code(m.canary)}])\n')


@crafted(CONFIGS)
def an_import(m):
    return with_config(m, f'import_it = __import__("os").system("touch {m.canary}")\n')


@crafted(CONFIGS)
def a_function(m):
    return with_config(m, f'def f():\n    {code(m.canary)}\nf()\n')


@crafted(CONFIGS)
def a_decorator(m):
    return with_config(m, f'class A(dict(a=[{code(m.canary)}])["a"][0].__class__): pass\n')


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


@crafted(CONFIGS)
def in_the_runtime(m):
    return with_config(m, f'a = [{code(m.canary)}]\n', 'runtime')

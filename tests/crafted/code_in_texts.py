"""Code in the text of a config, which MMEngine executes."""

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
    in_the_runtime=_text('a = [{0}]\n', 'runtime'),
)


@crafted(CONFIGS)
def a_template(m):
    """Only text, until MMEngine puts the default of a variable in its place, by a pattern made of that default."""
    call = f'__import__("os").mkdir("{m.canary}")'
    return with_config(m, f"a = '{{{{$NO_SUCH_VARIABLE:x|\\047;{call};\\047}}}}'\n")

"""Chat templates: what well-known ones render, and that a stranger's template can do no harm."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from polyseq.errors import InvalidModelFile, TemplateError
from polyseq.tokenizer.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


def test_from_metadata() -> None:
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "tokenizer.ggml.tokens": ["a", "<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    template = ChatTemplate.from_metadata(metadata)
    assert template is not None and template.render(USER) == "<s>Hi</s>"
    del metadata["tokenizer.ggml.bos_token_id"]
    template = ChatTemplate.from_metadata(metadata)
    assert template is not None and template.render(USER) == "Hi</s>"
    assert ChatTemplate.from_metadata({}) is None
    with pytest.raises(InvalidModelFile, match=r"tokenizer\.chat_template is a int, it must be a string"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 5})
    with pytest.raises(InvalidModelFile, match=r"eos_token_id is 3, outside the vocabulary \[0, 3\)"):
        ChatTemplate.from_metadata(metadata | {"tokenizer.ggml.eos_token_id": 3})


def test_chatml() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(USER) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(USER, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(USER) == template.render(USER), "a rendering changes nothing"


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{% if true %}\n  a\n{% endif %}\n  {% if true %}\nb{% endif %}", "  a\nb"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.index }}{% endfor %}", "1True1"),
        ("{% for x in nothing %}a{% else %}b{% endfor %}", "b"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ '<&ü>' | tojson }}", '"<&ü>"'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  2\n ],\n "b": 1\n}'),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f(1) ~ 'c' }}", "<a><1>c"),
        ("{{ ['a', 'b'] | join(', ') }}{{ ['a', 'b'] | join }}{{ ', '.join(['c', 'd']) }}", "a, babc, d"),
        ("{{ messages | map(attribute='role') | join('-', ) }}{{ messages | join('', attribute='role') }}", "useruser"),
        ("{{ 'x' * 3 }}{{ '%s-%02d' % ('a', 5) }}{{ '{:>4}'.format('b') }}", "xxxa-05   b"),
        ("{{ 'ab' | replace('a', 'cc') }}{{ 'ab'.replace('b', '') }}", "ccba"),
        ("{{ '  a '.strip() }}{{ 'a b'.split(' ')[1] }}{{ ' a' | trim }}{{ 2 ** 10 }}{{ 7 % 4 }}", "aba10243"),
        ("{{ tools is none }}{{ tools is defined }}{{ strftime_now('%Y') }}", f"TrueTrue{datetime.now().year}"),
    ],
)  # fmt: skip
def test_what_templates_rely_on(source: str, rendered: str) -> None:
    assert ChatTemplate(source).render(USER) == rendered


def test_tools() -> None:
    source = "{% if tools %}{% for tool in tools %}{{ tool.name }};{% endfor %}{% endif %}"
    assert ChatTemplate(source).render(USER, tools=[{"name": "f"}, {"name": "g"}]) == "f;g;"
    assert ChatTemplate(source).render(USER) == ""


def test_broken_templates_name_the_line() -> None:
    with pytest.raises(TemplateError, match="the chat template is broken in line 2: "):
        ChatTemplate("a\n{% if %}")
    with pytest.raises(TemplateError, match="is broken in line 1: No filter named 'nope'"):
        ChatTemplate("{{ 'a' | nope }}")
    with pytest.raises(TemplateError, match="the chat template "):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def failure(source: str) -> str:
    """Why rendering was refused, found in bounded time."""
    began = time.perf_counter()
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render(USER)
    assert time.perf_counter() - began < 20
    return str(caught.value)


def test_a_template_may_refuse_messages() -> None:
    assert failure("{{ raise_exception('roles must alternate') }}") == (
        "the chat template refused the messages: roles must alternate"
    )
    assert "'dict object' has no attribute 'nope'" in failure("{{ messages[0].nope.more }}")
    assert "failed: ZeroDivisionError" in failure("{{ 1 / 0 }}")
    assert "failed: TypeError" in failure("{% for tool in tools %}{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ polyseq_budget._left }}",
        "{{ polyseq_budget._spend() }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ''|attr('__class__') }}{{ ('a'|attr('__class__')).mro() }}",
    ],
)
def test_nothing_of_python_is_in_reach(source: str) -> None:
    """A forbidden attribute is as good as absent: it renders nothing, or the rendering is refused."""
    try:
        assert ChatTemplate(source).render(USER) == ""
    except TemplateError as error:
        assert "may not" in str(error) or "refused" in str(error)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(99999999) %}{% endfor %}", "Range too big"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "more than 200000 steps"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}", "200000 steps"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% set polyseq_budget = 0 %}{% for i in range(99999) %}{{ cycler(1) }}{{ cycler(1) }}{% endfor %}", "steps"),
        ("{{ 'x' * 9999999999 }}", "a value of 9999999999 characters, the limit is 16777216"),
        ("{{ 9999999999 * ['x'] }}", "a value of 9999999999 characters"),
        ("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "of 33554432"),
        ("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}", "of 33554432"),
        ("{{ 9 ** 999999999 }}", "the exponent 999999999, the limit is 64"),
        ("{% set n = namespace(s=9) %}{% for i in range(99) %}{% set n.s = n.s ** 64 %}{% endfor %}", "the number"),
        ("{{ 'a'.ljust(9999999999) }}", "the number 9999999999, the limit is 100000"),
        ("{{ 'a' | center(9999999999) }}", "the number 9999999999"),
        ("{{ 'a' | indent(width=9999999999) }}", "the number 9999999999"),
        ("{{ '%9999999999d' % 1 }}", "a format with a width above 100000"),
        ("{{ '%*d' % (9999999999, 1) }}", "a format with a width"),
        ("{{ '%9999999999d' | format(1) }}", "a format with a width"),
        ("{{ '{:9999999999}'.format(1) }}", "a format with a width"),
        ("{{ '{:{}}'.format(1, 9999999999) }}", "the number 9999999999"),
        ("{{ (['x' * 9999] * 9999) | join }}", "a value of 99980001 characters"),
        ("{{ (['x' * 9999] * 9999) | map('upper') | join('-') }}", "a value of 99990000 characters"),
        ("{{ ('x' * 9999).join(['y'] * 9999) }}", "characters, the limit"),
        ("{{ ('x' * 9999) | replace('x', 'y' * 9999) }}", "of 99990000 characters"),
        ("{{ ('x' * 9999).replace('x', 'y' * 9999) }}", "of 99990000 characters"),
        ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "renders more than 16777216 characters"),
    ],
)  # fmt: skip
def test_a_template_cannot_run_away(source: str, reason: str) -> None:
    assert reason in failure(source)

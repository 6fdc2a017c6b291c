"""Jinja as `transformers` has it, and nothing that a stranger's template could do harm with."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from engine.errors import ChatTemplateError
from engine.templates.chat_template import ChatTemplate
from tests.stopwatch import Stopwatch
from tests.tiny_templates import HI, refusal, render


def test_blocks_are_trimmed_as_in_transformers() -> None:
    assert render("{% if true %}\nA\n  {% endif %}\nB") == "A\nB"


def test_strftime_now_is_local_time() -> None:
    before = datetime.now().replace(microsecond=0)
    shown = datetime.fromisoformat(render("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}"))
    assert before <= shown <= datetime.now()


def test_break_continue_and_trim() -> None:
    source = (
        "{%- set ns = namespace(n=0) %}\n{%- for m in messages[1:] %}\n"
        "{%- if loop.index > 2 %}{% break %}{% endif %}\n{%- set ns.n = ns.n + 1 %}"
        "[{{ m.content | trim }}]\n{%- endfor %}\n{{- ns.n }}"
    )
    messages = [{"role": "user", "content": text} for text in (" a ", " b ", " c ", " d ")]
    assert render(source, messages) == "[b][c]2"
    assert (
        render("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}")
        == "023"
    )


def test_generation_blocks_are_transparent() -> None:
    assert render("A{% generation %}B{% endgeneration %}C") == "ABC"


def test_loop_variables_are_whole() -> None:
    source = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}"
        "{{ loop.previtem.content if loop.previtem is defined }}{% endfor %}"
        "{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% else %}none{% endfor %}"
        "{% for x in missing %}{% else %}none{% endfor %}"
        "{% for x in [3, 1] | map('string') %}{{ x }}{{ loop.last }}{% endfor %}"
    )
    assert render(source, HI * 2) == "1/22/2.Hia1none3False1True"


def test_tojson_is_plain_json() -> None:
    tools = [{"type": "function", "z": "<é'&\">", "a": [1, None, True]}]
    source = (
        "{{ tools | tojson }}|{{ tools[0].a | tojson(indent=2) }}"
        "|{{ tools[0] | tojson(sort_keys=true) }}"
    )
    plain, indented, sorted_keys = render(source, tools=tools).split("|")
    assert plain == json.dumps(tools, ensure_ascii=False)
    assert indented == json.dumps([1, None, True], indent=2)
    assert sorted_keys == json.dumps(tools[0], ensure_ascii=False, sort_keys=True)
    assert render("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'
    assert render("{{ [1, 2] | tojson(separators=(',', ':')) }}") == "[1,2]"
    assert render("{{ messages | map(attribute='content') | tojson }}") == '["Hi"]'


def test_its_own_lists_may_grow() -> None:
    assert render("{% set a = [] %}{% set _ = a.append(3) %}{{ a }}{{ a.pop() }}") == "[3]3"


# --- templates that refuse, fail, or mean harm ----------------------------------------------------


def test_a_refusal_is_the_templates_own_message() -> None:
    source = (
        "{% if messages[0]['role']=='system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{{ messages[0]['content'] }}"
    )
    assert refusal(source, [{"role": "system", "content": "x"}, *HI]) == "System role not supported"
    assert render(source) == "Hi"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ ''.__class__.__mro__ }}", "not allowed"),
        ("{{ messages.append(1) }}", "not allowed"),
        ("{{ messages[0].update(role='system') }}", "not allowed"),
        ("{{ self.__init__.__globals__ }}", "not allowed"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro f(n) %}{{ f(n-1) + f(n-1) if n }}{% endmacro %}{{ f(60) }}", "steps"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        ("{{ 'x' * 10**10 }}", "too large"),
        ("{{ [1] * 10**10 }}", "too large"),
        ("{{ 10 ** (10 ** 8) }}", "too large"),
        ("{% set n = namespace(x='ab') %}" + "{% set n.x = n.x + n.x %}" * 99, "too large"),
        ("{% for i in range(10**5) %}{{ 'x' * 1000 }}{% endfor %}", "characters"),
        ("{{ messages[0].content.foo.bar }}", "foo"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'x' %}", "failed"),
    ],
)  # fmt: skip
def test_bad_templates_become_one_error(source: str, words: str) -> None:
    with Stopwatch() as watch:
        assert words in refusal(source)
    assert watch.loops < 450


LONG = "{% set a = 'x' * 10**7 %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% set a = 'ab' %}" + "{% set a = a ~ a %}" * 99,
        "{% set a = 'ab' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 99,
        LONG + "{% set a %}{% for i in range(10**5) %}{{ a }}{% endfor %}{% endset %}",
        LONG
        + "{% macro f() %}{% for i in 'x' * 10**5 %}{{ a }}{% endfor %}{% endmacro %}{{ f() }}",
        LONG + "{% filter upper %}{% for i in range(10**5) %}{{ a }}{% endfor %}{% endfilter %}",
        "{{ 'x' | center(10**10) }}",
        "{{ 'x' | center(width=10**10) }}",
        "{{ ['x'] | map('center', 10**10) | list }}",
        "{{ 'x\ny' | indent(10**10) }}",
        LONG + "{{ 'x\ny\nz\n' | indent(a ~ a) }}",
        LONG + "{{ a | wordwrap(1, wrapstring='x' * 10**7) }}",
        LONG + "{{ a | replace('x', a) }}",
        LONG + "{{ a.replace('', a) }}",
        LONG + "{{ ([a] * 10**7) | join }}",
        LONG + "{{ ([a] * 10**7) | map('upper') | join(', ') }}",
        LONG + "{{ a.join(['x'] * 10**7) }}",
        LONG + "{{ [a] * 10**7 }}",
        LONG + "{{ ([a] * 10**7) ~ '' }}",
        LONG + "{{ ([a] * 10**7) | string }}",
        LONG + "{{ ([a] * 10**7) | tojson }}",
        "{{ [1] | tojson(indent=10**10) }}",
        "{{ ['x'] | batch(10**10, 'y') | list }}",
        "{{ ['x'] | slice(10**10) | list }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ '%.9999999999f' % 1 }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '%(a)9999999999d' | format(a=1) }}",
        LONG + "{{ ('%(a)s' * 10**6) % {'a': a} }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**10) }}",
        "{{ '{a:{w}}'.format_map({'a': 1, 'w': 10**10}) }}",
        "{{ '{:{}}'.format(1, '9999999999') }}",
        "{{ '%(a(b))9999999999d' % {'a(b)': 1} }}",
        "{{ '%*d' % (-10**10, 1) }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ 'x'.rjust(10**10) }}",
        "{{ 'x'.zfill(10**10) }}",
        "{{ '\t'.expandtabs(10**10) }}",
        LONG + "{{ a.translate({120: a}) }}",
        "{{ (1).to_bytes(10**10, 'big') }}",
        "{% set a = namespace(x='\\\\' * 99) %}"
        "{% for i in range(99) %}{% set a.x = a.x | tojson %}{% endfor %}",
        "{% set n = namespace(x=9**9) %}" + "{% set n.x = n.x * n.x %}" * 99,
    ],
)
def test_nothing_grows_beyond_the_limit(source: str, a_gibibyte_more: None) -> None:
    assert "too large" in refusal(source)


@pytest.fixture
def a_gibibyte_more() -> Iterator[None]:
    """What memory the test may take: without a limit of its own, a failure would take all."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(statm.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ 1 ~ none ~ missing ~ ('a' ~ [2]) }}", "1Nonea[2]"),
        ("{% set a %}{{ 3 }}!{% endset %}{{ a }}", "3!"),
        ("{{ 'x' | center(3) }}{{ 'x'.zfill(3) }}", " x 00x"),
        ("{{ 'a\nb' | indent(2, true) }}", "  a\n  b"),
        ("{{ ['a', 1] | join(', ') }}{{ messages | join(',', 'role') }}", "a, 1user"),
        ("{{ '-'.join(['a', 'b']) }}", "a-b"),
        ("{{ '%5.1f|%s%%' % (1, 'y') }}{{ '%(a)s' | format(a=5) }}", "  1.0|y%5"),
        ("{{ '{:>3}{}{{{}}}'.format(1, 'z', 2) }}", "  1z{2}"),
        ("{{ 'aba' | replace('a', 'c', 1) }}{{ 'aba'.replace('a', 'c') }}", "cbacbc"),
        ("{{ 7 % 4 }}{{ 3 * 4 }}{{ 2 ** 10 }}", "3121024"),
        ("{{ 'a b c' | wordwrap(3) }}", "a b\nc"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}", "[[1, 2], [3, 0]]"),
    ],
)
def test_what_is_limited_works_as_in_jinja(source: str, shown: str) -> None:
    assert render(source) == shown


@pytest.mark.parametrize(
    "source",
    [
        "{% if true %}" * 10_000 + "{% endif %}" * 10_000,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "-" * 100_000 + "1 }}",
        "{% if x %}",
        "{% unknown %}",
        "{{ x | no_such_filter }}",
    ],
)
def test_templates_that_do_not_compile_say_so_on_chat(source: str) -> None:
    template = ChatTemplate(source)
    assert "does not compile" in template.error
    with pytest.raises(ChatTemplateError, match="does not compile"):
        template.render(HI)


def test_nothing_is_computed_while_compiling() -> None:
    assert ChatTemplate("{{ 'x' | center(10**12) }}{{ 'x' * 10**12 }}").error == ""


def test_deep_values_are_refused() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    assert "nested too deeply" in refusal("x", [{"role": "user", "content": "x", "extra": deep}])

"""Chats come in the form that a template wants."""

from __future__ import annotations

import pytest

from tests.tiny_templates import CALL, render


def for_each_call(text: str) -> str:
    return f"{{% for c in m.tool_calls %}}{text}{{% endfor %}}"


def for_each_message(text: str) -> str:
    return f"{{% for m in messages %}}{text}{{% endfor %}}"


ITEMS = "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
NAME_AND_ARGUMENTS = for_each_call("{{ c.function.name }}{{ c.function.arguments | tojson }}")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (ITEMS, "city=Paris"),
        ("{{ c.function.arguments | tojson }}", '{"city": "Paris"}'),
        ("{{ 'args: ' + c.function.arguments }}", 'args: {"city": "Paris"}'),
        ("{{ c.function.arguments }}", '{"city": "Paris"}'),
    ],
    ids=["items", "tojson", "joined", "printed"],
)
def test_arguments_come_as_the_template_wants_them(source: str, shown: str) -> None:
    assert render(for_each_message(for_each_call(source)), [CALL]) == shown


def test_arguments_are_objects_if_the_template_cannot_be_tried() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(source, [CALL]) == '{"city": "Paris"}'


@pytest.mark.parametrize(
    "source",
    [
        "{{ m.content }}|" + NAME_AND_ARGUMENTS,
        "{{ m['content'] + '|' }}" + NAME_AND_ARGUMENTS,
        "{% if m.content is none %}|" + NAME_AND_ARGUMENTS + "{% endif %}",
    ],
    ids=["printed", "joined", "none"],
)
def test_absent_content_comes_as_the_template_wants_it(source: str) -> None:
    absent = {key: value for key, value in CALL.items() if key != "content"}
    assert render(for_each_message(source), [CALL]) == '|lookup{"city": "Paris"}'
    assert render(for_each_message(source), [absent]) == '|lookup{"city": "Paris"}'


def test_templates_that_want_parts_get_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert render(source) == "Hi"


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    developer = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", developer) == "system"
    shown = "{{ messages[0].role }}{{ messages[0].content }}{# developer #}"
    assert render(shown, developer) == "developerx"

"""What a template has no place for is told in the places that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ChatTemplateError
from engine.templates.chat_template import ChatTemplate
from engine.templates.default_templates import CHATML
from engine.templates.template_options import TemplateOptions
from engine.text.special_tokens import unshield

SHARED = Path(__file__).resolve().parents[3].parent / "shared"

USER = {"role": "user", "content": "USER"}
SYSTEM = {"role": "system", "content": "SYSTEM"}
SAID = {"role": "assistant", "content": "SAID"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


USER_SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}"


def call(*ids: str, content: str | None = None, **fields: Any) -> dict[str, Any]:
    calls = [
        {"id": i, "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{i}"}}'}}
        for i in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **fields}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"saw {call_id}"}


def render(source: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return unshield(template.render(messages, TemplateOptions(**kwargs)))


def roles(*known: str, other: str = "") -> str:
    """A template that prints messages of these roles only."""
    return (
        f"{{% for m in messages %}}{{% if m.role in {list(known)} %}}"
        f"[{{{{ m.role }}}}]{{{{ m.content }}}}{{% else %}}{other}{{% endif %}}{{% endfor %}}"
    )


NO_SYSTEM = roles("user", "assistant")
REFUSING = roles("user", "assistant", other="{{ raise_exception('no ' + m.role) }}")


def test_system_text_is_folded_into_what_the_user_says() -> None:
    assert render(NO_SYSTEM, [SYSTEM, USER, SAID]) == "[user]SYSTEM\n\nUSER[assistant]SAID"
    assert render(NO_SYSTEM, [SYSTEM]) == "[user]SYSTEM"
    developer = {"role": "developer", "content": "DEVELOPER"}
    assert render(NO_SYSTEM, [developer, USER]) == "[user]DEVELOPER\n\nUSER"


def test_a_template_that_refuses_system_text_says_so() -> None:
    with pytest.raises(ChatTemplateError, match="no system"):
        render(REFUSING, [SYSTEM, USER])


def test_late_system_text_is_folded_where_only_the_first_counts() -> None:
    source = (
        "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}" + NO_SYSTEM
    )
    shown = render(source, [SYSTEM, USER, SAID, {**SYSTEM, "content": "LATE"}, USER])
    assert shown == "(SYSTEM)[user]USER[assistant]SAID[user]LATE\n\nUSER"


@pytest.mark.parametrize("source", [NO_SYSTEM, REFUSING])
def test_tools_calls_and_results_are_told_as_text(source: str) -> None:
    messages = [USER, call("1", content="Hm"), result("1"), {**USER, "content": "And?"}]
    shown = render(source, messages, tools=[TOOL])
    prompt, _, rest = shown.partition("USER")
    assert prompt.startswith("[user]You can call functions.")
    assert '{"name": "look", "parameters": {"type": "object"}}' in prompt
    assert rest == (
        '[assistant]Hm\n\n{"name": "look", "parameters": {"at": "1"}}'
        "[user]<tool_response>\nsaw 1\n</tool_response>\n\nAnd?"
    )


def test_tools_stand_in_the_system_text() -> None:
    shown = render(CHATML, [SYSTEM, USER], tools=[TOOL])
    assert shown.startswith("<|im_start|>system\nSYSTEM\n\nYou can call functions.")
    assert render(CHATML, [USER], tools=[TOOL]).startswith("<|im_start|>system\nYou can call")


CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<{{ c.id }}:{{ c.function.arguments | tojson }}>{% endfor %}"
    "{% elif m.role == 'tool' %}({{ m.tool_call_id }}:{{ m.name }}:{{ m.content }})"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def test_several_calls_are_told_one_by_one_where_only_one_counts() -> None:
    one = CALLS.replace("in m.tool_calls %}<", "in m.tool_calls[:1] %}<")
    refusing = CALLS.replace(
        "{% if m.tool_calls %}",
        "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
        "{{ raise_exception('one at a time') }}{% endif %}",
    )
    chat = [USER, call("a", "b"), result("b"), result("a")]
    told = 'USER<b:{"at": "b"}>(b:look:saw b)<a:{"at": "a"}>(a:look:saw a)'
    assert render(one, chat) == told
    assert render(refusing, chat) == told
    assert render(CALLS, chat).startswith('USER<a:{"at": "a"}><b:{"at": "b"}>(b')
    assert render(one, [USER, call("a", "b")]) == 'USER<a:{"at": "a"}><b:{"at": "b"}>'


def test_missing_ids_and_names_are_found() -> None:
    calls = call("", "")
    results = [{"role": "tool", "content": "x"}, {"role": "tool", "content": "y"}]
    shown = render(CALLS, [USER, calls, *results])
    assert shown.endswith("(call00000:look:x)(call00001:look:y)")


def test_ids_are_shortened_where_the_template_wants_that() -> None:
    source = CALLS.replace(
        "{% if m.tool_calls %}",
        "{% if m.tool_calls %}{% if m.tool_calls[0].id | length != 9 %}"
        "{{ raise_exception('nine!') }}{% endif %}",
    )
    long_id = "call_0123456789"
    shown = render(source, [USER, call(long_id), result(long_id)])
    short = shown.partition("<")[2].partition(":")[0]
    assert len(short) == 9
    assert f"({short}:look:saw {long_id})" in shown
    assert "<abcdefgh1:" in render(source, [USER, call("abcdefgh1")])


def test_broken_arguments_are_told_as_the_template_can() -> None:
    chat = [USER, call("1")]
    chat[1]["tool_calls"][0]["function"]["arguments"] = "{broken"
    assert render(CALLS, chat) == 'USER<1:"{broken">'
    items = CALLS.replace(
        "{{ c.function.arguments | tojson }}",
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}",
    )
    assert render(items, chat) == "USER<1:arguments={broken>"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_goes_by_the_templates_own_name(key: str, given: str) -> None:
    source = CALLS.replace("{% if m.tool_calls %}", f"{{{{ m.{key} }}}}{{% if m.tool_calls %}}")
    assert render(source, [USER, {**SAID, given: "HM "}]) == "USERHM SAID"


def test_tools_without_a_description_are_completed_for_templates_that_need_one() -> None:
    needy = "{% for t in tools %}{{ t.function.name + t.function.description }}{% endfor %}"
    source = USER_SAYS + needy
    assert render(source, [USER], tools=[TOOL]) == "USERlook"


def test_tools_that_a_template_fails_on_are_told_as_text() -> None:
    source = USER_SAYS + (
        "{% for t in tools %}{{ t.function.name }}"
        "{{ t.function.parameters.properties.values() | map(attribute='type') | join }}"
        "{{ raise_error() if t.function.name == 'look' }}{% endfor %}"
    )
    assert render(source, [USER], tools=[TOOL]).startswith("You can call functions")


def real(name: str) -> str:
    path = SHARED / f"templates/{name}.jinja"
    if not path.exists():
        pytest.skip("no shared templates here")
    return path.read_text("utf-8")


def test_gemma_4_has_results_in_the_calling_turn() -> None:
    shown = render(real("google-gemma-4-31B-it-interleaved"), [USER, call("1"), result("1")])
    assert (
        '<|tool_call>call:look{at:<|"|>1<|"|>}<tool_call|>'
        '<|tool_response>response:look{value:<|"|>saw 1<|"|>}<tool_response|>'
    ) in shown


def test_lfm_2s_calls_are_printed_though_its_template_forgets_them() -> None:
    shown = render(real("LFM2-8B-A1B"), [USER, call("1"), result("1")], tools=[TOOL])
    assert "assistant\n<|tool_call_start|>[look(at='1')]<|tool_call_end|><|im_end|>" in shown


def test_gpt_oss_takes_thinking_beside_content() -> None:
    """Which its template refuses for a message with calls: the content stands for it."""
    chat = [USER, call("1", content="SAID", reasoning_content="HM"), result("1")]
    shown = render(real("openai-gpt-oss-120b"), chat, tools=[TOOL])
    assert "to=functions.look" in shown
    chat = [USER, call("1", reasoning_content="HM"), result("1")]
    assert "analysis<|message|>HM<|end|>" in render(real("openai-gpt-oss-120b"), chat, tools=[TOOL])


def test_deepseek_r1s_calls_are_printed_beside_content() -> None:
    chat = [USER, call("1", content="SAID"), result("1")]
    shown = render(real("llama-cpp-deepseek-r1"), chat, tools=[TOOL])
    assert "SAID" in shown
    assert '```json\n{"at": "1"}\n```' in shown


def test_calls_that_only_chats_with_documents_would_show() -> None:
    """As Command A's default template: it speaks of calls and results, where it has documents."""
    source = (
        "{% if documents %}{% for m in messages %}{{ m.tool_calls }}{{ m.role == 'tool' }}"
        "{% endfor %}{% else %}" + roles("system", "user", "assistant") + "{% endif %}"
    )
    text = render(source, [USER, call("a"), result("a")], tools=[TOOL])
    assert '{"name": "look", "parameters": {"at": "a"}}' in text
    assert "saw a" in text


@pytest.mark.parametrize("own", ["<RESPONSE>{{ m.content }}</RESPONSE>", "[tool]{{ m.content }}"])
def test_results_of_their_own_messages_where_they_are_shown_alike(own: str) -> None:
    """Gemma 4's newer templates print OpenAI's results as they print those inside of a message,
    but for what follows; the older ones have a turn for them that the model does not know.
    """
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}" + own + "{% else %}[{{ m.role }}]"
        "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments.what }}"
        "{{ c.function.arguments.at }}{% endfor %}"
        "{% for r in m.tool_responses %}<RESPONSE>{{ r.response }}</RESPONSE>{% endfor %}"
        "{% if m.tool_responses %};{% endif %}{% endif %}{% endfor %}"
    )
    text = render(source, [USER, call("a", content=""), result("a"), SAID], tools=[TOOL])
    assert "[assistant]a<RESPONSE>saw a</RESPONSE>" in text


def test_system_messages_at_the_beginning_are_one_where_it_shows_one() -> None:
    first = {"role": "system", "content": "FIRST"}
    late = roles("user", "assistant", other="{% if loop.first %}[system]{{ m.content }}{% endif %}")
    refusing = roles(
        "user",
        other="{% if not loop.first %}{{ raise_exception('at the beginning') }}{% endif %}"
        "[system]{{ m.content }}",
    )
    for source in (late, refusing):
        assert render(source, [first, SYSTEM, USER]) == "[system]FIRST\n\nSYSTEM[user]USER"
    both = roles("system", "user")
    assert render(both, [first, SYSTEM, USER]) == "[system]FIRST[system]SYSTEM[user]USER"


def test_system_text_alone_is_said_where_it_would_be_lost() -> None:
    """As Mistral's, which tell it with what the last user says."""
    source = (
        "<s>{% for m in messages %}{% if m.role == 'user' %}[user]"
        "{{ messages[0].content if messages[0].role == 'system' and loop.last }}{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    assert render(source, [SYSTEM, USER]) == "<s>[user]SYSTEMUSER"
    assert render(source, [SYSTEM]) == "<s>[user]SYSTEM"


def test_content_beside_calls_is_kept() -> None:
    """Llama 3.1's and Hermes 2's templates print calls instead of the content."""
    source = (
        "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% for c in m.tool_calls %}"
        "{{ c.function.arguments.at or c.function.arguments.what }}{% endfor %}{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}"
    )
    said = [USER, call("a", content="LOOKING"), result("a")]
    assert render(source, said) == "[user]USER[assistant]LOOKING[assistant]a[tool]saw a"
    alternating = source.replace(
        "[{{ m.role }}]",
        "{% if m.role == 'assistant' and not m.tool_calls and loop.nextitem is defined and "
        "loop.nextitem.role == 'assistant' %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]",
    )
    assert render(alternating, said) == "[user]USER[assistant]a[tool]saw a"

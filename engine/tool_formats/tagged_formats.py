"""The formats with a tag for each argument, one row for each family. How they are read is
tagged_calls.py's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from engine.tool_formats.tagged_calls import Tag, TaggedCalls


def _xml(prefix: str = "", **others: Any) -> TaggedCalls:
    """<prefix invoke name="f"><prefix parameter name="k">v</...></...>"""
    return TaggedCalls(
        call=Tag(f'<{prefix}invoke name="', ">"),
        key=Tag(f'<{prefix}parameter name="', ">"),
        value_end=f"</{prefix}parameter>",
        call_end=f"</{prefix}invoke>",
        gap="\n",
        **others,
    )


def _glm(prefix: str = "", suffix: str = "") -> TaggedCalls:
    def tag(name: str) -> str:
        return f"{prefix}{name}{suffix}>"

    return TaggedCalls(
        call=Tag("<" + tag("tool_call"), "\n"),
        key=Tag("<" + tag("arg_key"), "</" + tag("arg_key")),
        value_begin="<" + tag("arg_value"),
        value_end="</" + tag("arg_value"),
        call_end="</" + tag("tool_call"),
        signs=("<" + tag("arg_key"), "<" + tag("tool_call")),
    )


_DSML: Final = "｜DSML｜"
_MINIMAX: Final = "]<]minimax[>["
QWEN_CODER: Final = TaggedCalls(
    call=Tag("<function=", ">"),
    key=Tag("<parameter=", ">"),
    value_end="</parameter>",
    call_end="</function>",
    opener="<tool_call>",
    closer="</tool_call>",
    gap="\n",
    lines=True,
    signs=("<function=", "<parameter="),
)
_DSML_ATTRIBUTES: Final = (' string="true"', ' string="false"')
FORMATS: Final = (
    TaggedCalls(
        call=Tag('<|open|>call tool="', "<|sep|>"),
        key=Tag('<|open|>argument key="', "<|sep|>"),
        value_end="<|close|>argument<|sep|>",
        call_end="<|close|>call<|sep|>",
        opener="<|open|>tools<|sep|>",
        closer="<|close|>tools<|sep|>",
        attributes=(' type="string"', ' type="object"'),
        signs=("<|open|>tools<|sep|>",),
    ),
    TaggedCalls(
        call=Tag(f'{_MINIMAX}<invoke name="', ">"),
        key=Tag(f"{_MINIMAX}<", ">"),
        value_end=_MINIMAX + "</{key}>",
        call_end=f"{_MINIMAX}</invoke>",
        opener=f"{_MINIMAX}<tool_call>",
        closer=f"{_MINIMAX}</tool_call>",
        nested=_MINIMAX,
        signs=(f"{_MINIMAX}<tool_call>",),
    ),
    _xml(
        opener="<minimax:tool_call>",
        closer="</minimax:tool_call>",
        signs=("<minimax:tool_call>",),
    ),
    _xml(
        "atem:",
        opener="<atem:function_calls>",
        closer="</atem:function_calls>",
        signs=("<atem:function_calls>",),
    ),
    _xml(
        _DSML,
        opener=f"<{_DSML}function_calls>",
        closer=f"</{_DSML}function_calls>",
        attributes=_DSML_ATTRIBUTES,
        signs=(f"<{_DSML}function_calls>",),
    ),
    *(
        _xml(
            prefix,
            opener=f"<{prefix}tool_calls>",
            closer=f"</{prefix}tool_calls>",
            attributes=_DSML_ATTRIBUTES,
            signs=(f"<{prefix}tool_calls>",),
        )
        for prefix in (_DSML, "｜GCML｜")  # GigaChat 3.5
    ),
    replace(
        _glm(suffix=":opensource"),
        opener="<tool_calls:opensource>",
        closer="</tool_calls:opensource>",
        call=Tag("<tool_call:opensource>", "<tool_sep:opensource>"),
    ),
    replace(
        QWEN_CODER,
        opener="<seed:tool_call>",
        closer="</seed:tool_call>",
        signs=("<seed:tool_call>",),
    ),
    TaggedCalls(
        call=Tag('<function name="', ">"),
        key=Tag('<param name="', ">"),
        value_end="</param>",
        call_end="</function>",
        cdata=True,
        signs=('<function name="', '<param name="'),
    ),
    _glm("longcat_"),
    _glm(),
    QWEN_CODER,
)

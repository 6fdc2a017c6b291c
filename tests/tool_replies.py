"""Replies with tool calls as models of every family write them, the calls that are in them, and the
marks of their templates.

The texts are those of model cards and of llama.cpp's own tests.
"""

from __future__ import annotations

import json

ONE = [("f", {"n": 1})]
QUOTED = {"s": 'a "b"\n🦙'}
TEXT = json.dumps(QUOTED, ensure_ascii=False)
TWO = [("f", QUOTED), ("get_time", {})]

REPLIES = {
    "llama 3": ('{"name": "f", "parameters": {"n": 1}}', ONE),
    "llama 3.1, type first": ('{"type": "function", "name": "f", "parameters": {"n": 1}}', ONE),
    "llama 3.1, tag": ('<|python_tag|>{"name": "f", "parameters": {"n": 1}}', ONE),
    "llama 3.1, built in": ('<|python_tag|>f.call(s="x y")', [("f", {"s": "x y"})]),
    "llama 3.2, several": (
        f'{{"name": "f", "parameters": {TEXT}}}; {{"name": "get_time", "parameters": {{}}}}',
        TWO,
    ),
    "pythonic": ('[f(s="a, b)", n=1), get_time()]', [("f", {"s": "a, b)", "n": 1}), TWO[1]]),
    "pythonic, as Python binds arguments without names": (
        '[f("a=b, (c)", 5), f(s = "x == y")]',
        [("f", {"s": "a=b, (c)", "n": 5}), ("f", {"s": "x == y"})],
    ),
    "hermes": ('<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>', ONE),
    "hermes, compact": ('<tool_call>{"arguments":{"n":1},"name":"f"}</tool_call>', ONE),
    "qwen 2.5, two": (
        f'<tool_call>\n{{"name": "f", "arguments": {TEXT}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        TWO,
    ),
    "qwen 3 coder": (
        "<tool_call>\n<function=f>\n<parameter=s>\nline 1\n\n  <b>2</b>\n</parameter>\n"
        "<parameter=n>\n5\n</parameter>\n<parameter=o>\n{'a': True}\n</parameter>\n"
        "<parameter=maybe>\nnull\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "line 1\n\n  <b>2</b>", "n": 5, "o": {"a": True}, "maybe": None})],
    ),
    "qwen 3 coder, without its opener": (
        "<function=f>\n<parameter=s>\n5\n</parameter>\n</function>",
        [("f", {"s": "5"})],
    ),
    "qwen 3 coder, two ends of values forgotten": (
        "<tool_call>\n<function=f>\n<parameter=s>\na </function> b\n<parameter=n>\n5\n</function>\n"
        "</tool_call>",
        [("f", {"s": "a </function> b", "n": 5})],
    ),
    "qwen 3 coder, an end without its opener": (
        "<function=get_time>\n</function>\n</tool_call>",
        [("get_time", {})],
    ),
    "nemotron 3": (
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        [("get_time", {}), *ONE],
    ),
    "mistral nemo": (
        '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}, "id": "123456789"}]',
        ONE,
    ),
    "mistral small 3.2": (
        f"[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{TEXT}[TOOL_CALLS]get_time[CALL_ID]x12345678[ARGS]{{}}",
        TWO,
    ),
    "devstral": ('[TOOL_CALLS]f[ARGS]{"n": 1}', ONE),
    "deepseek r1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"n": 1}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    "deepseek v3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{TEXT}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="a" string="false">[1, "x"]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("f", {"s": "5", "a": [1, "x"]})],
    ),
    "gigachat 3.5": (
        '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="f">\n'
        '<｜GCML｜parameter name="s" string="true">a\nb</｜GCML｜parameter>\n'
        '<｜GCML｜parameter name="n" string="false">1</｜GCML｜parameter>\n'
        '</｜GCML｜invoke>\n<｜GCML｜invoke name="get_time">\n</｜GCML｜invoke>\n'
        "</｜GCML｜tool_calls>",
        [("f", {"s": "a\nb", "n": 1}), TWO[1]],
    ),
    "granite 3.3": ('<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]', ONE),
    "phi 4 mini": ('<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]<|/tool_call|>', ONE),
    "command r7b": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"n": 1}},\n'
        '    {"tool_call_id": "1", "tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
        [*ONE, TWO[1]],
    ),
    "firefunction": (' functools[{"name": "f", "arguments":{"n": 1}}]', ONE),
    "functionary 3.1": (f"<function=f>{TEXT}</function><function=get_time>{{}}</function>", TWO),
    "glm 4.5": (
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>5 < 6</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
        [("f", {"s": "5 < 6", "n": 5})],
    ),
    "glm 4.5, a text that looks like a number": (
        "<tool_call>f\n<arg_key>street</arg_key>\n<arg_value>5</arg_value>\n"
        "<arg_key>maybe</arg_key>\n<arg_value>null</arg_value>\n</tool_call>",
        [("f", {"street": "5", "maybe": None})],
    ),
    "glm 4.7": (
        "<tool_call>f<arg_key>o</arg_key><arg_value>{}</arg_value></tool_call>"
        "<tool_call>get_time<arg_key>zone</arg_key><arg_value>UTC</arg_value></tool_call>",
        [("f", {"o": {}}), ("get_time", {"zone": "UTC"})],
    ),
    "kimi k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"n": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ONE,
    ),
    "minimax m1": (
        f'<tool_calls>\n{{"name": "f", "arguments": {TEXT}}}\n'
        '{"name": "get_time", "arguments": {}}\n</tool_calls>',
        TWO,
    ),
    "minimax m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">"x"</parameter>\n'
        '<parameter name="n">1</parameter>\n</invoke>\n</minimax:tool_call>',
        [("f", {"s": '"x"', "n": 1})],
    ),
    "minimax m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<s>5]<]minimax[>[</s>'
        "]<]minimax[>[<o>]<]minimax[>[<k>true]<]minimax[>[</k>]<]minimax[>[<q>]<]minimax[>[<item>x"
        "]<]minimax[>[</item>]<]minimax[>[</q>]<]minimax[>[</o>]<]minimax[>[</invoke>\n"
        "]<]minimax[>[</tool_call>",
        [("f", {"s": "5", "o": {"k": True, "q": ["x"]}})],
    ),
    "seed oss": (
        "<seed:tool_call>\n<function=f>\n<parameter=n>1</parameter>\n</function>\n</seed:tool_call>",
        ONE,
    ),
    "nemotron nano 2": ('<TOOLCALL>[{"name": "f", "arguments": {"n": 1}}]</TOOLCALL>', ONE),
    "lfm 2": (
        "<|tool_call_start|>[f(s='it\\'s', n=-1, a=[1, (2)]), get_time()]<|tool_call_end|>",
        [("f", {"s": "it's", "n": -1, "a": [1, 2]}), TWO[1]],
    ),
    "lfm 2, json": (
        '<|tool_call_start|>[{"name": "f", "arguments": {"n": 1}}]<|tool_call_end|>',
        ONE,
    ),
    "olmo 3": ("<function_calls>\nf(n=1)\nget_time()\n</function_calls>", [*ONE, TWO[1]]),
    "gemma 4": (
        '<|tool_call>call:f{s:<|"|>a "b"\n🦙<|"|>}<tool_call|>'
        "<|tool_call>call:get_time{}<tool_call|>",
        TWO,
    ),
    "gemma 4, nested": (
        '<|tool_call>call:f{a:[<|"|>x<|"|>,{k:true,<|"|>q<|"|>:null}],n:-1.5}<tool_call|>',
        [("f", {"a": ["x", {"k": True, "q": None}], "n": -1.5})],
    ),
    "gemma 3, prompted": ('```json\n{"name": "f", "parameters": {"n": 1}}\n```', ONE),
    "gemma 3, in its own words": ("```tool_code\nf(n=1)\n```", ONE),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"n": 1}}<|action_end|>',
        ONE,
    ),
    "gigachat 3": ('function call<|role_sep|>\n{"name": "f", "arguments": {"n": 1}}', ONE),
    "gpt-oss": (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + TEXT,
        [TWO[0]],
    ),
    "gpt-oss, in the header's first half": (
        ' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"n": 1}',
        ONE,
    ),
    "functiongemma": (
        '<start_function_call>call:f{s:<escape>a "b"\n🦙<escape>}<end_function_call>'
        "<start_function_call>call:get_time{}<end_function_call>",
        TWO,
    ),
    "functiongemma, nested": (
        "<start_function_call>call:f{o:{k:[1,<escape>}<escape>],q:true}}<end_function_call>",
        [("f", {"o": {"k": [1, "}"], "q": True}})],
    ),
    "apertus": (
        f'<|tools_prefix|>[{{"f": {TEXT}}}, {{"get_time": {{}}}}]<|tools_suffix|>',
        TWO,
    ),
    "minicpm 3": (
        "<|tool_call_start|>\n```python\nf(s=\"a 'b', c\",n=1)\nget_time()\n```\n<|tool_call_end|>",
        [("f", {"s": "a 'b', c", "n": 1}), TWO[1]],
    ),
    "minicpm 5": (
        '<function name="f"><param name="s"><![CDATA[a "b"\n🦙]]></param></function>\n'
        '<function name="get_time"></function>',
        TWO,
    ),
    "minicpm 5, markup": (
        '<function name="f"><param name="s"><![CDATA[</param> & </function>]]></param>'
        '<param name="n">1</param></function>',
        [("f", {"s": "</param> & </function>", "n": 1})],
    ),
    "granite 20b": ('<function_call> {"name": "f", "arguments": {"n": 1}}', ONE),
    "functionary 3.2": (f">>>f\n{TEXT}>>>get_time\n{{}}", TWO),
    "command r+": (
        'Action:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {\n'
        '            "n": 1\n        }\n    },\n    {\n        "tool_name": "get_time",\n'
        '        "parameters": {}\n    }\n]```',
        [*ONE, TWO[1]],
    ),
    "hyperclova x": (' -> tool/function_call\n[{"name": "f", "arguments": {"n": 1}}]', ONE),
    "longcat": (
        "<longcat_tool_call>f\n<longcat_arg_key>s</longcat_arg_key>\n"
        "<longcat_arg_value>5</longcat_arg_value>\n</longcat_tool_call>",
        [("f", {"s": "5"})],
    ),
    "nemotron mini": ('<toolcall> {"name": "f", "arguments": {"n": 1}} </toolcall>', ONE),
    "qwen 2.5 coder": ('<tools>\n{"name": "f", "arguments": {"n": 1}}\n</tools>', ONE),
    "deepseek v3, all in json": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{"name": "f", "arguments": {"n": 1}}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    "llama 4": ("<|python_start|>[f(n=1)]<|python_end|>", ONE),
    "llama 4, as its template has it": (
        '<|python_start|><|python_end|>{"name": "f", "parameters": {"n": 1}}',
        ONE,
    ),
    "hermes, where the template shows none": (
        '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>',
        ONE,
    ),
    "as in OpenAI's API": (
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": "{\\"n\\": 1}"}}'
        "</tool_call>",
        ONE,
    ),
    "without arguments": ('<tool_call>{"name": "get_time"}</tool_call>', [TWO[1]]),
    "null for none": ('<tool_call>{"name": "get_time", "arguments": null}</tool_call>', [TWO[1]]),
    "an only parameter's bare value": (
        '<tool_call>{"name": "sum", "arguments": [1, 2]}</tool_call>'
        '<tool_call>{"name": "echo", "arguments": "ä"}</tool_call>',
        [("sum", {"values": [1, 2]}), ("echo", {"text": "ä"})],
    ),
    "a bare value that the only parameter cannot have": (
        '<tool_call>{"name": "echo", "arguments": [1]}</tool_call>',
        [("echo", [1])],
    ),
    "a bare value where there are several": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [("f", [1])],
    ),
    "a brace short": ('<tool_call>{"name": "f", "arguments": {"n": 1}</tool_call>', ONE),
    "a bare newline": (
        '<tool_call>{"name": "f", "arguments": {"s": "a\nb"}}</tool_call>',
        [("f", {"s": "a\nb"})],
    ),
}
SIGNS = {
    "minicpm 3": "<|tool_call_start|> ```python",
    "functionary 3.2": ">>>all",
    "qwen 2.5 coder": "<tool_call>",
    "hermes, where the template shows none": "user",
    "deepseek r1": "<｜tool▁calls▁begin｜> ```json",
    "qwen 3 coder, without its opener": "<tool_call> <function= <parameter=",
    "qwen 3 coder, an end without its opener": "<tool_call> <function= <parameter=",
    "functionary 3.1": "<function= </function>",
    "gpt-oss": "<|start|><|channel|>commentary<|message|>",
    "gpt-oss, in the header's first half": "<|start|><|channel|>commentary<|message|>",
    "nemotron 3": "<tool_call> <function= <parameter=",
}

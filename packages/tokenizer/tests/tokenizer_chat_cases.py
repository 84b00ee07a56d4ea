"""Chat templates in the manner of well-known families, and conversations to render with them."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

HEADERS = """{{- bos_token }}
{%- if tools is none %}
    {%- set tools = none %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today: " + date_string + "\n\n" + system_message }}
{%- if tools %}
    {{- "\nFunctions:\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model takes one tool call at once") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' + (call.arguments | tojson) + "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

INSTRUCT = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if message["role"] in ("user", "assistant") and "tool_calls" not in message %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + (val if val is string else val | tojson) }}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" + ("," if not loop.last else "]") }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif "tool_calls" in message %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson + (', "id": "' + call.id + '"' if call.id is defined else '') }}
            {%- if not loop.last %}{{- ", " }}{%- endif %}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token }}
    {%- elif message["role"] in ["tool", "tool_results"] %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

THINKING = """{%- macro text_of(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'text' -%}{{- part.text -}}{%- else -%}<|{{ part.type }}|>{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- text_of(messages[0].content) + '\n\n' }}{%- endif %}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + text_of(messages[0].content) + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" %}{%- set ns.last = index %}{%- break %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and loop.first %}{%- continue %}{%- endif %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\n' + text_of(message.content) + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- generation -%}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is defined and loop.index0 > ns.last %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- text_of(message.content or '') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
        {%- endgeneration -%}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# White space that `trim_blocks` and `lstrip_blocks` decide about, filters, and functions.
ODDS = """
    {% if messages %}
  {% for message in messages %}
    {{ loop.index }}:{{ message.role | upper | center(12) }}|
    {{ message.content | default('none', true) | replace('\n', '\\n') | indent(2) }}
    {% endfor %}
    {% endif %}
{{ messages | map(attribute='role') | join(', ') }} {{ dict(a=1, b=[2, 3]) | tojson }}
{{ '%05d' | format(42) }} {{ '%s=%3d' % ('a', 5) }} {{ '{:>6}|{name}'.format('ab', name='ž') }}
{{ 'a'.ljust(3) }}|
{{ ['<b>', '&', 'é', '日'] | tojson }} {{ strftime_now('%Y') | length }} {{ 'x' * 3 ~ 'y' ~ (2 + 3) }}
{% filter upper %}shout {{ messages | length }}{% endfilter %}
{% set parts = [] %}{{ (1, 2) }} {{ unknown_name }}{{ unk_token }}
{% for a in range(2) recursive %}{{ a }}{% else %}nothing{% endfor %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "instruct": INSTRUCT,
    "thinking": THINKING,
    "odds": ODDS,
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a <city> & more: ž",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {}}},
]

_USER = {"role": "user", "content": "What's the weather\nin Brno?"}
_ASSISTANT = {"role": "assistant", "content": "Sunny ☀️ <b>&amp;</b>."}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": {"a": "é"}}}
    ],
}
CONVERSATIONS = {
    "one": [_USER],
    "system": [{"role": "system", "content": " Be terse. "}, _USER],
    "turns": [_USER, _ASSISTANT, {"role": "user", "content": "  And tomorrow?  \n"}],
    "ends-with-assistant": [_USER, _ASSISTANT],
    "two-users": [_USER, _USER],
    "tool-call": [_USER, _CALL, {"role": "tool", "content": "12:00", "tool_call_id": "call00001"}],
    "two-results": [_USER, _CALL, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}],
    "reasoning": [_USER, {**_ASSISTANT, "reasoning": "Let me\nthink."}],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
    "assistant-first": [_ASSISTANT, _USER],
    "empty-content": [{"role": "user", "content": ""}],
    "name": [{"role": "user", "content": "Hi", "name": "Eva", "extra": {"a": [1, 2.5, True, None]}}],
}

from datetime import datetime

import pytest

from qkv.errors import ChatTemplateError
from qkv.tokens import Tokenizer
from qkv.tokens.chat import render
from small_tokenizers import llama

HELLO = [{"role": "user", "content": "Hi <there> é"}]

CHATML = """\
{% for message in messages %}
    {%- if not loop.first %}

    {%- endif %}
{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
"""


def tokenizer_with(**templates: str) -> Tokenizer:
    return Tokenizer(llama().core, {"bos_token": "<s>", "eos_token": "</s>"}, templates)


def test_a_conversation_is_written_as_its_template_says():
    tokenizer = tokenizer_with(default=CHATML)
    turns = [*HELLO, {"role": "assistant", "content": "Hello"}]
    assert tokenizer.render_chat(turns) == "<|user|>Hi <there> é</s>\n<|assistant|>Hello</s>\n<|assistant|>\n"
    assert tokenizer.render_chat(HELLO, add_generation_prompt=False) == "<|user|>Hi <there> é</s>\n"


def test_block_tags_leave_no_blank_lines():
    assert render("a\n  {% if true %}\n  b\n  {% endif %}\nc", []) == "a\n  b\nc"


def test_special_tokens_are_variables_that_a_caller_may_overrule():
    tokenizer = tokenizer_with(default="{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ extra }}")
    assert tokenizer.render_chat([], extra=7) == "<s></s>7"
    assert tokenizer.render_chat([], bos_token="[B]") == "[B]</s>"


def test_loops_can_be_left_and_continued():
    skip, leave = "{% if n == 1 %}{% continue %}{% endif %}", "{% if n == 3 %}{% break %}{% endif %}"
    assert render("{% for n in range(9) %}" + skip + leave + "{{ n }}{% endfor %}", []) == "02"


def test_json_is_written_as_it_is():
    assert render("{{ messages[0] | tojson }}", HELLO) == '{"role": "user", "content": "Hi <there> é"}'
    assert render("{{ {'b': [1]} | tojson(indent=2) }}", []) == '{\n  "b": [\n    1\n  ]\n}'


def test_the_date_comes_from_the_given_clock():
    tokenizer = tokenizer_with(default="{{ strftime_now('%d %b %Y') }}")
    assert tokenizer.render_chat([], clock=lambda: datetime(2031, 7, 2)) == "02 Jul 2031"


def test_a_generation_block_is_its_body():
    assert render("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c", HELLO) == "abuserc"


def test_tools_and_documents_are_none_unless_given():
    template = "{{ tools is none }} {{ documents is none }}"
    assert render(template, []) == "True True"
    assert render(template, [], tools=[1]) == "False True"


def test_the_tool_template_is_taken_when_there_are_tools():
    tokenizer = tokenizer_with(default="plain", tool_use="with tools")
    assert tokenizer.render_chat([]) == "plain"
    assert tokenizer.render_chat([], tools=[{"name": "search"}]) == "with tools"
    assert tokenizer_with(default="plain").render_chat([], tools=[{"name": "search"}]) == "plain"


def test_a_model_without_a_template_says_to_pass_a_plain_prompt():
    with pytest.raises(ChatTemplateError, match=r"found none; pass a plain prompt"):
        llama().render_chat(HELLO)
    with pytest.raises(ChatTemplateError, match="found rag;"):
        tokenizer_with(rag="{{ documents }}").render_chat(HELLO)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError: .* '__class__' of a str"),
        ("{{ ''.__class__ }}", "SecurityError"),
        ("{{ messages['__class__'] }}", "SecurityError"),
        ("{{ ''|attr('__class__') }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages[0].update(role='system') }}", "SecurityError"),
        ("{{ raise_exception.__globals__ }}", "SecurityError"),
        ("{{ strftime_now.func }}{{ strftime_now.func.__globals__ }}", "SecurityError"),
        ("{{ '{0.__class__}'.format('') }}", "SecurityError"),
        ("{% for n in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{% include 'secrets' %}", "TypeError"),
        ("{{ missing.attribute }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('roles must\n alternate') }}", "TemplateError: roles must alternate"),
    ],
)
def test_a_template_that_fails_or_is_unsafe_gives_one_line(template: str, reason: str):
    with pytest.raises(ChatTemplateError, match=reason) as failure:
        render(template, HELLO)
    assert "\n" not in str(failure.value)
    assert "plain prompt" in str(failure.value)


def test_rendering_leaves_the_messages_as_they_are():
    messages = [dict(HELLO[0])]
    with pytest.raises(ChatTemplateError):
        render("{{ messages[0].update(role='system') }}", messages)
    assert messages == HELLO

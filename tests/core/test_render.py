"""Request -> prompt ids: golden cases, what providers counted, and a second opinion (`renderers`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import PromptEncoding, RenderSettings
from pipeline.core.encoding import Encoder
from pipeline.core.render import UnrenderableRequest, render_ids, render_text
from pipeline.errors import ConfigError
from tests.core.chats import make_request

ROOT = Path(__file__).parents[2]
TARGET = yaml.safe_load((ROOT / "conf/target/kimi_k2_5.yaml").read_text(encoding="utf-8"))
KIMI = RenderSettings.model_validate(TARGET["render"])
KIMI_OFF = KIMI.model_copy(update={"thinking": False})
PLAIN = KIMI.model_copy(update={"encoding": PromptEncoding(parse_special=False)})
SPECIALS = re.compile(r"<\|\w+\|>|</?think>|\[EOS\]")


def cases(name: str) -> list[dict[str, Any]]:
    lines = (ROOT / "tests" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


TOKEN_CASES = cases("golden/kimi_k2_5/tokens.jsonl")
EXCHANGES = {case["id"]: case for case in cases("cases/provider_responses.jsonl")}


def ask(*messages: dict[str, Any], tools: Any = None) -> dict[str, Any]:
    return {"messages": list(messages), "tools": tools}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def called(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


def returned(content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "functions.f:0", "content": content, **more}


def function(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


def with_template(template: str, **more: Any) -> RenderSettings:
    return RenderSettings(template=template, encoding=PromptEncoding(parse_special=True), **more)


# --- golden ids --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TOKEN_CASES, ids=lambda case: case["id"])
def test_prompt_ids_equal_the_official_ones(case: dict[str, Any], kimi: Encoder) -> None:
    prompt = render_ids(case, KIMI, kimi)
    assert list(prompt.ids) == case["expect"]["prompt_ids"]
    plain = case["expect"].get("prompt_ids_plain")
    assert prompt.plain_ids == (None if plain is None else tuple(plain))


def test_a_server_that_parses_nothing_has_the_plain_ids(kimi: Encoder) -> None:
    for case in TOKEN_CASES:
        if case["id"] == "K30":  # a run so long that the vendor's tokenizer cuts it; this server does not
            continue
        prompt = render_ids(case, PLAIN, kimi)
        expected = case["expect"].get("prompt_ids_plain", case["expect"]["prompt_ids"])
        assert (list(prompt.ids), prompt.plain_ids) == (expected, None), case["id"]


def test_prompt_counts_of_honest_providers(kimi: Encoder) -> None:
    counted = 0
    dishonest = set()
    for name, case in EXCHANGES.items():
        counts = re.findall(r'"prompt_tokens":\s*(\d+)', case["http"].get("body", ""))
        if not counts:
            continue
        counted += 1
        if not 0 <= int(counts[0]) - len(render_ids(case["request"], KIMI, kimi).ids) <= 3:
            dishonest.add(name)
    # D11: the served prompt lacked the tools. E6: every count of the answer is wrong.
    assert dishonest == {"D11", "E6"}
    assert counted > 35


@pytest.mark.parametrize("name", ["G1", "G2", "G3"])
def test_prompt_ids_of_the_engine_itself(name: str, kimi: Encoder) -> None:
    body = json.loads(EXCHANGES[name]["http"]["body"])
    native = list(_found(body, "prompt_token_ids"))
    assert native == [list(render_ids(EXCHANGES[name]["request"], KIMI, kimi).ids)]


def _found(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _found(one, key)


# --- golden texts: what the cases do not show ---------------------------------------------------

HI = "<|im_user|>user<|im_middle|>hi<|im_end|>"
OPEN = "<|im_assistant|>assistant<|im_middle|><think>"
CALL_TAIL = "<|tool_call_end|><|tool_calls_section_end|><|im_end|>"


def call_head(reasoning: str, call_id: str = "functions.f:0") -> str:
    return (
        f"{OPEN}{reasoning}</think><|tool_calls_section_begin|><|tool_call_begin|>{call_id}"
        "<|tool_call_argument_begin|>"
    )


GOLDEN: dict[str, tuple[dict[str, Any], RenderSettings, str]] = {
    "thinking off prefills an empty block": (ask(user("hi")), KIMI_OFF, f"{HI}{OPEN}</think>"),
    "thinking off drops the reasoning of an open tool loop": (
        ask(user("hi"), called(reasoning_content="why"), returned()),
        KIMI_OFF,
        f"{HI}{call_head('')}{{}}{CALL_TAIL}"
        f"<|im_system|>tool<|im_middle|>## Return of functions.f:0\nok<|im_end|>{OPEN}</think>",
    ),
    "a plain answer closes the loop before it and its own reasoning": (
        ask(
            user("hi"),
            called(reasoning_content="one"),
            returned(),
            {"role": "assistant", "content": "A", "reasoning_content": "two"},
            user("hi"),
            called(reasoning_content="three"),
            returned(),
        ),
        KIMI,
        f"{HI}{call_head('')}{{}}{CALL_TAIL}"
        "<|im_system|>tool<|im_middle|>## Return of functions.f:0\nok<|im_end|>"
        f"{OPEN}</think>A<|im_end|>{HI}{call_head('three')}{{}}{CALL_TAIL}"
        f"<|im_system|>tool<|im_middle|>## Return of functions.f:0\nok<|im_end|>{OPEN}",
    ),
    "null and missing are the same everywhere": (
        ask(
            user(None, name=None, tool_calls=None),
            {"role": "assistant", "tool_calls": None, "reasoning_content": None, "refusal": None},
            {"role": "assistant", "tool_calls": [{"id": None, "function": {"arguments": ""}}]},
            {"role": "tool", "tool_call_id": None},
        ),
        KIMI,
        f"<|im_user|>user<|im_middle|><|im_end|>{OPEN}</think><|im_end|>{call_head('', '')}{CALL_TAIL}"
        f"<|im_system|>tool<|im_middle|>## Return of \n<|im_end|>{OPEN}",
    ),
    "arguments given as an object are written as JSON": (
        ask(user("hi"), called({"b": "<é>&'", "a": [1, None]}), returned()),
        KIMI,
        f"{HI}{call_head('')}"
        + '{"b": "<é>&\'", "a": [1, null]}'
        + CALL_TAIL
        + "<|im_system|>tool<|im_middle|>"
        f"## Return of functions.f:0\nok<|im_end|>{OPEN}",
    ),
    "names replace the role word, the mark stays the role's": (
        ask(
            {"role": "developer", "content": "d"},
            user("hi", name="Ada"),
            {"role": "assistant", "name": "Kim", "content": "A"},
            returned(name="f"),
        ),
        KIMI,
        "<|im_system|>developer<|im_middle|>d<|im_end|><|im_user|>Ada<|im_middle|>hi<|im_end|>"
        "<|im_assistant|>Kim<|im_middle|><think></think>A<|im_end|>"
        f"<|im_system|>f<|im_middle|>## Return of functions.f:0\nok<|im_end|>{OPEN}",
    ),
    "text parts are joined without anything between": (
        ask(user([{"type": "text", "text": "h"}, {"type": "text", "text": "i", "cache_control": {}}])),
        KIMI,
        f"{HI}{OPEN}",
    ),
    "tools without a TypeScript form are compact JSON in key order": (
        ask(user("hi"), tools=[function({"properties": {"ü": {"oneOf": []}}, "type": "object"})]),
        KIMI,
        '<|im_system|>tool_declare<|im_middle|>[{"function":{"name":"f","parameters":{"properties":'
        '{"ü":{"oneOf":[]}},"type":"object"}},"type":"function"}]<|im_end|>' + f"{HI}{OPEN}",
    ),
    "no tools, no declaration": (ask(user("hi"), tools=[]), KIMI, f"{HI}{OPEN}"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_text(name: str) -> None:
    request, settings, text = GOLDEN[name]
    assert render_text(request, settings) == text


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": "why"},
        {"reasoning": "why", "reasoning_content": "why"},
        {"reasoning": "why", "reasoning_content": ""},
        {"reasoning": None, "reasoning_content": "why", "reasoning_details": [{"type": "reasoning.text"}]},
    ],
)
def test_reasoning_is_read_under_either_name(fields: dict[str, Any]) -> None:
    text = render_text(ask(user("hi"), called(**fields), returned()), KIMI)
    assert text == render_text(ask(user("hi"), called(reasoning_content="why"), returned()), KIMI)
    assert "<think>why</think>" in text


# --- requests that have no prompt ---------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "messages: an array with at least one message is needed"),
    (ask(), "messages: an array with at least one message is needed"),
    ({"messages": "hi"}, "messages: an array with at least one message is needed"),
    (ask("hi"), "messages[0]: an object is needed, got str"),  # type: ignore[arg-type]
    (ask(user("hi"), {"content": "x"}), "messages[1].role: None is not one of system, developer, user"),
    (ask({"role": "function", "content": "x"}), "messages[0].role: 'function' is not one of"),
    (ask({"role": ["user"], "content": "x"}), "messages[0].role: ['user'] is not one of"),
    (ask(user(7)), "messages[0].content: text or an array of parts is needed, got int"),
    (ask(user(["hi"])), "messages[0].content[0]: an object is needed, got str"),
    (
        ask(user([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}])),
        "messages[0].content[1]: only text can be rendered, this part is 'image_url'",
    ),
    (ask(user([{"type": "text"}])), "messages[0].content[0].text: text is needed"),
    (ask(user("hi", name=3)), "messages[0].name: text is needed, got int"),
    (ask(returned(tool_call_id=3)), "messages[0].tool_call_id: text is needed, got int"),
    (ask(called(reasoning=["x"])), "messages[0].reasoning: text is needed, got list"),
    (
        ask(called(reasoning="a", reasoning_content="b")),
        "messages[0]: reasoning_content and reasoning differ",
    ),
    (ask(called(reasoning_details=[{"text": "a"}])), "messages[0].reasoning_details: stands alone"),
    (ask(called(function_call={"name": "f"})), "messages[0].function_call: old form"),
    (ask({"role": "assistant", "tool_calls": {}}), "messages[0].tool_calls: an array is needed, got dict"),
    (ask({"role": "assistant", "tool_calls": ["f"]}), "messages[0].tool_calls[0]: an object is needed"),
    (
        ask({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}),
        "messages[0].tool_calls[0].function: an object is needed, got NoneType",
    ),
    (ask(called(None)), "messages[0].tool_calls[0].function.arguments: missing"),
    (ask(user("hi"), tools={"f": 1}), "tools: an array of objects is needed"),
    (ask(user("hi"), tools=["f"]), "tools: an array of objects is needed"),
]


@pytest.mark.parametrize(("request_", "reason"), REFUSED)
def test_refused_with_the_place_named(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnrenderableRequest) as refusal:
        render_text(request_, KIMI)
    assert str(refusal.value).startswith(reason)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("settings", [KIMI, PLAIN])
def test_half_a_surrogate_pair_is_refused(settings: RenderSettings, kimi: Encoder) -> None:
    with pytest.raises(UnrenderableRequest, match=r"surrogate U\+D83D"):
        render_ids(ask(user("smile \ud83d")), settings, kimi)


# --- special strings in the request's own texts --------------------------------------------------

TEXT = "say <|im_end|> and </think>"
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "user": lambda text: ask(user(text)),
    "system": lambda text: ask({"role": "system", "content": text}, user("hi")),
    "name": lambda text: ask(user("hi", name=text)),
    "text part": lambda text: ask(user([{"type": "text", "text": text}, {"type": "text", "text": "!"}])),
    "old answer": lambda text: ask(user("hi"), {"role": "assistant", "content": text}, user("hi")),
    "reasoning": lambda text: ask(user("hi"), called(reasoning=text), returned()),
    "call id": lambda text: ask(
        called(tool_calls=[{"id": text, "function": {"name": "f", "arguments": "{}"}}]), returned()
    ),
    "arguments": lambda text: ask(user("hi"), called(text), returned()),
    "arguments' value": lambda text: ask(user("hi"), called({"q": [text]}), returned()),
    "arguments' key": lambda text: ask(user("hi"), called({text: 1, "<": 2}), returned()),
    "tool result": lambda text: ask(called(), returned(text)),
    "tool_call_id": lambda text: ask(called(), returned(tool_call_id=text)),
    "tool name": lambda text: ask(user("hi"), tools=[function({}, name=text)]),
    "tool description": lambda text: ask(user("hi"), tools=[function({}, description=text)]),
    "parameter": lambda text: ask(user("hi"), tools=[function({"properties": {text: {"type": "string"}}})]),
    "enum": lambda text: ask(user("hi"), tools=[function({"properties": {"q": {"enum": [text]}}})]),
    "JSON tool's value": lambda text: ask(
        user("hi"), tools=[function({"properties": {"q": {"title": text}}})]
    ),
    "JSON tool's key": lambda text: ask(user("hi"), tools=[function({"properties": {text: {"title": ""}}})]),
}


def count_special(ids: tuple[int, ...], encoder: Encoder) -> int:
    special = set(encoder.special.values())
    return sum(token_id in special for token_id in ids)


@pytest.mark.parametrize("place", PLACES)
def test_plain_ids_keep_only_the_templates_own_special_tokens(place: str, kimi: Encoder) -> None:
    request = PLACES[place](TEXT)
    prompt = render_ids(request, KIMI, kimi)
    harmless = render_ids(PLACES[place]("say nothing"), KIMI, kimi)
    assert harmless.plain_ids is None
    assert prompt.plain_ids is not None
    own = count_special(harmless.ids, kimi)
    assert (count_special(prompt.ids, kimi), count_special(prompt.plain_ids, kimi)) == (own + 2, own)
    text = render_text(request, KIMI)
    assert TEXT in text
    assert kimi.decode_bytes(prompt.ids).decode() == kimi.decode_bytes(prompt.plain_ids).decode() == text


def test_a_special_string_that_two_parts_make_together(kimi: Encoder) -> None:
    request = ask(user([{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]))
    prompt = render_ids(request, KIMI, kimi)
    whole = render_ids(ask(user("<|im_end|>")), KIMI, kimi)
    assert prompt == whole
    assert prompt.plain_ids is not None


def test_a_beginning_of_a_special_string_makes_no_second_prompt(kimi: Encoder) -> None:
    assert render_ids(ask(user("3 <"), user("[EO")), KIMI, kimi).plain_ids is None


def test_texts_that_a_template_takes_out_of_objects_are_the_requests(kimi: Encoder) -> None:
    template = (
        "<|im_system|>{{ tools[0].function.description }}{{ messages[0].tool_calls[0].function.arguments.q }}"
    )
    request = ask(called({"q": "[EOS]"}), tools=[function({}, description=TEXT)])
    prompt = render_ids(request, with_template(template), kimi)
    assert prompt.plain_ids is not None
    assert (count_special(prompt.ids, kimi), count_special(prompt.plain_ids, kimi)) == (4, 1)


def test_private_use_characters_of_the_request_are_text(kimi: Encoder) -> None:
    odd = "\U000f0000\U000f0001 [EOS] \U000f0002"
    prompt = render_ids(ask(user(odd)), KIMI, kimi)
    assert prompt.plain_ids is not None
    assert odd in kimi.decode_bytes(prompt.plain_ids).decode()


def test_a_template_that_reads_special_strings_itself_leaves_no_plain_prompt(kimi: Encoder) -> None:
    template = "<|im_user|>{{ messages[0].content.split('</think>')[-1] }}"
    request = ask(user("a </think> b"))
    prompt = render_ids(request, with_template(template), kimi)
    assert prompt.plain_ids is None
    assert kimi.decode_bytes(prompt.ids).decode() == "<|im_user|> b"
    plain = with_template(template).model_copy(update={"encoding": PromptEncoding(parse_special=False)})
    with pytest.raises(UnrenderableRequest, match="takes a special string in them for its own"):
        render_ids(request, plain, kimi)


# --- the template environment ---------------------------------------------------------------------


def test_templates_are_filled_as_hugging_face_fills_them() -> None:
    template = (
        "{% for message in messages %}\n"
        "    {% if loop.index0 == 1 %}{% continue %}{% endif %}\n"
        "    {% if loop.index0 == 3 %}{% break %}{% endif %}\n"
        "    {{ message.content }}\n"
        "{% endfor %}\n"
        "{{ tools | tojson }}{{ tools | tojson(indent=1) }}{{ tools | tojson(ensure_ascii=True) }}\n"
    )
    request = ask(*(user(str(number)) for number in range(5)), tools=[{"é": "<&>'"}])
    lines = "    0\n    2\n"
    assert render_text(request, with_template(template)) == (
        lines + '[{"é": "<&>\'"}][\n {\n  "é": "<&>\'"\n }\n][{"\\u00e9": "<&>\'"}]'
    )


def test_an_empty_list_of_tools_is_none() -> None:
    assert render_text(ask(user("hi"), tools=[]), with_template("{{ tools is none }}")) == "True"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system messages') }}", "no system messages"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{{ messages.append(1) }}", "of 'list' object is unsafe"),
    ],
)
def test_what_a_template_refuses_is_a_refused_request(template: str, reason: str) -> None:
    with pytest.raises(UnrenderableRequest, match=f"^the chat template refuses the request: .*{reason}"):
        render_text(ask(user("hi")), with_template(template))


def test_a_broken_template_is_a_broken_setting() -> None:
    with pytest.raises(ConfigError, match=r"^conf/target: render\.template, line 2: "):
        render_text(ask(user("hi")), with_template("{{ 1 }}\n{% if %}"))


# --- properties over made-up conversations --------------------------------------------------------

MADE_UP = [make_request(seed) for seed in range(200)]


@pytest.mark.parametrize("thinking", [True, False])
def test_no_message_text_is_lost(thinking: bool) -> None:
    settings = KIMI if thinking else KIMI_OFF
    for request, _ in MADE_UP:
        text = render_text(request, settings)
        at = 0
        for message in request["messages"]:
            content = message["content"]
            joined = "".join(part["text"] for part in content) if isinstance(content, list) else content or ""
            found = text.find(f"{joined}<|", at)
            assert found >= 0, (message, text)
            at = found + len(joined)


def test_a_further_question_or_result_only_adds_text() -> None:
    for request, _ in MADE_UP:
        text = render_text(request, KIMI)
        for message in (user("and?"), returned()):
            longer = render_text({**request, "messages": [*request["messages"], message]}, KIMI)
            assert longer.startswith(text.removesuffix(OPEN))


def test_plain_ids_of_made_up_conversations(kimi: Encoder) -> None:
    told = 0
    for request, _ in MADE_UP:
        prompt = render_ids(request, KIMI, kimi)
        written = json.dumps(request, ensure_ascii=False)
        harmless = render_ids(json.loads(SPECIALS.sub("word", written)), KIMI, kimi)
        assert harmless.plain_ids is None
        holds = len(harmless.ids) != len(prompt.ids) and count_special(prompt.ids, kimi) != count_special(
            harmless.ids, kimi
        )
        assert (prompt.plain_ids is not None) == holds
        if prompt.plain_ids is not None:
            told += 1
            assert kimi.decode_bytes(prompt.plain_ids) == kimi.decode_bytes(prompt.ids)
            assert count_special(prompt.plain_ids, kimi) == count_special(harmless.ids, kimi)
    assert told > 60

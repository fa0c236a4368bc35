"""A stream is the plain answer in pieces: put together by a reader of our own, and by the pipeline's."""

import json
from dataclasses import replace

import httpx
import pytest

from pipeline.core.answer import read_answer
from pipeline.core.sse import assemble
from pipeline.simulator.answer import answer_body
from pipeline.simulator.native import generate, truth
from pipeline.simulator.profile import Habits, load_profile
from pipeline.simulator.request import BadRequest, read_request
from pipeline.simulator.server import serve
from pipeline.simulator.stream import check_streamable, stream_of
from pipeline.simulator.texts import load_corpus
from tests.simulator.conftest import question

_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_HABITS = [
    {"whitespace": "space_join"},
    {"whitespace": "space_join_rstrip", "empty_arguments": "braces", "cut_character": "withheld"},
    {"whitespace": "strip", "split_by": "text", "call_ids": "rebuilt", "cut_call": "dropped"},
    {"reasoning_in": "reasoning_content", "empty_text": "empty"},
    {"reasoning_in": "reasoning_details"},
    {"reasoning_in": "all"},
    {"reasoning_in": "all", "empty_text": "empty"},
    {"reasoning_in": "inline", "reasoning_tokens": "absent"},
    {"calls": "raw", "leaked_end": 0.5, "raw_finish": "stop"},
    {"call_ids": "call_hex", "cut_call": "shown_as_finished"},
    {"call_ids": "chatcmpl_tool", "reasoning_tokens": "zero"},
    {"counts_end": False},
    {"usage": "missing"},
    {"usage": "null"},
    {"usage": "wrong"},
    {"native_ids": "vllm"},
    {"native_ids": "vllm", "reasoning_in": "all"},
    {"native_ids": "sglang"},
]


def _chunks(text):
    events = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"]


def _put_together(chunks):
    """The plain body: every field of every chunk counts, and no field comes from anywhere else."""
    body, choice, message = {}, {"index": 0}, {}
    for chunk in chunks:
        body |= {name: value for name, value in chunk.items() if name != "choices"}
        for part in chunk["choices"]:
            for name, value in part.items():
                if name == "token_ids":
                    choice[name] = choice.get(name, []) + value
                elif name != "delta" and (value is not None or name not in choice):
                    choice[name] = value
            for name, value in part["delta"].items():
                _add(message, name, value)
    return {**body, "object": "chat.completion", "choices": [{**choice, "message": message}]}


def _add(message, name, value):
    if name == "role" or value is None:
        message.setdefault(name, value)
    elif isinstance(value, str):
        message[name] = (message.get(name) or "") + value
    else:
        _add_parts(message.setdefault(name, []), value)


def _add_parts(parts, given):
    for part in given:
        if part["index"] == len(parts):
            parts.append(json.loads(json.dumps(part)))
        elif "text" in part:
            parts[part["index"]]["text"] += part["text"]
        else:
            parts[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def _bodies(count, **extra):
    """Plain, cut short, without thinking, and with hidden reasoning."""
    for n in range(count):
        more = [{}, {"max_tokens": 1 + 3 * n}, {"reasoning": {"enabled": False}}, {}, {}][n % 5]
        more = {"reasoning": {"exclude": True}} if n % 19 == 7 else more
        yield question(n, **more, **extra)


@pytest.mark.parametrize("habits", _HABITS, ids=lambda habits: "-".join(map(str, habits.values())))
def test_every_habit_streams_the_plain_answer(habits):
    profile = load_profile("hostile")
    extra = {"return_token_ids": True} if habits.get("native_ids") == "vllm" else {}
    calls = pieces = 0
    for asked in _bodies(60, **extra):
        generation = generate(read_request(asked), profile, 7, load_corpus())
        served = generation.served.model_copy(update={"habits": Habits(**habits)})
        generation = replace(generation, served=served)
        plain = answer_body(generation, profile)
        stream = stream_of(plain, generation.key)
        chunks = [*stream.deltas, *stream.ending]
        assert _put_together(chunks) == plain
        assert not any(
            part["finish_reason"] or part["native_finish_reason"]
            for chunk in stream.deltas
            for part in chunk["choices"]
        )
        assert stream.ending[0]["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]
        assert sum("usage" in chunk for chunk in chunks) == ("usage" in plain)
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        assert read_answer(assemble(text)) == read_answer(plain)
        calls += "tool_calls" in plain["choices"][0]["message"]
        pieces += len(chunks)
    assert calls > 5 or habits.get("calls") == "raw"
    assert pieces > 60 * 10


def _ask(client, body):
    response = client.post("/chat/completions", json=body)
    assert response.status_code == 200
    return response


@pytest.mark.parametrize("server", ["default_server", "hostile_server"])
def test_over_http_a_stream_is_the_plain_answer_with_its_id_and_truth(server, request):
    client = request.getfixturevalue(server)
    sizes = set()
    for n in range(150):
        asked = question(n, salt="stream")
        streamed, plain = _ask(client, {**asked, **_STREAM}), _ask(client, asked)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.headers["x-generation-id"] == plain.headers["x-generation-id"] == plain.json()["id"]
        assert streamed.text.startswith(": OPENROUTER PROCESSING\n\n")
        assert streamed.text.endswith("\n\ndata: [DONE]\n\n")
        assert _put_together(_chunks(streamed.text)) == plain.json()
        assert read_answer(assemble(streamed.text)) == read_answer(plain.json())
        sizes |= {len(_chunks(streamed.text)) // 100}
    assert len(sizes) > 2  # fine and coarse pieces


def test_a_stream_has_the_truth_of_its_body_without_the_word():
    asked = question(3)
    for said in ({"stream": True}, {"stream": False}, _STREAM):
        assert truth({**asked, **said}, "default", 7) == truth(asked, "default", 7)
    assert truth({**asked, "top_p": 0.5}, "default", 7) != truth(asked, "default", 7)


def test_ids_come_as_deltas_as_in_vllm(default_server):
    asked = question(1, provider={"only": ["idful"]}, return_token_ids=True, **_STREAM)
    chunks = _chunks(_ask(default_server, asked).text)
    true = truth(asked, "default", 7)
    assert chunks[0]["prompt_token_ids"] == true.prompt_ids
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    deltas = [part["token_ids"] for chunk in chunks for part in chunk["choices"]]
    assert len(deltas) > 3
    assert [one for delta in deltas for one in delta] == true.completion_ids
    silent = question(1, provider={"only": ["idful"]}, **_STREAM)
    assert "token_ids" not in _ask(default_server, silent).text


def test_ids_and_stream_together_are_refused_where_sglang_would(hostile_server):
    wishes = {"provider": {"only": ["idful"]}, "return_token_ids": True}
    refused = hostile_server.post("/chat/completions", json=question(1, **wishes, stream=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)
    assert "response_token_ids" in _ask(hostile_server, question(1, **wishes)).text
    generation = generate(read_request(question(1, **wishes)), load_profile("hostile"), 7, load_corpus())
    check_streamable(generation)


def test_a_stream_that_is_neither_wished_nor_not_is_refused():
    with pytest.raises(BadRequest, match="stream: true or false"):
        read_request(question(1, stream="yes"))


def test_two_processes_give_the_same_stream(default_server):
    asked = [question(n, **_STREAM) for n in range(20)]
    first = [_ask(default_server, body).content for body in asked]
    with serve("default", 7) as other, httpx.Client(base_url=other.base_url, trust_env=False) as client:
        assert [_ask(client, body).content for body in asked] == first


def test_text_is_cut_inside_words_and_between_any_code_points():
    text = "naïve 🙂👩‍👩‍👧 你好\r\n\u2028 " * 20
    message = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
    choice = {"index": 0, "finish_reason": "stop", "native_finish_reason": "stop", "message": message}
    body = {"id": "gen-1", "object": "chat.completion", "choices": [choice]}
    borders = set()
    for n in range(30):
        stream = stream_of(body, f"key {n}")
        chunks = [*stream.deltas, *stream.ending]
        place = 0
        for chunk in chunks:
            place += len(chunk["choices"][0]["delta"].get("content") or "")
            borders.add(place)
        assert place == len(text)
        events = "".join(f"data: {json.dumps(chunk, ensure_ascii=n % 2 == 0)}\n\n" for chunk in chunks)
        assert assemble(events)["choices"][0]["message"]["content"] == text
    assert len(borders) > 0.9 * len(text)

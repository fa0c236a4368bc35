"""The texts that ship (simulator corpus, prompt sets, their datasets): well-formed, unique, within limits."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import Dataset, Sampling
from pipeline.core.chat import read_messages, read_tools

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "pipeline/simulator/corpus"
KINDS = ("agentic", "arguments", "chat", "chinese", "code", "hostile", "math", "reasoning")
SETS = (
    "b1_tools",
    "b2_code",
    "b3_math",
    "b4_chat",
    "b5_reasoning",
    "b6_multiturn",
    "b7_chinese",
    "b8_agentic",
)
# Strings that Kimi's tokenizer maps to one id; as text they stand only where they are meant to be hard.
MARKERS = ("<|", "<think>", "</think>", "[EOS]", "[BOS]")
HARD = ("hostile", "arguments")
SHORTEST = {"hostile": 1, "chinese": 15}
LONGEST = 1500

Faults = Iterator[str]


def read_lines(data: bytes) -> list[str]:
    """Lines end at \\n alone: str.splitlines would also cut at U+2028 and U+0085, which stand in texts."""
    return data.decode("utf-8").split("\n")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def character_faults(place: str, text: str) -> Faults:
    for char in text:
        # Cn: newer than this Python, tokenizers may disagree on it. Cs: no UTF-8. U+FFFD: damage.
        if unicodedata.category(char) in ("Cn", "Cs") or char == "�":
            yield f"{place}: U+{ord(char):04X}"


def file_faults(data: bytes, at_least: int) -> Faults:
    lines = read_lines(data)
    if lines.pop() != "":
        yield "the last line has no end"
    if len(lines) < at_least:
        yield f"{len(lines)} lines, at least {at_least} are needed"
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:
            yield f"line {number}: not JSON"
            continue
        if json.dumps(record, ensure_ascii=False) != line:
            yield f"line {number}: not written as json.dumps(..., ensure_ascii=False) writes it"
        bare = {name: one for name, one in record.items() if name != "id"}
        if (first := seen.setdefault(json.dumps(bare, sort_keys=True), number)) != number:
            yield f"line {number}: the same as line {first}"
        for text in strings(record):
            yield from character_faults(f"line {number}", text)


def corpus_faults(kind: str, data: bytes) -> Faults:
    yield from file_faults(data, at_least=200)
    name = "value" if kind == "arguments" else "text"
    for number, line in enumerate(filter(None, read_lines(data)), 1):
        record = json.loads(line)
        if list(record) != [name]:
            yield f"line {number}: exactly `{name}` is needed"
            continue
        text = record[name] if name == "text" else json.dumps(record[name])
        if len(text) > LONGEST:
            yield f"line {number}: {len(text)} characters"
        if name == "text" and (len(text) < SHORTEST.get(kind, 20) or not text.strip()):
            yield f"line {number}: too short or blank"
        if kind not in HARD and any(marker in text for marker in MARKERS):
            yield f"line {number}: a special string in an easy text"


def parsed_object(text: str) -> dict[str, Any] | None:
    """Arguments as an object; None for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def call_faults(row: dict[str, Any]) -> Faults:
    declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in row.get("tools") or []}
    open_ids: list[str] = []
    calls = 0
    for message in row["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                yield f"a result for {message['tool_call_id']}, which nobody asked for"
                continue
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            yield f"{open_ids} not answered before the next {message['role']} message"
            open_ids = []
        for call in message.get("tool_calls") or []:
            function = call["function"]
            if call["type"] != "function" or call["id"] != f"functions.{function['name']}:{calls}":
                yield f"call id {call['id']}: functions.{function['name']}:{calls} is needed"
            calls += 1
            open_ids.append(call["id"])
            schema = declared.get(function["name"])
            given = parsed_object(function["arguments"])
            if schema is None or given is None:
                yield f"{call['id']}: not declared, or its arguments are no object"
            elif not set(schema.get("required", [])) <= set(given) <= set(schema["properties"]):
                yield f"{call['id']}: arguments do not fit the schema's names"
    if open_ids:
        yield f"{open_ids} never answered"


def message_faults(row: dict[str, Any], last: str) -> Faults:
    read_messages(row)
    read_tools(row)
    roles = [message["role"] for message in row["messages"]]
    if roles[-1] != last:
        yield f"ends with {roles[-1]}, not with {last}"
    if "system" in roles[1:] or "user" not in roles:
        yield "a system message stands first, and a user message is needed"
    for message in row["messages"]:
        if not (message["content"] or message.get("tool_calls")):
            yield f"an empty {message['role']} message"
    names = [tool["function"]["name"] for tool in row.get("tools") or []]
    if "tools" in row and not (1 <= len(set(names)) == len(names) <= 4):
        yield f"1 to 4 different functions are needed, got {names}"
    yield from call_faults(row)


def turn_faults(row: dict[str, Any]) -> Faults:
    if not 2 <= len(row["turns"]) <= 4 or not all(turn.strip() for turn in row["turns"]):
        yield "2 to 4 turns with words in them are needed"


def prompt_faults(name: str, data: bytes) -> Faults:
    yield from file_faults(data, at_least=24)
    rows = [json.loads(line) for line in read_lines(data) if line]
    if len({row["id"] for row in rows}) != len(rows):
        yield "an id stands twice"
    keys = {
        "b1_tools": ["id", "messages", "tools"],
        "b6_multiturn": ["id", "turns"],
        "b8_agentic": ["id", "messages", "tools"],
    }.get(name, ["id", "messages"])
    for row in rows:
        if list(row) != keys:
            yield f"{row['id']}: has {list(row)}, needs {keys}"
            continue
        faults = (
            turn_faults(row)
            if "turns" in row
            else message_faults(row, "tool" if name == "b8_agentic" else "user")
        )
        yield from (f"{row['id']}: {fault}" for fault in faults)
        if any(marker in text for text in strings(row) for marker in MARKERS):
            yield f"{row['id']}: a special string, which the prompt side would parse"


@pytest.mark.parametrize("kind", KINDS)
def test_corpus_is_well_formed(kind: str) -> None:
    assert list(corpus_faults(kind, (CORPUS / f"{kind}.jsonl").read_bytes())) == []


def test_corpus_has_these_kinds_and_stays_small() -> None:
    files = sorted(CORPUS.glob("*"))
    assert [file.name for file in files] == [f"{kind}.jsonl" for kind in KINDS]
    assert sum(file.stat().st_size for file in files) < 1_500_000


@pytest.mark.parametrize("name", SETS)
def test_prompts_are_well_formed(name: str) -> None:
    assert list(prompt_faults(name, (ROOT / f"conf/prompts/{name}.jsonl").read_bytes())) == []


@pytest.mark.parametrize("name", SETS)
def test_dataset_reads_its_prompts(name: str) -> None:
    settings = yaml.safe_load((ROOT / f"conf/dataset/{name}.yaml").read_text("utf-8"))
    dataset = Dataset.model_validate(settings)
    Sampling.model_validate(dataset.sampling)
    prompts = dataset.prompts
    row = json.loads((ROOT / prompts.source.path).read_bytes().split(b"\n")[0])  # type: ignore[union-attr]
    named = {prompts.mapping.field, prompts.mapping.tools_field, prompts.mapping.id_field} - {None}
    assert dataset.name == name
    assert named == set(row)
    assert prompts.mapping.shape == prompts.mapping.field
    assert prompts.turns == ("each" if "turns" in row else "last")


def jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(
        "utf-8", "surrogatepass"
    )


def corpus_with(last: Any) -> bytes:
    return jsonl([*({"text": f"An ordinary sentence, number {n}."} for n in range(200)), last])


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({"text": "An ordinary sentence, number 7."}, "the same as line 8"),
        ({"text": "too short"}, "too short"),
        ({"text": " " * 40}, "blank"),
        ({"text": "x" * 1501}, "1501 characters"),
        ({"value": "A value where a text is needed."}, "exactly `text`"),
        ({"text": "Nobody wrote this </think> on purpose."}, "special string"),
        ({"text": "An unassigned character \u0378 in the middle."}, "U+0378"),
        ({"text": "A damaged character � in the middle."}, "U+FFFD"),
    ],
)
def test_a_fault_in_the_corpus_is_seen(last: Any, says: str) -> None:
    assert list(corpus_faults("chat", corpus_with({"text": "A sentence of its own, and fine."}))) == []
    assert says in "\n".join(corpus_faults("chat", corpus_with(last)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-1], "no end"),
        (lambda data: data.replace(b": ", b":", 1), "not written as"),
        (lambda data: data + b"{\n", "not JSON"),
        (lambda data: data[: data.index(b"\n") + 1], "1 lines"),
    ],
)
def test_a_fault_of_the_file_is_seen(change: Callable[[bytes], bytes], says: str) -> None:
    whole = corpus_with({"text": "A sentence of its own, and fine."})
    assert says in "\n".join(file_faults(change(whole), at_least=200))


def loop() -> dict[str, Any]:
    row: dict[str, Any] = json.loads((ROOT / "conf/prompts/b8_agentic.jsonl").read_bytes().split(b"\n")[0])
    return row


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda row: row["messages"].pop(), "never answered"),
        (lambda row: row["messages"].pop(3), "not answered before"),
        (lambda row: row["messages"].insert(3, {**row["messages"][3], "tool_call_id": "x"}), "nobody asked"),
        (lambda row: row["messages"][2]["tool_calls"][0].update(id="call_1"), "is needed"),
        (lambda row: row["messages"][2]["tool_calls"][0]["function"].update(arguments="{"), "no object"),
        (lambda row: row["messages"][2]["tool_calls"][0]["function"].update(arguments="{}"), "do not fit"),
        (lambda row: row["messages"].append({"role": "user", "content": "Go on."}), "ends with user"),
        (lambda row: row["messages"].append({"role": "system", "content": "Stop."}), "stands first"),
        (lambda row: row["messages"][1].update(content=""), "an empty user message"),
        (lambda row: row["tools"].append(row["tools"][0]), "different functions"),
    ],
)
def test_a_fault_in_a_tool_loop_is_seen(change: Callable[[dict[str, Any]], Any], says: str) -> None:
    row = loop()
    assert list(message_faults(row, "tool")) == []
    change(row)
    assert says in "\n".join(message_faults(row, "tool"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[0].update(id=rows[1]["id"]), "an id stands twice"),
        (lambda rows: rows[0].update(note="hello"), "needs ['id', 'messages', 'tools']"),
        (lambda rows: rows[0]["messages"][1].update(content="Say <|im_end|> twice."), "special string"),
        (lambda rows: rows[1].update(messages=rows[0]["messages"], tools=rows[0]["tools"]), "the same as"),
    ],
)
def test_a_fault_in_a_prompt_set_is_seen(change: Callable[[list[dict[str, Any]]], Any], says: str) -> None:
    data = (ROOT / "conf/prompts/b8_agentic.jsonl").read_bytes()
    rows = [json.loads(line) for line in read_lines(data) if line]
    change(rows)
    assert says in "\n".join(prompt_faults("b8_agentic", jsonl(rows)))


@pytest.mark.parametrize("turns", [["only one"], ["one", " "], ["1", "2", "3", "4", "5"]])
def test_a_fault_in_turns_is_seen(turns: list[str]) -> None:
    assert list(turn_faults({"turns": ["one", "two"]})) == []
    assert list(turn_faults({"turns": turns})) != []

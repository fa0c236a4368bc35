"""A file of profiles/ -> what the model does, what its providers do to an answer, and what goes wrong."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import ConfigError

FOLDER = Path(__file__).with_name("profiles")

Rate = float


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Habits(_Part):
    """What one served provider does between native ids and API fields. All-default: nothing is lost."""

    split_by: Literal["ids", "text"] = "ids"
    """`text`: reasoning ends at the first `</think>` in the text, even one that the model spelled out."""
    whitespace: Literal["verbatim", "space_join", "space_join_rstrip", "strip"] = "verbatim"
    """`space_join`: one space on each side of every added token (vllm#33457); `space_join_rstrip`: newer
    vLLM's parser, which also right-strips reasoning; `strip`: SGLang before #24251. All but `verbatim` trim
    call ids and arguments."""
    reasoning_in: Literal["reasoning", "reasoning_content", "reasoning_details", "all", "inline"] = (
        "reasoning"
    )
    """`all`: three equal copies; `inline`: in content, before a visible `</think>`."""
    calls: Literal["structured", "raw"] = "structured"
    """`raw`: the tool section stands in content as text."""
    raw_finish: Literal["stop", "tool_calls"] = "tool_calls"
    call_ids: Literal["kept", "rebuilt", "call_hex", "chatcmpl_tool"] = "kept"
    """`rebuilt`: `functions.name:index`, counted over the conversation (SGLang), whatever the model wrote."""
    empty_arguments: Literal["verbatim", "braces"] = "verbatim"
    empty_text: Literal["null", "empty"] = "null"
    """How a field without text is written."""
    cut_call: Literal["shown", "shown_as_finished", "dropped"] = "shown"
    """A call that max_tokens cut: its beginning, with finish reason `length` or `tool_calls`, or nothing."""
    cut_character: Literal["replaced", "withheld"] = "replaced"
    """A character that max_tokens cut: U+FFFD, or the text ends before the token that began it."""
    leaked_end: Rate = 0.0
    """Share of answers whose content ends with a visible `<|im_end|>`."""
    counts_end: bool = True
    usage: Literal["right", "missing", "null", "wrong"] = "right"
    reasoning_tokens: Literal["right", "zero", "absent"] = "right"
    native_ids: Literal["none", "vllm", "sglang"] = "none"
    """Form in which ids come back when the request says `return_token_ids`."""


class Served(_Part):
    """One provider behind the endpoint; `name` is what answers call it, its slug is what requests call it."""

    name: str
    weight: float = 1.0
    habits: Habits = Habits()

    @property
    def slug(self) -> str:
        """The name as `provider.only` and `provider.order` write it."""
        return self.name.lower().replace(" ", "-")


class NativeRates(_Part):
    """How often the model does what it may do; each a share of the answers where it could happen."""

    calls: Rate = 0.7
    """Calls where tools are offered and the last message is not a tool result."""
    calls_again: Rate = 0.35
    """Calls right after a tool result."""
    edge_whitespace: Rate = 0.15
    """For each end of each text: begins or ends with whitespace."""
    literal_marker: Rate = 0.0
    """A text quotes a special string; its ids are ordinary."""
    hostile: Rate = 0.05
    """One piece of the answer comes from the hostile texts."""
    empty_reasoning: Rate = 0.0
    empty_content: Rate = 0.0
    """Without calls."""
    bare_calls: Rate = 0.4
    """With calls: nothing stands between `</think>` and the tool section."""
    no_think_end: Rate = 0.0
    """With calls and no content: the section opens inside reasoning (vllm#32216)."""
    empty_arguments: Rate = 0.0
    borrowed_arguments: Rate = 0.15
    """Arguments are taken from the texts as they are, not made from the tool's schema."""
    argument_whitespace: Rate = 0.0
    """Arguments begin or end with whitespace."""
    short_call_id: Rate = 0.0
    """`name:index` in place of `functions.name:index`."""
    text_after_calls: Rate = 0.0
    non_canonical: Rate = 0.0
    """One token of the answer is split otherwise than the tokenizer would."""
    non_canonical_same_length: Rate = 0.5
    """... of those: a border between two tokens moves, so that the count stays."""


class Faults(_Part):
    """What goes wrong on the way, by (request, attempt), and how good answers are dressed, by request."""

    at_most: int = 2
    """Failing attempts of one request; the next one succeeds."""
    rate_limited: Rate = 0.0
    retry_after_s: int = 1
    unavailable: Rate = 0.0
    server_error: Rate = 0.0
    html_page: Rate = 0.0
    cut_body: Rate = 0.0
    error_in_200: Rate = 0.0
    error_in_choice: Rate = 0.0
    no_choices: Rate = 0.0
    only_padding: Rate = 0.0
    stream_error: Rate = 0.0
    """Streams only: an error chunk after partial text."""
    stream_cut: Rate = 0.0
    """Streams only: a clean end without finish reason and end mark."""
    stream_broken: Rate = 0.0
    """Streams only: the connection breaks inside an event."""
    padded: Rate = 0.0
    """Good answers with blank lines before the JSON."""
    empty_error: Rate = 0.0
    """Good answers with an empty `error` object."""
    no_done: Rate = 0.0
    """Good streams without `[DONE]`."""
    keep_alives: Rate = 0.0
    """Good streams with many comments and blank lines between events."""
    most_in_flight: int | None = None
    """Requests answered at once; one more gets 429. Such a refusal is no attempt of its request."""
    in_flight_budget: float | None = None
    """US dollars that requests in flight may cost at most together; one more gets 402, no attempt either."""


class Price(_Part):
    """US dollars per million tokens."""

    prompt: float = 0.6
    completion: float = 2.5


class Profile(_Part):
    """One endpoint."""

    name: str = ""
    about: str
    price: Price = Price()
    latency_s: float = 0.0
    """Mean; an answer takes between half of it and one and a half."""
    default_max_tokens: int = 32768
    native: NativeRates = NativeRates()
    faults: Faults = Faults()
    providers: tuple[Served, ...] = Field(min_length=1)


@lru_cache(maxsize=16)
def load_profile(name: str) -> Profile:
    """Raises ConfigError that lists the profiles there are, or names the wrong key."""
    there_are = sorted(file.stem for file in FOLDER.glob("*.yaml"))
    if name not in there_are:
        raise ConfigError(f"simulator profile {name!r}: no such file; there are {', '.join(there_are)}")
    file = FOLDER / f"{name}.yaml"
    try:
        return Profile.model_validate({**yaml.safe_load(file.read_text("utf-8")), "name": name})
    except ValidationError as wrong:
        first = wrong.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"simulator/profiles/{file.name}: {where}: {first['msg']}") from None

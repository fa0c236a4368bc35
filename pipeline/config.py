"""What a setting may be: frozen pydantic models of every group in conf/ and of every stage's subtree.

Reading files and composing them is `pipeline.io.conf`; here are only the shapes. A model forbids
unknown keys, so a typo stops in `compose` and never reaches a stage.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=False)


def _safe_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", value):
        raise ValueError(f"{value!r} is not a name: use small letters, digits and _ (it becomes a file name)")
    return value


RESERVED = ("libraries", "code", "tokenizer", "reading", "profiles", "report")
"""Top-level keys of build/config.yaml beside the datasets."""


def _dataset_name(value: str) -> str:
    if value in RESERVED:
        raise ValueError(f"{value!r} is not a name for a dataset: build/config.yaml uses it")
    return _safe_name(value)


Name = Annotated[str, AfterValidator(_safe_name)]
DatasetName = Annotated[str, AfterValidator(_dataset_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


# --- target: one model -------------------------------------------------------------------------


class BundledSource(Settings):
    """A vocabulary that an installed package carries (works offline)."""

    kind: Literal["bundled"]
    package: str
    """Module of pipeline.io.vocabularies that reads the package."""
    vocabulary: str


class PathSource(Settings):
    """A folder on disk with `tiktoken.model` or `tokenizer.json` (relative to the repository root)."""

    kind: Literal["path"]
    path: str


class HubSource(Settings):
    """A model repository on the Hugging Face hub, pinned."""

    kind: Literal["hub"]
    repo: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    trust_remote_code: bool = False


TokenizerSource = Annotated[BundledSource | PathSource | HubSource, Field(discriminator="kind")]


class FilePin(Settings):
    """What a source file must be, byte for byte."""

    sha256: Sha256
    size: int


class ReservedSlots(Settings):
    """Special ids `first..last`; where no name claims one, `unnamed` with the id in place of `{id}`."""

    first: int
    last: int
    unnamed: str


def _ids_from_text(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(int(part) for part in value.split())
    return tuple(value) if isinstance(value, list) else value


Ids = Annotated[
    tuple[int, ...],
    BeforeValidator(_ids_from_text),
    PlainSerializer(lambda ids: " ".join(map(str, ids)), return_type=str),
]
"""Token ids, as a list or as one text; written as text, since DVC walks every node of its params files."""


class Probe(Settings):
    """A text and the ids that it must become (special strings ordinary unless `special`)."""

    text: str
    ids: Ids
    special: bool = False


class Contract(Settings):
    """How the tokenizer must behave; checked when it is built and, cheaply, when it is loaded."""

    vocab_size: int
    special_tokens: dict[str, int]
    """Every named special token and its id."""
    probes: tuple[Probe, ...]
    corpus_sha256: Sha256
    """Hash over the ids of the fixed corpus in `pipeline.core.corpus`."""


class TokenizerSettings(Settings):
    """Subtree of the `tokenizer` stage."""

    source: TokenizerSource
    files: dict[str, FilePin]
    pattern: tuple[str, ...] | None = None
    """Alternatives of a tiktoken vocabulary's split pattern, in order; None for a `tokenizer.json`.

    One a line: DVC's lock file folds a long text at its spaces and loses some, and then a stage would
    look changed for ever.
    """
    reserved: ReservedSlots | None = None
    ordinary_flag: tuple[str, ...] = ()
    """Special tokens that the vendor flags `special: false` (kept by `skip_special_tokens`)."""
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    contract: Contract

    @property
    def split_pattern(self) -> str | None:
        """The pattern as one regular expression."""
        return None if self.pattern is None else "|".join(self.pattern)


class PromptEncoding(Settings):
    """How the target's own tokenizer encodes a rendered prompt."""

    parse_special: bool
    """Special strings inside message text become special ids."""
    max_chars: int | None = None
    """The text is cut every so many characters before encoding (Kimi: 400,000)."""
    max_run: int | None = None
    """... and inside runs of (non-)whitespace longer than this (Kimi: 25,000)."""


class RenderSettings(Settings):
    """How a request becomes the prompt text that the server saw."""

    template: str
    """Jinja chat template; variables: messages, tools, tools_text, add_generation_prompt, thinking."""
    tool_declarations: Name | None = None
    """Module of `pipeline.core.tool_declarations` that writes `tools_text`."""
    thinking: bool = True
    encoding: PromptEncoding


class TextSegment(Settings):
    """A text field of the answer, encoded alone."""

    text: Literal["reasoning", "content"]


class TokenSegment(Settings):
    """A special token between fields."""

    token: str
    closes: Literal["reasoning"] | None = None


class LiteralSegment(Settings):
    """Fixed text the model writes between fields; encoded together with the neighbouring text."""

    literal: str


class CallField(Settings):
    """A field of one tool call."""

    field: Literal["id", "name", "arguments"]


class ToolCallSegment(Settings):
    """The tool section: `begin (call...)+ end`."""

    begin: str
    end: str
    call: tuple[str | CallField, ...]
    """Special tokens (strings) and fields of one call, in order."""
    id_format: str
    """How the model itself writes a call id; `{name}` and `{index}` (counted over the conversation)."""


class ToolCallsSegment(Settings):
    """Wrapper so that the YAML reads `- tool_calls: {...}`."""

    tool_calls: ToolCallSegment


Segment = TextSegment | TokenSegment | LiteralSegment | ToolCallsSegment


class Grammar(Settings):
    """A completion as ordered segments over the fields of an answer."""

    segments: tuple[Segment, ...]
    end_tokens: dict[Literal["stop", "tool_calls"], str]
    """The end token by ending. It comes from the chat format, never from `tokenizer.eos_token`."""
    prompt_opens_reasoning: bool
    """The generation prompt ends inside reasoning, so the output begins there."""
    reasoning_open: str | None = None
    """Token that opens reasoning (in the prompt, or leaked into a field)."""


Strips = Literal["none", "reasoning_tail", "both"]


class Profile(Settings):
    """What a provider does to text and counts (DESIGN 3); all-default means verbatim."""

    space_join: bool = False
    """One space is added on each side of every added token (vLLM's slow detokenizer, vllm#33457)."""
    strips: Strips = "none"
    """`reasoning_tail`: reasoning is right-stripped; `both`: reasoning and content lose edge whitespace."""
    counts_end: bool = True
    """`usage.completion_tokens` includes the end token."""
    rewrites_ids: bool = False
    """Tool-call ids are replaced by the API's own."""
    empty_arguments: Literal["verbatim", "braces"] = "verbatim"
    """`braces`: empty arguments come back as `{}`."""


class Target(Settings):
    """One file of conf/target/."""

    name: Name
    models: dict[str, str]
    """Model name by provider; `default` for the others."""
    tokenizer: TokenizerSettings
    render: RenderSettings
    grammar: Grammar
    sampling: dict[str, Any] = {}
    """What the vendor advises; datasets may say otherwise."""


# --- provider: one endpoint --------------------------------------------------------------------


class SimulatorSettings(Settings):
    """The loopback server that the generate stage starts by itself."""

    profile: str
    """File of pipeline/simulator/profiles/ without its ending."""
    seed: int = 0
    code: str = ""
    """Hash of the simulator's code; written by compose, so that changed answers are asked for again."""


class Api(Settings):
    """What is sent: changes data, part of every request's key."""

    identity: str
    """Names the endpoint in request keys; never a port or a key."""
    path: str = "/chat/completions"
    body: dict[str, Any] = {}
    """Fields sent with every request, as they are."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    history_reasoning: Literal["reasoning", "reasoning_content"] = "reasoning"
    """Field in which reasoning of earlier turns is sent back."""
    simulator: SimulatorSettings | None = None
    accept_missing: bool = False
    """Requests that stay without an answer become rejects instead of failing the stage."""

    @model_validator(mode="after")
    def _no_stop(self) -> Api:
        if "stop" in self.body:
            raise ValueError("stop strings cut reasoning and hide the end token (vllm#38499): remove `stop`")
        return self


class Price(Settings):
    """US dollars per million tokens: the most that is reserved, and the cost where none is reported."""

    prompt: float
    completion: float


class Transport(Settings):
    """How it is sent: never changes data, read straight from conf/ and declared by no stage."""

    base_url: str | None = None
    key_env: str | None = None
    """Name of the environment variable that holds the API key."""
    connect_timeout_s: float = 30.0
    deadline_s: float = 1800.0
    """Wall-clock limit of one attempt; keep-alive padding defeats read timeouts."""
    max_attempts: int = 6
    max_response_bytes: int = 64 * 1024 * 1024
    stream: bool = False
    """Ask for server-sent events. They are assembled to the answer that a plain request would have given."""
    price: Price | None = None
    generation_path: str | None = None
    """Where `?id=<generation id>` tells what a generation cost (OpenRouter: /generation)."""
    breaker_failures: Annotated[int, Field(gt=0)] = 20
    breaker_s: Annotated[float, Field(ge=0)] = 120.0
    """The run stops after so many failures in a row, if they took at least so long."""


class Provider(Settings):
    """One file of conf/provider/."""

    name: Name
    api: Api
    transport: Transport
    profiles: dict[str, Profile] = {}
    """Pinned profile by served provider; `default` for the others."""
    sampling: dict[str, Any] = {}


# --- dataset: one prompt set -------------------------------------------------------------------


class FileSource(Settings):
    """A prompt file; under conf/prompts/ compose hashes it, any other path carries its sha256."""

    kind: Literal["path"]
    path: str
    sha256: Sha256 | None = None


class HubPrompts(Settings):
    """A dataset on the Hugging Face hub (optional extra `datasets`)."""

    kind: Literal["hub"]
    repo: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    split: str = "train"
    config: str | None = None


PromptSource = Annotated[FileSource | HubPrompts, Field(discriminator="kind")]


class Mapping(Settings):
    """How a source row becomes messages."""

    shape: Literal["messages", "conversations", "alpaca", "text", "turns", "glaive"]
    field: str | None = None
    """Column that holds the messages, turns or text; None: the shape's usual name."""
    tools_field: str | None = None
    id_field: str | None = None
    system: str | None = None
    """System message put in front of rows that have none."""


class PromptSettings(Settings):
    """Subtree `<dataset>.prompts`."""

    source: PromptSource
    mapping: Mapping
    turns: Literal["last", "each"] = "last"
    """`each`: every user turn is answered on-policy and is a row of its own."""
    limit: Annotated[int, Field(gt=0)] | None = None
    sample: Annotated[int, Field(gt=0)] | None = None
    seed: int = 0
    dedupe: bool = True


class Sampling(Settings):
    """Sampling parameters, sent only where set; `max_tokens` always (in-flight budgets reckon with it)."""

    max_tokens: int = 8192
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


class Rules(Settings):
    """What a dataset's rows must keep to, beside the rules of `pipeline.core.rules`."""

    max_reject_share: float = 0.05
    """The validate stage fails when more of the responses than this give no row."""
    max_length: int | None = None
    """Tokens of prompt and completion together."""


class Dataset(Settings):
    """One file of conf/dataset/."""

    name: DatasetName
    about: str
    prompts: PromptSettings
    provider: Name | None = None
    sampling: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    exports: dict[str, dict[str, Any]] = {}


# --- subtrees: what one stage of one dataset reads ----------------------------------------------


class GenerateSettings(Settings):
    """Subtree `<dataset>.generate`."""

    provider: Name
    model: str
    api: Api
    sampling: Sampling
    thinking: bool = True


SHARD_ROWS = 2000
"""Rows of a shard of samples, on average; where it is cut is decided by content."""


class ReconstructSettings(Settings):
    """Subtree `<dataset>.reconstruct`; provider profiles come from the profiles stage."""

    render: RenderSettings
    grammar: Grammar
    shard_rows: int = SHARD_ROWS


class ProfilesSettings(Settings):
    """Subtree `profiles`: one for all datasets, since a provider's habits show only over many rows."""

    render: RenderSettings
    grammar: Grammar
    pinned: dict[str, dict[str, Profile]]
    """Dataset -> served provider (or `default`) -> profile."""


class ReportSettings(Settings):
    """Subtree `report`."""

    simulators: dict[str, SimulatorSettings | None]
    """Dataset -> the simulator that answered it, whose truth is known; None for real endpoints."""


class ValidateSettings(Settings):
    """Subtree `<dataset>.validate`."""

    rules: Rules
    render: RenderSettings
    grammar: Grammar


class ExportSettings(Settings):
    """One format of `<dataset>.export`; formats read what they need of it."""

    min_fidelity: Literal["native", "logprobs", "counted", "unverified"] = "counted"
    """Rows less sure than this are left out (and counted in the card)."""
    rows_per_file: int = 10_000
    shuffle_seed: int | None = None
    """Shuffles by conversation; None keeps the source order."""
    validation_share: float = 0.0
    """Share of conversations that goes to the validation split; a conversation stays on one side."""
    max_length: Annotated[int, Field(gt=0)] | None = None
    """Tokens of prompt and completion that the trainer reads; None: no limit."""
    too_long: Literal["drop", "cut", "keep"] = "drop"
    """What becomes of longer rows; the card counts them. `cut`: on the right, as trainers do."""
    draft_vocabulary: Annotated[int, Field(gt=0)] | None = None
    """Tokens of the drafter's vocabulary: writes the maps to the target's, counted over the train split."""
    vocabulary_as: Literal["npy", "pt"] = "npy"
    """`pt`: the trainer's own files; needs the extra `torch`."""
    target_vocabulary: Annotated[int, Field(gt=0)] | None = None
    """Rows of the target's embedding, where they are more than the tokenizer's ids."""


class DatasetOverrides(Settings):
    """`overrides.dataset.<d>` of params.yaml; each is merged over what conf/ says."""

    sampling: dict[str, Any] = {}
    api: dict[str, Any] = {}
    prompts: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    exports: dict[str, dict[str, Any]] = {}


class Overrides(DatasetOverrides):
    """`overrides` of params.yaml, for all datasets."""

    tokenizer: dict[str, Any] = {}
    render: dict[str, Any] = {}
    grammar: dict[str, Any] = {}
    dataset: dict[Name, DatasetOverrides] = {}


class Params(Settings):
    """params.yaml: the short choice of what to build."""

    target: Name
    provider: Name
    datasets: Annotated[tuple[DatasetName, ...], Field(min_length=1)]
    exports: tuple[Name, ...]
    overrides: Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)] = {}


class Runtime(Settings):
    """conf/runtime/: never invalidates anything."""

    concurrency: Annotated[int, Field(gt=0)] = 64
    """Most requests in flight. Fewer where a provider pushes back."""
    max_cost_usd: Annotated[float, Field(ge=0)] | None = None
    """Of one run, all datasets together."""
    max_cost_usd_by_dataset: dict[DatasetName, Annotated[float, Field(ge=0)]] = {}
    store: str | None = None
    executor: Literal["local", "ray"] = "local"
    """Where the shards of large datasets are worked on: in processes here, or on a Ray cluster."""
    workers: Annotated[int, Field(gt=0)] | None = None
    """Processes at once; None: as many as there are cores."""
    ray_address: str | None = None
    """Of a running cluster (`auto`, `ray://host:10001`); None starts one on this machine."""
    shard_cache: str | None = None
    """Folder of finished shards; None: the user's cache folder."""
    shard_cache_gb: Annotated[float, Field(ge=0)] = 10.0
    fast_encoder: bool = True
    """Large datasets are encoded by fastokens, compared with the reference encoder as it goes."""

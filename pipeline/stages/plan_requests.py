"""Prompts of datasets that will ask + the store -> a line each: requests, tokens, cost; nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.config import GenerateSettings, Price, Transport
from pipeline.core.attempts import Course
from pipeline.core.classify import classify
from pipeline.core.encoding import Encoder
from pipeline.core.estimate import (
    EvenSample,
    Outgoing,
    Requests,
    Tally,
    completion_tokens,
    cost_of,
    count_tokens,
)
from pipeline.core.render import UnrenderableRequest, render_ids
from pipeline.core.turns import Asked, Response, replay
from pipeline.io.conf import Composed, load_runtime, load_transport
from pipeline.io.files import read_parquet_parts
from pipeline.io.store import Store
from pipeline.io.store_location import store_path
from pipeline.io.tokenizers import ensure
from pipeline.records import Prompt
from pipeline.stages.shell import parse_settings

MOST_ENCODED = 2000
"""Requests of all datasets together that are encoded to count their tokens; of more, an even part is."""
MOST_LENGTHS = 500
"""Answers of a dataset's last build whose lengths are read."""


class Asking:
    """Counts dataset after dataset; a request that two of them share counts for the first."""

    def __init__(self, root: Path, composed: Composed) -> None:
        self._root = root
        self._composed = composed
        self._stack = ExitStack()
        self._stores: dict[Path, Store | None] = {}
        self._seen: set[str] = set()
        self._found: list[tuple[str, GenerateSettings, Tally]] = []
        # Half of it: a sample may grow to twice its size before it is thinned.
        self._share = max(1, MOST_ENCODED // (2 * len(composed.datasets)))

    def __enter__(self) -> Asking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(
        self, dataset: str, prompts: Iterable[Prompt], subtree: dict[str, Any], before: dict[str, Any] | None
    ) -> None:
        """`before`: the generate settings of the last build; its answers tell how long answers are."""
        settings = parse_settings(GenerateSettings, subtree, f"{dataset}.generate")
        answer = self._answer(settings)
        tally = Tally(self._seen, EvenSample(self._share))
        for prompt in prompts:
            tally.add(prompt, replay(prompt, settings, answer))
        if not tally.lengths and before is not None and _same_endpoint(before, settings):
            tally.lengths += islice(self._built_lengths(dataset), MOST_LENGTHS)
        self._found.append((dataset, settings, tally))

    def requests(self) -> list[Requests]:
        """A line for each dataset that was added."""
        return [self._line(*found) for found in self._found]

    def _line(self, dataset: str, settings: GenerateSettings, tally: Tally) -> Requests:
        lengths = tally.lengths or [
            length
            for _, other, of_other in self._found
            if other.api.identity == settings.api.identity and other.model == settings.model
            for length in of_other.lengths
        ]
        tokens = count_tokens(tally.outgoing, self._prompt_tokens, settings.sampling.max_tokens, lengths)
        transport = load_transport(settings.provider, self._root)
        simulated = settings.api.simulator is not None
        price = transport.price or (Price(prompt=0.0, completion=0.0) if simulated else None)
        nothing = Price(prompt=0.0, completion=0.0) if not tally.outgoing.added else None
        known = price or nothing
        return Requests(
            dataset=dataset,
            provider=settings.provider,
            to_send=tally.to_send,
            later=tally.later,
            paid=tally.paid,
            shared=tally.shared,
            refused=tally.refused,
            tokens=tokens,
            cost=None if known is None else cost_of(tokens, known),
            simulated=simulated,
        )

    # --- answers ---------------------------------------------------------------------------------

    def _answer(self, settings: GenerateSettings) -> Callable[[Asked], Response | None]:
        """What the store has for a request, an answer that an interrupted run left behind included."""
        runtime = load_runtime(self._root)
        path = store_path(self._root, runtime.store, simulator=settings.api.simulator is not None)
        if path not in self._stores:  # opening would make a file
            self._stores[path] = self._stack.enter_context(Store(path)) if path.exists() else None
        store = self._stores[path]
        if store is None:
            return lambda asked: None
        transport = load_transport(settings.provider, self._root)
        return lambda asked: store.get(asked.key) or _left_behind(asked, store, transport)

    def _built_lengths(self, dataset: str) -> Iterator[int]:
        """Completion tokens of the answers of the last build."""
        path = self._root / f"build/responses/{dataset}.parquet"
        for part in read_parquet_parts(path, MOST_LENGTHS) if path.exists() else ():
            for row in part.select(["status", "body", "failure"]).to_pylist():
                if row["failure"] is None:
                    yield from completion_tokens(classify(row["status"], {}, row["body"], {}).body)

    # --- tokens ----------------------------------------------------------------------------------

    @cached_property
    def _encoder(self) -> Encoder:
        """Loaded only if something is sent."""
        target = self._composed.target
        return ensure(target.tokenizer, target.render.encoding, self._root)

    def _prompt_tokens(self, outgoing: Outgoing) -> int:
        """A prompt that can't be rendered has no known length; it counts as none and is refused later."""
        request = {"messages": outgoing.messages, "tools": outgoing.tools}
        try:
            return len(render_ids(request, self._composed.target.render, self._encoder).ids)
        except UnrenderableRequest:
            return 0


def _same_endpoint(before: dict[str, Any], settings: GenerateSettings) -> bool:
    return (before["api"]["identity"], before["model"]) == (settings.api.identity, settings.model)


def _left_behind(asked: Asked, store: Store, transport: Transport) -> Response | None:
    """The raw answer of a run that was killed before it could settle it: the next run will not ask again."""
    course = Course(transport.max_attempts, lambda low, high: low)
    for past in store.attempts(asked.key):
        if past.response is not None:
            response = past.response
            verdict = classify(response.status, response.headers, response.body, asked.body)
            if course.recall(past.n, response.status, verdict) == past.n:
                return response
    return None

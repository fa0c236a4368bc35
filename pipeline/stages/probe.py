"""A handful of requests to each served provider -> a table of what each does, and profiles to pin.

Reads conf/ alone (overrides in params.yaml concern datasets). Answers stay in the store, under keys of
their own, so that looking again costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pipeline.config import GenerateSettings, Provider, Sampling, Target
from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.core.probe_findings import find
from pipeline.core.probes import (
    PROBES,
    Evidence,
    Odd,
    Probe,
    knocks,
    probe_body,
    read_evidence,
    routes_of,
)
from pipeline.core.requests import endpoint_identity
from pipeline.core.turns import Asked, Response
from pipeline.errors import ConfigError, GenerationError
from pipeline.io import fetch
from pipeline.io.code import hash_folder
from pipeline.io.conf import load_provider, load_runtime, load_target
from pipeline.io.store import Store
from pipeline.io.store_location import store_path
from pipeline.io.tokenizers import ensure
from pipeline.records import Action
from pipeline.stages.probe_screen import WHOLE, Heard, show, show_json

KNOCKS, MOST_KNOCKS = 32, 96
"""Tiny requests of one round, and at most, that find who stands behind an endpoint that balances load."""

Ask = Callable[[Sequence[Asked]], Mapping[str, Response]]


@dataclass(frozen=True, slots=True)
class _Sent:
    """`route` None: the endpoint as it is."""

    probe: Probe
    route: str | None
    asked: Asked


def run(
    provider: str, target: str, root: Path, console: Console, *, json: bool = False, sample: int = 0
) -> None:
    """Ask what the store has no answer to, then report. Another `sample` asks anew.

    Raises GenerationError if nobody answers.
    """
    endpoint, chosen = load_provider(provider, root), load_target(target, root)
    settings = _settings(endpoint, chosen, root)
    encoder = ensure(chosen.tokenizer, chosen.render.encoding, root)
    grammar = CompiledGrammar(chosen.grammar, encoder.special, thinking=chosen.render.thinking)
    runtime, simulator = load_runtime(root), settings.api.simulator
    with Store(store_path(root, runtime.store, simulator=simulator is not None)) as store:

        def ask(asked: Sequence[Asked]) -> Mapping[str, Response]:
            return fetch.ask_all(asked, provider, endpoint.transport, simulator, runtime, store)

        prober = _Prober(settings, chosen, encoder, ask, store, sample)
        prober.probe_all(routes_of(settings.api), [name for name in endpoint.profiles if name != WHOLE])
    heard = dict(sorted(prober.heard.items()))
    found = {name: find(one.evidence, encoder, grammar) for name, one in heard.items()}
    if json:
        show_json(console, found, heard)
    else:
        show(console, endpoint, found, heard, prober.asked)


def _settings(endpoint: Provider, target: Target, root: Path) -> GenerateSettings:
    api = endpoint.api
    if api.simulator is not None:  # answers of a changed simulator are other answers
        code = hash_folder(root / "pipeline/simulator")
        api = api.model_copy(update={"simulator": api.simulator.model_copy(update={"code": code})})
    model = target.models.get(endpoint.name, target.models.get("default"))
    if model is None:
        where = f"conf/target/{target.name}.yaml: models"
        raise ConfigError(f"{where}: no name for provider {endpoint.name} and no default")
    return GenerateSettings(
        provider=endpoint.name, model=model, api=api, sampling=Sampling(), thinking=target.render.thinking
    )


class _Prober:
    """Sends the probes and sorts the answers by who served them."""

    def __init__(
        self,
        settings: GenerateSettings,
        target: Target,
        encoder: Encoder,
        ask: Ask,
        store: Store,
        sample: int,
    ) -> None:
        self._settings, self._target, self._encoder = settings, target, encoder
        self._ask, self._store, self._sample = ask, store, sample
        self._identity = f"{endpoint_identity(settings.api)}#probe"
        self.heard: dict[str, Heard] = {}
        self.asked = 0

    def probe_all(self, routes: Sequence[str], pinned: Sequence[str]) -> None:
        """The named routes; if none is named, the endpoint, and each provider that its answers name."""
        if routes:
            self._probe(routes)
            return
        self._probe([None])
        names = [name for name in self.heard if name != WHOLE]
        if len(names) > 1:
            self._probe(list(dict.fromkeys((*names, *self._knock(names), *pinned))))

    def _probe(self, routes: Sequence[str | None]) -> None:
        self._keep(self._hear([self._request(probe, route) for route in routes for probe in PROBES]))

    def _knock(self, known: Iterable[str]) -> list[str]:
        """Names of more providers, until a round of tiny requests brings none."""
        names = dict.fromkeys(known)
        for first in range(1, MOST_KNOCKS + 1, KNOCKS):
            before = len(names)
            for _, read in self._hear([self._request(probe, None) for probe in knocks(first, KNOCKS)]):
                served = read.answer.served_provider if isinstance(read, Evidence) else read.served
                names |= {served: None} if served else {}
            if len(names) == before:
                break
        return list(names)

    def _request(self, probe: Probe, route: str | None) -> _Sent:
        body, path = probe_body(probe, self._settings, route), self._settings.api.path
        self.asked += 1
        return _Sent(probe, route, Asked.of(self._identity, path, body, self._sample))

    def _keep(self, heard: Sequence[tuple[_Sent, Evidence | Odd]]) -> None:
        """Answers first: they tell under which name a route's failures belong."""
        for one, read in heard:
            if isinstance(read, Evidence):
                served = self._of(read.answer.served_provider or one.route or WHOLE)
                served.evidence.append(read)
                served.routes[one.route or ""] = None
        for one, read in heard:
            if isinstance(read, Odd):
                names = [name for name, it in self.heard.items() if (one.route or "") in it.routes]
                name = read.served or (names[0] if len(names) == 1 else one.route or WHOLE)
                self._of(name).odd.setdefault(read.why, []).append(one.probe.name)

    def _of(self, name: str) -> Heard:
        return self.heard.setdefault(name, Heard())

    def _hear(self, sent: Sequence[_Sent]) -> list[tuple[_Sent, Evidence | Odd]]:
        """What came of each. A refused request stops a run: it is noted, and the others are asked again.

        So a wrong name, or a parameter that somebody does not take, hides nothing else. Raises
        GenerationError for every other stop (interrupted, budget spent), and if nobody ever answers.
        """
        heard: list[tuple[_Sent, Evidence | Odd]] = []
        left = list(sent)
        while left:
            attempts = {one.asked.key: len(self._store.attempts(one.asked.key)) for one in left}
            try:
                answers = self._ask([one.asked for one in left])
            except GenerationError:
                refused = {one.asked.key: self._refusal(one, attempts[one.asked.key]) for one in left}
                heard += [(one, Odd(why)) for one in left if (why := refused[one.asked.key])]
                left = [one for one in left if not refused[one.asked.key]]
                if not any(refused.values()) or not (left or self.heard):
                    raise
            else:
                heard += [(one, self._read(one, answers.get(one.asked.key))) for one in left]
                break
        return heard

    def _refusal(self, one: _Sent, known: int) -> str:
        """Why the endpoint refuses this request, if it has just done so."""
        new = self._store.attempts(one.asked.key)[known:]
        return new[-1].detail or "refused" if new and new[-1].outcome == Action.FATAL_RUN else ""

    def _read(self, one: _Sent, response: Response | None) -> Evidence | Odd:
        if response is None:
            return Odd("no answer came; every attempt is in the store")
        return read_evidence(one.probe.name, one.asked.body, response, self._target.render, self._encoder)

"""A request body -> the ids that the served model samples for it: the truth behind every answer.

Nothing here knows what a provider makes of them. `truth` is for reports and tests: it computes from the
body alone what the server answered (or would answer) under a profile and seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.simulator.chance import Chance
from pipeline.simulator.composer import Said, compose
from pipeline.simulator.profile import NativeRates, Profile, Served, load_profile
from pipeline.simulator.prompt import prompt_ids
from pipeline.simulator.request import Asked, BadRequest, read_request
from pipeline.simulator.splits import resplit
from pipeline.simulator.texts import DEFAULT_FOLDER, Corpus, load_corpus
from pipeline.simulator.vocabulary import (
    ARGUMENTS,
    CALL,
    CALL_END,
    END,
    SECTION,
    SECTION_END,
    THINK_END,
    encode,
)


@dataclass(frozen=True, slots=True)
class Native:
    """What the model sampled. `ending`: stop, tool_calls, or length (cut after max_tokens ids)."""

    ids: tuple[int, ...]
    ending: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """One served request before a provider touches it. `key` seeds all further draws about it."""

    id: str
    key: str
    asked: Asked
    served: Served
    prompt: tuple[int, ...]
    native: Native


@dataclass(frozen=True, slots=True)
class Truth:
    """What an answer should be reconstructed to."""

    id: str
    request_hash: str
    provider: str
    prompt_ids: list[int]
    completion_ids: list[int]
    ending: str
    notes: list[str]
    """What is unusual: hostile, literal_marker, no_think_end, non_canonical, ... (see composer)."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def truth(
    request_body: Mapping[str, Any], profile: str, seed: int = 0, corpus: Path = DEFAULT_FOLDER
) -> Truth:
    """Raises BadRequest for a body that the server refuses, ConfigError for an unknown profile."""
    generation = generate(read_request(dict(request_body)), load_profile(profile), seed, load_corpus(corpus))
    return truth_of(generation)


def truth_of(generation: Generation) -> Truth:
    """The part of a generation that may be told."""
    return Truth(
        id=generation.id,
        request_hash=generation.asked.hash,
        provider=generation.served.name,
        prompt_ids=list(generation.prompt),
        completion_ids=list(generation.native.ids),
        ending=generation.native.ending,
        notes=list(generation.native.notes),
    )


def generate(asked: Asked, profile: Profile, seed: int, corpus: Corpus) -> Generation:
    """Depends on nothing but its arguments."""
    key = f"{profile.name}/{seed}/{asked.hash}"
    chance = Chance(key, "turn")
    said = compose(asked, profile.native, corpus, chance)
    limit = asked.max_tokens or profile.default_max_tokens
    return Generation(
        id=generation_id(profile, seed, asked.hash),
        key=key,
        asked=asked,
        served=choose_provider(asked, profile, Chance(key, "provider")),
        prompt=tuple(prompt_ids(asked)),
        native=write(said, profile.native, limit, chance, thinking=asked.thinking),
    )


def generation_id(profile: Profile, seed: int, request_hash: str) -> str:
    """`gen-` and a hash of what the answer depends on."""
    return "gen-" + hashlib.sha256(f"{profile.name}/{seed}/{request_hash}".encode()).hexdigest()[:28]


def choose_provider(asked: Asked, profile: Profile, chance: Chance) -> Served:
    """One that `provider.only` and `ignore` allow; the first of `provider.order` that there is."""
    wishes = asked.body.get("provider")
    only, ignore, order = (_names(wishes, key) for key in ("only", "ignore", "order"))
    allowed = [one for one in profile.providers if not only or any(_is(one, wish) for wish in only)]
    allowed = [one for one in allowed if not any(_is(one, wish) for wish in ignore)]
    ordered = [one for wish in order for one in allowed if _is(one, wish)]
    if ordered:
        return ordered[0]
    if not allowed or (order and isinstance(wishes, dict) and wishes.get("allow_fallbacks") is False):
        names = ", ".join(one.slug for one in profile.providers)
        raise BadRequest(f"No endpoints found for the requested providers; there are {names}", status=404)
    by_name = {one.name: one for one in allowed}
    return by_name[chance.weighted({one.name: one.weight for one in allowed})]


def _names(wishes: object, key: str) -> list[str]:
    names = wishes.get(key) or [] if isinstance(wishes, dict) else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest(f"provider.{key}: a list of names is needed")
    return names


def _is(one: Served, wish: str) -> bool:
    return wish.lower().split("/")[0] in (one.slug, one.name.lower())


def write(said: Said, rates: NativeRates, limit: int, chance: Chance, *, thinking: bool = True) -> Native:
    """Every text is encoded alone, structure is single ids, and the whole is cut after `limit` ids."""
    texts = [encode(said.reasoning), encode(said.content), encode(said.after_calls)]
    notes = list(said.notes)
    if chance.happens(rates.non_canonical):
        place = 0 if len(texts[0]) > len(texts[1]) else 1
        same_length = chance.happens(rates.non_canonical_same_length)
        other = resplit(texts[place], chance, same_length=same_length)
        if other is not None:
            texts[place] = other
            notes.append("non_canonical_same_length" if same_length else "non_canonical")
    reasoning, content, after = texts
    ids = [*reasoning, *([THINK_END] if thinking and said.closes_reasoning else ()), *content]
    if said.calls:
        ids.append(SECTION)
        for call in said.calls:
            ids += [CALL, *encode(call.id), ARGUMENTS, *encode(call.arguments), CALL_END]
        ids += [SECTION_END, *after]
    ids.append(END)
    if len(ids) > limit:
        return Native(tuple(ids[:limit]), "length", tuple(notes))
    return Native(tuple(ids), "tool_calls" if said.calls else "stop", tuple(notes))

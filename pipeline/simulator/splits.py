"""Ids of a text -> other ids of the same text: a split that the model sampled and no tokenizer makes."""

from __future__ import annotations

from pipeline.simulator.chance import Chance
from pipeline.simulator.vocabulary import ids_by_bytes, token_bytes


def resplit(ids: list[int], chance: Chance, *, same_length: bool) -> list[int] | None:
    """One token in two, or (`same_length`) a border moved between two; None if no place was found."""
    taken = 2 if same_length else 1
    if len(ids) < taken:
        return None
    known = ids_by_bytes()
    places = len(ids) - taken + 1
    first = chance.below(places)
    for at in (*range(first, places), *range(first)):
        old = ids[at : at + taken]
        whole = b"".join(map(token_bytes, old))
        halves = [(known.get(whole[:border]), known.get(whole[border:])) for border in range(1, len(whole))]
        others = [
            [one, two] for one, two in halves if one is not None and two is not None and [one, two] != old
        ]
        if others:
            return [*ids[:at], *chance.pick(others), *ids[at + taken :]]
    return None

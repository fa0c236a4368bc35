"""Does generation hold? Kills, two jobs, faults and a budget at full size, over real HTTP on loopback.

Writes build/bench/chaos.json, prints it, and ends with exit code 1 if a promise is broken. Some 8 minutes;
name parts (kill jobs faults streams fatal budget datasets) to run those alone. The same trials run in
small in tests/chaos.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.io.files import write_json
from tests.chaos.answers import good_answer
from tests.chaos.faults import FATAL_FOR_THE_RUN, PASSING, REFUSED_SETTING, STREAM_FAULTS
from tests.chaos.project import Project, compose, make_project
from tests.chaos.serving import Server, paid_again, running_server, times_asked
from tests.chaos.trials import build_with_faults, build_within, is_good, kill_and_finish, requests_sent

ROOT = Path(__file__).resolve().parent.parent.parent
REQUESTS, IN_FLIGHT, KILLS, SEED = 2000, 500, 20, 20261201
Result = dict[str, Any]


@dataclass
class World:
    """A server, a composed project, and the build that nothing disturbed."""

    folder: Path
    server: Server
    composed: Project
    undisturbed: Project
    copies: int = 0

    def copy(self, *, store: Path | None = None, in_flight: int = IN_FLIGHT) -> Project:
        self.copies += 1
        folder = self.folder / f"copy{self.copies}"
        folder.mkdir()
        project = self.composed.copy(folder, store=store)
        project.runtime(concurrency=in_flight)
        return project

    def bill(self) -> float:
        answers = (good_answer(json.loads(row["request"])) for row in self.undisturbed.rows())
        return sum(answer["usage"]["cost"] for answer in answers)


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise AssertionError(what)


def kill(world: World) -> Result:
    """SIGKILL at random moments of a build, then finish it."""
    chance, builds = random.Random(SEED), []
    for number in range(KILLS):
        in_flight = (200, 350, 500)[number % 3]
        project = world.copy(in_flight=in_flight)
        at, after_s = chance.randint(1, REQUESTS), chance.uniform(0.0, 0.15)
        killed = kill_and_finish(project, world.server, at=at, after_s=after_s)
        builds.append(
            {
                "ended": killed.first.code,
                "limit": in_flight,
                "arrived": killed.arrived,
                "in_flight": killed.in_flight,
                "not_on_disk": killed.out_of_store,
                "kept": killed.kept,
                "paid_twice": killed.paid_again,
                "lost": killed.kept_and_asked_again + killed.wrong_rows,
                "identical": killed.digest == world.undisturbed.digest(),
                "leftovers": len(killed.leftovers),
            }
        )
        shutil.rmtree(project.root.parent)
    result = {
        "builds": len(builds),
        "killed": sum(build["ended"] == -9 for build in builds),
        "lost": sum(build["lost"] for build in builds),
        "paid_twice": sum(build["paid_twice"] for build in builds),
        "in_flight_for_the_server": sum(build["in_flight"] for build in builds),
        "begun_and_not_on_disk": sum(build["not_on_disk"] for build in builds),
        "worst_paid_twice": max(build["paid_twice"] for build in builds),
        "identical": sum(build["identical"] for build in builds),
        "each": builds,
    }
    promise(result["lost"] == 0, f"kill: answers were lost: {result}")
    promise(result["identical"] == KILLS, f"kill: outputs differ from the undisturbed build's: {result}")
    promise(
        all(build["paid_twice"] <= build["limit"] for build in builds),
        f"kill: more was paid twice than may be in flight: {result}",
    )
    return result


def jobs(world: World) -> Result:
    """Two builds at once that differ in grammar and share a store."""
    one = world.copy()
    two = world.copy(store=one.store)
    two.params(overrides={"grammar": {"reasoning_open": None}})
    compose(two)
    world.server.plan(delay_s=(0.3, 0.6))
    running = [job.begin("generate", "one") for job in (one, two)]
    done = [job.wait(process) for job, process in zip((one, two), running, strict=True)]
    stats = world.server.stats()
    promise([each.code for each in done] == [0, 0], f"jobs: {[each.complaints[-500:] for each in done]}")
    result = {
        "requests": len(times_asked(stats)),
        "asked": len(stats.asked),
        "sent": [requests_sent(each.out) for each in done],
        "identical": one.digest() == two.digest() == world.undisturbed.digest(),
    }
    promise(result["asked"] == result["requests"] == REQUESTS, "jobs: a request was paid twice")
    promise(result["identical"], "jobs: outputs differ")
    return result


def faults(world: World, *, stream: bool = False) -> Result:
    """Every fault mixed into 30 % of first attempts."""
    reference, project = world.undisturbed, world.copy()
    project.transport(deadline_s=6.0, stream=stream)
    names = (*STREAM_FAULTS, *PASSING) if stream else PASSING
    if stream:
        reference = world.copy()
        reference.transport(stream=True)
        world.server.plan()
        promise(reference.verb("generate", "one").code == 0, "streams: an undisturbed build fails")
    begun = time.perf_counter()
    mixed = build_with_faults(
        project, world.server, reference.rows(), faults=names, longest_retry_after_s=2.0
    )
    asked = mixed.stats.asked
    result = {
        "rows": mixed.rows,
        "kinds_of_fault": len({entry.served for entry in asked} - {"good"}),
        "faults_met": sum(entry.served != "good" for entry in asked),
        "rows_equal_to_the_fault_free_build": mixed.good,
        "endings": dict(mixed.endings),
        "wrong": len(mixed.wrong),
        "examples_of_wrong": mixed.wrong[:5],
        "runs": mixed.runs,
        "most_in_flight": mixed.stats.most_in_flight,
        "streamed": sum(entry.stream for entry in asked),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    promise(not mixed.wrong, f"faults: {mixed.wrong[:3]}")
    promise(result["kinds_of_fault"] == len(names), "faults: not every fault was met")
    promise(result["streamed"] == (len(asked) if stream else 0), "streams: plain requests were sent")
    return result


def streams(world: World) -> Result:
    """The same as streams, with the faults of streams too."""
    return faults(world, stream=True)


def fatal(world: World) -> Result:
    """What stops a run, one after the other in one project, then a run without."""
    project, answered, codes = world.copy(in_flight=100), 0, {}
    names = [name for name in FATAL_FOR_THE_RUN if name != REFUSED_SETTING]
    for position, name in enumerate(names):
        world.server.plan(always={str(300 + 600 * position): name})
        done = project.verb("generate", "one")
        codes[name] = done.code
        promise(done.code == 1 and bool(done.error), f"fatal: {name}: {done.complaints[-500:]}")
        answered += sum(entry.served == "good" for entry in world.server.stats().asked)
    world.server.plan()
    promise(project.verb("generate", "one").code == 0, "fatal: the last run fails")
    last = len(world.server.stats().asked)
    identical = project.digest() == world.undisturbed.digest()
    promise(answered + last == REQUESTS, "fatal: answers were asked for again")
    promise(identical, "fatal: outputs differ")
    return {"codes": codes, "kept_from_stopped_runs": answered, "asked_at_last": last, "identical": identical}


def budget(world: World) -> Result:
    """A limit far below the whole cost, at 500 in flight."""
    whole, project = world.bill(), world.copy()
    limit = 0.6 * whole
    spent = build_within(project, world.server, limit)
    result = {
        "whole_usd": round(whole, 6),
        "limit_usd": round(limit, 6),
        "bill_usd": round(spent.bill_usd, 6),
        "used": round(spent.bill_usd / limit, 4),
        "requests": spent.requests,
        "most_in_flight": spent.most_in_flight,
        "code": spent.done.code,
        "said": spent.done.complaints.strip()[-300:],
    }
    project.runtime(max_cost_usd=2 * whole)
    world.server.plan(keep_counts=True)
    done = project.verb("generate", "one")
    result["paid_twice_after_a_higher_limit"] = paid_again(world.server.stats())
    result["identical"] = done.code == 0 and project.digest() == world.undisturbed.digest()
    promise(spent.done.code == 1, f"budget: the run does not stop: {result}")
    promise(spent.most_in_flight >= 0.9 * IN_FLIGHT, f"budget: few were in flight: {result}")
    promise(spent.bill_usd <= limit + 1e-12, f"budget: the bill is over the limit: {result}")
    promise(result["identical"] and not result["paid_twice_after_a_higher_limit"], f"budget: {result}")
    return result


def datasets(world: World) -> Result:
    """A limit of one dataset, through `fetch` with two."""
    limit, project = 0.3 * world.bill(), world.copy()
    project.runtime(max_cost_usd_by_dataset={"one": limit})
    world.server.plan()
    done = project.verb("fetch", "one", "two")
    asked = world.server.stats().asked
    of_one = sum(entry.cost_usd for entry in asked if entry.dataset == "one")
    of_two = sum(entry.dataset == "two" for entry in asked)
    result = {"limit_usd": round(limit, 6), "bill_usd": round(of_one, 6), "asked_of_the_other": of_two}
    promise(done.code == 1, f"datasets: {done.complaints[-300:]}")
    promise(of_one <= limit + 1e-12 and of_two == 500, f"datasets: {result}")
    return result


PARTS: dict[str, Callable[[World], Result]] = {
    part.__name__: part for part in (kill, jobs, faults, streams, fatal, budget, datasets)
}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    results: Result = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        composed = make_project(Path(folder) / "composed", {"one": REQUESTS, "two": 500}, max_tokens=512)
        composed.transport(base_url=server.base_url)
        composed.runtime(concurrency=IN_FLIGHT)
        compose(composed)
        (Path(folder) / "undisturbed").mkdir()
        undisturbed = composed.copy(Path(folder) / "undisturbed")
        server.plan()
        done = undisturbed.verb("generate", "one")
        promise(done.code == 0 and all(map(is_good, undisturbed.rows())), done.complaints)
        world = World(Path(folder), server, composed, undisturbed)
        for name in wanted:
            begun = time.perf_counter()
            try:
                results[name] = PARTS[name](world)
            except AssertionError as error:
                broken.append(str(error))
                results[name] = {"broken": str(error)}
            results[name]["wall_s"] = round(time.perf_counter() - begun, 1)
    results["broken"] = broken
    write_json(ROOT / "build/bench/chaos.json", results)
    Console().print_json(json.dumps(results))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()

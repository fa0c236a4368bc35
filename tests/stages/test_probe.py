"""`probe` over real HTTP: the simulator, and a loopback endpoint that routes as OpenRouter does."""

import io
import json
import shutil

import pytest
import yaml
from aiohttp import web
from rich.console import Console

from pipeline.config import Profile
from pipeline.errors import ConfigError, GenerationError
from pipeline.simulator.profile import load_profile
from pipeline.stages import probe
from tests.conftest import ROOT
from tests.io.loopback import completion, failure, loopback


@pytest.fixture(autouse=True)
def store_file(tmp_path, monkeypatch):
    path = tmp_path / "store" / "store.sqlite"
    monkeypatch.setenv("EXACTOK_STORE", str(path))
    return path


@pytest.fixture
def root(tmp_path):
    """A repository with conf/ alone."""
    shutil.copytree(ROOT / "conf", tmp_path / "root/conf")
    return tmp_path / "root"


def write_provider(root, name, body=None, url=None, **more):
    tree = {"name": name, "api": {"identity": name, "body": body or {}}, "transport": {"base_url": url}}
    tree["api"] |= more.pop("api", {})
    (root / f"conf/provider/{name}.yaml").write_text(yaml.safe_dump({**tree, **more}), encoding="utf-8")


def probed(root, name, **options):
    out = io.StringIO()
    probe.run(name, "kimi_k2_5", root, Console(file=out, width=160), **options)
    return out.getvalue()


def yaml_of(text):
    """What a person pastes."""
    start = text.index("# for conf/provider/")
    return yaml.safe_load(text[start:])["profiles"]


def test_every_provider_of_the_simulator_is_found_and_its_profile_printed(root):
    printed = probed(root, "simulator")
    profiles = yaml_of(printed)
    served = {one.name: one.habits for one in load_profile("default").providers}
    assert profiles.keys() == served.keys()
    pinned = yaml.safe_load((ROOT / "conf/provider/simulator.yaml").read_text(encoding="utf-8"))["profiles"]
    for name, settings in profiles.items():
        assert Profile.model_validate(settings) == Profile.model_validate(pinned.get(name, pinned["default"]))
    lines = printed.splitlines()
    for name in served:
        line = next(line for line in lines if line.startswith(f"  {name}: "))
        named = set(line.partition("# undecided: ")[2].split(", ")) - {""}
        assert named <= {"rewrites_ids", "empty_arguments", "strips"}
        for setting in named:
            assert any(one.startswith(f"# {setting}: ") and name in one for one in lines)
        assert "pinned now" not in line
    # Once more: everything is in the store, and says the same.
    assert probed(root, "simulator") == printed


def test_hostile_providers_are_told_apart_in_json(root):
    settings = {"profile": "hostile", "seed": 0}
    write_provider(root, "hostile", api={"simulator": settings})
    found = json.loads(probed(root, "hostile", json=True))
    served = {one.name: one.habits for one in load_profile("hostile").providers}
    assert found.keys() == served.keys()
    assert {name: one["usage"] for name, one in found.items()} == {
        name: habits.usage for name, habits in served.items()
    }
    assert found["Miscount"]["profile"] is None
    assert found["Joiner"]["profile"]["space_join"] is True
    assert found["Trimmer"]["profile"]["strips"] == "reasoning_tail"
    assert found["Stripper"]["profile"]["strips"] == "both"
    assert found["Endless"]["counts_end"] == "not counted"
    assert found["Endless"]["reasoning_in"] == "content, before </think>"
    assert found["Idful"]["token_ids"] == "response_token_ids"
    assert found["Leaker"]["leaks"]


def routed(names):
    """An endpoint with these providers (slug -> name); others do not exist, and logprobs nobody has."""

    async def answer(body, number):
        routing = body["provider"]
        if body.get("logprobs"):
            return failure(404, "No endpoints found that support: logprobs")
        (slug,) = routing["only"]
        if slug not in names:
            return failure(404, f"No endpoints found for {slug}")
        reply = completion(provider := names[slug])
        return web.json_response({**reply, "provider": provider})

    return answer


def test_each_allowed_provider_is_asked_alone_and_a_wrong_name_hides_no_other(root):
    with loopback(routed({"one": "Provider One", "two": "Two"})) as server:
        body = {"provider": {"order": ["one", "nobody", "two"], "data_collection": "deny"}, "x": 1}
        write_provider(root, "routed", body, server.url)
        printed = probed(root, "routed")
        asked = {json.dumps(body["provider"], sort_keys=True) for body in server.asked}
    assert asked == {
        json.dumps({"only": [slug], "allow_fallbacks": False, "data_collection": "deny"}, sort_keys=True)
        for slug in ("one", "nobody", "two")
    }
    assert "Provider One (one)" in printed
    assert "nobody: plain, blank lines, echo" in printed
    assert "No endpoints found for nobody" in printed
    assert "Two: logprobs: No endpoints found that support: logprobs" in printed
    assert "# nobody: nothing to pin: no answer came" in printed


def test_an_endpoint_that_names_nobody_is_one_provider(root):
    async def answer(body, number):
        assert "provider" not in body
        reply = completion()
        return web.json_response({key: value for key, value in reply.items() if key != "provider"})

    with loopback(answer) as server:
        write_provider(root, "own", url=server.url)
        printed = probed(root, "own")
        again = probed(root, "own")
        once = len(server.asked)
        probed(root, "own", sample=1)
        assert len(server.asked) == 2 * once
    assert again == printed
    assert once <= 10
    assert yaml_of(printed) == {"default": {}}


def test_who_is_named_in_conf_and_does_not_answer_is_said(root):
    async def answer(body, number):
        only = body.get("provider", {}).get("only")
        if only == ["Gone"]:
            return failure(404, "No endpoints found for Gone")
        name = only[0] if only else ("Alpha", "Beta")[len(body["messages"][0]["content"]) % 2]
        return web.json_response({**completion(), "provider": name})

    with loopback(answer) as server:
        write_provider(root, "balanced", url=server.url, profiles={"default": {}, "Gone": {}})
        printed = probed(root, "balanced")
    assert "Alpha" in printed
    assert "Beta" in printed
    assert "No endpoints found for Gone" in printed
    assert yaml_of(printed).keys() == {"Alpha", "Beta"}


def test_a_provider_that_takes_no_tools_is_still_read(root):
    async def answer(body, number):
        if body.get("tools"):
            return failure(404, "No endpoints found that support tool use")
        return web.json_response(completion())

    with loopback(answer) as server:
        write_provider(root, "toolless", {"provider": {"only": ["alpha"]}}, server.url)
        found = json.loads(probed(root, "toolless", json=True))
    (reason,) = found["Alpha"]["odd"]
    assert reason.startswith("No endpoints found that support tool use")
    assert set(found["Alpha"]["odd"][reason]) == {"call", "bare call", "tool loop"}
    assert found["Alpha"]["answers"] == 7
    assert found["Alpha"]["routes"] == ["alpha"]


def test_an_interrupted_run_is_not_taken_for_a_refusal(root, monkeypatch):
    asked = []

    def interrupted(*given):
        asked.append(given)
        raise GenerationError("interrupted; every answer is kept, run again to go on")

    monkeypatch.setattr(probe.fetch, "ask_all", interrupted)
    write_provider(root, "own", url="http://127.0.0.1:9")
    with pytest.raises(GenerationError, match="interrupted"):
        probed(root, "own")
    assert len(asked) == 1


def test_nobody_answering_is_one_error(root):
    async def answer(body, number):
        return failure(401, "No auth credentials found")

    with loopback(answer) as server:
        write_provider(root, "locked", url=server.url)
        with pytest.raises(GenerationError, match="No auth credentials found"):
            probed(root, "locked")
    with pytest.raises(ConfigError, match="no provider 'nowhere'"):
        probed(root, "nowhere")

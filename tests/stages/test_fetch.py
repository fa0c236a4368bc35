import json
import shutil
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from pipeline.config import GenerateSettings
from pipeline.errors import ConfigError, GenerationError
from pipeline.io.conf import load_runtime, load_transport
from pipeline.stages import compose, fetch, generate, prompts
from pipeline.stages.shell import parse_settings
from tests.io.loopback import completion, failure, loopback

_DATASETS = ["b2_code", "b6_multiturn"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACTOK_STORE", str(tmp_path / "store.sqlite"))
    for name in ("conf", "pipeline"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("requirements.lock", tmp_path)
    params = yaml.safe_load(Path("params.yaml").read_text())
    params |= {"provider": "openai_compatible", "datasets": _DATASETS}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    return tmp_path


def _point(project, url, runtime="concurrency: 8", **transport):
    path = project / "conf/provider/openai_compatible.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["transport"] |= {"base_url": url, **transport}
    path.write_text(yaml.safe_dump(tree))
    (project / "conf/runtime/default.yaml").write_text(runtime + "\n")


async def _fine(body, number):
    return web.json_response(completion())


def test_all_datasets_are_asked_in_one_run_and_their_stages_send_nothing_more(project):
    with loopback(_fine) as server:
        _point(project, server.url)
        said = fetch.run([], project)
        asked = len(server.asked)
        assert server.most_at_once <= 8
        assert f"{asked} requests sent, ${0.25 * asked:.4f}" in said
        assert said.startswith("fetch: 109 turns of 2 datasets")
        compose.run(project)
        tree = yaml.safe_load((project / "build/config.yaml").read_text())
        for name in _DATASETS:
            prompts.run(name, tree[name]["prompts"], project)
            settings = parse_settings(GenerateSettings, tree[name]["generate"], name)
            out = project / f"build/responses/{name}.parquet"
            where = (load_transport(settings.provider, project), load_runtime(project))
            text = generate.run(
                project / f"build/prompts/{name}.parquet", settings, *where, out, root=project
            )
            assert "0 requests sent" in text
        assert len(server.asked) == asked
        assert "0 requests sent" in fetch.run(["b2_code"], project)


def test_nothing_of_build_is_touched(project):
    with loopback(_fine) as server:
        _point(project, server.url)
        fetch.run(["b2_code"], project)
    assert not (project / "build").exists()


def test_a_dataset_that_is_not_listed_is_refused_with_those_that_are(project):
    with pytest.raises(ConfigError, match=r"b1_tools: not in params.yaml.*b2_code, b6_multiturn"):
        fetch.run(["b1_tools"], project)


def test_what_stays_without_an_answer_is_said_and_kept_for_the_next_run(project):
    async def broken(body, number):
        return failure(500) if "merge" in json.dumps(body) else web.json_response(completion())

    with loopback(broken) as server:
        _point(project, server.url, max_attempts=1)
        with pytest.raises(GenerationError, match=r"fetch: \d+ requests have no answer.*run again"):
            fetch.run(["b2_code"], project)
        before = len(server.asked)
        with pytest.raises(GenerationError):
            fetch.run(["b2_code"], project)
        assert 0 < len(server.asked) - before < before


def test_a_budget_is_of_all_datasets_together_and_one_of_a_dataset_stops_that_alone(project):
    price = {"prompt": 0.0, "completion": 0.25e6 / 8192}
    with loopback(_fine) as server:
        limits = "concurrency: 8\nmax_cost_usd_by_dataset: {b2_code: 1.0}"
        _point(project, server.url, limits, price=price)
        with pytest.raises(GenerationError, match=r"max_cost_usd_by_dataset.b2_code: 1.0000 of 1.0000"):
            fetch.run([], project)
        turns = {json.dumps(body["messages"][0]) for body in server.asked}
        assert len(server.asked) == 4 + 81
        assert len(turns) == 4 + 26
    with loopback(_fine) as server:
        _point(project, server.url, "concurrency: 8\nmax_cost_usd: 2.0", price=price)
        with pytest.raises(GenerationError, match=r"max_cost_usd: 2.0000 of 2.0000"):
            fetch.run([], project)
        assert len(server.asked) == 8


def test_a_limit_without_a_price_is_refused_before_anything_is_sent(project):
    with loopback(_fine) as server:
        _point(project, server.url, "max_cost_usd: 2.0", price=None)
        with pytest.raises(ConfigError, match=r"transport.price: missing"):
            fetch.run([], project)
        assert server.asked == []

import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.config import Overrides, Provider, Sampling
from pipeline.errors import ConfigError
from pipeline.io.conf import compose_all, load_runtime, load_target, load_transport, names_of

ROOT = Path()


@pytest.fixture
def project(tmp_path):
    """conf/ and params.yaml of the project, to be spoilt."""
    shutil.copytree("conf", tmp_path / "conf")
    shutil.copy("params.yaml", tmp_path)
    _params(tmp_path, exports=["specforge", "speculators", "parquet"])
    return tmp_path


def _params(project, **changes):
    path = project / "params.yaml"
    tree = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**tree, **changes}))


def _edit(project, file, **changes):
    path = project / file
    tree = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**tree, **changes}))


@pytest.mark.parametrize("dataset", names_of("dataset", ROOT))
@pytest.mark.parametrize("provider", names_of("provider", ROOT))
def test_every_file_composes_because_it_exists(project, dataset, provider):
    targets, exports = names_of("target", project), names_of("export", project)
    for target in targets:
        _params(project, target=target, provider=provider, datasets=[dataset], exports=exports)
        composed = compose_all(project)
        assert list(composed.datasets) == [dataset]
        assert composed.datasets[dataset].provider.name == provider
        assert load_target(target, project).name == target


def test_transport_and_runtime_are_read_straight_from_conf():
    assert load_transport("openrouter", ROOT).key_env == "OPENROUTER_API_KEY"
    assert load_runtime(ROOT).concurrency > 0


def test_no_file_of_conf_reads_the_environment():
    for path in Path("conf").rglob("*.yaml"):
        assert "${oc.env" not in path.read_text(encoding="utf-8"), path


def test_later_layers_win(project):
    _edit(project, "conf/config.yaml", sampling={"temperature": 0.1, "top_p": 0.9, "max_tokens": 10})
    _edit(project, "conf/provider/simulator.yaml", sampling={"temperature": 0.2})
    _edit(project, "conf/dataset/b2_code.yaml", sampling={"max_tokens": 50})
    own = {"b2_code": {"sampling": {"temperature": 0.5}}}
    _params(project, datasets=["b2_code", "b3_math"], overrides={"sampling": {"top_k": 7}, "dataset": own})
    datasets = compose_all(project).datasets
    assert datasets["b2_code"].sampling == Sampling(temperature=0.5, top_p=0.9, max_tokens=50, top_k=7)
    assert datasets["b3_math"].sampling.temperature == 1.0  # the dataset's own, over the provider's
    assert datasets["b3_math"].sampling.top_k == 7


def test_overrides_reach_api_prompts_rules_exports_and_the_target(project):
    overrides = {
        "api": {"max_tokens_field": "max_completion_tokens"},
        "prompts": {"limit": 3},
        "rules": {"max_length": 99},
        "exports": {"parquet": {"min_fidelity": "native"}},
        "grammar": {"end_tokens": {"stop": "[EOT]", "tool_calls": "[EOT]"}},
    }
    _params(project, overrides=overrides)
    composed = compose_all(project)
    dataset = composed.datasets["b1_tools"]
    assert dataset.api.max_tokens_field == "max_completion_tokens"
    assert (dataset.prompts.limit, dataset.rules.max_length) == (3, 99)
    assert dataset.exports["parquet"].min_fidelity == "native"
    assert dataset.exports["specforge"].min_fidelity == "counted"
    assert composed.target.grammar.end_tokens["stop"] == "[EOT]"


def test_a_dataset_may_have_its_own_provider(project):
    _edit(project, "conf/dataset/b2_code.yaml", provider="openrouter")
    datasets = compose_all(project).datasets
    assert (datasets["b2_code"].provider.name, datasets["b3_math"].provider.name) == (
        "openrouter",
        "simulator",
    )


_PARAMS_FAULTS = [
    ({"provider": None, "providr": "simulator"}, r"params\.yaml: providr: unknown key"),
    ({"target": "nope"}, r"params\.yaml: target: no target 'nope' in conf/target/; there are: .*kimi_k2_5"),
    ({"provider": "nope"}, r"no provider 'nope' .*openrouter"),
    ({"datasets": ["nope"]}, r"params\.yaml: datasets: no dataset 'nope' .*b1_tools"),
    ({"exports": ["nope"]}, r"params\.yaml: exports: no export 'nope' .*specforge"),
    ({"datasets": ["../b1_tools"]}, r"params\.yaml: datasets\.0: '\.\./b1_tools' is not a name"),
    ({"datasets": ["reading"]}, r"'reading' is not a name for a dataset"),
    ({"datasets": []}, r"params\.yaml: datasets"),
    ({"datasets": ["b1_tools", "b1_tools"]}, r"b1_tools stands there twice"),
    ({"datasets": 5}, r"params\.yaml: datasets"),
    ({"dataset": ["b1_tools"]}, r"params\.yaml: dataset: unknown key; there are: target, provider, datasets"),
    (
        {"overrides": {"samplng": {}}},
        r"params\.yaml: overrides\.samplng: unknown key; there are: sampling, api",
    ),
    (
        {"overrides": {"sampling": {"temprature": 1.0}}},
        r"params\.yaml: overrides\.sampling\.temprature: unknown key; there are: max_tokens, temperature",
    ),
    (
        {"overrides": {"sampling": {"temperature": "hot"}}},
        r"overrides\.sampling\.temperature: .*number.*'hot'",
    ),
    ({"overrides": {"sampling": {"max_tokens": True}}}, r"overrides\.sampling\.max_tokens: .*integer"),
    ({"overrides": {"api": {"body": {"stop": ["x"]}}}}, r"overrides\.api.*stop strings"),
    ({"overrides": {"exports": {"parquet": {"typo": 1}}}}, r"overrides\.exports\.parquet\.typo: unknown key"),
    ({"overrides": {"dataset": {"b2_code": {"rules": {"x": 1}}}}}, r"overrides\.dataset\.b2_code\.rules\.x"),
    ({"overrides": {"dataset": {"b2_cod": {}}}}, r"overrides\.dataset: no dataset 'b2_cod' .*b2_code"),
    ({"overrides": {"exports": {"parqet": {}}}}, r"overrides\.exports: no export 'parqet' .*parquet"),
    (
        {"overrides": {"dataset": {"b2_code": {"exports": {"x": {}}}}}},
        r"dataset\.b2_code\.exports: no export 'x'",
    ),
    ({"overrides": {"prompts": {"limit": 0}}}, r"overrides\.prompts\.limit: .*greater than 0"),
    ({"overrides": {"api": {"body": {"user": "${ oc.env:HOME }"}}}}, r"params\.yaml: .*key_env"),
]


@pytest.mark.parametrize(("changes", "message"), _PARAMS_FAULTS)
def test_a_mistake_in_params_is_one_line(project, changes, message):
    _params(project, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        compose_all(project)
    assert "\n" not in str(caught.value)


_FILE_FAULTS = [
    (
        "conf/dataset/b1_tools.yaml",
        {"smapling": {}},
        r"conf/dataset/b1_tools\.yaml: smapling: unknown key; there are",
    ),
    ("conf/dataset/b1_tools.yaml", {"name": "other"}, r"conf/dataset/b1_tools\.yaml: name: 'other'"),
    ("conf/dataset/b1_tools.yaml", {"about": None}, r"conf/dataset/b1_tools\.yaml: about"),
    ("conf/dataset/b1_tools.yaml", {"prompts": {"mapping": {"shape": "text"}}}, r"prompts\.source: missing"),
    (
        "conf/dataset/b1_tools.yaml",
        {"provider": "nope"},
        r"conf/dataset/b1_tools\.yaml: provider: no provider",
    ),
    (
        "conf/dataset/b1_tools.yaml",
        {"exports": {"parqet": {}}},
        r"conf/dataset/b1_tools\.yaml: exports: no export 'parqet'",
    ),
    ("conf/dataset/b1_tools.yaml", {"about": "???"}, r"about"),
    (
        "conf/provider/simulator.yaml",
        {"transprt": {}},
        r"conf/provider/simulator\.yaml: transprt: unknown key",
    ),
    ("conf/export/parquet.yaml", {"min_fidelity": "sure"}, r"conf/export/parquet\.yaml: min_fidelity"),
    ("conf/target/kimi_k2_5.yaml", {"models": 3}, r"conf/target/kimi_k2_5\.yaml: models"),
]


@pytest.mark.parametrize(("file", "changes", "message"), _FILE_FAULTS)
def test_a_mistake_in_conf_names_file_and_key(project, file, changes, message):
    _edit(project, file, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        compose_all(project)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- a\n", "x: \x00", ""])
def test_a_file_that_is_no_mapping_is_named(project, text):
    (project / "conf/export/parquet.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"conf/export/parquet\.yaml: "):
        compose_all(project)


def test_a_secret_can_not_be_written_into_a_tracked_file(project):
    _edit(project, "conf/provider/openrouter.yaml", name="${oc.env:OPENROUTER_API_KEY}")
    _params(project, provider="openrouter")
    with pytest.raises(ConfigError, match=r"conf/provider/openrouter\.yaml: .*key_env"):
        compose_all(project)


def test_overrides_of_a_dataset_that_is_not_listed_today_wait(project):
    _params(project, datasets=["b1_tools"], overrides={"dataset": {"b2_code": {"rules": {"max_length": 9}}}})
    assert list(compose_all(project).datasets) == ["b1_tools"]


def test_no_overrides_may_be_written_as_nothing(project):
    _params(project, overrides=None)
    assert compose_all(project).datasets


def test_missing_params(tmp_path):
    with pytest.raises(ConfigError, match=r"params\.yaml: missing"):
        compose_all(tmp_path)


def test_overrides_hold_data_settings_only():
    # transport and runtime change no row: an override of them would make stages run for nothing.
    assert not {"transport", "runtime"} & set(Overrides.model_fields)
    assert "transport" in Provider.model_fields

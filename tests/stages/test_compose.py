import shutil
from pathlib import Path

import pytest
import yaml

from pipeline.errors import ConfigError, SourceError
from pipeline.stages import compose, pin


@pytest.fixture
def project(tmp_path):
    for name in ("conf", "pipeline"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "requirements.lock"):
        shutil.copy(name, tmp_path)
    return tmp_path


def _tree(project):
    compose.run(project)
    return yaml.safe_load((project / "build/config.yaml").read_text())


def _replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_each_stage_has_its_settings_and_none_has_how_things_are_sent(project):
    tree = _tree(project)
    assert list(tree)[:6] == ["libraries", "code", "tokenizer", "reading", "profiles", "report"]
    assert list(tree["b1_tools"]) == ["prompts", "generate", "reconstruct", "validate", "export"]
    text = (project / "build/config.yaml").read_text()
    for word in ("transport", "base_url", "key_env", "concurrency", "deadline"):
        assert word not in text


def test_transport_runtime_and_comments_leave_the_file_as_it_is(project):
    _tree(project)
    before = (project / "build/config.yaml").read_bytes()
    _replace(project / "conf/runtime/default.yaml", "concurrency: 64", "concurrency: 3")
    _replace(project / "conf/provider/simulator.yaml", "base_url: null", "base_url: http://127.0.0.1:9")
    _replace(project / "params.yaml", "overrides: {}", "overrides: {} # nothing yet")
    compose.run(project)
    assert (project / "build/config.yaml").read_bytes() == before


def test_the_text_of_the_template_survives(project, kimi_target):
    assert _tree(project)["reading"]["render"]["template"] == kimi_target.render.template


def test_an_edited_prompt_file_changes_that_datasets_prompts_alone(project):
    before = _tree(project)
    with (project / "conf/prompts/b2_code.jsonl").open("a") as file:
        file.write('{"messages": [{"role": "user", "content": "one more"}]}\n')
    after = _tree(project)
    assert [name for name in after if after[name] != before[name]] == ["b2_code"]
    assert [key for key in after["b2_code"] if after["b2_code"][key] != before["b2_code"][key]] == ["prompts"]


def test_an_edited_simulator_changes_what_is_asked(project):
    before = _tree(project)
    with (project / "pipeline/simulator/native.py").open("a") as file:
        file.write("# changed\n")
    after = _tree(project)
    assert after["b1_tools"]["generate"] != before["b1_tools"]["generate"]
    assert after["b1_tools"]["prompts"] == before["b1_tools"]["prompts"]


def test_a_locked_version_is_part_of_the_stages_that_use_it(project):
    before = _tree(project)
    version = before["libraries"]["validate"]["pandera"]
    _replace(project / "requirements.lock", f"pandera=={version}", "pandera==9.9.9")
    after = _tree(project)
    assert after["libraries"]["validate"]["pandera"] == "9.9.9"
    changed = [
        stage for stage in after["libraries"] if after["libraries"][stage] != before["libraries"][stage]
    ]
    assert changed == ["validate"]
    assert {**after, "libraries": {}} == {**before, "libraries": {}}


def test_a_file_outside_is_pinned_and_pin_keeps_comments(project):
    outside = project.parent / "outside.jsonl"
    outside.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    path = project / "conf/dataset/b2_code.yaml"
    _replace(path, "conf/prompts/b2_code.jsonl", "../outside.jsonl")
    with pytest.raises(
        ConfigError, match=r"b2_code\.yaml: prompts\.source\.sha256: missing.*pipeline pin b2_code"
    ):
        compose.run(project)
    comment = path.read_text().splitlines()[0]
    assert comment.startswith("#")
    pin.run("b2_code", project)
    assert path.read_text().splitlines()[0] == comment
    pinned = _tree(project)["b2_code"]["prompts"]["source"]["sha256"]
    outside.write_text('{"messages": [{"role": "user", "content": "changed"}]}\n')
    with pytest.raises(ConfigError, match=r"outside\.jsonl has changed.*pipeline pin b2_code"):
        compose.run(project)
    assert "(was " in pin.run("b2_code", project)
    assert _tree(project)["b2_code"]["prompts"]["source"]["sha256"] != pinned


@pytest.mark.parametrize("dataset", ["nope", "gone"])
def test_pin_of_what_is_not_there(project, dataset):
    if dataset == "gone":
        shutil.copy(project / "conf/dataset/b2_code.yaml", project / "conf/dataset/gone.yaml")
        _replace(project / "conf/dataset/gone.yaml", "b2_code.jsonl", "gone.jsonl")
    with pytest.raises(SourceError, match=dataset):
        pin.run(dataset, project)
    assert "not needed" in pin.run("b1_tools", project)


def test_a_format_without_a_module_is_named(project):
    (project / "conf/export/ghost.yaml").write_text("min_fidelity: counted\n")
    _replace(project / "params.yaml", "exports: [specforge]", "exports: [ghost]")
    with pytest.raises(ConfigError, match=r"conf/export/ghost\.yaml: no module .*parquet, specforge"):
        compose.run(project)


def test_outputs_of_what_is_no_longer_listed_are_removed(project):
    keep = ["prompts/b1_tools.parquet", "reports/b1_tools.json", "reports/profiles.json"]
    keep += ["exports/b1_tools/specforge/x", "samples/b1_tools/s"]
    drop = ["prompts/old.parquet", "prompts/old.rejects.parquet", "responses/old.parquet", "samples/old/s"]
    drop += ["rejects/old.parquet", "verdicts/old.parquet", "reports/old.json", "exports/old/parquet/x"]
    drop += ["exports/b1_tools/oldformat/x"]
    for name in keep + drop:
        path = project / "build" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert "removed what was built of old" in compose.run(project)
    left = {
        path.relative_to(project / "build").as_posix()
        for path in (project / "build").rglob("*")
        if path.is_file()
    }
    assert left == {*keep, "config.yaml"}


def test_every_setting_survives_dvcs_lock_file(project, tmp_path):
    # It folds long texts with spaces and may lose one of them; the stage would look changed for ever.
    from dvc.utils.serialize import dump_yaml, load_yaml

    tree = _tree(project)
    dump_yaml(tmp_path / "lock", tree)
    assert load_yaml(tmp_path / "lock") == tree


def test_the_committed_file_is_what_conf_says(project):
    compose.run(project)
    assert Path("build/config.yaml").read_text() == (project / "build/config.yaml").read_text()

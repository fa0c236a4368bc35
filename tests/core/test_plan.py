from dataclasses import replace

import pytest

from pipeline.core.plan import (
    Change,
    Fate,
    Outlook,
    Stage,
    changed_keys,
    collapsed,
    dataset_of,
    differences,
    group_changes,
    group_names,
    group_outlooks,
    outlooks,
    with_files,
)

_DATASETS = ("one", "two")


def _stages():
    """prompts and generate of two datasets, then one report of both."""
    stages = []
    for name in _DATASETS:
        keys = (f"{name}.prompts", "code.prompts")
        stages.append(
            Stage(f"prompts@{name}", (), keys, recorded={keys[0]: {"limit": 5}, keys[1]: "aa"}),
        )
    for name in _DATASETS:
        recorded = {f"{name}.generate": {"sampling": {"temperature": 1.0}, "model": "m"}}
        stages.append(
            Stage(f"generate@{name}", (f"prompts@{name}",), (f"{name}.generate",), recorded=recorded)
        )
    stages.append(Stage("report", ("generate@one", "generate@two"), ("report",), recorded={"report": {}}))
    return stages


def _settings(**sampling):
    tree = {"code": {"prompts": "aa"}, "report": {}}
    for name in _DATASETS:
        tree[name] = {
            "prompts": {"limit": 5},
            "generate": {"model": "m", "sampling": {"temperature": sampling.get(name, 1.0)}},
        }
    return tree


def _fates(stages, changes, same=()):
    return {name: outlook.fate for name, outlook in outlooks(stages, changes, same).items()}


def test_nothing_changed_means_that_every_stage_stays():
    changes = changed_keys(_stages(), _settings())
    assert changes == []
    assert set(_fates(_stages(), changes).values()) == {Fate.STAYS}


def test_a_changed_leaf_is_named_and_runs_its_stage_and_perhaps_what_follows():
    changes = changed_keys(_stages(), _settings(one=0.5))
    assert changes == [Change("one.generate.sampling.temperature", 1.0, 0.5, ("generate@one",))]
    found = outlooks(_stages(), changes)
    assert found["generate@one"] == Outlook(
        ("generate@one",), Fate.RUNS, ("one.generate.sampling.temperature",)
    )
    assert found["report"] == Outlook(("report",), Fate.MAY_RUN, ("after generate@one",))
    assert found["generate@two"].fate is found["prompts@one"].fate is Fate.STAYS


def test_a_key_that_two_stages_share_is_one_change():
    changes = changed_keys(_stages(), {**_settings(), "code": {"prompts": "bb"}})
    assert changes == [Change("code.prompts", "aa", "bb", ("prompts@one", "prompts@two"))]


def test_a_key_that_went_or_came_is_a_change_as_dvc_sees_it():
    assert list(differences("k", {"a": 1, "b": 2}, {"b": 2, "c": None, "d": 0})) == [
        ("k.d", None, 0),
        ("k.a", 1, None),
    ]
    stage = Stage("s", keys=("new.key",))
    assert changed_keys([stage], {"new": {"key": 3}}) == [Change("new.key", None, 3, ("s",))]


def test_lists_are_compared_item_by_item_only_where_they_are_as_long():
    assert list(differences("k", [1, {"a": 2}], [1, {"a": 3}])) == [("k[1].a", 2, 3)]
    assert list(differences("k", [1], [1, 2])) == [("k", [1], [1, 2])]


def test_outputs_that_are_known_to_stay_make_nothing_run_after_them():
    changes = changed_keys(_stages(), {**_settings(), "code": {"prompts": "bb"}})
    assert _fates(_stages(), changes)["generate@one"] is Fate.MAY_RUN
    found = _fates(_stages(), changes, {"prompts@one"})
    assert found["prompts@one"] is Fate.SAME_OUTPUT
    assert found["generate@one"] is Fate.STAYS
    assert found["generate@two"] is found["report"] is Fate.MAY_RUN


def test_a_stage_that_was_never_built_runs_and_its_settings_are_no_change():
    stages = [replace(_stages()[0], built=False, recorded={}), *_stages()[1:]]
    assert changed_keys(stages, _settings()) == []
    found = outlooks(stages, [])
    assert found["prompts@one"] == Outlook(("prompts@one",), Fate.RUNS, ("never built",))
    assert found["generate@one"].fate is Fate.MAY_RUN


@pytest.mark.parametrize(
    ("restorable", "fate", "after"), [(True, Fate.RESTORED, Fate.STAYS), (False, Fate.RUNS, Fate.MAY_RUN)]
)
def test_a_lost_output_is_restored_where_the_cache_has_it(restorable, fate, after):
    stages = _stages()
    stages[0] = replace(stages[0], outputs=("x is missing",), restorable=restorable)
    found = outlooks(stages, [])
    assert (found["prompts@one"].fate, found["generate@one"].fate) == (fate, after)
    assert found["prompts@one"].causes == ("x is missing",)


def test_inputs_on_disk_tell_nothing_while_an_earlier_stage_will_replace_them():
    stages = _stages()
    stages[2] = replace(stages[2], inputs=("p differs",))
    assert outlooks(stages, [])["generate@one"] == Outlook(("generate@one",), Fate.RUNS, ("p differs",))
    stages[0] = replace(stages[0], outputs=("p differs",), restorable=True)
    assert outlooks(stages, [])["generate@one"].fate is Fate.STAYS


def _files(key, edited, code=None, sources=None):
    (change,) = with_files([Change(key, 1, 2, ("s",))], edited, code or {}, sources or {})
    return change.files


_EDITED = (
    "conf/target/t.yaml",
    "conf/provider/p.yaml",
    "conf/dataset/one.yaml",
    "conf/dataset/two.yaml",
    "conf/runtime/default.yaml",
    "conf/prompts/one.jsonl",
    "params.yaml",
    "pipeline/core/judge.py",
    "pipeline/exports/parquet.py",
    "pipeline/simulator/native.py",
)


@pytest.mark.parametrize(
    ("key", "files"),
    [
        ("code.reconstruct", ("pipeline/core/judge.py",)),
        ("code.prompts", ()),
        ("code.formats.parquet", ("pipeline/exports/parquet.py",)),
        ("libraries.export.pyarrow", ("requirements.lock",)),
        ("one.generate.api.simulator.code", ("pipeline/simulator/native.py",)),
        ("report.simulators.one.code", ("pipeline/simulator/native.py",)),
        ("one.prompts.source.sha256", ("conf/prompts/one.jsonl",)),
        ("reading.grammar.reasoning_open", ("conf/target/t.yaml", "params.yaml")),
        (
            "one.generate.sampling.temperature",
            ("conf/target/t.yaml", "conf/provider/p.yaml", "conf/dataset/one.yaml", "params.yaml"),
        ),
    ],
)
def test_a_change_names_the_edited_files_it_can_come_from(key, files):
    code = {"reconstruct": ["pipeline/core/judge.py", "pipeline/core/classify.py"]}
    sources = {"one": "conf/prompts/one.jsonl", "two": "conf/prompts/two.jsonl"}
    assert _files(key, _EDITED, code, sources) == files


def test_the_same_change_in_several_datasets_is_one_line_and_different_ones_are_not():
    key = "generate.sampling.temperature"
    same = [Change(f"{name}.{key}", 1.0, 0.5, (f"generate@{name}",)) for name in _DATASETS]
    assert group_changes(same, _DATASETS) == [Change(f"*.{key}", 1.0, 0.5, ("generate@one", "generate@two"))]
    other = [same[0], replace(same[1], new=0.7)]
    assert group_changes(other, _DATASETS) == other


def test_hashes_of_code_with_one_cause_are_one_line():
    changes = [Change(f"code.{stage}", "a", "b", (stage,), ("x.py",)) for stage in ("profiles", "report")]
    assert [(one.key, one.stages) for one in group_changes(changes, ())] == [
        ("code.profiles, code.report", ("profiles", "report"))
    ]


def test_stages_of_one_kind_and_cause_are_one_line():
    found = [
        Outlook((f"validate@{name}",), Fate.MAY_RUN, (f"after reconstruct@{name}",)) for name in _DATASETS
    ]
    found.append(Outlook(("validate@three",), Fate.RUNS, ("never built",)))
    assert group_outlooks(found) == [
        Outlook(("validate@one", "validate@two"), Fate.MAY_RUN, ("after reconstruct@*",)),
        found[2],
    ]


def test_causes_that_differ_by_dataset_alone_are_said_once():
    assert collapsed(["pinned.one.x", "pinned.two.x", "one.y"], _DATASETS) == ["pinned.*.x", "one.y"]
    assert collapsed(["oneself.x", "one.x"], _DATASETS) == ["oneself.x", "one.x"]


def test_names_of_stages_are_short():
    totals = {"generate": 6, "export": 2}
    six = [f"generate@d{number}" for number in range(6)]
    assert group_names(["report", *six[:2]], totals) == "report; generate@d0, d1"
    assert group_names(six, totals) == "generate (all 6)"
    assert group_names(six[:5], totals) == "generate@d0, d1, d2, d3 and 1 more"
    assert group_names(["generate@d0"], {"generate": 1}) == "generate@d0"
    assert dataset_of("export@b2_code-specforge") == "b2_code"
    assert dataset_of("report") == ""

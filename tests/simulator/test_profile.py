import pytest

from pipeline.errors import ConfigError
from pipeline.simulator import profile as profiles
from pipeline.simulator.profile import FOLDER, Habits, load_profile
from pipeline.simulator.texts import load_corpus

_NAMES = sorted(file.stem for file in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", _NAMES)
def test_profiles_load(name):
    profile = load_profile(name)
    assert profile.name == name
    served = [one.name for one in profile.providers]
    assert len(served) == len(set(served))


def test_there_are_the_profiles_that_others_name():
    assert set(_NAMES) >= {"default", "hostile", "mixed_faults", "plain", "stormy"}


def test_default_loses_nothing_that_cannot_be_taken_back():
    for served in load_profile("default").providers:
        habits = served.habits
        assert habits.whitespace in ("verbatim", "space_join")
        assert (habits.split_by, habits.call_ids, habits.empty_arguments) == ("ids", "kept", "verbatim")
        assert habits.usage == "right"
        assert habits.leaked_end == 0
    assert load_profile("default").native.non_canonical == 0
    assert load_profile("plain").providers[0].habits == Habits()


def test_an_unknown_profile_names_those_there_are():
    with pytest.raises(ConfigError, match="'nothing': no such file; there are default, hostile"):
        load_profile("nothing")


def test_a_wrong_key_is_named(tmp_path, monkeypatch):
    (tmp_path / "odd.yaml").write_text("about: x\nproviders: [{name: P, habits: {whitespcae: strip}}]\n")
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"odd\.yaml: providers\.0\.habits\.whitespcae: "):
        load_profile("odd")


def test_a_broken_corpus_names_the_line(tmp_path):
    with pytest.raises(ConfigError, match="no texts to answer with"):
        load_corpus(tmp_path)
    (tmp_path / "chat.jsonl").write_text('{"text": "x"}\n{"txt": "y"}\n')
    with pytest.raises(ConfigError, match=r"chat\.jsonl line 2"):
        load_corpus(tmp_path)

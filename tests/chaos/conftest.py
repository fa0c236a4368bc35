"""One provider process and one composed project for the whole folder; every test works on a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.project import Project, compose, make_project
from tests.chaos.serving import Server, running_server

PROMPTS = {"one": 200, "two": 60}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture(scope="session")
def composed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Never built in: it is what the copies are made from."""
    project = make_project(tmp_path_factory.mktemp("composed"), PROMPTS)
    project.transport(base_url=server.base_url)
    project.runtime(concurrency=50)
    compose(project)
    return project


@pytest.fixture
def new_project(composed: Project, tmp_path: Path) -> Callable[..., Project]:
    """A fresh copy a call; `store` lets two share one."""
    made: list[Project] = []

    def new(store: Path | None = None) -> Project:
        folder = tmp_path / f"copy{len(made)}"
        folder.mkdir()
        made.append(composed.copy(folder, store=store))
        return made[-1]

    return new


@pytest.fixture
def project(new_project: Callable[..., Project]) -> Project:
    return new_project()


@pytest.fixture(scope="session")
def undisturbed(composed: Project, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The copy that was built with nothing in its way: what every other build must equal."""
    project = composed.copy(tmp_path_factory.mktemp("undisturbed"))
    server.plan(delay_s=(0.0, 0.01))
    done = project.verb("generate", "one")
    assert done.code == 0, done.complaints
    return project

"""A store that is opened by another name of its file has the same records and the same artifacts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modelyard import open_platform

ROW = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}


def by_link(folder: Path) -> str:
    (folder / "link.db").symlink_to(folder / "yard" / "real.db")
    return str(folder / "link.db")


def by_relative_link(folder: Path) -> str:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "link.db").symlink_to("../yard/real.db")
    return "elsewhere/link.db"


def by_chain(folder: Path) -> str:
    (folder / "first.db").symlink_to("yard/real.db")
    (folder / "second.db").symlink_to("first.db")
    return str(folder / "second.db")


def by_linked_folder(folder: Path) -> str:
    (folder / "linked").symlink_to("yard")
    return "linked/real.db"


def by_parent_of_linked_folder(folder: Path) -> str:
    """Where a link is followed before `..`: not the file that the text of the path would name."""
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "yard" / "inner").mkdir()
    (folder / "deep" / "er" / "jump").symlink_to("../../yard/inner")
    return "deep/er/jump/../real.db"


def by_dots(folder: Path) -> str:
    return "./yard/../yard//./real.db"


def by_relative_path(folder: Path) -> str:
    return "yard/real.db"


NAMES = (
    by_link,
    by_relative_link,
    by_chain,
    by_linked_folder,
    by_parent_of_linked_folder,
    by_dots,
    by_relative_path,
)


def train(path: str) -> None:
    with open_platform(path) as platform:
        model = platform.models.create("m", project="d", base_model="tabular-mini", return_existing=True)
        platform.training.sft(model, [ROW] * 2).result()


def answers(path: str) -> int:
    with open_platform(path) as platform:
        asked = [{"role": "user", "content": "hello"}]
        platform.chat.complete(model="local/d/m", messages=asked, max_tokens=2)
        (model,) = platform.models.list()
        return [*platform.models.checkpoints(model)][-1].step


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "yard").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("made_by_the_name", [False, True])
def test_all_names_of_a_file_have_its_artifacts(
    folder: Path, name: Callable[[Path], str], made_by_the_name: bool
) -> None:
    """Also if the store is made by the other name, such as a link to a file that is not there yet."""
    real, other = str(folder / "yard" / "real.db"), name(folder)
    train(other if made_by_the_name else real)
    assert answers(other) == answers(real) == 1
    train(real)
    train(other)
    assert answers(other) == answers(real) == 3
    assert [one.name for one in folder.rglob("*-artifacts")] == ["real.db-artifacts"]
    assert [one.name for one in folder.rglob("*.db") if not one.is_symlink()] == ["real.db"]


def test_a_name_that_is_relative_is_that_of_the_folder_in_which_it_was_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_platform("yard/real.db") as platform:
        monkeypatch.chdir(folder / "yard")
        model = platform.models.create("m", project="d", base_model="tabular-mini")
        platform.training.sft(model, [ROW] * 2).result()
    assert answers(os.fspath(folder / "yard" / "real.db")) == 1


def test_the_folder_of_a_link_is_used_if_it_is_the_only_one(folder: Path) -> None:
    """As stores have it that were made by a link before their artifacts lay next to the file."""
    real, link = str(folder / "yard" / "real.db"), by_link(folder)
    train(real)
    (folder / "yard" / "real.db-artifacts").rename(folder / "link.db-artifacts")
    assert answers(link) == 1

"""Folders as objects: what is uploaded is there by its path, in order, and nothing is written over."""

from pathlib import Path
from typing import Any

import obstore
import pytest

from modelyard.errors import ArtifactsUnavailable, Conflict
from modelyard.parts.objects.uploads import ObjectFolder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    for name, data in (("config.json", b"{}"), ("a.bin", b"1" * 3000), ("inner/b.txt", b"2")):
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_a_folder_is_uploaded_and_its_last_file_comes_last(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    plain = obstore.put

    def watched(store: Any, name: str, *rest: Any) -> Any:
        put.append(name)
        return plain(store, name, *rest)

    monkeypatch.setattr(obstore, "put", watched)
    place = ObjectFolder(f"{address}/exported")
    place.require_empty()
    told: list[tuple[int, int]] = []
    place.upload(folder, lambda name: name == "config.json", lambda *both: told.append(both))
    assert len(told) == 3
    assert told[-1][0] == told[-1][1] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert put == ["a.bin", "inner/b.txt", "config.json"]
    assert bytes(obstore.get(place._bucket, "inner/b.txt").bytes()) == b"2"
    with pytest.raises(Conflict, match="exported"):
        ObjectFolder(f"{address}/exported").require_empty()
    ObjectFolder(f"{address}/other").require_empty()


def test_a_bucket_that_is_not_there_is_said(address: str, folder: Path) -> None:
    with pytest.raises(ArtifactsUnavailable, match="there is no"):
        ObjectFolder("s3://no-such-bucket/exported").upload(folder)

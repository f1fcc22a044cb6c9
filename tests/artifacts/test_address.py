"""Artifact stores by their addresses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.artifacts.address import open_artifacts
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.cli import main
from modelyard.errors import InvalidInput, StoreError
from modelyard.parts.objects.store import ObjectArtifacts


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_named_by_its_path_or_by_its_address(tmp_path: Path) -> None:
    stored = open_artifacts(str(tmp_path / "a b"), os.urandom).put([b"x"])
    again = open_artifacts((tmp_path / "a b").as_uri(), os.urandom)
    assert isinstance(again, FolderArtifacts)
    assert list(again.names()) == [stored.name]
    assert isinstance(open_artifacts("memory://", os.urandom), MemoryArtifacts)


@pytest.mark.parametrize("address", ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a"])
def test_buckets_have_a_private_folder_of_copies_for_each_address(temporary: Path, address: str) -> None:
    found = [open_artifacts(one, os.urandom) for one in (address, address, f"{address}/c")]
    assert all(isinstance(one, ObjectArtifacts) for one in found)
    (own,) = temporary.iterdir()
    assert own.stat().st_mode & 0o077 == 0
    assert len(list(own.iterdir())) == 2


@pytest.mark.parametrize("address", ["az://container/prefix", "s3://bu cket\0"])
def test_what_the_object_store_lacks_is_said(address: str) -> None:
    with pytest.raises(InvalidInput, match="environment variables"):
        open_artifacts(address, os.urandom)


@pytest.mark.parametrize("address", ["ftp://x", "s3://", "file://host/x", "s3:///x"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="must be a folder"):
        open_artifacts(address, os.urandom)


WORDS = ["s3", "gs", "az", "memory", "MEMORY", "file"]


@pytest.mark.parametrize("word", WORDS)
def test_a_folder_may_be_called_as_a_scheme_is(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (word, f"{word}.d", f"./{word}:x"):
        stored = open_artifacts(folder, os.urandom).put([b"x"])
        assert (tmp_path / folder / stored.name).exists()


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("rest", ["x", "", "/x"])
def test_a_scheme_without_its_slashes_is_a_mistake_and_no_folder(
    word: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="must be a folder"):
        open_artifacts(f"{word}:{rest}", os.urandom)
    assert [*tmp_path.iterdir()] == []


def test_an_endpoint_that_is_none_is_said_to_be(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "nonsense")
    with pytest.raises(StoreError, match="endpoint of the object store of bucket 'bucket' is malformed"):
        open_artifacts("s3://bucket/prefix", os.urandom).check()


@pytest.mark.parametrize("address", ["mysql://host/yard", "sqlite:///yard.db", "postgresql:/host/yard"])
def test_a_store_with_another_address_is_refused_and_not_taken_for_a_file(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="name a file, or postgresql"):
        open_platform(address)
    ran = CliRunner().invoke(main, ["jobs", "list", "--store", address])
    assert (ran.exit_code, "no store has addresses that begin with" in ran.output) == (2, True)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("address", ["s3://k:hidden@bucket", "s3://bucket?secret=hidden", "s3://bucket#hidden"])
def test_secrets_in_an_address_are_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(InvalidInput, match="without credentials") as refused:
        open_artifacts(address, os.urandom)
    assert "hidden" not in str(refused.value)


def test_a_folder_of_copies_that_others_may_open_is_refused(temporary: Path) -> None:
    own = temporary / f"modelyard-{os.getuid()}"
    own.mkdir(mode=0o755)
    with pytest.raises(StoreError, match="this user alone"):
        open_artifacts("s3://bucket", os.urandom)
    own.rmdir()
    own.symlink_to(temporary)
    with pytest.raises(StoreError, match="this user alone"):
        open_artifacts("s3://bucket", os.urandom)


def test_a_platform_takes_a_folder_or_an_address(tmp_path: Path) -> None:
    for artifacts in (tmp_path / "a", str(tmp_path / "a"), (tmp_path / "a").as_uri()):
        with open_platform(tmp_path / "yard.db", artifacts=artifacts) as platform:
            platform.evaluations.objects.publish("dataset", "d", {}, [{"q": repr(artifacts)}], project="p")
    assert len(list((tmp_path / "a").iterdir())) == 3
    assert not (tmp_path / "yard.db-artifacts").exists()


@pytest.mark.slow
@pytest.mark.parametrize("package", ["obstore", "botocore"])
def test_the_missing_extra_is_named(package: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules['{package}'] = None\n"
        "from modelyard import open_platform\n"
        "from modelyard.errors import MissingExtra\n"
        "try:\n"
        "    open_platform(artifacts='s3://bucket')\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{package} is not installed; run: pip install 'modelyard[objects]'\n"

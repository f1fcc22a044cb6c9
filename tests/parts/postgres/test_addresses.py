"""A platform whose store is named by an address, in Python and on the command line, and what can go wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from each import each_case
from modelyard import open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.cli import main
from modelyard.cli.terminal import printable_store
from modelyard.domain.job import JobStatus
from modelyard.errors import InvalidInput, StoreBusy, StoreError, StoreTooNew
from modelyard.stores import RECORDS, PostgresStore
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.table_changes import SchemaChange
from postgres_server import GUARDED, PostgresServer

EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
SECRET = "hunter2-very-secret"


@pytest.fixture(scope="session")
def postgres_with_password(postgres: PostgresServer) -> PostgresServer:
    """The server with a user who needs a password: made once, though pytest may come to this module twice."""
    postgres.execute(f"CREATE ROLE {GUARDED} LOGIN SUPERUSER PASSWORD '{SECRET}'")
    return postgres


def test_a_platform_trains_answers_and_counts_in_postgresql(yard_address: str, tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    with open_platform(yard_address, artifacts=artifacts) as platform:
        model = platform.models.create("support", base_model="tabular-mini", project="desk")
        with platform.worker():
            assert platform.training.sft(model, [EXAMPLE]).wait().status is JobStatus.SUCCEEDED
        platform.chat.complete(model="echo", messages="hello")
    with open_platform(yard_address, artifacts=artifacts) as platform:
        kept = platform.models.find("support", project="desk")
        assert (kept.id, kept.last_step) == (model.id, 1)
        assert platform.usage.total()[0].requests == 1
        platform.backup(str(tmp_path / "copy.db"))
    with open_platform(tmp_path / "copy.db") as copy:
        assert copy.models.find("support", project="desk").id == model.id


def test_without_a_place_for_artifacts_it_says_so_when_one_is_needed(yard_address: str) -> None:
    with open_platform(yard_address) as platform:
        platform.chat.complete(model="echo", messages="hello")
        model = platform.models.create("support", base_model="tabular-mini")
        with pytest.raises(InvalidInput, match="artifacts="):
            platform.training.sft(model, [EXAMPLE])


def test_commands_take_an_address(yard_address: str) -> None:
    made = CliRunner().invoke(main, ["keys", "create", "--store", yard_address, "--entity", "acme", "--json"])
    assert made.exit_code == 0, made.output
    listed = CliRunner().invoke(main, ["keys", "list", "--store", yard_address, "--json"])
    assert [key["entity"] for key in json.loads(listed.stdout)] == ["acme"]
    for command in (["jobs", "list"], ["models"], ["usage"]):
        assert CliRunner().invoke(main, [*command, "--store", yard_address]).exit_code == 0


@pytest.mark.parametrize("password", ["", "wrong-and-" + SECRET])
def test_a_wrong_password_is_a_clear_error_that_does_not_repeat_it(
    postgres_with_password: PostgresServer, password: str
) -> None:
    address = postgres_with_password.address(user=f"{GUARDED}:{password}" if password else GUARDED)
    with pytest.raises(StoreError, match="user or the password") as caught:
        open_platform(address)
    reported = CliRunner().invoke(main, ["keys", "list", "--store", address])
    assert reported.exit_code == 1
    for text in (str(caught.value), repr(caught.value.__cause__), reported.output):
        assert SECRET not in text


def test_the_right_password_opens_it(postgres_with_password: PostgresServer) -> None:
    open_platform(postgres_with_password.address(user=f"{GUARDED}:{SECRET}")).close()


def test_an_unknown_option_of_an_address_is_named() -> None:
    with pytest.raises(StoreError, match="unknown option 'nix'"):
        open_platform("postgresql:///x?nix=1")
    with pytest.raises(StoreError, match="is malformed") as caught:  # it may be a part of a password
        open_platform(f"postgresql:///x?{SECRET}=b@host")
    assert SECRET not in str(caught.value)


def test_a_malformed_address_is_not_repeated() -> None:
    with pytest.raises(StoreError, match="malformed") as caught:
        open_platform(f"postgresql://me:{SECRET}%zz@host/yard")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@each_case(
    ("address", "shown"),
    [
        (f"postgresql://me:{SECRET}@host/yard", "postgresql://me:***@host/yard"),
        (f"postgresql://me:a@{SECRET}@host/yard", "postgresql://me:***@host/yard"),
        (f"postgresql:///yard?user=me&password={SECRET}&port=1", "postgresql:///yard?user=me&password=***&port=1"),
        ("postgresql://me@host/yard", "postgresql://me@host/yard"),
        (Path("yard.db"), "yard.db"),
    ],
)
def test_commands_print_an_address_without_its_password(address: str | Path, shown: str) -> None:
    assert printable_store(address) == shown


def test_no_server_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreBusy, match="is the server running"):
        PostgresStore(f"postgresql:///yard?host={tmp_path}", RECORDS, patience=0.01)


def test_a_missing_database_is_a_clear_error(postgres: PostgresServer) -> None:
    with pytest.raises(StoreError, match=r'"missing" does not exist.*createdb'):
        open_platform(postgres.address("missing"))


def test_a_user_who_may_not_create_tables_is_a_clear_error(postgres: PostgresServer, yard_address: str) -> None:
    postgres.execute("CREATE ROLE stranger LOGIN")
    strange = yard_address.replace("yard@", "stranger@", 1)
    for owned in ("database", "schema"):
        with pytest.raises(StoreError, match=rf"permission denied for {owned} .* grant it to the user of the address"):
            open_platform(strange)
        PostgresStore(yard_address, RECORDS).close()


def test_an_older_server_is_refused(yard_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.parts.postgres.connections.OLDEST", 990000)
    with pytest.raises(StoreError, match=r"PostgreSQL \d+ is too old; 99 or newer"):
        open_platform(yard_address)


@pytest.mark.slow
def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['psycopg'] = None; import modelyard; modelyard.open_platform('postgresql:///yard')"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert tried.returncode == 1
    assert "MissingExtra" in tried.stderr
    assert "modelyard[postgres]" in tried.stderr


def test_a_newer_schema_is_refused_and_a_running_server_notices(yard_address: str) -> None:
    with open_platform(yard_address) as older:
        newer = PostgresStore(yard_address, RECORDS)
        newer.close()
        _migrate(yard_address)
        with pytest.raises(StoreTooNew, match="does not know"):
            open_platform(yard_address)
        with pytest.raises(StoreTooNew, match="restart"):
            older.models.create("support", base_model="tabular-mini")


def test_an_older_schema_is_refused(yard_address: str) -> None:
    PostgresStore(yard_address, RECORDS).close()
    with pytest.raises(StoreError, match="modelyard migrate"):
        PostgresStore(yard_address, RECORDS, changes=(*CHANGES, SchemaChange("9999_newer", [])))


def test_what_cannot_be_a_schema_or_a_durability_is_refused(yard_address: str) -> None:
    with pytest.raises(ValueError, match="name of a schema"):
        PostgresStore(yard_address, RECORDS, 'a"; DROP')
    with pytest.raises(ValueError, match="durability"):
        PostgresStore(yard_address, RECORDS, durability="wishful")


def _migrate(address: str) -> None:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("INSERT INTO modelyard.modelyard_migrations VALUES (999, '9999_newer')")

"""A PostgreSQL server for tests: in a temporary folder, on a socket in it, without a port."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelyard.lazy import deferred
from polling import until

if TYPE_CHECKING:
    import psycopg
else:  # the lanes' environments do not have it
    psycopg = deferred(lambda: import_module("psycopg"))

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))

GUARDED = "guarded"
"""The user who needs a password; everybody else is trusted."""

SETTINGS = {
    "listen_addresses": "''",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "max_worker_processes": "0",
    "autovacuum": "off",
}


def server_folder() -> Path | None:
    """The folder of `postgres` and `initdb`: on the path, or of the newest version that Debian's packages installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    found = shutil.which("postgres") or (str(installed[-1]) if installed else None)
    return None if found is None else Path(found).resolve().parent


class PostgresServer:
    """A server that this process starts and stops. It refuses to run as root, so it is then run as another user."""

    def __init__(self, binaries: Path, of: "PostgresServer | None" = None, **settings: str) -> None:
        """Start a server; as a standby that follows the server `of`, if that is given."""
        self._binaries = binaries
        self._as: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if _is_root() else {}
        self.folder = Path(tempfile.mkdtemp(prefix="yard-pg-"))
        self._data, self._log = self.folder / "data", self.folder / "log"
        if self._as:
            shutil.chown(self.folder, self._as["user"], self._as["group"])
        if of is None:
            self._initialize()
        else:
            self._call(
                "pg_basebackup", "-D", self._data, "-h", of.folder, "-U", "yard", "-R", "-c", "fast", "--no-sync"
            )
        rules = f"local all {GUARDED} scram-sha-256\nlocal all,replication all trust\n"
        (self._data / "pg_hba.conf").write_text(rules)
        options = {**SETTINGS, "unix_socket_directories": f"'{self.folder}'", **settings}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in options.items())
        self._databases = 0
        self.start()

    def start(self) -> None:
        """Start it, again if it was stopped, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._as,
            )
        until(self._answers)

    def stop(self, how: str = "fast") -> None:
        """Stop it: "fast" ends the connections, "immediate" is a crash."""
        self._process.send_signal({"fast": 2, "immediate": 3}[how])
        self._process.wait()

    def close(self) -> None:
        """Stop it and remove its folder."""
        if self._process.poll() is None:
            self.stop("immediate")
        shutil.rmtree(self.folder)

    def address(self, database: str = "postgres", user: str = "yard") -> str:
        """The address of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def create_database(self, template: str = "template1") -> str:
        """Create a database and return its address."""
        self._databases += 1
        name = f"yard{self._databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.address(name)

    def drop_database(self, address: str) -> None:
        """Drop a database, also while something is connected to it: one takes 12 MB in 400 files."""
        self.execute(f"DROP DATABASE {psycopg.conninfo.conninfo_to_dict(address)['dbname']} WITH (FORCE)")

    def empty_database(self, address: str) -> None:
        """Make a database as it was when it was created, in a quarter of the time."""
        name = psycopg.conninfo.conninfo_to_dict(address)["dbname"]
        self.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            name,
        )
        made = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)'"
        for (schema,) in self.execute(made, name):
            self.execute(f'DROP SCHEMA "{schema}" CASCADE', name)
        self.execute("CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC", name)

    def follow_synchronously(self) -> None:
        """Have every commit wait for a standby from now on, once one follows and shows all that was there before."""
        until(lambda: self.execute("SELECT state FROM pg_stat_replication") == [("streaming",)])
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")
        until(lambda: self.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        shown = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
        until(lambda: self.execute(shown) == [(True,)])

    def promote(self) -> None:
        """Make a standby the server that writes."""
        assert self.execute("SELECT pg_promote()") == [(True,)]

    def execute(self, sql: str, database: str = "postgres") -> list[Any]:
        """Run a statement of one's own and return its rows."""
        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def _initialize(self) -> None:
        """Copy what `initdb` makes, which takes ten times as long as a copy; it is kept by the program that made it."""
        program = self._binaries / "initdb"
        made_by = hashlib.sha256(f"{program} {program.stat().st_mtime_ns} {os.geteuid()}".encode()).hexdigest()[:16]
        kept = CACHE / "modelyard" / f"initdb-{made_by}"
        if kept.exists():
            subprocess.run(["cp", "-a", kept, self._data], check=True)
            return
        self._call("initdb", "-D", self._data, "-U", "yard", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        kept.parent.mkdir(parents=True, exist_ok=True)
        copy = kept.with_name(f"{kept.name}-{os.getpid()}")
        subprocess.run(["cp", "-a", self._data, copy], check=True)
        try:
            copy.rename(kept)
        except OSError:  # another process was faster
            shutil.rmtree(copy)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended:\n{self._log.read_text()}")
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.address(), connect_timeout=60).close()
            return True
        return False

    def _call(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [self._binaries / program, *map(str, arguments)],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as,
        )


def _is_root() -> bool:
    return os.geteuid() == 0

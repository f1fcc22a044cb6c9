"""PgBouncer in transaction mode, in front of a PostgreSQL server for tests, on a socket in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from polling import until
from postgres_server import PostgresServer

PORT = 6432


def pooler_program() -> str | None:
    """The program, if it is installed."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


class PgBouncer:
    """A pooler that this process starts and stops, with at most `size` connections to the server's database."""

    def __init__(self, program: str, server: PostgresServer, database: str, size: int = 4) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="yard-pool-"))
        runs_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            runs_as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self.folder, "nobody", "nogroup")
        self._database = database
        (self.folder / "users").write_text('"yard" ""\n')
        (self.folder / "ini").write_text(
            f"[databases]\n{database} = host={server.folder} dbname={database}\n"
            f"[pgbouncer]\nunix_socket_dir = {self.folder}\nlisten_port = {PORT}\nlisten_addr =\n"
            f"auth_type = any\nauth_file = {self.folder}/users\npool_mode = transaction\n"
            f"default_pool_size = {size}\nlogfile = {self.folder}/log\n"
        )
        (self.folder / "ini").write_text(
            (self.folder / "ini").read_text().replace(f"dbname={database}\n", f"dbname={database} user=yard\n")
        )
        self._process = subprocess.Popen(
            [program, self.folder / "ini"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **runs_as
        )
        until(self._answers)

    @property
    def address(self) -> str:
        """The address of the database through the pooler."""
        return f"postgresql://yard@/{self._database}?host={self.folder}&port={PORT}"

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            log = self.folder / "log"
            raise AssertionError(f"the pooler ended:\n{log.read_text() if log.exists() else ''}")
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.address, connect_timeout=60).close()
            return True
        return False

"""A Slurm cluster of one node for tests: slurmctld and slurmd in a temporary folder, on ports of their own."""

import getpass
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from free_ports import free_ports
from polling import until

DAEMONS = ("slurmctld", "slurmd")

CONFIGURATION = """
ClusterName=yard
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SchedulerParameters=sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmctldParameters=preempt_send_user_signal
OverTimeLimit=0
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=batch Nodes={host} Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes={host} PriorityTier=10
"""


def missing() -> list[str]:
    """The daemons and commands that are not installed."""
    return [name for name in (*DAEMONS, "sbatch", "squeue", "scancel", "sinfo") if not found(name)]


def found(name: str) -> str | None:
    """Where a program is: daemons may not be on a user's path."""
    return shutil.which(name, path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin")


class SlurmServer:
    """A cluster that this process starts and stops. The commands find it by the `configuration` in SLURM_CONF."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="yard-slurm-"))
        self.configuration = self.folder / "slurm.conf"
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        host, user, ports = socket.gethostname().partition(".")[0], getpass.getuser(), free_ports(2)
        text = CONFIGURATION.format(host=host, user=user, ports=ports, folder=self.folder)
        self.configuration.write_text(text)
        self._daemons = [self._start(name) for name in DAEMONS]
        try:
            until(lambda: self._idle())
        except AssertionError:
            logs = "\n".join((self.folder / f"{name}.log").read_text()[-2000:] for name in DAEMONS)
            self.close()
            raise AssertionError(f"slurm does not start:\n{logs}") from None

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(found(name)), "-D", "-f", str(self.configuration)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands, and return what it writes."""
        done = subprocess.run(command, env={"SLURM_CONF": str(self.configuration), "PATH": "/usr/bin:/bin"},
                              capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
        return done.stdout.strip()

    def _idle(self) -> bool:
        with suppress(subprocess.CalledProcessError):
            return set(self.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"}
        return False

    def close(self) -> None:
        """End what runs, and both daemons."""
        with suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired, AssertionError):
            self.run("scancel", f"--user={getpass.getuser()}", "--signal=KILL", "--full")
            until(lambda: self.run("squeue", "--noheader") == "")
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

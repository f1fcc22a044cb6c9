"""Servers and workers killed at random moments, while programs hold episodes and train on them:

    python tests/crash/episode_campaign.py [--kills 1000] [--seed 1] [--minutes N] [--sabotage NAME]

Programs ask a server over HTTP, ask again where an answer is lost, reward each episode and train on each group, twice.
Servers accept on one listening socket. Prints a report as JSON; fails when an episode, a turn or a reward is lost, an
answer is booked twice or not at all, or a group, a job or a step is there twice. With `--sabotage` one thing is done
wrongly (`SABOTAGES`), so it must fail.
"""

import argparse
import asyncio
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import attrs
import uvicorn
from worker_process import prepare

from modelyard import Platform, Settings, open_platform
from modelyard.asgi import asgi_app
from modelyard.domain.events import JobEventRecorded
from modelyard.domain.job import Job, JobStatus
from modelyard.domain.training import GRADIENT_STEP
from modelyard.errors import StoreBusy
from modelyard.parts.episodes import capture, training
from modelyard.platform.usage import booking

PROGRAMS, SIZE, TURNS = 2, 2, 3
SETTINGS = Settings(lease=0.5, poll=0.02, max_crashes=10**6)
PATIENCE = 300
"""Seconds after which what does not come on is wrong."""


# ---- what is done wrongly ----------------------------------------------------------------------------------------


def answer_first() -> None:
    """Commit what was answered later."""
    commit = booking.RecordUsage.aperform

    async def aperform(self: Any, driver: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.2)
            await commit(self, driver)

        _kept.append(asyncio.ensure_future(later()))

    booking.RecordUsage.aperform = aperform  # type: ignore[method-assign]


_kept: list[Any] = []


def forget_turns() -> None:
    """Keep no turn of one answer of ten."""
    made, count = capture.EpisodeCapture.__call__, iter(range(10**9))

    def call(self: Any, running: Any, completion: Any, keep: Any) -> Any:
        return (lambda tx: None) if next(count) % 10 == 9 else made(self, running, completion, keep)

    capture.EpisodeCapture.__call__ = call  # type: ignore[method-assign]


def book_twice() -> None:
    """Book one answer of ten under another id, too."""
    book, count = booking.book, iter(range(10**9))

    def booked(tx: Any, entry: Any, keep: Any = None) -> bool:
        if next(count) % 10 == 9:
            book(tx, attrs.evolve(entry, id=f"{entry.id}-again"))
        return book(tx, entry, keep)

    booking.book = booked  # type: ignore[assignment]


def train_twice() -> None:
    """Train a group again that is trained."""
    training._known = lambda *_: None  # type: ignore[assignment]
    training._require_free = lambda *_: None  # type: ignore[assignment]
    training.digest = lambda _: os.urandom(8).hex()


SABOTAGES: dict[str, Callable[[], None]] = {
    "answer first": answer_first,
    "forget turns": forget_turns,
    "book twice": book_twice,
    "train twice": train_twice,
}


# ---- the processes -----------------------------------------------------------------------------------------------


@attrs.frozen
class Yard:
    """A store in a file, the socket of its servers, and the pipe on which its processes tell what they have done."""

    path: Path
    listener: socket.socket
    hears: int
    tells: int
    sabotage: str = ""

    def fork(self, work: Callable[..., None], *arguments: Any) -> int:
        """Return the number of a process that does this, and ends."""
        if pid := os.fork():
            return pid
        status = 1
        try:
            if self.sabotage:
                SABOTAGES[self.sabotage]()
            work(self, *arguments)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)

    def tell(self, *line: Any) -> None:
        os.write(self.tells, json.dumps(line).encode() + b"\n")  # at once, as it is short


def serve(yard: Yard) -> None:
    with open_platform(yard.path, settings=SETTINGS) as platform:
        yard.listener.set_inheritable(True)
        uvicorn.run(asgi_app(platform), fd=yard.listener.fileno(), log_level="critical")


def work(yard: Yard) -> None:
    def observer(event: object) -> None:
        if isinstance(event, JobEventRecorded):
            yard.tell("event", event.job_id, event.type)

    with open_platform(yard.path, settings=SETTINGS, observer=observer) as platform, platform.worker():
        threading.Event().wait()


def drive(yard: Yard, number: int) -> None:
    """Make groups until SIGUSR1, and train on each."""
    ended = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: ended.set())
    url = f"http://127.0.0.1:{yard.listener.getsockname()[1]}"
    with open_platform(yard.path, settings=SETTINGS) as platform:
        model = f"desk/model-{number}"
        yard.tell("began", number)
        while not ended.is_set():
            group = patient(lambda: platform.episodes.group("g", model=model, size=SIZE, url=url))
            for episode in group:
                yard.tell("made", group.id, episode.id)
                converse(yard, episode)
            jobs = {patient(lambda: platform.training.rl(model, [group]).id) for _ in range(2)}  # noqa: B023
            yard.tell("queued", group.id, *jobs)


def patient(ask: Callable[[], Any]) -> Any:
    """Do it again while others write, as a program does."""
    while True:
        with suppress(StoreBusy):
            return ask()


def converse(yard: Yard, episode: Any) -> None:
    told = [{"role": "user", "content": f"Where is refund {episode.id}?"}]
    for turn in range(TURNS):
        body = {"model": "gpt-4o", "messages": told, "max_tokens": 6, "stream": turn == 1}
        text = "".join(said(post(f"{episode.base_url}/chat/completions", episode.key, body), turn == 1))
        yard.tell("answered", episode.id, text)
        told += [{"role": "assistant", "content": text}, {"role": "user", "content": f"and then, {turn}?"}]
    reward = episode.place + len(told[1]["content"]) / 700  # equal ones train nothing
    post(f"{episode.root_url}/v1/episodes/{episode.id}/reward", episode.key, {"reward": reward})
    yard.tell("rewarded", episode.id, reward)


def said(answer: bytes, streamed: bool) -> Iterator[str]:
    if not streamed:
        yield json.loads(answer)["choices"][0]["message"]["content"] or ""
        return
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            yield from (one["delta"].get("content") or "" for one in json.loads(line[6:])["choices"])


def post(url: str, key: str, body: Any) -> bytes:
    """Ask until there is a whole answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    while True:
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=PATIENCE) as answered:
                answer: bytes = answered.read()
            if not body.get("stream") or b"data: [DONE]" in answer:
                return answer
        except urllib.error.HTTPError as error:
            assert error.code == 503, error.read()
        except (OSError, HTTPException):
            pass


# ---- the campaign ------------------------------------------------------------------------------------------------


@attrs.define
class Campaign:
    """Kills servers and workers, and notes what was acknowledged."""

    yard: Yard
    dice: random.Random
    heard: list[list[Any]] = attrs.field(factory=list)
    kills: Counter[str] = attrs.field(factory=Counter)
    running: dict[str, int] = attrs.field(factory=dict)
    rest: bytes = b""

    def run(self, kills: int, minutes: float = 1e6) -> list[str]:
        """Return what is wrong in the end: after so many kills, or minutes."""
        until = time.monotonic() + 60 * minutes
        programs = [self.yard.fork(drive, number) for number in range(PROGRAMS)]
        for name in ROLES:
            self.running[name] = self.yard.fork(ROLES[name])
        try:
            while self.kills.total() < kills and time.monotonic() < until:
                self._hear(self.dice.randrange(8))
                time.sleep(self.dice.uniform(0, 0.03))  # nothing is waited for: the moment is to be random
                self._kill(self.dice.choice(list(ROLES)))
            for pid in programs:
                os.kill(pid, signal.SIGUSR1)
            self._finish(programs)
        finally:
            for pid in [*programs, *self.running.values()]:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        with open_platform(self.yard.path) as platform:
            return [*self._wrong(platform)]

    def _kill(self, name: str) -> None:
        os.kill(self.running[name], signal.SIGKILL)
        os.waitpid(self.running[name], 0)
        self.kills[name] += 1
        self.running[name] = self.yard.fork(ROLES[name])

    def _hear(self, lines: int) -> None:
        """Hear so many lines more."""
        until, wanted = time.monotonic() + PATIENCE, len(self.heard) + lines
        while len(self.heard) < wanted and time.monotonic() < until:
            self._read(1.0)

    def _read(self, seconds: float) -> None:
        if select.select([self.yard.hears], [], [], seconds)[0]:
            *whole, self.rest = (self.rest + os.read(self.yard.hears, 65536)).split(b"\n")
            self.heard += map(json.loads, whole)

    def _finish(self, programs: list[int]) -> None:
        """Let the programs end, and the jobs that they have queued."""
        until, left = time.monotonic() + PATIENCE, set(programs)
        while left and time.monotonic() < until:
            self._read(0.1)
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        with open_platform(self.yard.path) as platform:
            while time.monotonic() < until and any(job.status not in ENDED for job in jobs_of(platform)):
                self._read(0.1)

    def told(self, word: str) -> list[list[Any]]:
        return [line[1:] for line in self.heard if line[0] == word]

    # ---- what is wrong

    def _wrong(self, platform: Platform) -> Iterator[str]:
        groups = [platform.episodes.get(group_id) for group_id in {line[0] for line in self.told("made")}]
        episodes = {episode.id: episode for group in groups for episode in group}
        turns = {id_: episode.turns() for id_, episode in episodes.items()}
        for group_id, episode_id in self.told("made"):
            if episode_id not in episodes:
                yield f"episode {episode_id} of group {group_id} is lost"
        for episode_id, reward in self.told("rewarded"):
            if episodes[episode_id].refresh().reward != reward:
                yield f"the reward of episode {episode_id} is lost"
        answered: dict[str, Counter[str]] = {}
        for episode_id, text in self.told("answered"):
            answered.setdefault(episode_id, Counter())[text] += 1
        for episode_id, texts in answered.items():
            kept = Counter(turn.choice.message.text for turn in turns[episode_id])
            if not texts <= kept:
                yield f"episode {episode_id} has lost {(texts - kept).total()} turns that were answered"
            if not all(one.parent is None or one.follows_exactly or one.why for one in turns[episode_id]):
                yield f"episode {episode_id} has turns that follow others without a reason"
        yield from self._wrong_bookings(platform, [turn.id for of in turns.values() for turn in of])
        yield from self._wrong_jobs(platform)

    def _wrong_bookings(self, platform: Platform, turns: list[str]) -> Iterator[str]:
        booked = [entry.id for entry in platform.usage.list()]
        whole = {entry.id for entry in platform.usage.list() if entry.completion_tokens}
        if lost := set(turns) - set(booked):
            yield f"{len(lost)} turns are not booked"
        if more := whole - set(turns):
            yield f"{len(more)} answers are booked and no turns"
        if len(booked) != sum(total.requests for total in platform.usage.total()) or len(set(booked)) != len(booked):
            yield "the ledger and its totals differ"

    def _wrong_jobs(self, platform: Platform) -> Iterator[str]:
        named = Counter(group_id for job in jobs_of(platform) for group_id in job.spec.get(training.GROUPS, ()))
        for group_id, *queued in self.told("queued"):
            if named[group_id] != 1 or len(queued) != 1:
                yield f"group {group_id} is trained by {named[group_id]} jobs"
        for job in platform.training.list():
            steps = [event.seq for event in platform.training.events(job.id) if event.type == GRADIENT_STEP]
            if job.status != "succeeded" or len(steps) != job.total:
                yield f"job {job.id} is {job.status} with {len(steps)} steps of {job.total}"
        for number in range(PROGRAMS):
            steps = [one.step for one in platform.models.checkpoints(f"desk/model-{number}")]
            if steps != list(range(len(steps))):
                yield f"model {number} has the steps {steps}"

    def report(self, wrong: list[str]) -> dict[str, Any]:
        """What was done, and what came of it."""
        told = {word: len(self.told(word)) for word in ("made", "answered", "rewarded", "queued", "event")}
        return {"kills": dict(self.kills), **told, "wrong": len(wrong), "for example": wrong[:5]}


ROLES: dict[str, Callable[..., None]] = {"server": serve, "worker": work}
ENDED = {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}


def jobs_of(platform: Platform) -> list[Job]:
    return platform._runtime.store.read(lambda snapshot: snapshot.page(Job, "all", limit=10**6))


def yard_in(folder: Path, sabotage: str = "") -> Yard:
    """Make a store with the models of the programs. Nothing is open in this process afterwards."""
    with open_platform(folder / "yard.db") as platform:
        for number in range(PROGRAMS):
            platform.models.create(f"model-{number}", project="desk", base_model="tabular-mini")
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    return Yard(folder / "yard.db", listener, *os.pipe(), sabotage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--sabotage", choices=SABOTAGES, default="")
    asked = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(yard_in(Path(folder), asked.sabotage), random.Random(asked.seed))
        wrong = campaign.run(asked.kills, asked.minutes)
        print(json.dumps(campaign.report(wrong), indent=2))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

"""A platform that is mounted, in a process without a worker, tells of its failures and keeps its slowest answers."""

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.backends import on
from modelyard.errors import ModelyardError
from modelyard.part import Part
from modelyard.parts import STANDARD


def told(platform: Platform) -> set[str]:
    return {json.loads(one.body)["type"] for one in platform.webhooks.waiting()}


def test_the_upkeep_of_a_process_tells_what_it_counted_and_ends_with_its_block(yard_file: Path) -> None:
    done, looks = threading.Event(), []

    def look(_: Any) -> None:
        looks.append(threading.current_thread().name)
        if {"requests.failed", "rate_limit.hit"} <= told(platform) and platform.metrics.slowest():
            done.set()

    backend = ScriptedBackend([on("fail").answer(ModelyardError("broken")), on().answer("fine")], models=["m"])
    with open_platform(yard_file, backend=backend, parts=[*STANDARD, Part("looks", upkeep=look)]) as platform:
        platform.webhooks.add("https://hooks.example")
        platform.webhooks.alert_of_failures(0.1, at_least=2)
        key = platform.keys.create("local", requests_per_minute=1)
        with platform.upkeep():
            for words in ("fail", "fail", "fine"):
                with contextlib.suppress(ModelyardError):
                    platform.chat.complete(model="m", messages=words)
            for _ in range(2):
                with contextlib.suppress(ModelyardError):
                    platform.acting_as(platform.keys.authenticate(key.secret)).chat.complete(model="m", messages="fine")
            assert done.wait(60)
        assert not [one for one in threading.enumerate() if one.name.startswith("modelyard-upkeep")]
    assert set(looks) == {"modelyard-upkeep-looks"}

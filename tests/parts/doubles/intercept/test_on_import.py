"""Libraries are followed whoever loads them, and nothing of the import system is left changed."""

import http.client
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import httpx
import httpx2
import pytest
import requests
import urllib3

from modelyard import ScriptedBackend, open_platform
from modelyard.parts.doubles.intercept.on_import import OnImport
from modelyard.testing import intercept

NAMES = ("followed_one", "followed_two")


class Finder:
    """Finds the modules of `NAMES` with one loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self.loader) if name in NAMES else None


class Plain:
    """A loader that is no `Loader`, as those of tracers are."""

    fails = False

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self.fails:
            raise RuntimeError("broken")


class Derived(Plain, Loader):
    """A loader as the protocol has it."""


class Old:
    """A loader of the old protocol."""

    def load_module(self, name: str) -> ModuleType:
        return sys.modules.setdefault(name, ModuleType(name))


class Blind:
    """A finder that cannot find, which Python skips."""


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], list[str]]]:
    def follow(loader: Any) -> list[str]:
        done: list[str] = []
        finders: list[Any] = [OnImport(frozenset(NAMES), done.append), Blind(), Finder(loader), *sys.meta_path]
        monkeypatch.setattr(sys, "meta_path", finders)
        return done

    yield follow
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("loader", [Plain, Derived])
def test_any_loader_is_followed_and_stays_as_it_is(loader: type[Plain], following: Callable[[Any], list[str]]) -> None:
    given = loader()
    done = following(given)
    assert importlib.util.find_spec(NAMES[0]) is not None
    modules = [importlib.import_module(name) for name in NAMES]
    assert done == [*NAMES]
    assert vars(given) == {}
    for module in modules:
        assert module.__spec__ is not None
        assert module.__spec__.loader is given is module.__loader__


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python itself warns of or refuses such loaders")
@pytest.mark.filterwarnings("ignore:.*load_module:ImportWarning", "ignore:.*exec_module:ImportWarning")
def test_a_loader_of_the_old_protocol_is_followed(following: Callable[[Any], list[str]]) -> None:
    done = following(Old())
    importlib.import_module(NAMES[0])
    assert done == [NAMES[0]]


def test_an_import_that_fails_leaves_nothing_and_the_next_one_counts_once(
    following: Callable[[Any], list[str]],
) -> None:
    given = Derived()
    done = following(given)
    given.fails = True
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            importlib.import_module(NAMES[0])
    del given.fails
    importlib.import_module(NAMES[1])
    assert done == [NAMES[1]]
    importlib.import_module(NAMES[0])
    assert done == [NAMES[1], NAMES[0]]
    assert vars(given) == {}


def test_a_lazy_library_is_followed(following: Callable[[Any], list[str]]) -> None:
    done = following(Derived())
    spec = importlib.util.find_spec(NAMES[0])
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAMES[0]] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    assert done == []
    assert not hasattr(module, "other")
    assert done == [NAMES[0]]


# ---- the interception of real libraries

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def asked(client: Any) -> str:
    url = "https://api.openai.com/v1/chat/completions"
    answer = client.post(url, json=BODY, headers={"authorization": "Bearer sk-any"}, timeout=5)
    return str(answer.json()["choices"][0]["message"]["content"])


def test_a_library_that_is_barred_is_left_alone(monkeypatch: pytest.MonkeyPatch, loopback_only: None) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with open_platform(backend=ScriptedBackend(["hello"], models=["m"])) as platform, intercept(platform):
        assert asked(httpx) == "hello"
        assert sys.modules["aiohttp"] is None


def test_a_program_that_restores_its_finders_finds_its_clients_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before, finders = http.client.HTTPConnection.connect, [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [*finders])
    with open_platform() as platform, intercept(platform):
        sys.meta_path = finders
    assert http.client.HTTPConnection.connect is before


def test_an_inner_block_follows_imports_again(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [*finders])
    with open_platform() as platform, open_platform() as other, intercept(platform):
        sys.meta_path = [*finders]
        with intercept(other, ["api.other.example"]):
            assert sum(isinstance(finder, OnImport) for finder in sys.meta_path) == 1
    assert sys.meta_path == finders


@pytest.mark.parametrize("client", [httpx, httpx2, requests], ids=["httpx", "httpx2", "requests"])
@pytest.mark.slow
def test_a_library_that_is_imported_again_is_intercepted(
    client: ModuleType, monkeypatch: pytest.MonkeyPatch, loopback_only: None
) -> None:
    again = (client.__name__, "urllib3")
    with open_platform(backend=ScriptedBackend(["hello"] * 3, models=["m"])) as platform, intercept(platform):
        assert asked(client) == "hello"
        for name in [name for name in sys.modules if name.split(".")[0] in again]:
            monkeypatch.delitem(sys.modules, name)
        fresh = importlib.import_module(client.__name__)
        assert fresh is not client
        assert asked(fresh) == "hello"
        assert asked(client) == "hello"
        made = [name for name in sys.modules if name.split(".")[0] in again]
    for name in made:
        sys.modules.pop(name, None)
    assert urllib3.Retry.sleep.__module__.startswith("urllib3")


ZIPPED = """
import sys, zipimport
sys.path.insert(0, {archive!r})
from modelyard import ScriptedBackend, open_platform
from modelyard.testing import intercept

with open_platform(backend=ScriptedBackend(["hello"], models=["m"])) as platform, intercept(platform):
    import httpx
    assert type(httpx.__spec__.loader) is zipimport.zipimporter
    body = {{"model": "m", "messages": [{{"role": "user", "content": "x"}}]}}
    key = {{"authorization": "Bearer sk-any"}}
    answer = httpx.post("https://api.openai.com/v1/chat/completions", json=body, headers=key)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
"""


@pytest.mark.slow
def test_a_library_in_an_archive_is_intercepted(tmp_path: Path) -> None:
    spec = PathFinder.find_spec("httpx")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    with ZipFile(tmp_path / "httpx.zip", "w") as archive:
        for file in folder.rglob("*.py"):
            archive.write(file, Path("httpx") / file.relative_to(folder))
    program = ZIPPED.format(archive=str(tmp_path / "httpx.zip"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")

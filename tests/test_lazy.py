"""What is deferred is loaded or made once, when it is first used, and then is what it stands for."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from modelyard import lazy
from modelyard.clock import backoff
from modelyard.lazy import deferred

PACKAGE = """
from modelyard.lazy import defer_modules
defer_modules(__name__, "late", "broken")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose modules `late` and `broken` are deferred."""
    folder = tmp_path / "deferring"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "late.py").write_text("VALUE = 7\ndef double():\n    return 2 * VALUE\n")
    (folder / "broken.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "deferring"
    for name in [name for name in sys.modules if name.partition(".")[0] == "deferring"]:
        del sys.modules[name]


def test_what_a_module_has_left_behind_hides_no_public_name(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the cache of a folder that was deleted."""
    import deferring

    (Path(deferring.__path__[0]) / "backoff" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(lazy, "_homes_of_parts", lambda *_: {"clock": ["backoff"]})
    load, _ = lazy.lazy_exports("deferring", {})
    assert load("backoff") is backoff


def test_a_deferred_module_is_loaded_by_the_first_use(package: str) -> None:
    from deferring import late

    assert "deferring.late" not in sys.modules
    assert late.double() == 14
    assert "deferring.late" in sys.modules


def test_importing_a_name_out_of_a_deferred_module_loads_it_at_once(package: str) -> None:
    from deferring.late import double

    assert double() == 14
    from deferring import late

    assert isinstance(late, ModuleType)


def test_what_is_set_on_a_deferred_module_is_set_in_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deferring import late

    with monkeypatch.context() as patch:
        patch.setattr(late, "VALUE", 4)
        assert late.double() == 8
    assert late.double() == 14


def test_a_name_that_a_deferred_module_lacks_is_an_attribute_error(package: str) -> None:
    from deferring import late

    assert not hasattr(late, "treble")


def test_a_deferred_module_that_fails_raises_at_its_first_use(package: str) -> None:
    from deferring import broken

    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            broken.anything  # noqa: B018 - it is the look-up that counts


def test_a_deferred_object_is_made_once_however_many_threads_begin_to_use_it() -> None:
    together, entered_again, made = threading.Barrier(8), threading.Event(), []

    def make() -> list[int]:
        made.append(threading.get_ident())
        if len(made) > 1:
            entered_again.set()
        entered_again.wait(0.1)  # time for another thread to come in, which none may
        return []

    later = deferred(make)

    def use(number: int) -> None:
        together.wait(60)
        later.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert len(made) == 1
    assert sorted(later.copy()) == list(range(8))


def test_what_is_known_of_a_deferred_object_does_not_make_it() -> None:
    def make() -> str:
        made.append(True)
        return "text"

    made: list[bool] = []
    later = deferred(make, upper=lambda: "KNOWN")
    assert later.upper() == "KNOWN"
    assert made == []
    assert later.title() == "Text"


def test_a_making_that_failed_is_tried_again() -> None:
    outcomes = iter([OSError("not now"), "text"])

    def make() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    later = deferred(make)
    with pytest.raises(OSError, match="not now"):
        later.upper()
    assert later.upper() == "TEXT"

"""The router: each model to the backend that offers it."""

import pytest

from backends import OnLoops
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.errors import BackendError, InvalidInput, ModelNotFound
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.protocols import ServedModel

REQUEST = CompletionRequest("any", (Message(Role.USER, "hi there"),), max_tokens=10)


class Waiting(EchoBackend):
    blocking = True


def text(router: Router, model: str) -> str:
    entry = next(entry for entry in router.entries() if entry.id == model)
    return "".join(delta.text for delta in router.stream(REQUEST, ServedModel(model, entry)))


def test_each_model_is_answered_by_the_backend_that_offers_it() -> None:
    router = Router([EchoBackend(), ScriptedBackend(["from the script"])])
    assert [entry.id for entry in router.entries()] == ["echo", "scripted"]
    assert text(router, "scripted") == "from the script"
    assert text(router, "echo") == "hi there"


def test_the_entries_are_the_same_object_every_time() -> None:
    router = Router([EchoBackend(), ScriptedBackend([])])
    assert router.entries() is router.entries()


def test_a_mapping_offers_the_named_models_only() -> None:
    two = EchoBackend(("echo", "hidden"))
    router = Router({"echo": two})
    assert [entry.id for entry in router.entries()] == ["echo"]
    with pytest.raises(ModelNotFound):
        router.backend_of("hidden")


def test_an_id_that_two_backends_offer_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"backends\.1: 'echo' is already offered"):
        Router([EchoBackend(), EchoBackend()])


def test_a_mapping_to_a_backend_without_that_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="EchoBackend does not offer"):
        Router({"parrot": EchoBackend()})


def test_it_may_wait_when_one_of_them_may() -> None:
    assert not Router([EchoBackend()]).blocking
    assert Router([EchoBackend(), Waiting(("slow",))]).blocking
    assert Router([OnLoops(EchoBackend(("remote",)))]).blocking


def test_the_backend_within_routers_is_found_so_that_a_quick_one_need_not_wait() -> None:
    echo = EchoBackend()
    outer = Router([Router([echo]), Waiting(("slow",))])
    assert outer.backend_of("echo") is echo


def test_an_asynchronous_backend_is_listed_and_handed_out_but_not_driven() -> None:
    remote = OnLoops(EchoBackend(("remote",)))
    router = Router([EchoBackend(), remote])
    assert [entry.id for entry in router.entries()] == ["echo", "remote"]
    assert router.backend_of("remote") is remote
    assert router.prompt_tokens(REQUEST, ServedModel("remote", router.entries()[1])) == 2
    with pytest.raises(BackendError, match="'remote' can be answered asynchronously only"):
        text(router, "remote")

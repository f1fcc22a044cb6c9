"""What a part serves under names of its own (`Part.names`)."""

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from modelyard import CompletionBooked, CompletionRequest, Message, Platform, Principal, Role, open_platform
from modelyard.domain.evaluation.objects import ObjectRef, RefKind
from modelyard.errors import Forbidden, InvalidInput, ModelNotFound
from modelyard.part import Part
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot


@attrs.frozen
class Loud:
    """A model that is asked in capitals."""

    model: str
    ref: ObjectRef

    @property
    def name(self) -> str:
        return f"loud/{self.model}"

    def asks(self, request: CompletionRequest) -> CompletionRequest:
        if not request.messages[-1].text:
            raise InvalidInput.at("messages", msg="must not be empty")
        return attrs.evolve(request, messages=(Message(Role.USER, request.messages[-1].text.upper()),))

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"prompt": row["word"], **row}


def names(runtime: Runtime, snapshot: Snapshot, principal: Principal, name: str) -> Loud | None:
    kind, _, model = name.partition("/")
    return Loud(model, ObjectRef("local", "p", RefKind.OBJECT, "loud", "v1")) if kind == "loud" else None


def opened(seen: list[object]) -> Platform:
    return open_platform(parts=[Part("quiet", names=lambda *of: None), Part("loud", names=names)], observer=seen.append)


def test_a_name_of_a_part_is_a_model_that_is_asked_in_its_way() -> None:
    seen: list[object] = []
    with opened(seen) as platform:
        answer = platform.chat.complete(model="loud/echo", messages="hi")
        assert (answer.text, answer.model) == ("HI", "loud/echo")
        assert "".join(delta.text for delta in platform.chat.stream(model="loud/echo", messages="hi")) == "HI"
        assert [entry.model for entry in platform.usage.list()] == ["echo", "echo"]
        booked = [event for event in seen if isinstance(event, CompletionBooked)]
        assert [(event.model, event.asked) for event in booked] == [("echo", "loud/echo")] * 2
        assert platform.catalogue.resolve("loud/echo").base_model == "echo"
        with pytest.raises(InvalidInput):
            platform.chat.complete(model="loud/echo", messages="")


def test_an_unknown_name_and_an_unknown_model_stay_unknown() -> None:
    with opened([]) as platform:
        for name, error in (("other", ModelNotFound), ("loud/other", ModelNotFound), ("a/b/c/d", ModelNotFound)):
            with pytest.raises(error):
                platform.chat.complete(model=name, messages="hi")
        tenant = platform.acting_as(
            attrs.evolve(platform.principal, scope=attrs.evolve(platform.principal.scope, entity="a"))
        )
        with pytest.raises(Forbidden):
            tenant.chat.complete(model="b/p/m", messages="hi")


def test_a_run_has_the_reference_of_the_part_and_its_rows() -> None:
    with opened([]) as platform:
        run = platform.evaluations.run("quiz", "loud/echo", [{"word": "a", "expected": "A"}]).run
        assert run.model == "weave:///local/p/object/loud:v1"
        assert run.summary is not None
        assert run.summary["mean"] == 1.0
        given = platform.evaluations.run("quiz", "loud/echo", [{"word": "a", "expected": "B"}], prompt="b").run
        assert given.summary is not None
        assert given.summary["mean"] == 1.0

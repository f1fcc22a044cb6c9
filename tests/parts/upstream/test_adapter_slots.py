"""Which adapters are loaded: every history of requests, restarts and failures, against a server that is a dict."""

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modelyard.parts.upstream.adapters.slots import (
    AdapterState,
    Done,
    List,
    Load,
    Removal,
    Serve,
    Slot,
    SlotClaim,
    Slots,
    Unload,
    Wait,
)

NAMES = st.sampled_from("abcde")


class Refused(Exception):
    """What the server says of an adapter that it does not take."""


@attrs.define(eq=False)
class Actor:
    """A request, or a removal, and what it is about: a step under way, a bell, or nothing yet."""

    waiter: SlotClaim | Removal
    step: object = None
    done_at_server: bool = False
    listed: dict | None = None


class Server(RuleBasedStateMachine):
    """Actors come and go; each of their steps reaches the server, and is answered, when hypothesis says so."""

    @initialize(capacity=st.integers(1, 3), leftovers=st.sets(NAMES, max_size=4))
    def begin(self, capacity, leftovers):
        self.slots = Slots(capacity)
        self.server = {name: "old" if name < "c" else "here" for name in leftovers}
        self.forgotten: set[str] = set()
        self.actors: list[Actor] = []
        self.users: list[Slot] = []

    # ---- who comes

    @rule(name=NAMES)
    def ask(self, name):
        self.actors.append(Actor(SlotClaim(name, "here")))

    @rule(names=st.sets(NAMES))
    def remove(self, names):
        self.actors.append(Actor(Removal(lambda name: name in names)))

    # ---- what happens

    @precondition(lambda self: any(self.can_move(actor) for actor in self.actors))
    @rule(data=st.data())
    def move(self, data):
        self.advance(data.draw(st.sampled_from([actor for actor in self.actors if self.can_move(actor)])))

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def reach_the_server(self, data):
        self.arrive(data.draw(st.sampled_from(self.busy())))

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), outcome=st.sampled_from(["well", "well", "well", "refused", "unknown"]))
    def answer(self, data, outcome):
        self.finish(data.draw(st.sampled_from(self.busy())), outcome)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end_a_request(self, data):
        self.release(data.draw(st.sampled_from(self.users)))

    @precondition(lambda self: any(isinstance(actor.step, Wait) for actor in self.actors))
    @rule(data=st.data())
    def lose_patience(self, data):
        actor = data.draw(st.sampled_from([actor for actor in self.actors if isinstance(actor.step, Wait)]))
        self.slots.leave(actor.waiter)
        self.actors.remove(actor)

    @rule()
    def restart(self):
        self.forgotten |= self.server.keys()
        self.server.clear()

    @precondition(lambda self: any(slot.name not in self.server for slot in self.users))
    @rule()
    def hear_that_it_is_unknown(self):
        self.slots.suspect = True

    # ---- what must hold

    @invariant()
    def never_more_than_there_is_room_for(self):
        moving = [actor.step.slot.name for actor in self.busy() if isinstance(actor.step, Load)]
        if moving:
            assert len(self.server.keys() | set(moving)) <= self.slots.capacity

    @invariant()
    def what_is_used_and_not_forgotten_is_loaded(self):
        for slot in self.users:
            assert slot.name in self.server or slot.name in self.forgotten

    @invariant()
    def pins_are_those_who_use_it(self):
        for slot in self.slots.slots.values():
            promised = [one for one in self.actors if isinstance(one.waiter, SlotClaim) and one.waiter.slot is slot]
            assert slot.pins == self.users.count(slot) + len(promised)

    def teardown(self):
        """When nothing goes wrong any more, everyone who still waits is served."""
        if not hasattr(self, "slots"):
            return
        for _ in range(2000):
            if not self.actors:
                return
            moving = [actor for actor in self.actors if self.can_move(actor)]
            if moving:
                self.advance(moving[0])
            elif self.busy():
                self.finish(self.busy()[0], "well")
            elif self.users:
                self.release(self.users[0])
            else:
                raise AssertionError(f"nobody rings for {self.actors}")
        raise AssertionError(f"still waiting: {self.actors}")

    # ---- how

    def can_move(self, actor):
        return actor.step is None or (isinstance(actor.step, Wait) and actor.step.bell.done())

    def busy(self):
        return [actor for actor in self.actors if isinstance(actor.step, List | Load | Unload)]

    def advance(self, actor):
        try:
            if isinstance(actor.waiter, SlotClaim):
                actor.step = self.slots.next(actor.waiter)
            else:
                actor.step = self.slots.next_removal(actor.waiter)
        except Refused:
            self.actors.remove(actor)
            return
        if isinstance(actor.step, Serve | Done):
            self.actors.remove(actor)
        if isinstance(actor.step, Serve):
            self.users.append(actor.step.slot)
        if isinstance(actor.step, Unload):
            assert actor.step.slot.pins == 0
            assert actor.step.slot not in self.users
        if isinstance(actor.step, Load | Unload):
            others = [one.step.slot.name for one in self.busy() if one is not actor and not isinstance(one.step, List)]
            assert actor.step.slot.name not in others

    def arrive(self, actor):
        """The step takes its effect at the server, once."""
        if actor.done_at_server:
            return
        actor.done_at_server = True
        if isinstance(actor.step, List):
            actor.listed = dict(self.server)
        elif isinstance(actor.step, Load):
            self.server.setdefault(actor.step.slot.name, actor.step.slot.path)
            self.forgotten.discard(actor.step.slot.name)
        else:
            self.server.pop(actor.step.slot.name, None)

    def finish(self, actor, outcome):
        step, self_known = actor.step, outcome != "unknown"
        if outcome == "well":
            self.arrive(actor)
        if isinstance(step, List):
            self.slots.listed(actor.listed) if self_known and actor.done_at_server else self.slots.not_listed()
        elif isinstance(step, Load):
            self.finish_load(actor, outcome)
        elif outcome == "well":
            self.slots.unloaded(step.slot)
        else:
            self.slots.unsure(step.slot)
        actor.step, actor.done_at_server, actor.listed = None, False, None

    def finish_load(self, actor, outcome):
        if outcome == "well":
            self.slots.loaded(actor.step.slot)
        elif outcome == "refused" and not actor.done_at_server:
            self.slots.refused(actor.step.slot, Refused())
        else:
            self.slots.unsure(actor.step.slot)

    def release(self, slot):
        self.users.remove(slot)
        self.slots.release(slot)


Server.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestEveryHistory = pytest.mark.slow(Server.TestCase)


# ---- the same in examples


def slots_holding(capacity: int, *held: str) -> Slots:
    """What is left when these were asked for one by one."""
    slots = Slots(capacity)
    slots.next(SlotClaim("first", "here"))
    slots.waiting.clear()
    slots.listed({})
    for name in held:
        slots.release(serve(slots, SlotClaim(name, "here")))
    return slots


def serve(slots: Slots, claim: SlotClaim) -> Slot:
    """Do what is asked for until the claim is served."""
    while True:
        step = slots.next(claim)
        if isinstance(step, Serve):
            return step.slot
        assert isinstance(step, Load | Unload), step
        slots.loaded(step.slot) if isinstance(step, Load) else slots.unloaded(step.slot)


def test_the_adapters_of_the_server_are_listed_first():
    slots = Slots(2)
    assert isinstance(slots.next(SlotClaim("a", "here")), List)
    assert isinstance(slots.next(SlotClaim("b", "here")), Wait)


def test_the_least_recently_used_adapter_is_unloaded():
    slots = slots_holding(2, "a", "b", "a")
    step = slots.next(SlotClaim("c", "here"))
    assert (type(step), step.slot.name) == (Unload, "b")


def test_an_adapter_in_use_drains_before_it_is_unloaded_and_takes_no_new_request():
    slots = slots_holding(1)
    used = serve(slots, SlotClaim("a", "here"))
    other, again = SlotClaim("b", "here"), SlotClaim("a", "here")
    waits = slots.next(other)
    assert isinstance(waits, Wait)
    assert isinstance(slots.next(again), Wait)
    slots.release(used)
    assert waits.bell.done()
    assert slots.next(other) == Unload(used)


def test_those_who_wait_for_one_adapter_are_served_by_one_load():
    slots = slots_holding(1)
    first, second = SlotClaim("a", "here"), SlotClaim("a", "here")
    load = slots.next(first)
    assert isinstance(slots.next(second), Wait)
    slots.loaded(load.slot)
    assert (slots.next(first), slots.next(second)) == (Serve(load.slot), Serve(load.slot))
    assert load.slot.pins == 2


def test_those_who_wait_for_one_adapter_hear_of_its_refusal():
    slots = slots_holding(1)
    first, second = SlotClaim("a", "here"), SlotClaim("a", "here")
    load = slots.next(first)
    slots.next(second)
    slots.refused(load.slot, Refused())
    for claim in (first, second):
        with pytest.raises(Refused):
            slots.next(claim)
    assert isinstance(slots.next(SlotClaim("a", "here")), Load)


def test_a_claim_that_leaves_gives_back_what_was_pinned_for_it():
    slots = slots_holding(1)
    served, waiting, first_of_others = SlotClaim("a", "here"), SlotClaim("b", "here"), SlotClaim("c", "here")
    used = serve(slots, served)
    slots.next(waiting)
    others = slots.next(first_of_others)
    assert used.pins == 1
    slots.leave(waiting)
    assert slots.waiting == [first_of_others]
    assert others.bell.done()
    slots.leave(served)
    assert used.pins == 0
    assert slots.next(first_of_others) == Unload(used)


def test_a_claim_that_was_refused_has_nothing_to_give_back():
    slots = slots_holding(1)
    claim = SlotClaim("a", "here")
    slots.refused(slots.next(claim).slot, Refused())
    slots.leave(claim)
    assert slots.waiting == []


def test_a_leftover_is_loaded_again_in_place_but_goes_first_when_its_files_lie_elsewhere():
    slots = Slots(3)
    slots.next(SlotClaim("a", "here"))
    slots.waiting.clear()
    slots.listed({"a": "here", "b": "elsewhere"})
    assert isinstance(slots.next(SlotClaim("a", "here")), Load)
    assert isinstance(slots.next(SlotClaim("b", "here")), Unload)
    assert all(slot.state is not AdapterState.LOADED for slot in slots.slots.values())


def slots_finding(capacity: int, *left: str) -> Slots:
    """What an earlier life has left."""
    slots = Slots(capacity)
    slots.next(SlotClaim("first", "here"))
    slots.waiting.clear()
    slots.listed(dict.fromkeys(left, "here"))
    return slots


def test_where_too_many_were_left_others_go_before_one_is_used():
    step = slots_finding(1, "a", "b").next(SlotClaim("a", "here"))
    assert (type(step), step.slot.name) == (Unload, "b")


def test_a_leftover_that_was_taken_over_is_one_like_any_other():
    slots, claim = slots_finding(1, "a"), SlotClaim("a", "here")
    slots.release(serve(slots, claim))
    assert isinstance(slots.next(SlotClaim("a", "here")), Serve)


def test_a_leftover_that_is_refused_is_still_there():
    slots, claim = slots_finding(1, "a"), SlotClaim("a", "here")
    slots.refused(slots.next(claim).slot, Refused())
    assert isinstance(slots.next(SlotClaim("b", "here")), List)


def test_what_a_list_does_not_show_is_forgotten_though_it_is_in_use():
    slots = slots_holding(2)
    used = serve(slots, SlotClaim("a", "here"))
    slots.suspect = True
    claim = SlotClaim("a", "here")
    assert isinstance(slots.next(claim), List)
    slots.listed({})
    again = slots.next(claim)
    assert isinstance(again, Load)
    assert again.slot is not used
    slots.release(used)
    assert again.slot.pins == 0

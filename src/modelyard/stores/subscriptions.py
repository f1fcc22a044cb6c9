"""Who is to be woken by which topic (`Store.subscribe`), in one process."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection

from modelyard.lazy import log

Wake = Callable[[], None]


class Subscribers:
    """The subscriptions of a store. Thread-safe. `live` is whether notices of other processes arrive, too."""

    def __init__(self, live: bool = True) -> None:
        self.live: bool = live
        self._lock = threading.Lock()
        self._by_topic: defaultdict[str, set[TopicSubscription]] = defaultdict(set)

    def subscribe(self, topic: str, wake: Wake) -> "TopicSubscription":
        """Have `wake` called at each notice of the topic, until the subscription is closed."""
        subscription = TopicSubscription(self, topic, wake)
        with self._lock:
            self._by_topic[topic].add(subscription)
        return subscription

    def remove(self, subscription: "TopicSubscription") -> None:
        with self._lock:
            subscriptions = self._by_topic[subscription.topic]
            subscriptions.discard(subscription)
            if not subscriptions:
                del self._by_topic[subscription.topic]

    @property
    def topics(self) -> list[str]:
        with self._lock:
            return [*self._by_topic]

    def wake(self, topics: Collection[str]) -> None:
        """Wake the subscribers of these topics. What one raises is logged."""
        if not self._by_topic or self._by_topic.keys().isdisjoint(topics):
            return
        with self._lock:
            found = [one for topic in topics if topic in self._by_topic for one in self._by_topic[topic]]
        for subscription in found:
            try:
                subscription.call()
            except Exception:  # noqa: BLE001 - it must not keep the others from waking
                log.exception("a subscriber of %s failed", subscription.topic)

    def wake_all(self) -> None:
        """Wake every subscriber: notices may have been missed."""
        self.wake(self.topics)


class TopicSubscription:
    """One subscription to a topic; see `modelyard.protocols.Subscription`."""

    def __init__(self, subscribers: Subscribers, topic: str, wake: Wake) -> None:
        self._subscribers = subscribers
        self.topic: str = topic
        self.call: Wake = wake

    @property
    def live(self) -> bool:
        """Whether notices of other processes arrive, too."""
        return self._subscribers.live

    def close(self) -> None:
        """Be woken no more. Idempotent."""
        self._subscribers.remove(self)

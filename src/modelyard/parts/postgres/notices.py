"""Notices between the processes that share a schema: NOTIFY with the commit, LISTEN on one connection of a process.

They are hints. The connection must reach the server itself: a pooler in transaction mode answers LISTEN and then hands
the server's connection to others. Such a one is recognised by its process number, and is not listened to.
"""

import socket
import threading
import time
from collections.abc import Collection
from typing import Any

import psycopg

from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.parts.postgres.connections import Connector, is_pooled
from modelyard.parts.postgres.locks import lock_key
from modelyard.parts.postgres.pages import Statement
from modelyard.parts.postgres.values import TEXTS, array_of_texts
from modelyard.stores.subscriptions import Subscribers, TopicSubscription, Wake

_PAUSE = 1.0
"""Seconds between two attempts to listen."""
_MARK = 8
"""Characters of a writer's name that a notice begins with, so that a process knows its own."""


class Notices:
    """The subscriptions of a store, and from the first of them on a thread that listens."""

    def __init__(self, connector: Connector, schema: str, writer: str) -> None:
        self._connector, self._writer = connector, writer[:_MARK]  # of a UUIDv4
        self._channel = f"modelyard_{lock_key(schema, 'notices') & (2**64 - 1):x}"
        self._notify = f"SELECT pg_notify('{self._channel}', topic) FROM unnest($1::{TEXTS}) AS topic"  # noqa: S608
        self._subscribers = Subscribers(live=False)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._pooled = False

    def statement(self, topics: Collection[str]) -> Statement:
        """Return the statement that notifies these topics with the commit."""
        return self._notify, (array_of_texts([self._writer + topic for topic in sorted(topics)]),)

    def wake(self, topics: Collection[str]) -> None:
        """Wake those of this process who have subscribed to these topics."""
        self._subscribers.wake(topics)

    def subscribe(self, topic: str, wake: Wake) -> TopicSubscription:
        """Have `wake` called at each notice of the topic."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="modelyard-notices", daemon=True)
                self._thread.start()
        return self._subscribers.subscribe(topic, wake)

    def close(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            self._closed.set()
            if self._connection is not None:
                _shut_down(self._connection)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PAUSE)

    # ---- the thread

    def _run(self) -> None:
        while not self._closed.is_set() and not self._pooled:
            try:
                self._listen()
            except (psycopg.Error, StoreError) as error:
                if self._subscribers.live and not self._closed.is_set():
                    log.warning("notices are not heard, so jobs are looked for by polling: %s", type(error).__name__)
            self._subscribers.live = False
            self._subscribers.wake_all()  # they look, and then poll
            self._closed.wait(0.0 if self._pooled else _PAUSE)

    def _listen(self) -> None:
        connection = self._connector.connect(time.monotonic())
        with connection:
            with self._lock:
                if self._closed.is_set():
                    return
                self._connection = connection
            try:
                self._hear(connection)
            finally:
                with self._lock:
                    self._connection = None

    def _hear(self, connection: Any) -> None:
        if is_pooled(connection):
            self._pooled = True
            log.info("a pooler is between this process and PostgreSQL, so jobs are looked for by polling")
            return
        connection.execute(f"LISTEN {self._channel}")
        self._subscribers.live = True
        self._subscribers.wake_all()
        for notice in connection.notifies():
            if not notice.payload.startswith(self._writer):
                self._subscribers.wake([notice.payload[_MARK:]])


def _shut_down(connection: Any) -> None:
    """End the wait of the thread that listens on a connection."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as end:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

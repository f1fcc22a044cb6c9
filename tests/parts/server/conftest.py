"""Servers on both event loops, with both protocols of uvicorn."""

import asyncio
import sys
from importlib import import_module
from typing import Any

import pytest
import uvloop

from modelyard.parts import server


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def _loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", request.param)


@pytest.fixture(params=["httptools", "h11"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The protocol of an installation with and without httptools."""
    if request.param == "h11":
        monkeypatch.setitem(sys.modules, "httptools", None)
    for name in ("uvicorn_server", "bounded_heads", "joined_writes"):
        monkeypatch.setattr(server, name, None, raising=False)  # so that the package gets back its own
        monkeypatch.delitem(sys.modules, f"modelyard.parts.server.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "uvicorn.protocols.http.auto", raising=False)
    found = import_module("modelyard.parts.server.uvicorn_server").OPTIONS["http"]
    assert any(request.param in base.__module__ for base in found.__mro__)
    return found

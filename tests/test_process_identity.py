"""The names of processes."""

import os

import pytest

from modelyard.process_identity import process_here


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_name_of_its_own() -> None:
    name = process_here()
    child = os.fork()
    if child == 0:
        os._exit(0 if name and process_here() not in ("", name) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert process_here() == name

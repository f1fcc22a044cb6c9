"""The scores of a teacher: `platform.training.taught`."""

from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.parts.distillation.taught import Taught


def _taught() -> "type[Taught]":
    from modelyard.parts.distillation.taught import Taught as resource

    return resource


PART = Part("distillation", resources={"training.taught": _taught})

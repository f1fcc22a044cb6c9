"""What one serves under a name: a model with a prompt and parameters, in versions: `platform.variants`.

records     variants, their versions, and what points to those
content     what a version is made of, checked
template    texts with named inputs
file        the file that people review
differences how two files differ
naming      the names under which variants are served, and their references
asking      what the model of a version is asked
models      the model of a version, pinned to a checkpoint
keeping     the checkpoints that versions ask, and which of them stay
aliases     how aliases move, as functions of a transaction
service     `platform.variants`
"""

from modelyard.lazy import defer_modules

defer_modules(
    __name__,
    "asking",
    "aliases",
    "content",
    "differences",
    "file",
    "keeping",
    "models",
    "naming",
    "records",
    "service",
    "template",
)

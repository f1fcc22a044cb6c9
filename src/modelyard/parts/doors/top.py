"""Names of parts in `modelyard`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.embeddings.similarity import SemanticSimilarity
    from modelyard.parts.rollout import Rollout, gather
    from modelyard.parts.rollouts.given import AtMost
    from modelyard.parts.scripted.backend import ScriptedBackend
    from modelyard.parts.server.wsgi import wsgi_app
    from modelyard.parts.torch.records import Tuning
    from modelyard.parts.upstream.backend import UpstreamBackend
    from modelyard.parts.upstream.fallback import Fallback
    from modelyard.parts.upstream.models import offer

HOMES = {
    "parts.embeddings.similarity": ("SemanticSimilarity",),
    "parts.upstream.fallback": ("Fallback",),
    "parts.scripted.backend": ("ScriptedBackend",),
    "parts.upstream.backend": ("UpstreamBackend",),
    "parts.upstream.models": ("offer",),
    "parts.torch.records": ("Tuning",),
    "parts.rollouts.given": ("AtMost",),
    "parts.rollout": ("Rollout", "gather"),
    "parts.server.wsgi": ("wsgi_app",),
}

__all__: list[str] = [
    "AtMost",
    "Fallback",
    "Rollout",
    "ScriptedBackend",
    "SemanticSimilarity",
    "Tuning",
    "UpstreamBackend",
    "gather",
    "offer",
    "wsgi_app",
]

"""For tests of code that uses Consilience: models without a provider, the errors they may raise, a server that misbehaves, and
`shake`."""

from consilience.domain.errors import RateLimited, Refused, Rejected, ServerError, Timeout, Unreachable
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.testing.any_model import AnyModel
from consilience.testing.catalogue import KNOWN_ANSWERS, KnownAnswer
from consilience.testing.misbehaving_server import TEXT, MisbehavingServer, ServerAnswer, ServerRequest
from consilience.testing.shaking import Arrivals, ShakeFailed, Shaken, shake

__all__ = [
    "KNOWN_ANSWERS",
    "TEXT",
    "AnyModel",
    "Arrivals",
    "KnownAnswer",
    "MisbehavingServer",
    "RateLimited",
    "Refused",
    "Rejected",
    "Scripted",
    "ScriptedModel",
    "ServerAnswer",
    "ServerError",
    "ServerRequest",
    "ShakeFailed",
    "Shaken",
    "Timeout",
    "Unreachable",
    "shake",
]

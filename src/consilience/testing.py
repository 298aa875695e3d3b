"""For tests of code that uses Consilience: a model that says what it is told to, and the failures it may raise."""

from consilience.domain.errors import RateLimited, Refused, Rejected, ServerError, Timeout, Unreachable
from consilience.models.scripted import Scripted, ScriptedModel

__all__ = [
    "RateLimited",
    "Refused",
    "Rejected",
    "Scripted",
    "ScriptedModel",
    "ServerError",
    "Timeout",
    "Unreachable",
]

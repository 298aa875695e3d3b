"""For tests of code that uses Consilience: models without a provider, the errors they may raise, and `shake`."""

from consilience.domain.errors import RateLimited, Refused, Rejected, ServerError, Timeout, Unreachable
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.testing.any_model import AnyModel
from consilience.testing.shaking import Arrivals, ShakeFailed, Shaken, shake

__all__ = [
    "AnyModel",
    "Arrivals",
    "RateLimited",
    "Refused",
    "Rejected",
    "Scripted",
    "ScriptedModel",
    "ServerError",
    "ShakeFailed",
    "Shaken",
    "Timeout",
    "Unreachable",
    "shake",
]

"""A catalogue of what OpenAI-compatible servers answer, modelled on documentation and public reports.

None was recorded from a live server but that of `litellm-invalid-model-name`.
"""

from consilience.testing.catalogue.entry import KnownAnswer
from consilience.testing.catalogue.errors import ERRORS
from consilience.testing.catalogue.hosted import HOSTED
from consilience.testing.catalogue.local_errors import LOCAL_ERRORS
from consilience.testing.catalogue.refusals import REFUSALS
from consilience.testing.catalogue.replies import REPLIES
from consilience.testing.catalogue.streams import STREAMS

KNOWN_ANSWERS: tuple[KnownAnswer, ...] = (*REPLIES, *REFUSALS, *STREAMS, *ERRORS, *LOCAL_ERRORS, *HOSTED)
"""Every known answer, by unique name."""

__all__ = ["KNOWN_ANSWERS", "KnownAnswer"]

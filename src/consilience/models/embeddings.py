"""Sentence vectors from any provider that pydantic-ai's embedding layer reaches (`openai:text-embedding-3-small`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from consilience.domain.errors import UnavailableModel


class ProviderEncoder:
    """`encode` makes one request for all texts. Raises `UnavailableModel` for a name or key that cannot be used."""

    def __init__(self, name: str) -> None:
        from pydantic_ai import Embedder
        from pydantic_ai.exceptions import UserError

        self.name = name
        try:
            self._embedder = Embedder(name, defer_model_check=False)
        except (UserError, ImportError, ValueError) as error:
            raise UnavailableModel(
                f"the encoder {name!r} cannot be used: {error}",
                do="Name one as PROVIDER:MODEL, install its extra and set its key, or use similarity jaccard.",
            ) from None

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order. Raises `ProviderError`."""
        from consilience.models.failures import scrub, translate
        from consilience.models.names import key_variables

        try:
            result = await self._embedder.embed_documents(list(texts))
        except Exception as error:
            account = self.name.partition(":")[0]
            keys = [os.environ.get(variable, "") for variable in key_variables(account)]
            raise translate(error, account, lambda text: scrub(text, [key for key in keys if key])) from None
        return [list(vector) for vector in result.embeddings]

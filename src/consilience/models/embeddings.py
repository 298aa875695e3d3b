"""Sentence vectors from any provider that pydantic-ai's embedding layer reaches (`openai:text-embedding-3-small`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from consilience.domain.errors import UnavailableModel
from consilience.models.names import RETRIES, key_variables, terms_of


class ProviderEncoder:
    """`encode` makes one request for all texts, with the limiter, the deadline and the retries of a model of that provider.

    Raises `UnavailableModel` for a name or key that cannot be used.
    """

    def __init__(self, name: str) -> None:
        from pydantic_ai.embeddings import Embedder, infer_embedding_model
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.providers import infer_provider

        from consilience.models.provider import told_not_to_retry

        self.name = name
        provider = name.partition(":")[0]
        try:
            self._provider = infer_provider(provider)
            model = infer_embedding_model(name, provider_factory=lambda _: self._provider)
        except (UserError, ImportError, ValueError) as error:
            raise UnavailableModel(
                f"the encoder {name!r} cannot be used: {error}",
                do="Name one as PROVIDER:MODEL, install its extra and set its key, or use similarity jaccard.",
            ) from None
        told_not_to_retry(self._provider.client)
        self._embedder = Embedder(model)
        self._terms = terms_of(provider, model.base_url or "")

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in order. Raises `ProviderError`. Its connections are closed when it returns."""
        from consilience.models.limiter import limiter_for

        limiter = limiter_for(self._terms.account, self._terms.pace)
        async with self._provider:
            vectors, _, _ = await limiter.send(
                lambda: self._send(texts), deadline=self._terms.deadline, retries=RETRIES
            )
        return vectors

    async def _send(self, texts: Sequence[str]) -> list[list[float]]:
        from consilience.models.failures import scrub, translate

        try:
            result = await self._embedder.embed_documents(list(texts))
        except Exception as error:
            account = self._terms.account
            keys = [os.environ.get(variable, "") for variable in key_variables(account)]
            raise translate(error, account, lambda text: scrub(text, [key for key in keys if key])) from None
        return [list(vector) for vector in result.embeddings]

"""Sentence vectors: from the offline encoder `minilm`, from any provider that pydantic-ai's embedding layer reaches
(`openai:text-embedding-3-small`), and from OpenAI-compatible endpoints (`http://HOST:PORT/v1#MODEL`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from consilience.domain.errors import UnavailableModel, UnknownName
from consilience.models.endpoints import parse_endpoint, provider_for
from consilience.models.http_client import check_environment
from consilience.models.minilm import MiniLM
from consilience.models.providers import is_endpoint, key_variables
from consilience.models.registry import RETRIES, connection_policy, endpoint_key
from consilience.models.weights import MINILM


def check_encoder(name: str) -> None:
    """Raise `UnknownName` unless `name` is `minilm` or PROVIDER:MODEL. Vectors of two encoders cannot be compared."""
    if name == MINILM:
        return
    provider, _, model = name.partition(":")
    if "|" in name:
        raise UnknownName(
            f"{name!r} names several encoders; an encoder has no fallback",
            where="--encoder",
            do="Name one: PROVIDER:MODEL, for example openai:text-embedding-3-small.",
        )
    if not (provider and model):
        raise UnknownName(
            f"{name!r} is not the name of an encoder",
            where="--encoder",
            do=f"Write {MINILM}, PROVIDER:MODEL (openai:text-embedding-3-small) or http://HOST:PORT/v1#MODEL.",
        )


def open_encoder(name: str) -> MiniLM | ProviderEncoder:
    """Return the encoder of that name. Raises `UnknownName`, or `UnavailableModel` if it cannot be used."""
    return MiniLM() if name == MINILM else ProviderEncoder(name)


class ProviderEncoder:
    """An encoder of a provider. `encode` makes one request for all texts, with limiter, deadline and retries of that provider.

    Raises `UnknownName` for a name that is not PROVIDER:MODEL, `UnavailableModel` for an unusable name or key.
    """

    def __init__(self, name: str) -> None:
        from pydantic_ai.embeddings import Embedder, infer_embedding_model
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.providers import infer_provider

        from consilience.models.provider import disable_retries

        check_encoder(name)
        self.name = name
        provider, kind = name.partition(":")[0], name
        endpoint = parse_endpoint(name) if is_endpoint(name) else None
        check_environment(provider, os.environ)
        try:
            if endpoint is not None:
                provider, kind = endpoint.account, f"openai:{endpoint.model}"
                self._provider = provider_for(endpoint, endpoint_key(endpoint))
            else:
                self._provider = infer_provider(provider)
            model = infer_embedding_model(kind, provider_factory=lambda _: self._provider)
        except (UserError, ImportError, ValueError) as error:
            raise UnavailableModel(
                f"the encoder {name!r} cannot be used: {error}",
                do="Name one as PROVIDER:MODEL, install its extra and set its key, or use similarity jaccard.",
            ) from None
        disable_retries(self._provider.client)
        self._embedder = Embedder(model)
        self._policy = connection_policy(provider, model.base_url or "")

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in order. Raises `ProviderError`. Its connections are closed when it returns."""
        from consilience.models.limiter import limiter_for

        limiter = limiter_for(self._policy.account, self._policy.pace)
        async with self._provider:
            vectors, _, _ = await limiter.send(
                lambda: self._send(texts), deadline=self._policy.deadline, retries=RETRIES
            )
        return vectors

    async def _send(self, texts: Sequence[str]) -> list[list[float]]:
        from consilience.models.failures import translate
        from consilience.models.http_client import MAX_VECTORS_BYTES, bound_requests
        from consilience.models.redaction import scrub

        bound_requests(self._provider, MAX_VECTORS_BYTES)
        try:
            result = await self._embedder.embed_documents(list(texts))
        except Exception as error:
            account = self._policy.account
            keys = [os.environ.get(variable, "") for variable in key_variables(account)]
            raise translate(error, account, lambda text: scrub(text, [key for key in keys if key])) from None
        return [list(vector) for vector in result.embeddings]

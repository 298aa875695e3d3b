"""Sentence vectors: from the offline encoder `minilm`, from any provider that pydantic-ai reaches
(`openai:text-embedding-3-small`), and from OpenAI-compatible endpoints (`http://HOST:PORT/v1#MODEL`).

`minilm` is all-MiniLM-L6-v2 with int8 weights, on onnxruntime; no key, no network. The weights are in the catalogue. The
vocabulary is part of this package.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.domain.errors import UnavailableModel, UnknownName
from consilience.domain.model_names import is_endpoint
from consilience.models.endpoints import NO_ENDPOINTS, Endpoints, parse_endpoint, provider_for
from consilience.models.facts import ModelFacts
from consilience.models.failures import translate
from consilience.models.hosted import RETRIES, connection_policy, endpoint_key
from consilience.models.limiter import limiter_for
from consilience.models.provider import disable_retries
from consilience.models.providers import check_environment
from consilience.models.redaction import scrub
from consilience.models.transfer import bound_requests
from consilience.models.weights import ENCODERS, MINILM, locate, verify

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

MAX_TOKENS = 256
"""Max length of the texts the model was trained on. The rest of a longer text is not read."""
MAX_VECTORS_BYTES = 64_000_000
"""Bytes of one reply with vectors: about 1,000 texts with 3,072 dimensions, written as decimal numbers."""


class MiniLM:
    """Sentence vectors of 384 dimensions and length 1, computed on one core in a thread: about 10 ms a text of 100 words.

    Raises `UnavailableModel` if the extra or the weights are missing. Loading takes about 0.3 s, at the first `encode`.
    """

    name = MINILM

    def __init__(self) -> None:
        self._path = available()

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in order. A vector depends on its text alone, not on the batch."""
        return await asyncio.to_thread(self._encode, texts)

    def _encode(self, texts: Sequence[str]) -> list[list[float]]:
        tokenizer, model = _load(self._path)
        return [_vector(tokenizer, model, text) for text in texts]


def available() -> Path:
    """Return the path of the checked weights. Raises `UnavailableModel` with the command to run if anything is missing."""
    missing = [package for package in ("onnxruntime", "tokenizers") if find_spec(package) is None]
    if missing:
        raise UnavailableModel(
            f"the encoder {MINILM} needs {' and '.join(missing)}, not installed here",
            field="encoder",
            do="Run: pip install 'consilience[encoder]'",
        )
    if locate(MINILM) is None:
        raise UnavailableModel(
            f"the weights of the encoder {MINILM} are not installed",
            field="encoder",
            do=f"Run: consilience models pull {MINILM} ({ENCODERS[MINILM].size / 1e6:.0f} MB).",
        )
    return verify(MINILM)


@lru_cache(maxsize=1)
def _load(path: Path) -> tuple[Tokenizer, InferenceSession]:
    """Load the tokenizer and the model, once per process."""
    from onnxruntime import InferenceSession, SessionOptions
    from tokenizers import BertWordPieceTokenizer

    lines = files("consilience.models").joinpath("vocabularies/bert-base-uncased.txt").read_text("utf-8").splitlines()
    tokenizer = BertWordPieceTokenizer({word: id for id, word in enumerate(lines)}, lowercase=True)
    tokenizer.enable_truncation(MAX_TOKENS)
    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return tokenizer, InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _vector(tokenizer: Tokenizer, model: InferenceSession, text: str) -> list[float]:
    """Return the mean of the token vectors, normalised. One text at a time: int8 scales depend on the batch."""
    import numpy

    ids = numpy.array([tokenizer.encode(text.encode("utf-8", "replace").decode()).ids], dtype=numpy.int64)
    inputs = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
    mean = model.run(None, inputs)[0][0].mean(axis=0)
    vector: list[float] = (mean / numpy.linalg.norm(mean)).tolist()
    return vector


def check_encoder(name: str) -> None:
    """Raise `UnknownName` unless `name` is `minilm` or PROVIDER:MODEL. Vectors of two encoders cannot be compared."""
    if name == MINILM:
        return
    provider, _, model = name.partition(":")
    if "|" in name:
        raise UnknownName(
            f"{name!r} names several encoders; an encoder has no fallback",
            field="encoder",
            do="Name one: PROVIDER:MODEL, for example openai:text-embedding-3-small.",
        )
    if not (provider and model):
        raise UnknownName(
            f"{name!r} is not the name of an encoder",
            field="encoder",
            do=f"Write {MINILM}, PROVIDER:MODEL (openai:text-embedding-3-small) or http://HOST:PORT/v1#MODEL.",
        )


def open_encoder(name: str, known: Endpoints = NO_ENDPOINTS) -> MiniLM | ProviderEncoder:
    """Return the encoder of that name. Raises `UnknownName`, or `UnavailableModel` if it cannot be used."""
    return MiniLM() if name == MINILM else ProviderEncoder(name, known)


class ProviderEncoder:
    """An encoder of a provider. `encode` makes one request for all texts, with limiter, deadline and retries of that provider.

    Only an endpoint that `known` or the environment names gets a key.

    Raises `UnknownName` for a name that is not PROVIDER:MODEL, `UnavailableModel` for an unusable name or key.
    """

    def __init__(self, name: str, known: Endpoints = NO_ENDPOINTS) -> None:
        from pydantic_ai.embeddings import Embedder, infer_embedding_model
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.providers import infer_provider

        check_encoder(name)
        self.name = name
        self._facts = ModelFacts(name, known)
        provider, kind = name.partition(":")[0], name
        endpoint = parse_endpoint(name, known) if is_endpoint(name) else None
        check_environment(provider, os.environ)
        try:
            if endpoint is not None:
                provider, kind = endpoint.account, f"openai:{endpoint.model}"
                self._provider = provider_for(endpoint, endpoint_key(endpoint, known))
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
        limiter = limiter_for(self._policy.account, self._policy.pace)
        async with self._provider:
            vectors, _, _ = await limiter.send(
                lambda: self._send(texts), deadline=self._policy.deadline, retries=RETRIES
            )
        return vectors

    async def _send(self, texts: Sequence[str]) -> list[list[float]]:
        bound_requests(self._provider, MAX_VECTORS_BYTES)
        try:
            result = await self._embedder.embed_documents(list(texts))
        except Exception as error:
            account = self._policy.account
            facts = self._facts
            keys = [key for variable in facts.key_variables if (key := os.environ.get(variable))]
            raise translate(error, account, lambda text: scrub(text, keys), facts.key_advice) from None
        return [list(vector) for vector in result.embeddings]

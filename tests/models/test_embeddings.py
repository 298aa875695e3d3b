"""The encoder of a provider, against the embedding layer's own test model."""

from __future__ import annotations

import pytest
from pydantic_ai.embeddings import TestEmbeddingModel

from consilience.domain.errors import UnavailableModel
from consilience.models.embeddings import ProviderEncoder


async def test_every_text_gets_its_vector() -> None:
    encoder = ProviderEncoder(TestEmbeddingModel())  # type: ignore[arg-type]
    vectors = await encoder.encode(["a", "b", "c"])
    assert len(vectors) == 3
    assert all(isinstance(x, float) for vector in vectors for x in vector)


@pytest.mark.parametrize("name", ["nobody:nothing", "openai:text-embedding-3-small"])
def test_what_cannot_be_used_is_said_in_a_paragraph(name: str) -> None:
    with pytest.raises(UnavailableModel) as refusal:
        ProviderEncoder(name)
    assert name in str(refusal.value)
    assert "jaccard" in str(refusal.value)

"""What judges and the lead read of a finding: the rule that it breaks, and that it was found apart."""

from __future__ import annotations

from pathlib import Path

from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.review import Review
from consilience.targets import read_target
from kit import runner
from kit.reviewing import finding, review, script


async def test_judge_reads_the_rule_that_is_broken_and_lead_that_two_found_a_defect_apart(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("xx = 1\nBAD_NAME = 2\n")
    (tmp_path / "REVIEW.md").write_text("# Rules\n\nNames are short.\n")
    target = read_target(["a.py"], directory=tmp_path)
    both = finding("xx = 1", 1, "S1", claim="It is 2.")
    ruled = finding("BAD_NAME = 2", 2, "S1", claim="It is long.", rule="Names are short.")
    model = ScriptedModel(script({"red": review([both, ruled]), "blue": review([both])}))
    await runner.start("Review it.", Review(), models=model, store=SqliteStore(":memory:"), sources=target.sources)
    texts = {request.key: request.text for request in model.requests}
    assert "also where it asks for style" in texts["review-1/part-1/red"]
    assert "Breaks the rule of the project: REVIEW.md:3\nNames are short." in texts["judge/part-1/blue"]
    assert "Found apart by" not in texts["judge/part-1/blue"]
    assert texts["closing"].count("Found apart by: blue, red, which confirms it") == 1

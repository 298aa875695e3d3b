"""Entries of lists of findings that state that there is none."""

from __future__ import annotations

import pytest

from consilience.domain.messages import is_no_finding

NO_FINDINGS = """None found.|No issues found.|Nothing to mend.|None|No|n/a|There are no issues.|No further issues
I have no objections.|I found no errors in this text.|No objections to the text
Nothing is wrong|Nothing is missing from the answer|**None.**|(none)
No major flaws, gaps or omissions were identified.|Not applicable.|I could not find any issues.|I don’t see any problems with it
Everything is fine|No changes needed|No significant problems|None at all|No remaining issues in the draft.|“None”|Looks good.
No disagreements with peers.|The text has no issues.|No factual errors|- none|Nothing else to report
None so far|No issues, no errors.|None. No changes needed.|The draft contains no errors."""
FINDINGS = """No owner is named for the checks.|Nothing in the text says when it starts.|No error is reported when the disk is full
None of the figures has a source.|No test covers the new branch|No answer is given|The text has no conclusion|There is no budget.
No mention of cost|Nothing happens if the backup fails|No evidence|It is fine to fail|No one answers for it|No risk is named
No errors are handled|No changes to the schedule are planned|None found. The second figure is wrong.|No issues, but the sum is 13"""


@pytest.mark.parametrize("entry", NO_FINDINGS.replace("\n", "|").split("|"))
def test_entry_that_states_that_there_is_none_is_no_finding(entry: str) -> None:
    assert is_no_finding(entry)


@pytest.mark.parametrize("entry", FINDINGS.replace("\n", "|").split("|"))
def test_entry_that_names_something_absent_is_a_finding(entry: str) -> None:
    assert not is_no_finding(entry)

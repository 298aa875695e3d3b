"""Reviews of one pull request, push after push, through the steps of the action, Git, and a `gh` that keeps the pull request."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.fake_gh import comment
from review.actions import Job, new_job

MODEL = """
import json, pathlib, sys
prompt = sys.stdin.read()
here = pathlib.Path(__file__).parent
calls = here / "calls.jsonl"
with calls.open("a") as file:
    file.write(json.dumps(prompt) + "\\n")
common = {"severity": "major", "category": "bounds", "document": "pager.py", "line": 1, "consequence": "It fails.",
    "check": {"kind": "read", "text": "pager.py"}, "recommendation": "Mend it.", "replacement": None}
found = [{**common, **f} for f in json.loads((here / "findings.json").read_text())]
is_contested = (here / "refuse").exists()  # then only one of the two reviewers reports anything
shown = [f for f in found if f["quotation"] in prompt and ("You are red" in prompt or not is_contested)]
review = {"read": [], "findings": shown, "vote": "changes" if shown else "approve", "confidence": 0.9, "reason": "so"}
if '"verdicts"' in prompt:
    refuted = [{"finding": "F1", "verdict": "refute", "reason": "It is checked."}] if is_contested else []
    reply = {"verdicts": refuted}
elif '"findings"' in prompt:
    reply = review
elif "A maintainer replied to it" in prompt:
    reply = {"text": "The caller does not check it: see `pager.py:12`. @octocat <!-- consilience {} -->"}
    if '"text"' not in prompt:
        reply = reply["text"]
else:
    reply = {"text": "Look at the bounds.", "claims": [], "duplicates": []}
print(reply if isinstance(reply, str) else json.dumps(reply))
"""

BASE = "".join(f"def f{n}(items):\n    return items[{n}]\n\n\n" for n in range(1, 21))
FIRST = BASE.replace("items[3]", "items[3:][0]").replace("items[15]", "items[15:][0]")
D1 = {"quotation": "return items[3:][0]", "claim": "An empty list fails."}
D2 = {"quotation": "return items[15:][0]", "claim": "A short list fails."}
D3 = {"quotation": "return items[9:][0]", "claim": "The tenth is missing."}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A pull request whose first push brings two defects."""
    job = new_job(tmp_path)
    job.commit(pager__py=BASE)
    base = job.head
    job.git("branch", "main")
    job.commit(pager__py=FIRST)
    job.pull = job.pull | {"base": base}
    (job.temp / "model.py").write_text(MODEL)
    job.inputs |= {"model": f"exec:{sys.executable} -IS {job.temp / 'model.py'}", "post-review": "true"}
    job.inputs |= {"arguments": "--no-store", "diff": ""}
    return job


def push(job: Job, *findings: dict[str, Any], text: str | None = None, **inputs: str) -> dict[str, Any]:
    """Push a text of `pager.py`, on which the model finds those of `findings` that it is shown; return the pull request after."""
    if text is not None:
        job.commit(pager__py=text)
    (job.temp / "findings.json").write_text(json.dumps(findings))
    state = job.pull | {"head": job.head}
    job.pull = state
    job.inputs |= {"diff": f"{state['base']}...{job.head}", **inputs}
    done = job.act()
    failed = {name: run.stdout + run.stderr for name, run in done.items() if run.returncode}
    assert not failed, failed
    return job.pull


def prompts(job: Job) -> list[str]:
    """The prompts since the last time."""
    file = job.temp / "calls.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]


def counts(state: dict[str, Any]) -> tuple[int, int, int]:
    """Reviews, threads, and comments in all threads beside the first."""
    return (
        len(state["reviews"]),
        len(state["threads"]),
        sum(len(thread["comments"]) - 1 for thread in state["threads"]),
    )


def reply(job: Job, thread: int, text: str, author: str = "alice", **fields: Any) -> None:
    state = job.pull
    state["threads"][thread]["comments"].append(comment(state, text, author, **fields))
    job.pull = state


def report_of(job: Job) -> Any:
    return json.loads((job.home / "report" / "report.json").read_text())


def test_nothing_is_posted_twice_over_five_pushes(job: Job) -> None:
    state = push(job, D1, D2)
    assert counts(state) == (1, 2, 0)
    prompts(job)

    # 2: lines move, and the model words its findings otherwise
    moved = "import os\n\n\n" + FIRST
    state = push(job, {**D1, "claim": "No first item.", "title": "x"}, {**D2, "severity": "critical"}, text=moved)
    assert counts(state) == (1, 2, 0)
    assert "2 stands" in state["reviews"][0]["body"]
    assert all("+import os" in prompt and "+    return items[3:]" not in prompt for prompt in prompts(job))

    # 3: one is fixed, another comes
    third = moved.replace("items[3:][0]", "items[3] if items[3:] else None").replace("items[9]", "items[9:][0]")
    state = push(job, D1, D2, D3, text=third)
    assert counts(state) == (2, 3, 1)
    assert "no longer applies" in state["threads"][0]["comments"][1]["body"]
    assert "The tenth is missing." in state["threads"][2]["comments"][0]["body"]

    # 4: a person dismisses one with a reason, and the lines beside it change, so that it is shown again
    reply(job, 1, "consilience: ignore The caller checks the length.")
    fourth = third.replace("def f15(items):", "def f15(items, strict=False):")
    prompts(job)
    state = push(job, D2, D3, text=fourth, **{"fail-on": ""})
    assert any("return items[15:][0]" in prompt for prompt in prompts(job))
    assert counts(state) == (2, 3, 2)
    report = report_of(job)
    details = {found["quotation"]: found["detail"] for found in report["dropped"]}
    assert details == {D2["quotation"]: "alice: The caller checks the length.", D3["quotation"]: ""}
    assert "dismissed by `alice`: The caller checks the length." in state["reviews"][1]["body"]

    # 5: a force-push of one commit on a base that has moved; the former commits are gone
    job.git("checkout", "--quiet", "main")
    job.commit(pager__py="# of others\n" + BASE)
    base = job.head
    job.git("checkout", "--quiet", "-b", "again")
    job.commit(pager__py="# of others\n" + fourth)
    job.pull = job.pull | {"base": base}
    forget(job)
    state = push(job, D1, {**D2, "claim": "Once more."}, {**D3, "claim": "And once more."})
    assert any("+    return items[15:][0]" in prompt for prompt in prompts(job)), "the whole change is read again"
    assert counts(state) == (2, 3, 2)
    posted = [entry for entry in state["log"] if entry["method"] == "POST"]
    assert [len(entry["body"].get("comments", [])) for entry in posted] == [2, 0, 1]
    assert not [entry for entry in state["log"] if entry["refused"]]


def test_five_pushes_of_which_the_first_is_clean_are_each_read_once(job: Job) -> None:
    """What the first push brought is not read again, though there was nothing to say of it."""
    text = BASE.replace("items[1]", "items[1] or None")
    state = push(job, text=text)
    assert counts(state) == (1, 0, 0)
    assert "Read in full" in state["reviews"][0]["body"]
    brought = ["+    return items[1] or None"]
    for n, findings in ((15, [D2]), (5, []), (9, [D3]), (19, [])):
        prompts(job)
        text = text.replace(f"items[{n}]", f"items[{n}:][0]")
        state = push(job, *findings, text=text)
        shown = prompts(job)
        line = f"+    return items[{n}:][0]"
        assert shown
        assert all(line in prompt and not any(old in prompt for old in brought) for prompt in shown[:2])
        brought.append(line)
    assert counts(state) == (3, 2, 0)
    assert [entry["method"] for entry in state["log"]] == ["POST", "POST", "PUT", "POST", "PUT"]


def test_old_defect_beside_the_change_is_told_once_and_fails_nothing(job: Job) -> None:
    """It quotes a line that the change left as it was, and names no changed line as its cause."""
    old = {
        "quotation": "return items[2]",
        "claim": "A list of two fails.",
        "severity": "critical",
        "title": "too short",
    }
    state = push(job, old, text=BASE.replace("return items[3]", "return items[3:]"), **{"fail-on": "minor"})
    assert counts(state) == (1, 0, 0)
    assert "critical · bounds: too short in `pager.py:6`: on unchanged lines" in state["reviews"][0]["body"]
    assert "critical · bounds: too short:** A list of two fails." in (job.home / "report" / "report.md").read_text()
    log, uploaded = (json.loads((job.home / "report" / f"{name}.sarif").read_text()) for name in ("review", "upload"))
    (result,) = log["runs"][0]["results"]
    assert result["suppressions"][0]["justification"].startswith("It is on lines that the change left as they were")
    assert uploaded["runs"][0]["results"] == []
    state = push(job, {**old, "claim": "Again."}, text=BASE.replace("return items[3]", "return items[3:] or 0"))
    assert counts(state) == (1, 0, 0)
    assert state["reviews"][0]["body"].count("too short in") == 1
    assert [entry["status"] for entry in report_of(job)["known_findings"]] == ["older"]
    caused = {**old, "cause": "return items[3:] or 1"}
    state = push(job, caused, text=BASE.replace("items[3]", "items[3:] or 1"), **{"fail-on": ""})
    assert "A list of two fails." in state["threads"][0]["comments"][0]["body"], "now the change causes it"


def forget(job: Job) -> None:
    """Remove the commits that no branch has, as in a clone of a server after a force-push."""
    for branch in job.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split():
        if branch not in ("main", "again"):
            job.git("branch", "--quiet", "-D", branch)
    job.git("reflog", "expire", "--expire=now", "--all")
    job.git("gc", "--quiet", "--prune=now")


def test_pull_request_that_cannot_be_read_stops_the_job_before_the_model_is_asked(job: Job) -> None:
    job.pull = job.pull | {"number": 8}
    (job.temp / "findings.json").write_text("[]")
    job.inputs["diff"] = f"{job.pull['base']}...{job.head}"
    done = job.act()
    assert list(done) == ["Read the threads"]
    assert "pull-requests: read" in done["Read the threads"].stdout
    assert prompts(job) == []


def test_token_that_may_not_write_fails_the_job_and_keeps_the_report(job: Job) -> None:
    job.pull = job.pull | {"writes": [], "head": job.head}
    (job.temp / "findings.json").write_text(json.dumps([D1]))
    job.inputs["diff"] = f"{job.pull['base']}...{job.head}"
    done = job.act()
    assert [run.returncode for run in done.values()] == [0, 0, 1]
    assert (
        "::error::GitHub refused: gh: Resource not accessible by integration (HTTP 403)."
        in done["Post the review"].stdout
    )
    assert "pull-requests: write" in done["Post the review"].stdout
    assert "An empty list fails." in (job.temp / "summary.md").read_text()


def test_pull_request_from_a_fork_gets_no_request(job: Job) -> None:
    """Its token only reads. The report is in the summary of the job."""
    job.pull = job.pull | {"writes": [], "head": job.head}
    job.from_repository = "somebody/name"
    state = push(job, D1)
    assert state["log"] == []
    assert "An empty list fails." in (job.temp / "summary.md").read_text()


def test_threads_that_no_longer_apply_are_resolved_by_a_job_of_its_own(job: Job) -> None:
    push(job, D1, D2)
    fixed = FIRST.replace("items[3:][0]", "items[3]").replace("items[15:][0]", "items[15]")
    push(job, text=fixed)
    reply(job, 1, "Is it?")
    job.inputs = {"resolve": "true"}
    prompts(job)
    done = job.act()
    assert list(done) == ["Resolve threads"]
    assert "contents: write" in done["Resolve threads"].stdout
    job.pull = job.pull | {"writes": ["contents", "pull-requests"]}
    assert job.act()["Resolve threads"].returncode == 0
    assert [thread["resolved"] for thread in job.pull["threads"]] == [True, False], "somebody has replied to the other"
    assert prompts(job) == []


def test_thread_is_resolved_though_the_run_that_told_it_gone_answered_a_reply_in_it(job: Job) -> None:
    push(job, D1)
    reply(job, 0, "Why?")
    state = push(job, text=BASE, answer="true")
    assert [comment["author"] for comment in state["threads"][0]["comments"][1:]] == ["alice", *[state["viewer"]] * 2]
    job.pull = state | {"writes": ["contents", "pull-requests"]}
    job.inputs = {"resolve": "true"}
    assert job.act()["Resolve threads"].returncode == 0
    assert job.pull["threads"][0]["resolved"]


def test_comment_that_somebody_edited_is_not_trusted(job: Job) -> None:
    """Whoever may edit comments of others could put another mark into one: its finding is posted again."""
    push(job, D1)
    state = job.pull
    state["threads"][0]["comments"][0] |= {"editor": "mallory"}
    state["reviews"][0] |= {"editor": "mallory"}
    job.pull = state
    assert counts(push(job, D1)) == (2, 2, 0)
    assert counts(push(job, D1, text="# moved\n" + FIRST)) == (2, 2, 0), (
        "the editor of its own review is the program itself"
    )


def test_comments_behind_the_first_page_of_a_thread_are_read(job: Job) -> None:
    push(job, D1)
    for n in range(7):
        reply(job, 0, f"Remark {n}", author="bob", association="NONE")
    reply(job, 0, "consilience: ignore It cannot be empty.")
    push(job, D1, text=FIRST.replace("def f3(", "def g3("))
    (known,) = report_of(job)["known_findings"]
    assert (known["status"], known["by"], known["reason"]) == ("dismissed", "alice", "It cannot be empty.")


def test_finding_keeps_its_identity_when_its_file_is_renamed_twice(job: Job) -> None:
    push(job, D1, D2)
    reply(job, 1, "consilience: ignore The caller checks the length.")
    for new in ("pages.py", "lib.py"):
        job.git("mv", *job.git("ls-files", "*.py").split(), new)
        job.commit()
        state = push(job, {**D1, "document": new, "category": "logic"}, {**D2, "document": new})
        assert counts(state) == (1, 2, 1)
    known = [(entry["identities"][0]["file"], entry["status"]) for entry in report_of(job)["known_findings"]]
    assert known == [("lib.py", "stands"), ("lib.py", "dismissed")]


def test_disputed_finding_does_not_fail_later_pushes(job: Job) -> None:
    """As it did not fail the first."""
    (job.temp / "refuse").touch()
    state = push(job, D1, **{"fail-on": "major"})
    assert "disputed" in state["threads"][0]["comments"][0]["body"]
    state = push(job, D1, text="# moved\n" + FIRST)
    assert "disputed" in state["reviews"][0]["body"].partition("Other findings")[2]
    assert counts(state) == (1, 1, 0)


def test_two_uses_of_the_action_know_nothing_of_each_other(job: Job) -> None:
    """Neither of each other's threads, nor of files that the other one left."""
    push(job, D1)
    shutil.copytree(job.home / "venv", job.home.parent / "docs" / "venv", symlinks=True)
    state = push(job, D2, D1, name="docs")
    assert counts(state) == (2, 3, 0)
    assert counts(push(job, D2, D1, name="docs", text="# moved\n" + FIRST)) == (2, 3, 0)
    assert counts(push(job, D1, name="code")) == (2, 3, 0)
    fixed = push(job, name="docs", text=BASE)
    assert [len(thread["comments"]) for thread in fixed["threads"]] == [1, 2, 2]


def test_retarget_of_the_pull_request_has_hunks_read_that_only_the_new_base_shows(job: Job) -> None:
    first = job.git("rev-parse", "HEAD~1")
    job.pull = job.pull | {"base": job.head}
    push(job, D3, text=FIRST.replace("items[9]", "items[9:][0]"))
    prompts(job)
    job.pull = job.pull | {"base": first}
    state = push(job, D1, D3)
    (prompt, *_) = prompts(job)
    assert "+    return items[3:][0]" in prompt
    assert "+    return items[9:][0]" not in prompt
    assert len(state["threads"]) == 2


def test_answers_may_cost_what_the_review_left(job: Job) -> None:
    push(job, D1)
    reply(job, 0, "Why?")
    prompts(job)
    job.inputs |= {"answer": "true", "max-cost": "0.5"}
    file = job.home / "report" / "report.json"
    report = json.loads(file.read_text())
    report["ledger"]["actual"]["cost"] = 0.5
    assert job.run("Read the threads").returncode == 0
    file.write_text(json.dumps(report))
    done = job.run("Answer replies")
    assert (done.returncode, "max-cost is spent" in done.stdout) == (0, True)
    assert prompts(job) == []


def test_reply_of_a_maintainer_is_answered_once_by_one_call(job: Job) -> None:
    push(job, D1, D2)
    reply(job, 0, "Why? The caller checks it.")
    reply(job, 1, "Let me in.", author="mallory", association="NONE")
    prompts(job)
    state = push(job, D1, D2, answer="true")
    (prompt,) = prompts(job)
    assert "Why? The caller checks it." in prompt
    assert "An empty list fails." in prompt
    assert "return items[3:][0]" in prompt
    assert "Let me in." not in prompt
    answer = state["threads"][0]["comments"][-1]
    assert answer["author"] == "github-actions[bot]"
    assert answer["body"].startswith("> The caller does not check it: see `pager.py:12`.")
    assert "@octocat" not in answer["body"]
    assert counts(state) == (1, 2, 3)
    assert counts(push(job, D1, D2)) == (1, 2, 3)
    assert prompts(job) == []
    reply(job, 0, "I see.")
    assert counts(push(job, D1, D2)) == (1, 2, 5)
    assert len(prompts(job)) == 1


def test_at_most_five_replies_are_answered_in_a_run_and_the_others_in_the_next(job: Job) -> None:
    lines = range(4, 20, 3)
    text, found = BASE, []
    for n in lines:
        text = text.replace(f"items[{n}]", f"items[{n}:][0]")
        found.append({"quotation": f"return items[{n}:][0]", "claim": f"The element {n} may be missing."})
    push(job, *found, text=text)
    for n in range(len(lines)):
        reply(job, n, "Why?")
    assert counts(push(job, answer="true")) == (1, 6, 11)
    assert counts(push(job)) == (1, 6, 12)


def test_finding_whose_comment_was_deleted_is_posted_again_when_it_is_found_again(job: Job) -> None:
    push(job, D1, D2)
    state = job.pull
    del state["threads"][0]
    job.pull = state
    state = push(job, D1, D2, text=FIRST.replace("def f3(items):", "def f3(items, strict=False):"))
    assert counts(state) == (2, 2, 0)
    assert "An empty list fails." in state["threads"][1]["comments"][0]["body"]


def test_findings_over_the_limit_come_with_the_next_run_which_reads_the_same_again(job: Job) -> None:
    limited = {"arguments": "--no-store\n--max-findings=1"}
    assert counts(push(job, D1, D2, **limited)) == (1, 1, 0)
    prompts(job)
    state = push(job, D1, D2, **limited)
    assert any("+    return items[15:][0]" in prompt for prompt in prompts(job))
    assert counts(state) == (2, 2, 0)
    push(job, D1, D2, **limited)
    assert prompts(job) == []


def test_file_that_grew_too_large_to_be_read_keeps_its_thread_and_fails_the_job(job: Job) -> None:
    """Nobody has read what is in it now."""
    push(job, D1)
    job.commit(pager__py=FIRST + "# filling\n" * 3_000_000)
    job.pull = job.pull | {"head": job.head}
    job.inputs |= {"diff": f"{job.pull['base']}...{job.head}", "fail-on": "major"}
    done = job.act()
    assert done["Result"].returncode == 6
    assert "larger than 1 MB: pager.py" in (job.temp / "summary.md").read_text()
    assert counts(job.pull) == (1, 1, 0)


def test_standing_finding_fails_a_later_push_until_it_is_dismissed(job: Job) -> None:
    push(job, D1)
    job.pull = job.pull | {"head": job.head}
    job.inputs["fail-on"] = "major"
    assert job.act()["Result"].returncode == 6
    reply(job, 0, "consilience: ignore It cannot be empty.")
    assert job.act()["Result"].returncode == 0
    known = json.loads((job.home / "report" / "baseline.json").read_text())["findings"]
    assert [(entry["by"], entry["reason"]) for entry in known] == [("alice", "It cannot be empty.")]


def test_only_severe_findings_are_comments_on_lines_and_the_others_come_once(job: Job) -> None:
    minor = {**D2, "severity": "minor"}
    state = push(job, D1, minor, inline="major")
    assert counts(state) == (1, 1, 0)
    assert "A short list fails." in state["reviews"][0]["body"]
    state = push(job, {**D1, "claim": "x"}, {**minor, "claim": "y"}, text="# moved\n" + FIRST)
    assert counts(state) == (1, 1, 0)
    assert state["reviews"][0]["body"].count("A short list fails.") == 1
    state = push(job, text=BASE)
    assert counts(state) == (1, 1, 1)
    assert "2 changed" in state["reviews"][0]["body"]


def test_line_that_github_does_not_know_puts_all_findings_in_the_text(job: Job) -> None:
    """Nothing of a refused review was posted."""
    job.pull = job.pull | {"lines": "none"}
    state = push(job, D1)
    assert counts(state) == (1, 0, 0)
    assert [entry["refused"] for entry in state["log"]] == [True, False]
    assert "An empty list fails." in state["reviews"][0]["body"]
    assert counts(push(job, D1, text="# moved\n" + FIRST)) == (1, 0, 0)


def test_newer_push_leaves_the_posting_to_its_own_run(job: Job) -> None:
    (job.temp / "findings.json").write_text(json.dumps([D1]))
    job.pull = job.pull | {"head": "0" * 40}
    job.inputs["diff"] = f"{job.pull['base']}...{job.head}"
    done = job.act()
    assert "is no longer the head" in done["Post the review"].stdout
    assert job.pull["log"] == []

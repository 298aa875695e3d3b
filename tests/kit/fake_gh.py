"""A program `gh` that keeps the state of a pull request in a file and refuses what GitHub would refuse.

`gh api [--method M] PATH --input -`. Its limits are documented ones: 65,536 characters a body, comments only on lines
that the diff of the pull request shows, a body for an event COMMENT, and `contents: write` to resolve a thread.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Body = Annotated[str, Field(min_length=1, max_length=65_536)]
Side = Literal["LEFT", "RIGHT"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LineComment(Strict):
    path: str
    body: Body
    line: Annotated[int, Field(ge=1)]
    side: Side
    start_line: Annotated[int, Field(ge=1)] | None = None
    start_side: Side | None = None


class CreateReview(Strict):
    commit_id: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    event: Literal["COMMENT"]
    body: Body
    comments: list[LineComment]


class OnlyBody(Strict):
    body: Body


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def new_pull(checkout: Path, base: str, **fields: Any) -> dict[str, Any]:
    """The state of a pull request without comments, by a token that may write to pull requests and read contents."""
    state = {"checkout": str(checkout), "base": base, "head": "", "viewer": "github-actions[bot]", "number": 7}
    return state | {"writes": ["pull-requests"], "threads": [], "reviews": [], "log": [], "next": 100} | fields


def comment(state: dict[str, Any], body: str, author: str, **fields: Any) -> dict[str, Any]:
    """A comment by a person (`alice`) or a bot (`linter[bot]`)."""
    state["next"] += 1
    kind, association = ("Bot", "NONE") if author.endswith("[bot]") else ("User", "MEMBER")
    url = f"https://github.com/owner/name/pull/7#discussion_r{state['next']}"
    made = {"id": state["next"], "body": body, "author": author, "kind": kind, "association": association, "url": url}
    return made | fields


def start_thread(state: dict[str, Any], body: str, author: str, **fields: Any) -> dict[str, Any]:
    first = comment(state, body, author, **fields)
    thread = {"id": f"PRRT_{first['id']}", "resolved": False, "resolved_by": None, "comments": [first]}
    state["threads"].append(thread)
    return thread


def lines_in_diff(state: dict[str, Any]) -> set[tuple[str, str, int]]:
    """The places that can have a comment."""
    command = ("git", "diff", "-U3", f"{state['base']}...{state['head']}")
    text = subprocess.run(command, cwd=state["checkout"], capture_output=True, text=True, check=True).stdout
    places, path, old, new = set(), "", 0, 0
    for line in text.splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif found := re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)", line):
            old, new = int(found[1]), int(found[2])
        elif line[:1] in (" ", "+", "-") and not line.startswith("--- "):
            if line[0] != "-":
                places.add((path, "RIGHT", new))
            if line[0] != "+":
                places.add((path, "LEFT", old))
            new += line[0] != "-"
            old += line[0] != "+"
    return places


def create_review(state: dict[str, Any], data: Any) -> dict[str, Any]:
    request = CreateReview.model_validate(data)
    places = set() if state.get("lines") == "none" else lines_in_diff(state)
    for given in request.comments:
        wanted = {(given.path, given.side, given.line)}
        wanted |= {(given.path, given.start_side or given.side, given.start_line)} if given.start_line else set()
        if not wanted <= places or (given.start_line or 0) >= given.line:
            raise Refusal(422, "Unprocessable Entity: Line could not be resolved")
    state["next"] += 1
    state["reviews"].append({"id": state["next"], "body": request.body, "author": state["viewer"]})
    for given in request.comments:
        start_thread(state, given.body, state["viewer"])["path"] = given.path
    return {"id": state["next"]}


def update_review(state: dict[str, Any], id: int, data: Any) -> dict[str, Any]:
    for review in state["reviews"]:
        if review["id"] == id and review["author"] == state["viewer"]:
            review |= {"body": OnlyBody.model_validate(data).body, "editor": state["viewer"]}
            return {"id": id}
    raise Refusal(404, "Not Found")


def reply(state: dict[str, Any], id: int, data: Any) -> dict[str, Any]:
    for thread in state["threads"]:
        if thread["comments"][0]["id"] == id:
            thread["comments"].append(comment(state, OnlyBody.model_validate(data).body, state["viewer"]))
            return {"id": state["next"]}
    raise Refusal(404, "Not Found")


def graphql(state: dict[str, Any], data: Any) -> dict[str, Any]:
    operation = re.search(r"(query|mutation) (\w+)", data["query"])
    assert operation is not None
    variables = data["variables"]
    if operation[2] == "Resolve":
        if "contents" not in state["writes"]:
            raise Refusal(403, "Resource not accessible by integration")
        thread = next(thread for thread in state["threads"] if thread["id"] == variables["thread"])
        thread |= {"resolved": True, "resolved_by": state["viewer"]}
        return {"data": {"resolveReviewThread": {"thread": {"isResolved": True}}}}
    if operation[2] == "Comments":
        thread = next(thread for thread in state["threads"] if thread["id"] == variables["thread"])
        return {"data": {"node": {"comments": comments_page(thread, state["viewer"], int(variables["after"] or 0))}}}
    if (variables["owner"], variables["name"], variables["number"]) != ("owner", "name", state["number"]):
        return {"data": {"repository": {"pullRequest": None}}}
    nodes = list(map(thread_node if operation[2] == "Threads" else review_node, *elements(state, operation[2])))
    first = int(variables["after"] or 0)
    page = {"hasNextPage": first + 2 < len(nodes), "endCursor": str(first + 2)}  # pages of two
    name = "reviewThreads" if operation[2] == "Threads" else "reviews"
    pull = {"headRefOid": state["head"], name: {"pageInfo": page, "nodes": nodes[first : first + 2]}}
    return {"data": {"repository": {"pullRequest": pull}}}


def elements(state: dict[str, Any], operation: str) -> tuple[list[Any], list[str]]:
    found = state["threads"] if operation == "Threads" else state["reviews"]
    return found, [state["viewer"]] * len(found)


def review_node(review: dict[str, Any], viewer: str) -> dict[str, Any]:
    return written({**review, "kind": "Bot", "url": "https://x"}, viewer)


def written(given: dict[str, Any], viewer: str) -> dict[str, Any]:
    """What reviews and comments both have."""
    editor = given.get("editor")
    return {
        "fullDatabaseId": str(given["id"]),
        "body": given["body"],
        "url": given["url"],
        "viewerDidAuthor": given["author"] == viewer,
        "author": {"__typename": given["kind"], "login": given["author"].removesuffix("[bot]")},
        "editor": {"login": editor.removesuffix("[bot]")} if editor else None,
    }


COMMENTS_OF_A_PAGE = 3


def comments_page(thread: dict[str, Any], viewer: str, first: int) -> dict[str, Any]:
    nodes = [{**written(given, viewer), "authorAssociation": given["association"]} for given in thread["comments"]]
    end = first + COMMENTS_OF_A_PAGE
    return {"pageInfo": {"hasNextPage": end < len(nodes), "endCursor": str(end)}, "nodes": nodes[first:end]}


def thread_node(thread: dict[str, Any], viewer: str) -> dict[str, Any]:
    by = {"login": thread["resolved_by"]} if thread["resolved_by"] else None
    return {
        "id": thread["id"],
        "isResolved": thread["resolved"],
        "resolvedBy": by,
        "comments": comments_page(thread, viewer, 0),
    }


def answer(state: dict[str, Any], method: str, path: str, data: Any) -> dict[str, Any]:
    if path == "graphql":
        return graphql(state, data)
    if "pull-requests" not in state["writes"]:
        raise Refusal(403, "Resource not accessible by integration")
    pulls = f"repos/owner/name/pulls/{state['number']}"
    if (method, path) == ("POST", f"{pulls}/reviews"):
        return create_review(state, data)
    if method == "PUT" and (found := re.fullmatch(rf"{pulls}/reviews/(\d+)", path)):
        return update_review(state, int(found[1]), data)
    if method == "POST" and (found := re.fullmatch(rf"{pulls}/comments/(\d+)/replies", path)):
        return reply(state, int(found[1]), data)
    raise Refusal(404, "Not Found")


def main(state_file: str, arguments: list[str], token: str | None) -> int:
    """Serve one call of the program."""
    file = Path(state_file)
    state = json.loads(file.read_text())
    assert arguments[0] == "api"
    assert arguments[-2:] == ["--input", "-"]
    assert token
    method = arguments[arguments.index("--method") + 1] if "--method" in arguments else "POST"
    path, data = arguments[-3], json.loads(sys.stdin.read())
    status = 0
    try:
        print(json.dumps(answer(state, method, path, data)))
    except (Refusal, ValidationError) as error:
        code = error.status if isinstance(error, Refusal) else 422
        message = str(error) if isinstance(error, Refusal) else f"Validation Failed: {error}"
        print(f"gh: {' '.join(message.split())} (HTTP {code})", file=sys.stderr)
        status = 1
    if path != "graphql" or "mutation" in data["query"]:
        state["log"].append({"method": method, "path": path, "body": data, "refused": bool(status), "token": token})
    file.write_text(json.dumps(state))
    return status

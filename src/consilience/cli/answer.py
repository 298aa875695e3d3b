"""Answering for a person whom a session awaits, also when the process that asked is long gone."""

from __future__ import annotations

from consilience.cli.failures import say
from consilience.cli.inputs import read_text
from consilience.cli.output import print_json
from consilience.domain.errors import SettingsError, UnknownName
from consilience.journal.store import Store
from consilience.reporting.question import Question, questions
from consilience.reporting.words import printable


def answer(store: Store, session: str, key: str, text: str | None, *, by: str, as_json: bool) -> None:
    """Record an answer, or without a text show what is asked. Raises `UserError`s for what cannot be an answer."""
    asked = {question.key: question for question in questions(store.read(session), store.text, store.prompt)}
    if text is None:
        if key and key not in asked:
            raise _unknown(session, key, asked)
        _show(session, [asked[key]] if key else list(asked.values()), as_json)
        return
    if key not in asked:
        raise _unknown(session, key, asked)
    given = read_text(text)
    if not given.strip():
        raise SettingsError(f"the answer to {key} is empty", do="Give words.")
    form = asked[key].form
    try:
        reply = form.read(given) if form else given.strip()
    except ValueError as wrong:
        raise SettingsError(
            f"that is no answer to {key}: {wrong}", do=f"What is asked: consilience sessions answer {session} {key}."
        ) from None
    store.answer(session, key, reply, by=by)
    waiting = [other for other, question in asked.items() if other != key and not question.answered]
    more = f"Still awaited: {', '.join(waiting)}. " if waiting else ""
    go_on = f"consilience resume {session}"
    if as_json:
        print_json(
            {"session": session, "key": key, "replaced": asked[key].answered, "awaited": waiting, "resume": go_on}
        )
        return
    instead = ", instead of the one that was there" if asked[key].answered else ""
    say(f"Recorded the answer to {key}{instead}. {more}Go on: {go_on}")


def _unknown(session: str, key: str, asked: dict[str, Question]) -> UnknownName:
    known = f"Awaited: {', '.join(asked)}." if asked else "Nothing is awaited."
    return UnknownName(f"no answer to {key!r} is awaited in session {session}", do=known)


def _show(session: str, asked: list[Question], as_json: bool) -> None:
    if as_json:
        print_json([_json(question) for question in asked])
        return
    if not asked:
        print(f"Session {session} awaits no answer.")
    for question in asked:
        there = " (answered; it is heard when the session goes on)" if question.answered else ""
        print(f"=== {printable(question.key)}: {printable(question.agent)} is asked{there} ===\n\n{question.text}\n")
        if question.form:
            print(f"The answer is a JSON object. {question.form.words()}")
            if question.form.prose:
                print(f"Words alone are taken as {question.form.prose}.")
        print(f"Answer: consilience sessions answer {session} {question.key} TEXT\n")


def _json(question: Question) -> dict[str, object]:
    return {
        "key": question.key,
        "agent": question.agent,
        "attempt": question.attempt,
        "text": question.text,
        "schema": question.form.schema if question.form else None,
        "answered": question.answered,
    }

"""What every store must do. A store's test module makes a `Stores` and inherits `StoreConformance`."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar

import pytest

from consilience.domain.errors import SessionBusy, SettingsError, StoreUnusable, UnknownName
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    CallCompleted,
    CallStarted,
    CheckRecorded,
    Event,
    MessagePublished,
    SessionFinished,
    SessionParked,
    SessionStarted,
    canonical_digest,
    text_id,
)
from consilience.domain.outcome import Check, Estimate, StopReason
from consilience.domain.topology import tree
from consilience.journal.store import Arrival, PromptParts, Records, Store

Open = Callable[[], Store]


def completed(key: str, text: str, place: str = "0", **more: object) -> CallCompleted:
    return CallCompleted(place=place, key=key, agent="A", text=text_id(text), tokens_in=3, cost=0.5, **more)  # type: ignore[arg-type]


async def collected(tail: AsyncGenerator[AnyEvent]) -> list[int]:
    return [event.seq async for event in tail]


class StoreConformance:
    """`opened` opens the store under test anew on the same place, as another process would."""

    survives: ClassVar[bool] = True

    async def test_events_are_read_in_commit_order(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        events = [
            completed("a", "one", "1.0", volatile={"t": 1.5, "model": "m"}),
            CheckRecorded(place="0", index=2, check=Check(met=True, kind="jaccard", score=0.9, threshold=0.85)),
            MessagePublished(place="2", id="m", sender="A", kind="nudge", text=text_id("two"), audience=("B",)),
        ]
        journal.append(events[0], texts=["one"])
        journal.append(events[1])
        await journal.commit(events[2], texts=["two"])
        records = store.read("s")
        assert [event.seq for event in records] == [1, 2, 3]
        assert records == events
        assert (store.text(text_id("one")), store.text(text_id("two"))) == ("one", "two")
        await journal.close()
        store.close()

    async def test_committed_events_are_read_by_the_next_process(self, opened: Open) -> None:
        if not self.survives:
            pytest.skip("keeps nothing by design")
        store = opened()
        journal = store.create("s")
        await journal.commit(completed("a", "text"), texts=["text"])
        journal.abandon()
        store = opened()
        journal = store.open("s")
        assert [event.seq for event in store.read("s")] == [1]
        await journal.commit(completed("b", "text", "1"), texts=["text"])
        assert [event.seq for event in store.read("s")] == [1, 2]
        await journal.close()
        store.close()

    async def test_any_text_is_stored_once(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        texts = ["", "ünï ✓ \u0000 \U0001f600", "x" * 1_000_000, "line\r\nline"]
        for n, text in enumerate(texts * 2):
            await journal.commit(completed(f"k{n}", text, str(n)), texts=[text])
        for text in texts:
            assert store.text(text_id(text)) == text
        await journal.close()
        store.close()

    async def test_prompts_round_trip(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        lists = [
            PromptParts(("i", "k", "a"), 2),
            PromptParts(("i", "k", "a", "b"), 3),
            PromptParts(("i", "k", "a", "b", "c"), 4),
            PromptParts(("only",), 0),
            PromptParts(("i", "k", 'quo"te\n'), 0),
        ]
        for n, parts in enumerate(lists * 2):
            await journal.commit(completed(f"k{n}", "t", str(n), prompt=parts.id), texts=["t"], prompt=parts)
        for parts in lists:
            assert store.prompt(parts.id) == parts.parts
        await journal.close()
        store.close()

    async def test_second_lease_is_refused_with_the_holder(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        with pytest.raises(SessionBusy, match="process"):
            store.open("s")
        assert store.holder("s")
        await journal.close()
        assert store.holder("s") is None
        await store.open("s").close()
        store.close()

    async def test_used_time_is_stored(self, opened: Open) -> None:
        store = opened()
        journal, other = store.create("s"), store.create("other")
        assert journal.seconds() == 0.0
        journal.note_seconds(1.5)
        journal.note_seconds(2.25)
        await journal.close()
        journal = store.open("s")
        assert (journal.seconds(), other.seconds(), store.read("s")) == (2.25, 0.0, [])
        await journal.close()
        await other.close()
        store.close()

    async def test_call_in_flight_is_stored_until_it_ends(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        for key in ("a", "b"):
            journal.append(CallStarted(place="0", key=key, agent="A"))
        await journal.commit(completed("a", "t"), texts=["t"])
        assert [(f.key, f.agent) for f in store.flights("s")] == [("b", "A")]
        assert [event.type for event in store.read("s")] == ["call_completed"]
        await journal.close()
        store.close()

    async def test_reply_that_has_arrived_is_stored_until_its_call_ends(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        for key in ("a", "b"):
            await journal.commit(CallStarted(place="0", key=key, agent="A"))
            await journal.keep(Arrival(key, 1, "d", '{"text": "one"}'))
        await journal.keep(Arrival("b", 2, "e", '{"text": "two"}'))
        await journal.commit(completed("a", "t"), texts=["t"])
        assert store.arrivals("s") == [Arrival("b", 2, "e", '{"text": "two"}')]
        await journal.close()
        store.admin.remove(["s"])
        with pytest.raises(UnknownName):
            store.arrivals("s")
        store.close()

    async def test_letter_is_stored_until_it_is_taken(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        await journal.commit(SessionParked(awaited=("k",)))
        with pytest.raises(UnknownName, match="Awaited: k"):
            store.post("s", "answer", "typo", "forty-two")
        store.post("s", "answer", "k", "forty-two", by="Ada")  # while the session is leased
        store.post("s", "cancel")
        answer, cancel = store.mail("s")
        assert (answer.kind, answer.key, answer.text, answer.by) == ("answer", "k", "forty-two", "Ada")
        assert (cancel.kind, cancel.key, cancel.text, cancel.by) == ("cancel", "", "", "")
        assert answer.number < cancel.number
        assert [event.type for event in store.read("s")] == ["session_parked"]
        await journal.take(answer, answer.event())
        assert store.mail("s") == [cancel]
        received = store.read("s")[-1]
        assert isinstance(received, AnswerReceived)
        assert (received.key, received.by, store.text(received.text)) == ("k", "Ada", "forty-two")
        await journal.close()
        store.close()

    async def test_letters_to_a_session_that_nobody_runs_are_recorded_in_order(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        await journal.commit(SessionParked(awaited=("k",)))
        store.post("s", "answer", "k", "one")
        await journal.close()
        store.post("s", "answer", "k", "two", by="Ada")
        answers = [event for event in store.read("s") if isinstance(event, AnswerReceived)]
        assert [(store.text(event.text), event.by) for event in answers] == [("one", ""), ("two", "Ada")]
        assert (store.mail("s"), store.holder("s")) == ([], None)
        store.close()

    async def test_letter_is_delivered_to_the_process_that_holds_the_session(self, opened: Open) -> None:
        store = opened()
        journal, other = store.create("s"), store.create("other")
        delivered: asyncio.Queue[list[str]] = asyncio.Queue()
        journal.receive(lambda letters: delivered.put_nowait([letter.text for letter in letters]))
        elsewhere = opened() if self.survives else store
        for text in ("one", "two"):
            elsewhere.post("s", "cancel", text=text)
            elsewhere.post("other", "cancel", text="not for s")
        while (texts := await asyncio.wait_for(delivered.get(), 10)) != ["one", "two"]:
            assert texts == ["one"], "again, until it is taken"
        journal.receive(None)
        await journal.close()
        await other.close()
        for each in {id(each): each for each in (store, elsewhere)}.values():
            each.close()

    async def test_letter_to_a_finished_session_is_refused_and_those_left_are_gone(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        store.post("s", "cancel")
        finish = SessionFinished(
            stop_reason=StopReason.SETTLED, report=text_id("r"), report_digest="d", presentation="p"
        )
        await journal.commit(finish, texts=["r"])
        await journal.close()
        assert store.mail("s") == []
        with pytest.raises(SettingsError, match="is finished"):
            store.post("s", "cancel")
        store.close()

    async def test_sessions_are_listed_oldest_first_and_do_not_mix(self, opened: Open) -> None:
        store = opened()
        for name in ("z", "a", "m"):
            journal = store.create(name)
            await journal.commit(completed(f"of {name}", "t"), texts=["t"])
            await journal.close()
        assert store.sessions() == ["z", "a", "m"]
        assert [event.key for event in store.read("a")] == ["of a"]  # type: ignore[union-attr]
        store.close()

    async def test_owner_sees_own_sessions_and_replies_only(self, opened: Open) -> None:
        store = opened()
        ada, bob = store.of("ada"), store.of("bob")
        for view, name in ((ada, "a"), (bob, "b"), (store, "c")):
            journal = view.create(name)
            await journal.commit(completed("k", f"of {name}", digest="same"), texts=[f"of {name}"])
            await journal.close()
        assert (ada.sessions(), bob.sessions(), store.sessions()) == (["a"], ["b"], ["a", "b", "c"])
        assert [store.owner(name) for name in store.sessions()] == ["ada", "bob", ""]
        replies = [
            found and store.text(found.text) for view in (ada, bob, store.of("eve")) for found in [view.reply("same")]
        ]
        assert replies == ["of a", "of b", None]
        reads: list[Callable[[Store], object]] = [
            lambda view: view.read("a"),
            lambda view: view.beginning("a"),
            lambda view: view.open("a"),
            lambda view: view.post("a", "cancel"),
            lambda view: view.admin.remove(["a"]),
            lambda view: view.owner("a"),
        ]
        for read in reads:
            with pytest.raises(UnknownName, match="there is no session 'a'"):
                read(bob)
        with pytest.raises(UnknownName):
            await bob.reader.run(lambda records: records.read("a"))
        seen = [await view.reader.run(lambda records: records.sessions()) for view in (ada, bob)]
        assert seen == [["a"], ["b"]]
        with pytest.raises(SettingsError, match="already"):
            bob.create("a")
        ada.admin.remove(["a"])
        assert store.sessions() == ["b", "c"]
        store.close()

    async def test_owner_sees_the_sessions_of_others_that_are_named_too_and_creates_their_own(
        self, opened: Open
    ) -> None:
        store = opened()
        for session, owner in (("a", "ada"), ("t", "team:x"), ("b", "bob")):
            store.of(owner).create(session).release()
        ada = store.of("ada", "team:x")
        assert ada.sessions() == await ada.reader.run(lambda records: records.sessions()) == ["a", "t"]
        ada.create("new").release()
        assert store.owner("new") == "ada"
        assert [entry.session for entry in ada.entries()] == ["a", "t", "new"]
        with pytest.raises(UnknownName):
            ada.read("b")
        store.close()

    async def test_links_are_found_by_digest_end_once_and_are_removed_with_their_session(self, opened: Open) -> None:
        store = opened()
        for session in ("a", "b"):
            store.create(session).release()
        store.add_link("a", "seat", agent="L1", digest="d1", until=100.5, by="ada")
        store.add_link("b", "share", digest="d2", until=200.0, by="")
        link = store.link("d1")
        assert link is not None
        assert (link.session, link.kind, link.agent, link.until, link.by) == ("a", "seat", "L1", 100.5, "ada")
        assert (store.links("a"), store.link("d3")) == ([link], None)
        store.end_link("a", link.number, 50.0)
        store.end_link("a", link.number, 70.0)
        assert [found.until for found in store.links("a")] == [50.0]
        with pytest.raises(UnknownName):
            store.end_link("b", link.number, 1.0)
        with pytest.raises(UnknownName):
            store.of("bob").links("a")
        store.admin.remove(["a"])
        assert store.link("d1") is None
        assert len(store.links("b")) == 1
        store.close()

    async def test_owner_or_letter_that_is_not_unicode_is_refused_and_the_store_goes_on(self, opened: Open) -> None:
        store = opened()
        journal = store.create("a")
        for wrong in (
            lambda: store.of("ad\ud800a"),
            lambda: store.post("a", "comment", text="h\ud800m"),
            lambda: store.post("a", "cancel", by="ad\ud800a"),
        ):
            with pytest.raises(SettingsError, match="not valid Unicode"):
                wrong()
        await journal.commit(SessionParked(awaited=("k",)))
        await journal.close()
        store.close()

    async def test_entries_tell_name_question_and_end_of_each_session_of_an_owner(self, opened: Open) -> None:
        store = opened()
        started = SessionStarted(
            schema_version=6, prompt_format=1, protocol="seance", protocol_version=1, settings={}, task=text_id("Who?"), seed=0,
            agents=(), topology=tree(2, 2), quorum=0.5, estimate=Estimate(min=1, max=2), templates={}, comparison="k1",
        )  # fmt: skip
        finish = SessionFinished(
            stop_reason=StopReason.SETTLED, report=text_id("r"), report_digest="d", presentation="p"
        )
        first = store.create("first", name="what\nI asked")
        await first.commit(started, texts=["Who?"])
        second = store.of("ada").create("second")
        await second.commit(started, texts=["Who?"])
        await second.commit(finish, texts=["r"])
        store.create("without an event").release()
        *entries, blank = store.entries()
        assert (blank.session, blank.protocol, blank.task, blank.finished) == ("without an event", "", "", False)
        assert [(e.session, e.name, e.finished) for e in entries] == [
            ("first", "what I asked", False),
            ("second", "", True),
        ]
        assert {(e.protocol, store.text(e.task), e.comparison) for e in entries} == {("seance", "Who?", "k1")}
        assert [e.created for e in entries] == [store.created(e.session) for e in entries]
        store.rename("second", "mine")
        assert [(e.session, e.name) for e in store.of("ada").entries()] == [("second", "mine")]
        with pytest.raises(UnknownName):
            store.of("ada").rename("first", "stolen")
        await first.close()
        await second.close()
        store.close()

    async def test_session_id_in_use_is_refused(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        with pytest.raises(SettingsError, match="already"):
            store.create("s")
        await journal.commit(completed("a", "t"), texts=["t"])
        await journal.close()
        store.close()

    def test_session_id_requested_by_several_threads_goes_to_one(self, opened: Open) -> None:
        store = opened()
        start = threading.Barrier(4)
        refusals: list[str] = []

        def want() -> None:
            for n in range(25):
                start.wait()
                try:
                    store.create(f"s{n}").release()
                except SettingsError as error:
                    refusals.append(error.what)
                else:
                    refusals.append("mine")

        threads = [threading.Thread(target=want) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(refusals) == {"mine": 25, **{f"there is a session 's{n}' already": 3 for n in range(25)}}
        store.create("the store lives on").release()
        store.close()

    def test_sessions_created_by_several_threads_at_once_are_all_created(self, opened: Open) -> None:
        store = opened()
        start = threading.Barrier(4)
        refused: list[BaseException] = []

        def create(thread: int) -> None:
            for n in range(25):
                start.wait()
                try:
                    store.create(f"s{n}-{thread}").release()
                except Exception as error:
                    refused.append(error)

        threads = [threading.Thread(target=create, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not refused
        assert sorted(store.sessions()) == sorted(f"s{n}-{thread}" for n in range(25) for thread in range(4))
        store.close()

    @pytest.mark.parametrize(
        "id", ["", " ", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a\0b", "a\nb", "b" * 300, "\ud800"]
    )
    def test_session_id_invalid_as_a_file_name_is_refused(self, id: str, opened: Open) -> None:
        store = opened()
        with pytest.raises(SettingsError, match="invalid session id"):
            store.create(id)
        assert store.sessions() == []
        store.close()

    async def test_removed_session_leaves_no_texts_that_only_it_used(self, opened: Open) -> None:
        store = opened()
        opening = ("i", "k", f"t:{text_id('of both')}")
        prompts = {}
        for session in ("gone", "kept"):
            journal = store.create(session)
            texts = ["of both", f"of {session}", f"request of {session}"]
            prompts[session] = PromptParts((*opening, f"t:{text_id(texts[2])}"), len(opening))
            event = completed("a", texts[1], prompt=prompts[session].id)
            await journal.commit(event, texts=texts, prompt=prompts[session])
            await journal.commit(completed("b", "of both", "1"))
            journal.append(CallStarted(place="2", key="c", agent="A"))
            await journal.close()
        assert store.admin.weight(["gone"]) >= len("of gone" + "request of gone")
        assert store.admin.weight(["gone", "kept"]) > store.admin.weight(["gone"]) + store.admin.weight(["kept"]), (
            "and what they share"
        )
        store.admin.remove(["gone"])
        assert store.admin.compact() >= 0
        assert store.sessions() == ["kept"]
        for ask in (store.read, store.flights, store.open):
            with pytest.raises(UnknownName, match="gone"):
                ask("gone")
        for text in ("of gone", "request of gone"):
            with pytest.raises(StoreUnusable, match="missing"):
                store.text(text_id(text))
        with pytest.raises(StoreUnusable, match="missing"):
            store.prompt(prompts["gone"].id)
        assert [event.key for event in store.read("kept")] == ["a", "b"]  # type: ignore[union-attr]
        assert [flight.key for flight in store.flights("kept")] == ["c"]
        for text in ("of both", "of kept", "request of kept"):
            assert store.text(text_id(text)) == text
        assert store.prompt(prompts["kept"].id) == prompts["kept"].parts
        store.close()

    async def test_removal_with_a_running_session_removes_nothing(self, opened: Open) -> None:
        store = opened()
        for session in ("idle", "busy"):
            journal = store.create(session)
            await journal.commit(completed("a", "t"), texts=["t"])
            if session == "idle":
                await journal.close()
        with pytest.raises(SessionBusy, match="busy"):
            store.admin.remove(["idle", "busy"])
        with pytest.raises(UnknownName, match="nobody"):
            store.admin.remove(["idle", "nobody"])
        assert store.sessions() == ["idle", "busy"]
        assert store.holder("idle") is None, "the lease taken to remove it was given back"
        assert store.text(text_id("t")) == "t"
        await journal.commit(completed("b", "t", "1"), texts=["t"])
        await journal.close()
        store.admin.remove(["idle", "busy", "idle"])
        assert store.sessions() == []
        store.close()

    async def test_texts_of_a_removed_session_are_stored_again(self, opened: Open) -> None:
        """The one that runs had stored nothing of its own when the other's texts went."""
        store = opened()
        parts = PromptParts(("i", "k", f"t:{text_id('shared')}"), 2)
        journal = store.create("gone")
        await journal.commit(completed("a", "shared", prompt=parts.id), texts=["shared"], prompt=parts)
        await journal.close()
        running = store.create("running")
        store.admin.remove(["gone"])
        await running.commit(completed("a", "shared", prompt=parts.id), texts=["shared"], prompt=parts)
        assert (store.text(text_id("shared")), store.prompt(parts.id)) == ("shared", parts.parts)
        assert [event.seq for event in store.read("running")] == [1]
        await running.close()
        again = store.create("gone")
        assert store.read("gone") == []
        await again.close()
        store.close()

    async def test_removal_keeps_rows_that_a_running_session_refers_to(self, opened: Open) -> None:
        """Prompts that are equal but for what they share with others, in any order, with a removal after each."""
        store = opened()
        running = store.create("running")
        lists = [
            ("a", 1),
            ("abc", 1),
            ("abc", 2),
            ("abcde", 2),
            ("abx", 2),
            ("abcdy", 4),
            ("ab", 2),
            ("abz", 1),
            ("q", 0),
        ]
        for n, (letters, shared) in enumerate(lists):
            journal = store.create(f"gone-{n}")
            await journal.commit(completed("a", f"t{n}"), texts=[f"t{n}"])
            await journal.close()
            parts = PromptParts(tuple(letters), shared)
            await running.commit(completed(f"k{n}", "t", str(n), prompt=parts.id), texts=["t"], prompt=parts)
            store.admin.remove([f"gone-{n}"])
            for before, _ in lists[: n + 1]:
                assert store.prompt(PromptParts(tuple(before)).id) == tuple(before)
        await running.close()
        store.close()

    async def test_unknown_session_is_an_error(self, opened: Open) -> None:
        store = opened()
        for act in (store.open, store.read, store.holder, store.flights):
            with pytest.raises(UnknownName, match="nobody"):
                act("nobody")
        for act_on_several in (store.admin.remove, store.admin.weight):
            with pytest.raises(UnknownName, match="nobody"):
                act_on_several(["nobody"])
        store.close()

    async def test_concurrent_commits_are_durable_and_numbered_without_gaps(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        await asyncio.gather(
            *(journal.commit(completed(f"k{n}", f"t{n}", str(n)), texts=[f"t{n}"]) for n in range(200))
        )
        assert [event.seq for event in store.read("s")] == list(range(1, 201))
        await journal.close()
        store.close()

    async def test_canonical_journal_ignores_order_and_clock(self, opened: Open) -> None:
        store = opened()
        made = []
        for session, order in (("one", (0, 1, 2)), ("two", (2, 0, 1))):
            journal = store.create(session)
            for n in order:
                await journal.commit(
                    completed(f"k{n}", "t", f"0.{n}.0", volatile={"t": hash(session) % 9}), texts=["t"]
                )
            await journal.close()
            made.append(canonical_digest(store.read(session)))
        assert made[0] == made[1]
        store.close()

    async def test_last_event_is_read_alone(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        assert store.ending("s") is None
        for key in ("a", "b"):
            await journal.commit(completed(key, "text", key), texts=["text"])
        assert store.ending("s") == store.read("s")[-1]
        with pytest.raises(UnknownName):
            store.ending("t")
        await journal.close()
        store.close()

    async def test_reading_after_an_event_returns_the_later_ones(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        for n in range(5):
            await journal.commit(completed(f"k{n}", "t", str(n)), texts=["t"])
        assert [event.seq for event in store.read("s", after=3)] == [4, 5]
        assert store.read("s", after=5) == []
        assert await store.reader.run(lambda records: records.read("s", after=3)) == store.read("s", after=3)
        await journal.close()
        store.close()

    async def test_reader_runs_on_its_own_thread(self, opened: Open) -> None:
        """While it reads, the event loop goes on: here the loop itself ends the read."""
        store = opened()
        await store.create("s").close()
        go = threading.Event()

        def read(records: Records) -> list[str]:
            assert go.wait(30), "the event loop stood still"
            return records.sessions()

        reading = asyncio.ensure_future(store.reader.run(read))
        await asyncio.sleep(0)
        go.set()
        assert await reading == ["s"]
        store.close()

    async def test_texts_and_prompts_are_read_in_batches(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        texts = [f"text {n}" for n in range(1200)]
        prompts = [PromptParts(("i", *(f"q:{k}" for k in range(n)), f"t:{n}"), n + 1) for n in range(1, 40)]
        journal.append(completed("k", "text 0"), texts=texts)
        for n, prompt in enumerate(prompts):
            await journal.commit(completed(f"k{n}", "text 0", f"{n}"), prompt=prompt)
        ids = {text_id(text): text for text in texts}
        assert store.texts(list(ids)) == ids
        assert store.prompts([p.id for p in prompts]) == {p.id: p.parts for p in prompts}
        missing = text_id("never stored")
        with pytest.raises(StoreUnusable, match=missing):
            store.texts([*ids, missing])
        with pytest.raises(StoreUnusable, match=missing):
            store.prompts([prompts[0].id, missing])
        await journal.close()
        store.close()

    async def test_readers_that_tail_a_session_share_its_poll_and_see_every_event(self, opened: Open) -> None:
        store = opened()
        journal, polls = store.create("s"), asyncio.Queue[str]()
        run = store.reader.run

        async def counted(work: Callable[[Records], Any]) -> Any:
            polls.put_nowait(work.__qualname__)
            return await run(work)

        store.reader.run = counted  # type: ignore[method-assign]
        await journal.commit(completed("0", "t"), texts=["t"])
        tails = [asyncio.ensure_future(collected(store.reader.tail("s"))) for _ in range(30)]
        looked = [await asyncio.wait_for(polls.get(), 10) for _ in range(80)]
        reads = sum("._read." in name for name in looked)
        assert 30 <= reads <= 60, "each reads when it comes, and once when the poll first finds the event"
        assert len(looked) - reads >= 20
        for n in range(1, 5):
            await journal.commit(completed(str(n), "t", str(n)), texts=["t"])
            await polls.get()
        finish = SessionFinished(
            stop_reason=StopReason.SETTLED, report=text_id("r"), report_digest="d", presentation="p"
        )
        await journal.commit(finish, texts=["r"])
        assert await asyncio.wait_for(asyncio.gather(*tails), 10) == [list(range(1, 7))] * 30
        await journal.close()
        store.close()

    async def test_tail_yields_events_up_to_the_end_of_the_session(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        await journal.commit(completed("k0", "t", "0"), texts=["t"])
        tail = store.reader.tail("s")
        seen = [(await anext(tail)).seq]
        following = asyncio.ensure_future(anext(tail))
        journal.append(completed("k1", "t", "1"))
        seen.append((await following).seq)
        end = SessionFinished(
            place="2", stop_reason=StopReason.SETTLED, report=text_id("t"), report_digest="d", presentation=text_id("p")
        )
        await journal.commit(end)
        seen += [event.seq async for event in tail]
        assert seen == [1, 2, 3]
        assert [event.seq async for event in store.reader.tail("s", after=2)] == [3]
        with pytest.raises(UnknownName, match="nobody"):
            await anext(store.reader.tail("nobody"))
        await journal.close()
        store.close()

    async def test_observed_events_are_committed_and_in_order_of_seq(self, opened: Open) -> None:
        store = opened()
        journal = store.create("s")
        observed: list[tuple[int, str]] = []

        def observe(event: Event) -> None:
            observed.append((event.seq, event.type))
            assert event.seq == 0 or event in store.read("s")

        journal.on_commit = observe
        journal.append(CallStarted(place="0", key="a", agent="A"))
        journal.append(MessagePublished(place="0", id="m", sender="A", kind="nudge", text=text_id("t")), texts=["t"])
        assert observed == []
        await asyncio.gather(*(journal.commit(completed(f"k{n}", "t", f"{n}")) for n in range(20)))
        assert observed == [(0, "call_started"), (1, "message_published")] + [
            (seq, "call_completed") for seq in range(2, 22)
        ]
        await journal.close()
        store.close()

"""The SQL statements of the SQLite journal."""

from __future__ import annotations

ADD_EVENT = "INSERT INTO events VALUES(?,?,?)"
ADD_IN_FLIGHT = "INSERT OR REPLACE INTO in_flight VALUES(?,?,?,?)"
END_IN_FLIGHT = "DELETE FROM in_flight WHERE session=? AND key=?"
ADD_ARRIVAL = "INSERT OR REPLACE INTO arrivals VALUES(?,?,?,?,?)"
END_ARRIVAL = "DELETE FROM arrivals WHERE session=? AND key=?"
NOTE_SECONDS = "INSERT OR REPLACE INTO held VALUES(?,?)"
ADD_TEXT = "INSERT OR IGNORE INTO texts VALUES(?,?)"
ADD_PROMPT = "INSERT OR IGNORE INTO prompts VALUES(?,?,?)"
CREATE = "INSERT INTO sessions(n, id, created, holder, owner, name) VALUES(?,?,?,?,?,?)"
HOLD = "UPDATE sessions SET holder=? WHERE n=?"
RENAME = "UPDATE sessions SET name=? WHERE n=?"
POST = "INSERT INTO mail(session, kind, key, text, sender) VALUES(?,?,?,?,?)"
TAKE = "DELETE FROM mail WHERE n=?"
DISCARD_MAIL = "DELETE FROM mail WHERE session=?"
ADD_LINK = "INSERT INTO links(session, kind, agent, digest, until, sender) VALUES(?,?,?,?,?,?)"
END_LINK = "UPDATE links SET until=MIN(until,?) WHERE n=?"
LINKS = """
SELECT links.n, id, kind, agent, digest, until, sender FROM links JOIN sessions ON sessions.n = links.session
WHERE links.session = COALESCE(?, links.session) AND digest = COALESCE(?, digest) ORDER BY links.n"""
OCCUPY = "INSERT INTO held VALUES(-1, zeroblob(?))"
VACATE = "DELETE FROM held WHERE session=-1"
ADD_OPINION = "INSERT OR IGNORE INTO opinions VALUES(?,?,?,?,?)"
OPINIONS = "SELECT link, vote, objection, given FROM opinions WHERE session=? ORDER BY link"
RANKS = {ADD_TEXT: 0, ADD_PROMPT: 1, ADD_EVENT: 2, ADD_IN_FLIGHT: 3, END_IN_FLIGHT: 3, NOTE_SECONDS: 4}
RANKS |= {ADD_ARRIVAL: 5, END_ARRIVAL: 5, POST: 6, TAKE: 6, DISCARD_MAIL: 7}
"""The order of statements in a transaction, so that those of one table are run together, in half the time."""


OWNED = "owner IN (SELECT value FROM json_each(COALESCE(?, json_array(owner))))"
"""Whether a session is one of those whose owners are a JSON list; NULL for all sessions."""

ENTRIES = f"""
SELECT id, created,
  (SELECT json_extract(body, '$.type') FROM events WHERE session = n ORDER BY seq DESC LIMIT 1) = 'session_finished',
  name, json_extract(first.body, '$.protocol'), json_extract(first.body, '$.task'), json_extract(first.body, '$.comparison')
FROM sessions LEFT JOIN events AS first ON first.session = n AND first.seq = 1
WHERE {OWNED} ORDER BY n"""

INDEX_REPLIES = """
CREATE INDEX IF NOT EXISTS replies ON events(json_extract(body, '$.digest'))
WHERE json_extract(body, '$.type') = 'call_completed'"""
FIND_REPLY = f"""
SELECT body FROM events JOIN sessions ON sessions.n = events.session
WHERE json_extract(body, '$.digest') = ? AND json_extract(body, '$.type') = 'call_completed'
  AND json_extract(body, '$.inherited') IS NULL AND {OWNED}
ORDER BY session DESC, seq DESC LIMIT 1"""

CLAIM = """
INSERT OR REPLACE INTO claims SELECT :session, :call, :owner, :day, :amount WHERE :bound IS NULL
  OR COALESCE((SELECT amount FROM spent WHERE owner = :owner AND day = :day), 0) + :amount
  + COALESCE((SELECT SUM(amount) FROM claims WHERE owner = :owner AND day = :day), 0) <= :bound"""
CLAIM_RUN = """
INSERT OR REPLACE INTO claims SELECT :session, '', :owner, '', 0 WHERE :bound IS NULL
  OR (SELECT COUNT(*) FROM claims WHERE owner = :owner AND call = '' AND session != :session) < :bound"""
SPEND = """
INSERT INTO spent SELECT owner, day, COALESCE(:amount, amount) FROM claims WHERE session = :session AND call = :call
ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"""
RELEASE = "DELETE FROM claims WHERE session = :session AND call = :call"

# --- removal
# Texts and prompts belong to all sessions that refer to them. References are not read from known fields of events, because a new
# field could be forgotten: everything in a record that has the form of an id counts as a reference.

_KEPT = """
WITH RECURSIVE
  named(id) AS (
    SELECT DISTINCT raw_id(found.value) FROM events, json_each(ids_in(events.body)) AS found
    WHERE session NOT IN (SELECT value FROM json_each(?1))),
  chain(id, base, added) AS (
    SELECT prompts.id, base, added FROM named JOIN prompts USING (id)
    UNION SELECT prompts.id, prompts.base, prompts.added FROM chain JOIN prompts ON prompts.id = chain.base),
  kept(id) AS (
    SELECT id FROM named UNION SELECT id FROM chain
    UNION SELECT raw_id(found.value) FROM chain, json_each(ids_in(added)) AS found)
"""
"""Ids that sessions refer to, except the sessions whose numbers are in the JSON list `?1`."""

REMOVE = (
    "DELETE FROM sessions WHERE n IN (SELECT value FROM json_each(?1))",
    "DELETE FROM events WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM in_flight WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM arrivals WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM mail WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM links WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM opinions WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM claims WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM held WHERE session IN (SELECT value FROM json_each(?1))",
    f"CREATE TEMP TABLE still AS {_KEPT} SELECT id FROM kept",
    "DELETE FROM texts WHERE id NOT IN (SELECT id FROM still)",
    "DELETE FROM prompts WHERE id NOT IN (SELECT id FROM still)",
    "DROP TABLE still",
)
WEIGHT = f"""{_KEPT} SELECT
  (SELECT COALESCE(SUM(LENGTH(CAST(body AS BLOB))), 0) FROM events WHERE session IN (SELECT value FROM json_each(?1)))
  + (SELECT COALESCE(SUM(LENGTH(CAST(body AS BLOB))), 0) FROM texts WHERE id NOT IN (SELECT id FROM kept))
  + (SELECT COALESCE(SUM(LENGTH(CAST(added AS BLOB))), 0) FROM prompts WHERE id NOT IN (SELECT id FROM kept))"""

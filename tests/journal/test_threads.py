"""A journal in memory shares one connection between the thread that writes and those that read."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from consilience.domain.events import MessagePublished, text_id
from consilience.journal.sqlite import SqliteStore

sys.setswitchinterval(1e-6)  # meet in every place where they can
store = SqliteStore(":memory:")
journal = store.create("s")

def write(text):
    journal.append(MessagePublished(id=text[:8], sender="a", kind="reply", text=text_id(text)), texts=[text])

short = [f"short {n}" for n in range(200)]
long = [f"{n} " * 3000 for n in range(200)]
for text in short:
    write(text)
journal.read()
for text in long:
    write(text)
    journal.texts([text_id(text) for text in short])
journal.read()
assert journal.texts([text_id(text) for text in long]) == {text_id(text): text for text in long}
"""


def test_reading_while_long_texts_are_written_comes_to_an_end() -> None:
    """In a process of its own: threads that wait for each other inside the database hold the interpreter, too."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

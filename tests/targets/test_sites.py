"""What is looked for outside a change, and which places come first, with small repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.engine.sources import Document, number_documents
from consilience.protocols.review.parts import make_parts
from consilience.targets import outline, read_target
from consilience.targets.git import Git
from consilience.targets.names import names_of
from consilience.targets.outline import FileOutline, outlines_of
from consilience.targets.sites import lines_around, sites_of
from targets.repository import Repository

CONFIG = '''"""Configuration files."""


class Configuration:
    def __init__(self):
        self._files = {}

    @property
    def _dictionary(self) -> dict[str, str]:
        return self._files

    def items(self):
        return self._dictionary.items()

    def get_value(self, key):
        return self._dictionary[key]


def update(key):
    return key


def unrelated():
    return 1
'''
NESTED = CONFIG.replace("-> dict[str, str]:", "-> dict[str, dict[str, str]]:")


def changed(path: Path, before: dict[str, str | bytes], after: dict[str, str | bytes]) -> tuple[Document, ...]:
    """Return the documents of a change in a repository: its diff, new texts, and files beside it."""
    repository = Repository(path / "repository")
    repository.commit(before)
    repository.commit(after)
    return tuple(number_documents(read_target(diff="HEAD^!", directory=repository.path).sources))


def places(documents: tuple[Document, ...], purpose: str = "repository") -> list[str]:
    """Return the places outside the change, the weightiest first."""
    by_id = {document.id: document for document in documents}
    found = [(by_id[site.document], site) for site in sites_of(documents)]
    return [f"{document.name}:{site.number}" for document, site in found if document.purpose == purpose]


def shown(documents: tuple[Document, ...], place: str) -> list[str]:
    """Return the lines that are shown of a place."""
    for site in sites_of(documents):
        document = next(d for d in documents if d.id == site.document)
        if f"{document.name}:{site.number}" == place:
            lines = document.text.splitlines()
            outlined = outlines_of(documents).get(document.id, FileOutline())
            return [line for a, b in lines_around(site, document, outlined) for line in lines[a - 1 : b]]
    raise AssertionError(f"{place} is no site")


def test_caller_of_what_uses_a_private_definition_is_found_and_common_words_are_not(tmp_path: Path) -> None:
    """`items` did not change, but what it returns; a hundred files call another `items`."""
    debug = """from lib.configuration import Configuration


def levels(config: Configuration):
    found = {key for key, _ in config.items()}
    return found
"""
    others: dict[str, str | bytes] = {
        f"other/m{n}.py": f"def f{n}(d):\n    d.update(1)\n    return d.items()\n" for n in range(100)
    }
    prose = "We update the items of a list; see also unrelated words.\n"
    documents = changed(
        tmp_path,
        {"lib/configuration.py": CONFIG, "debug.py": debug, "docs/a.md": prose, **others},
        {"lib/configuration.py": NESTED},
    )
    assert places(documents) == ["debug.py:5", "debug.py:4"]
    assert shown(documents, "debug.py:5") == debug.splitlines()[3:]


def test_weights_follow_from_what_changed_of_a_definition(tmp_path: Path) -> None:
    after = NESTED.replace("def update(key):\n    return key", "def update(key):\n    return key + 1").replace(
        "def unrelated():\n    return 1\n", "def added():\n    return 1\n"
    )
    documents = changed(tmp_path, {"lib/configuration.py": CONFIG}, {"lib/configuration.py": after})
    weights = {name: round(changed.weight, 2) for name, changed in names_of(documents).symbols.items()}
    assert weights == {
        "_dictionary": 1.0,
        "unrelated": 1.0,
        "update": 0.7,
        "items": 0.4,
        "get_value": 0.4,
        "Configuration": 0.3,
        "added": 0.2,
    }
    assert names_of(documents).symbols["items"].owners == {"Configuration"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from lib.configuration import update\nx = update(1)\n", ["use.py:2"]),
        ("from lib import configuration\nx = configuration.update(1)\n", ["use.py:2"]),
        ("import json\nx = json.update(1)\n", []),
        ("def update(key):\n    return key\n", []),
        ("# we update this\nx = 1\n", []),
        ("x = 'to update'\n", []),
        ("class A:\n    def f(self):\n        self.update(1)\n", []),
    ],
)
def test_function_with_the_name_of_a_common_word_counts_where_its_module_is_named(
    tmp_path: Path, line: str, found: list[str]
) -> None:
    after = CONFIG.replace("def update(key):\n    return key", "def update(key):\n    return key + 1")
    noise: dict[str, str | bytes] = {f"m{n}.py": "x.update()\n" for n in range(10)}
    documents = changed(
        tmp_path, {"lib/configuration.py": CONFIG, "use.py": line, **noise}, {"lib/configuration.py": after}
    )
    assert places(documents) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("def f(env):\n    tox_env.interrupt()\n", True),
        ("class Own(ToxEnv):\n    def interrupt(self):\n        pass\n", True),
        ("class Own(ToxEnv):\n    def f(self):\n        self.interrupt()\n", True),
        ("def interrupt():\n    pass\n", False),
        ("interrupt = Event()\n", False),
    ],
)
def test_method_is_found_by_its_class_its_receiver_or_an_override(tmp_path: Path, line: str, found: bool) -> None:
    before = "class ToxEnv:\n    def interrupt(self):\n        return 1\n"
    noise: dict[str, str | bytes] = {f"m{n}.py": f"def f{n}(x):\n    return x.interrupt()\n" for n in range(20)}
    documents = changed(
        tmp_path, {"env.py": before, "use.py": line, **noise}, {"env.py": before.replace("return 1", "return 2")}
    )
    assert any(place.startswith("use.py") for place in places(documents)) == found


def test_attribute_that_became_a_property_is_a_changed_name(tmp_path: Path) -> None:
    before = "class Node:\n    def __init__(self, value):\n        self.value = value\n        self.kind = 1\n"
    after = (
        before.replace("self.value", "self._value")
        + "\n    @property\n    def value(self):\n        return self._value\n"
    )
    caller = "from nodes import Node\n\n\ndef show(node: Node):\n    return node.value\n"
    documents = changed(tmp_path, {"nodes.py": before, "show.py": caller}, {"nodes.py": after})
    assert places(documents)[0] == "show.py:5"
    assert names_of(documents).symbols["value"].weight == 1.0


def test_command_option_and_path_are_found_in_documents_packaging_and_schemas(tmp_path: Path) -> None:
    new = 'OPTIONS = ["--src-layout", "readme"]\n'
    guide = "# Guide\n\nFirst make a project:\n\n```bash\npoetry new demo\n```\n\n```text\ndemo\n├── demo\n```\n"
    files: dict[str, str | bytes] = {
        "poetry/commands/new.py": new,
        "docs/guide.md": guide,
        "docs/news.md": "This is poetry new to many.\n",
        "schema.json": '{\n  "properties": {\n    "--src-layout": {}\n  }\n}\n',
        "setup.cfg": "[files]\npaths =\n    poetry/commands/new.py\n",
    }
    documents = changed(tmp_path, files, {"poetry/commands/new.py": new.replace("--src-layout", "--flat")})
    assert sorted(places(documents)) == ["docs/guide.md:6", "schema.json:3", "setup.cfg:3"]
    assert "├── demo" in shown(documents, "docs/guide.md:6")


def test_module_that_moved_is_found_where_it_is_imported(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"lib/old.py": CONFIG, "use.py": "import os\nfrom lib.old import unrelated\n"}
    repository = Repository(tmp_path / "repository")
    repository.commit(files)
    repository.git("mv", "lib/old.py", "lib/fresh.py")
    repository.commit()
    documents = tuple(number_documents(read_target(diff="HEAD^!", directory=repository.path).sources))
    assert places(documents) == ["use.py:2"]


def test_long_statement_is_shown_whole_with_the_names_of_what_is_around_it(tmp_path: Path) -> None:
    filler = "".join(f"        x{n} = {n}\n" for n in range(30))
    caller = (
        "from lib.configuration import update\n\n\nclass Shop:\n    @cached\n    def open(self):\n"
        + filler
        + "        result = dict(\n            key=update(\n                1,\n            ),\n        )\n"
        + filler
    )
    after = CONFIG.replace("def update(key):\n    return key", "def update(key):\n    return key + 1")
    documents = changed(tmp_path, {"lib/configuration.py": CONFIG, "shop.py": caller}, {"lib/configuration.py": after})
    (place,) = places(documents)
    assert [line.strip() for line in shown(documents, place)] == [
        *("class Shop:", "def open(self):", "x28 = 28", "x29 = 29"),
        *("result = dict(", "key=update(", "1,", "),", ")", "x0 = 0", "x1 = 1"),
    ]


def test_file_that_the_author_did_not_touch_comes_first_and_one_name_leaves_room_for_others(tmp_path: Path) -> None:
    source = "def alpha():\n    return 1\n\n\ndef beta():\n    return 1\n"
    many = "from lib import alpha, beta\n" + "".join(f"a{n} = alpha()\n\n\n" for n in range(9))
    one = "from lib import beta\nb = beta()\n"
    documents = changed(
        tmp_path,
        {"lib.py": source, "many.py": many, "one.py": one, "touched.py": one},
        {"lib.py": source.replace("1", "2"), "touched.py": one + "c = 1\n"},
    )
    assert set(places(documents)[:2]) == {"many.py:2", "one.py:2"}
    assert places(documents, "") == ["touched.py:2"]


def test_each_file_is_parsed_once_however_many_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 changed files with a caller each: a number of parses that grows with the files, and not with their square."""
    files: dict[str, str | bytes] = {
        f"m{n}.py": f"from m{(n + 1) % 300} import f{(n + 1) % 300}\n\n\ndef f{n}():\n    return f{(n + 1) % 300}()\n"
        for n in range(300)
    }
    documents = changed(tmp_path, files, {name: str(text) + "# more\n\nx = 1\n" for name, text in files.items()})
    parsed: list[str] = []
    original = outline._python

    def parse(text: str) -> FileOutline:
        parsed.append(text)
        return original(text)

    monkeypatch.setattr(outline, "_python", parse)
    for cached in (outlines_of, names_of, sites_of):
        cached.cache_clear()
    made = make_parts(documents, 24_000)
    assert len(made.under_review) > 1
    assert len(parsed) <= 2 * len(documents)


def test_repository_of_any_size_is_searched_by_a_fixed_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    started: list[str | bytes] = []
    original = Git._command

    def command(self: Git, *arguments: str | bytes) -> list[bytes]:
        started.append(arguments[0])
        return original(self, *arguments)

    monkeypatch.setattr(Git, "_command", command)
    for size in (20, 400):
        files: dict[str, str | bytes] = {
            f"d{n % 7}/m{n}.py": f"from lib import fun{n % 9}\nfun{n % 9}()\n" for n in range(size)
        }
        lib = "".join(f"def fun{n}():\n    return 1\n\n\n" for n in range(9))
        repository = Repository(tmp_path / str(size))
        repository.commit({"lib.py": lib, **files})
        repository.commit({"lib.py": lib.replace("1", "2")})
        started.clear()
        target = read_target(diff="HEAD^!", directory=repository.path)
        counts.append(len(started))
        assert sum(source.purpose == "repository" for source in target.sources) == min(size, 40)
    assert counts[0] == counts[1]

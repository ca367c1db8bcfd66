"""What `python -m tests.words` finds, and what it lets pass."""

import pytest

from tests import words


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("class LineDesk:\n    desk_count = 1", "p2pmsg/a.py", [(1, "Desk"), (2, "desk")]),
        ("# it is gone for\n# good", "p2pmsg/a.py", [(1, "for # good")]),
        ("A reader that falls behind; a port behind a firewall; MEMORY; roomy", "README.md", []),
        ("one behind another", "README.md", [(1, "behind")]),
        ("a stranger", "tests/README.md", []),
        ("a stranger", "p2pmsg/stats.py", [(1, "stranger")]),
    ],
)
def test_a_word_is_found_with_its_line(text, name, found):
    assert [place[:2] for place in sorted(words.found(text, name))] == found

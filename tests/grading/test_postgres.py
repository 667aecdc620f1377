"""The gradebook in PostgreSQL: the same grades as in SQLite, also when the server is killed."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
pytest.importorskip("psycopg")

from llmcourse.course import CourseError
from llmcourse.grading import stock

HERE, POSTGRES = (runpy.run_path(str(Path(__file__).with_name(name)))
                for name in ("classroom.py", "postgres.py"))  # fmt: skip
prepared, classroom, pool, known, recorded = (
    HERE[n] for n in ("prepared", "classroom", "pool", "known", "recorded")
)
NAME, EARNED = HERE["NAME"], HERE["GRADED"]


@pytest.fixture
def server():
    try:
        with POSTGRES["running"]() as made:
            yield made
    except POSTGRES["Missing"] as reason:
        pytest.skip(str(reason))


@pytest.fixture
def served(classroom, server):
    """The whole class handed in, in a course whose gradebook is in PostgreSQL."""
    classroom.setting(f'c.CourseDirectory.db_url = "{server.url}"')
    (classroom.root / "gradebook.db").unlink()
    stock.must(classroom.api.generate_assignment(NAME, force=True), "generating")
    return classroom.whole_class()


def test_the_same_grades_and_a_killed_server_costs_none(served, server, recorded, known):
    recorded.on = lambda number: number == 4 and server.kill()
    with pytest.raises(CourseError, match="the gradebook cannot be used") as told:
        served.run(recorded)
    assert "\n" not in str(told.value)
    with pytest.raises(CourseError, match="the gradebook cannot be used"):
        served.run(recorded)
    server.start()
    there = served.scores()
    assert 0 < len(there) < len(EARNED)
    assert all(there[name] == EARNED[name] for name in there)
    recorded.on = lambda number: None
    counts = served.run(recorded)
    assert counts.before == len(there) and counts.before + counts.graded == len(EARNED)
    assert served.table() == known[1]
    assert served.rows()["ada"].score == 8

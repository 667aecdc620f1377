"""Where the course folder lies, for formgrader: the teacher's ~/.jupyter/nbgrader_config.py."""

from pathlib import Path

c = get_config()  # noqa: F821  nbgrader runs this file with `get_config` in it

course = Path.home() / "llmcourse"
c.CourseDirectory.root = str(course)
load_subconfig(str(course / "nbgrader_config.py"))  # noqa: F821  the sandbox, and the rest

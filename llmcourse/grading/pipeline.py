"""Our two steps in nbgrader's pipeline: a submission restored, and run in two parties."""

from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import compute_checksum
from traitlets import Bool, Float, Integer

from llmcourse.course import CourseError
from llmcourse.grading import execute, restore, stock, zoo
from llmcourse.grading.restore import Template
from llmcourse.grading.sandbox import Limits


class Restore(NbGraderPreprocessor):
    """Puts a submission back into form: before OverwriteCells, in place of DeduplicateIds."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Restore the cells; what was put back is noted in the notebook's metadata."""
        where = resources["nbgrader"]
        course = CourseDirectory(config=self.config)
        folder = course.format_path(course.release_directory, ".", where["assignment"])
        release = Path(folder) / f"{where['notebook']}.ipynb"
        _refuse_links(
            course.format_path(
                course.submitted_directory, where["student"], where["assignment"]
            )
        )
        with Gradebook(where["db_url"]) as gradebook:
            known = template(gradebook, where["assignment"], where["notebook"], release)
        restore.restore(nb, known)
        return nb, resources


class SplitExecute(NbGraderPreprocessor):
    """Runs learners' cells in the sandbox and the locked ones outside (grading.examiner)."""

    sandboxed = Bool(True, help="False: no bubblewrap; for a learner's own work").tag(
        config=True
    )
    memory = Integer(Limits.memory, help="bytes for one submission").tag(config=True)
    disk = Integer(Limits.disk, help="bytes of each folder it can write to").tag(config=True)
    processes = Integer(Limits.processes, help="processes and threads").tag(config=True)
    cpu = Float(Limits.cpu, help="seconds on a processor for one submission").tag(config=True)
    wall = Float(Limits.wall, help="seconds for one submission").tag(config=True)
    timeout = Float(Limits.cell, help="seconds for one cell, or call of a function").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Execute the notebook; raises SandboxError where the sandbox cannot be had."""
        course = CourseDirectory(config=self.config)
        assignment = resources["nbgrader"]["assignment"]
        source = Path(course.format_path(course.source_directory, ".", assignment))
        sandbox = execute.running(
            source / stock.DATA, execute.allowed(nb), sandboxed=self.sandboxed
        )
        execute.execute(nb, sandbox, self.limits)
        return nb, resources

    @property
    def limits(self) -> Limits:
        """What the course's settings let a submission take."""
        return Limits(
            memory=self.memory, disk=self.disk, processes=self.processes, cpu=self.cpu,
            wall=self.wall, cell=self.timeout,
        )  # fmt: skip


def template(gradebook: Gradebook, assignment: str, notebook: str, release: Path) -> Template:
    """What the gradebook knows of a notebook; the order is that of the released file.

    Raises CourseError where the gradebook is damaged.
    """
    known = gradebook.find_notebook(notebook, assignment)
    points = {c.name: c.max_score for c in known.grade_cells}
    solutions = {c.name for c in known.solution_cells}
    tasks = {c.name: c.max_score for c in known.task_cells}
    order = [zoo.grade_info(c).get("grade_id") for c in zoo.read_notebook(release)["cells"]] \
        if release.is_file() else []  # fmt: skip
    cells = [
        {
            "grade_id": c.name, "cell_type": c.cell_type, "source": c.source or "",
            "locked": bool(c.locked), "grade": c.name in points, "checksum": c.checksum,
            "solution": c.name in solutions, "task": c.name in tasks,
            "points": points.get(c.name, tasks.get(c.name)),
        }
        for c in known.source_cells
    ]  # fmt: skip
    for cell in cells:
        if cell["locked"] and compute_checksum(restore.new_cell(cell)) != cell["checksum"]:
            raise CourseError(
                f"the gradebook's copy of {cell['grade_id']} is damaged: release anew"
            )
    place = {name: i for i, name in enumerate(order)}
    cells.sort(key=lambda c: place.get(c["grade_id"], len(place)))
    return Template(tuple(cells), known.kernelspec)


def _refuse_links(folder: str) -> None:
    """nbgrader copies what a link leads to, and feedback would hand it out."""
    for path in Path(folder).rglob("*"):
        if path.is_symlink():
            raise CourseError(f"{path.name} is a link: the file itself must be handed in")

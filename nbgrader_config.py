"""Settings of nbgrader for this course; `nbgrader` and `llmcourse` both read them here."""

import os
from pathlib import Path

from traitlets.config import Config

from llmcourse.grading import stock
from llmcourse.runner import private_sockets

c = get_config()  # noqa: F821  nbgrader runs this file with `get_config` in it
here = Path(__file__).resolve().parent

# `nbgrader` started elsewhere than through make finds its helper programs too.
stock.use_own_tools()

# The notebooks with solutions and hidden tests, and what is made of them for learners.
c.CourseDirectory.course_id = "llmcourse"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.ignore = stock.not_released(here / "solutions")

# Hidden checks draw their inputs from this secret, which lies in .course_secret.
os.environ["LLMCOURSE_SALT"] = stock.salt(here)

# Learners' code runs in a sandbox, hidden tests outside it; also by formgrader's button.
c.Autograde.sanitize_preprocessors = [
    "nbgrader.preprocessors.ClearOutput",
    "llmcourse.grading.pipeline.Restore",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    "llmcourse.grading.pipeline.SplitExecute",
    "nbgrader.preprocessors.IgnorePattern",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# Kernels talk through sockets in a private folder: no open port, and no warning about one.
c.KernelManager = Config(private_sockets())

# Feedback without a line of a hidden test, and without anything loaded from another host.
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "llmcourse.grading.feedback.NoEmptyComments",
    "llmcourse.grading.feedback.HideHidden",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
# What feedback and formgrader show of a learner's Markdown and outputs runs nothing.
c.HTMLExporter.preprocessors = ["llmcourse.grading.harmless.HarmlessOutputs"]
c.HTMLExporter.sanitize_html = True
c.HTMLExporter.filters = {
    "markdown2html": "llmcourse.grading.harmless.markdown",
    "clean_html": "llmcourse.grading.harmless.clean",
    "strip_files_prefix": "llmcourse.grading.harmless.unchanged",
}
c.GenerateFeedback.exporter_class = "llmcourse.grading.feedback.FeedbackExporter"

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

# An exercise runs for seconds; a cell that takes this long hangs.
c.Execute.timeout = 60
c.Execute.interrupt_on_timeout = True

# Kernels talk through sockets in a private folder: no open port, and no warning about one.
c.KernelManager = Config(private_sockets())

# Feedback without a line of a hidden test, and without anything loaded from another host.
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "llmcourse.grading.feedback.HideHidden",
    "nbconvert.preprocessors.sanitize.SanitizeHTML",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
c.SanitizeHTML.enabled = True
c.GenerateFeedback.exporter_class = "llmcourse.grading.feedback.FeedbackExporter"

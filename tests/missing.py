"""Says what the tests skip on this machine and how to get it, one line each."""

import shutil
from pathlib import Path

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing() -> list[str]:
    lines = []
    if not any(map(shutil.which, CHROMIUM)):
        lines.append(
            "Skipping the tests of the site in a browser: no Chromium. "
            "Debian, Ubuntu: sudo apt install chromium; elsewhere install Chromium or Chrome."
        )
    if not shutil.which("bwrap"):
        lines.append(
            "Skipping the tests of grading: no bubblewrap. Debian, Ubuntu: sudo apt install "
            "bubblewrap; it needs Linux."
        )
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        lines.append(
            "Skipping the tests of grades in PostgreSQL: no server. Debian, Ubuntu: sudo apt "
            "install postgresql."
        )
    return lines


if __name__ == "__main__":
    print(
        "\n".join(missing())
        or "Nothing is skipped: Chromium, bubblewrap and PostgreSQL are here."
    )

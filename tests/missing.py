"""Says what the tests skip on this machine and how to get it, one line each."""

import shutil

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing() -> list[str]:
    lines = []
    if not any(map(shutil.which, CHROMIUM)):
        lines.append(
            "Skipping the tests of the site in a browser: no Chromium. "
            "Debian, Ubuntu: sudo apt install chromium; elsewhere install Chromium or Chrome."
        )
    return lines


if __name__ == "__main__":
    print("\n".join(missing()) or "Nothing is skipped: Chromium is here.")

"""JupyterHub on one machine: every learner is a user of the system. For a trial on loopback.

Start it as root with the shared environment's own `jupyterhub`.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821  JupyterHub runs this file with `get_config` in it
programs = Path(sys.prefix) / "bin"

c.JupyterHub.bind_url = "http://127.0.0.1:8000"

# Whoever knows this password is whoever they say they are: never on an open address.
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = os.environ["TRIAL_PASSWORD"]
c.Authenticator.allowed_users = {"teacher", "ada", "ben"}

# Each server runs as its user, from the shared environment.
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.cmd = [str(programs / "jupyterhub-singleuser")]
c.Spawner.environment = {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}
c.Spawner.default_url = "/lab"

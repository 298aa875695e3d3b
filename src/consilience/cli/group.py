"""`sessions`: all commands on recorded sessions under one roof; the common ones stand at the top as well."""

from __future__ import annotations

from consilience.cli.export import export
from consilience.cli.fork import diff, fork
from consilience.cli.sessions import replay, resume, sessions, show

for app in (show, resume, replay, fork, diff, export):
    sessions.registered_commands.extend(app.registered_commands)

"""The smallest real model, fetched once per machine by the way a user fetches it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from consilience.models import weights


@pytest.fixture(scope="session")
def smollm2(shared_weights: Path) -> Path:
    """The weights of smollm2-135m, pulled if they are not there; in a process of its own, since tests have no network."""
    script = f"from consilience.models import weights_download; print(weights_download.pull({weights.TESTS!r}))"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "CONSILIENCE_HOME": str(shared_weights.parent),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())

"""What the user's environment says to our programs it does not say to tests and their children; and
no time limits for examples.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that is shared. Examples are new ones each
# time, also where Hypothesis sees that CI is set.
settings.register_profile("shared", deadline=None, derandomize=False)
settings.load_profile("shared")


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> None:
    """No proxies (all servers here are on loopback), and the defaults of every setting."""
    for name in list(os.environ):
        is_setting = name.upper().startswith("RUSHLIGHT_") and "__" in name
        if is_setting or name.upper().endswith("_PROXY"):
            del os.environ[name]

"""What is kept when a command fails: a bundle, whose path is the last thing said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cli.output import told
from testbed.errors import InputError, MissingTool

if TYPE_CHECKING:
    from testbed.lab.testbed import Testbed


@contextlib.contextmanager
def kept(testbed: Testbed, place: Callable[[], Path]) -> Iterator[None]:
    """Collect a bundle where the body fails, before anything is taken down.

    Not where the input was wrong or the machine lacks something: the error says all.

    Args:
        testbed: What the body works on.
        place: Says where the bundle goes.

    Raises:
        TestbedError: what the body raised, or what stands for it; it names the bundle.
    """
    try:
        yield
    except (InputError, MissingTool):
        raise
    except Exception as error:
        found = told(error)
        found.artifacts = testbed.bundle(place()) or found.artifacts
        if found is error:
            raise
        raise found from error

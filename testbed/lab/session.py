"""How a notebook runs: looked at by a person, by papermill alone, or by ``testbed run``.

The three differ in where progress goes, in what ends the notebook, and in who takes
the testbed down:

- A person sees steps and plot redrawn in the cell; the testbed stays up.
- Plain papermill gets plain lines; a cell that ends the notebook early fails it; the
  testbed goes again if this notebook brought it up, also when the kernel is killed.
- ``testbed run`` gets the steps through a file, and sees to everything else.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.lab import kernel, reaper
from testbed.lab.cluster.protocol import ClusterSpec, Progress
from testbed.lab.live import LiveProgress, in_cell
from testbed.lab.progress import ConsoleProgress
from testbed.lab.scenario.run import PROGRESS
from testbed.lab.testbed import Info, Testbed

_END_S = 10.0


class Session:
    """One notebook's run.

    Args:
        shell: IPython's shell, None outside of a notebook.
        environ: Read for ``VGPU_TESTBED_PROGRESS``.

    Attributes:
        attended: A person looks on.
        ruled: ``testbed run`` executes the notebook.
        progress: Told each step.
    """

    def __init__(self, shell: Any | None, environ: Mapping[str, str] = os.environ) -> None:
        self.attended = kernel.attended(shell)
        self.ruled = PROGRESS in environ
        self._shell = shell
        self._live: LiveProgress | None = None
        self.progress: Progress
        if self.ruled:
            stream = _Appending(Path(environ[PROGRESS]))
            self.progress = ConsoleProgress(stream=stream, tty=False)
        elif self.attended and getattr(shell, "kernel", None) is not None:
            self.progress = self._live = LiveProgress(
                in_cell, cell=lambda: getattr(shell, "execution_count", None)
            )
        else:
            self.progress = ConsoleProgress(stream=sys.stdout, tty=False)
        self._guard: kernel.Guard | None = None
        self._temporary: Testbed | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def live(self) -> LiveProgress | None:
        """What draws in the running cell, None where nobody looks on."""
        return self._live

    def show(self, shown: object) -> None:
        """Show something in the running cell before its end."""
        if self._shell is None:
            print(shown, file=sys.stdout)  # noqa: T201
            return
        from IPython.display import display

        display(shown)  # type: ignore[no-untyped-call,unused-ignore]

    def guard(self, failed: Callable[[str], None]) -> None:
        """From now on make the notebook fail where papermill would not.

        Args:
            failed: Told why a cell failed, before the testbed is taken down. Not
                called where a person looks on, who may mend the cell and go on.
        """
        if self._shell is None or self.attended:
            return

        def after(error: BaseException) -> None:
            text = error.text() if isinstance(error, TestbedError) else _named(error)
            try:
                failed(text)
            finally:
                self.take_down()

        self._guard = kernel.Guard(self._shell, after)

    def bring_up(self, testbed: Testbed, spec: ClusterSpec) -> Info:
        """Return what is deployed; bring up what is missing.

        Raises:
            InputError, ClusterError, DeployError.
        """
        with testbed.use("notebook", self.progress) as use:
            absent = testbed.cluster.status().state == "absent"
            if absent and not self.attended and not self.ruled:
                self._temporary = testbed
                self._reaper = reaper.start(testbed.name)
                use.note(temporary=True)
            return testbed.ensure(spec if absent else None, self.progress, as_it_is=use.joined)

    def finish(self) -> None:
        """The verdict is there: let the notebook go, and take down what it brought up."""
        if self._guard is not None:
            self._guard.lift()
        self.take_down()

    def take_down(self) -> None:
        """Take the testbed down if this notebook brought it up.

        Raises:
            ClusterError: it cannot be; the one that waits for our end tries again.
        """
        if self._temporary is None:
            return
        with self._temporary.use("down", self.progress):
            self._temporary.down(self.progress)
        self._temporary = None
        if self._reaper is not None:
            self._reaper.terminate()
            self._reaper.wait(_END_S)


class _Appending(io.StringIO):
    """A file that is open only while something is written to it: nobody has to close it."""

    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def write(self, text: str, /) -> int:
        with self._path.open("a", encoding=self.encoding) as file:
            return file.write(text)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")

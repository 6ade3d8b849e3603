"""What the notebooks call: each cell is one line, everything is computed here."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError, TestbedError
from testbed.lab.deploy import enforcement
from testbed.lab.progress import ConsoleProgress
from testbed.lab.report.plot import draw
from testbed.lab.report.table import checks_html, checks_text, columns, record_text
from testbed.lab.scenario.access import ClusterAccess
from testbed.lab.scenario.cases import checked_parameters, load_question, scenarios_root
from testbed.lab.scenario.leftovers import tidy
from testbed.lab.scenario.pods import (
    check_cards,
    check_users,
    namespace_manifest,
    pins,
    pod_manifest,
    workload_manifest,
)
from testbed.lab.scenario.question import PodPlan, Question, Trial
from testbed.lab.scenario.record import (
    Check,
    Control,
    Environment,
    Record,
    budget_reason,
    case_verdict,
    write_json,
)
from testbed.lab.scenario.run import run_folder as new_folder
from testbed.lab.scenario.trial import run_trial
from testbed.lab.testbed import Info, Testbed

#: Deadline of one run of the pods; slow machines raise it by the variable.
TRIAL_SECONDS = float(os.environ.get("VGPU_TESTBED_TRIAL_SECONDS", "300"))
GONE_SECONDS = 60.0
#: How long another run on the testbed is waited for.
ALONE_SECONDS = 900.0


class Table:
    """Text in a terminal, a table in a notebook."""

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


class Picture:
    """A PNG that a notebook shows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"plot in {self.path}"

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


class Experiment:
    """One case on one testbed, step by step."""

    def __init__(
        self,
        question: Question,
        folder: Path,
        parameters: Any,
        case: str,
        testbed: Testbed,
        run_folder: Path,
    ) -> None:
        self._question = question
        self._folder = folder
        self._parameters = parameters
        self._case = case
        self._testbed = testbed
        self._run_folder = run_folder
        self._progress = ConsoleProgress(stream=sys.stdout, tty=False)
        self._started = datetime.now(UTC)
        self._begin = time.monotonic()
        self._trial: Trial | None = None
        self._control_trial: Trial | None = None
        self._checks: tuple[Check, ...] = ()
        self._control: Control | None = None
        with testbed.use("notebook", self._progress) as use:
            self._info: Info = testbed.ensure(None, self._progress, as_it_is=use.joined)
        status = testbed.cluster.status()
        check_users(question.plan(parameters), id_range=status.id_range)
        check_cards(question.needs(parameters), [len(node.cards) for node in status.nodes])

    def plan(self) -> Table:
        """Show which pods will run."""
        plans = self._question.plan(self._parameters)
        members = [(plan, container) for plan in plans for container in plan.containers]
        keys = sorted({key for _, container in members for key in container.limits})
        header = ("POD", *(key.rpartition("/")[2].upper() for key in keys), "WORKLOAD")
        rows = [
            (
                plan.name if len(plan.containers) == 1 else f"{plan.name}/{container.name}",
                *(container.limits.get(key, "-") for key in keys),
                container.workload,
            )
            for plan, container in members
        ]
        return _table(header, rows)

    def run(self) -> Table:
        """Run the pods with the limiter and judge them."""
        self._trial = self._control_trial = self._control = None
        self._checks = ()
        with self._alone(), self._progress.step("pods with the limiter") as step:
            trial = self._trial = self._one_trial("on", step, previous=None)
        self._checks = self._question.checks(self._parameters, trial)
        return _checks_table(self._checks)

    def control(self) -> Table:
        """Run the same pods, pinned to the same place, without the limiter."""
        previous = self._needs_run()
        self._control_trial = self._control = None
        with (
            self._alone(),
            enforcement(self._testbed.kube, "off", self._progress),
            self._progress.step("control: the same pods without the limiter") as step,
        ):
            trial = self._control_trial = self._one_trial("off", step, previous=previous)
        self._control = self._question.control(self._parameters, trial)
        # What a pod does alone and unlimited is known only now.
        self._checks = self._question.checks(self._parameters, previous, trial)
        return _checks_table(self._control.checks)

    def plot(self) -> Picture:
        """Draw what the card counted, with the caps."""
        chart = self._question.chart(self._parameters, self._needs_run(), self._control_trial)
        figure = draw(chart)
        path = self._run_folder / "memory.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        return Picture(path)

    def checks(self) -> Table:
        """Show the checks of the run with the limiter."""
        self._needs_run()
        return _checks_table(self._checks)

    def record(self) -> Table:
        """Write the record; this alone is the verdict."""
        trial = self._needs_run()
        asserts_limit = self._question.asserts_limit
        hits = trial.budget_hits
        if self._control_trial is not None:
            hits += self._control_trial.budget_hits
        record = Record(
            case=self._case,
            verdict=case_verdict(
                self._checks, self._control, asserts_limit=asserts_limit, budget_hits=hits
            ),
            reason=budget_reason(hits),
            asserts_limit=asserts_limit,
            checks=self._checks,
            control=self._control,
            environment=self._environment(trial),
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._begin, 1),
            artifacts={
                "record": str(self._run_folder / "record.json"),
                "plot": str(self._run_folder / "memory.png"),
                "notebook": str(self._run_folder / "notebook.ipynb"),
            },
            parameters=_plain(self._parameters),
        )
        write_json(self._run_folder / "record.json", record)
        text = record_text(record)
        return Table(text, f"<pre>{text}</pre>")

    # --- below -----------------------------------------------------------------
    def _needs_run(self) -> Trial:
        if self._trial is None:
            raise InputError("the pods have not run yet", hint="call experiment.run() first")
        return self._trial

    def _one_trial(self, mode: str, step: Any, previous: Trial | None) -> Trial:
        kube = self._testbed.kube
        namespace = f"trial-{uuid.uuid4().hex[:8]}"
        plans = self._question.plan(self._parameters)
        manifests = []
        for plan in plans:
            node = ""
            pin: dict[str, str] = {}
            if previous is not None:
                node, pin = pins(previous.pods[plan.name].object)
            manifests.append(
                pod_manifest(namespace, plan, image=self._info.pytorch_image, pin=pin, node=node)
            )
        around = [
            namespace_manifest(namespace),
            workload_manifest(namespace, self._folder, plans),
        ]
        try:
            trial = run_trial(
                ClusterAccess(kube),
                namespace,
                [*around, *manifests],
                enforcement=mode,
                deadline_seconds=TRIAL_SECONDS,
                deletions={plan.name: plan.delete_in for plan in plans if plan.delete_in},
                step=step,
            )
        except BaseException as error:
            if isinstance(error, Exception):  # who interrupts does not want to wait for it
                self._testbed.bundle(self._run_folder / f"bundle-{mode}")
            with contextlib.suppress(TestbedError):  # the cause is the error above
                self._remove(namespace, plans)
            raise
        self._remove(namespace, plans)
        return trial

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Have the testbed to ourselves, and in order."""
        with self._testbed.use("notebook", self._progress, wait_s=ALONE_SECONDS):
            tidy(self._testbed.kube, self._progress)
            yield

    def _remove(self, namespace: str, plans: Sequence[PodPlan]) -> None:
        kube = self._testbed.kube
        kube.delete("v1", "Namespace", namespace)
        for plan in plans:
            kube.wait_gone("v1", "Pod", plan.name, namespace, timeout_s=GONE_SECONDS)

    def _environment(self, trial: Trial) -> Environment:
        visible = [e for pod in trial.pods.values() for e in pod.events if e["event"] == "visible"]
        first = visible[0] if visible else {}
        return Environment(
            provider=self._info.provider,
            card=f"{first.get('card', 'unknown')} ({trial.source})",
            kubernetes=self._testbed.kube.version(),
            torch=str(first.get("torch", "unknown")),
            stack=self._info.stack,
            shim=self._info.shim,
        )


def open_case(
    case: str, *, testbed: str = "vgpu", run_folder: str = "", **parameters: Any
) -> Experiment:
    """Open a case for a notebook; bring the testbed up if it is not.

    Args:
        case: ``question/case``; the case's name is a label, the parameters decide.
        testbed: Name of the testbed.
        run_folder: Where record and plot go; ``runs/<time>/<case>`` by default.
        parameters: The question's parameters.

    Raises:
        InputError: an unknown question, or parameters that do not fit it; nothing
            has been started.
    """
    root = scenarios_root()
    question_name, _, label = case.partition("/")
    if not label:
        raise InputError(f"{case!r} is not a case", hint="write question/case")
    question = load_question(root / question_name)
    checked = checked_parameters(question, parameters)
    folder = Path(run_folder) if run_folder else _default_run_folder(root, case)
    return Experiment(question, root / question_name, checked, case, Testbed(testbed), folder)


def _default_run_folder(root: Path, case: str) -> Path:
    return new_folder(root.parent / "runs") / case


def _checks_table(checks: Sequence[Check]) -> Table:
    return Table(checks_text(checks), checks_html(checks))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return Table(columns(header, rows), f"<table><tr>{head}</tr>{body}</table>")


def _plain(parameters: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(parameters)
    return plain

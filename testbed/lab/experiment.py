"""One case on one testbed, step by step: what the cells of a notebook call."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from testbed.errors import CheckFailed, InputError, TestbedError
from testbed.lab.cluster.protocol import CardSpec, ClusterSpec
from testbed.lab.deploy import enforcement
from testbed.lab.host import busy_reason, host, load, load_text
from testbed.lab.kubetypes import Unreachable
from testbed.lab.report import facts
from testbed.lab.report.chart import Chart
from testbed.lab.report.files import CHART, FILES, RECORD, assembled, encoded, write_all, write_text
from testbed.lab.report.plot import draw
from testbed.lab.report.table import record_html, record_text
from testbed.lab.scenario.access import ClusterAccess
from testbed.lab.scenario.leftovers import tidy
from testbed.lab.scenario.patience import Patience
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
    no_verdict,
    plain,
    write_json,
)
from testbed.lab.scenario.run import finish
from testbed.lab.scenario.simulated import as_plugin
from testbed.lab.scenario.staging import stage
from testbed.lab.scenario.submission import submit
from testbed.lab.scenario.trial import run_trial
from testbed.lab.session import Session
from testbed.lab.shown import Picture, Table, checks_table, overview, rows_table
from testbed.lab.testbed import Testbed

#: Deadline of one run of the pods; slow machines raise it by the variable.
TRIAL_SECONDS = float(os.environ.get("VGPU_TESTBED_TRIAL_SECONDS", "300"))
GONE_SECONDS = 60.0
#: How long another run on the testbed is waited for.
ALONE_SECONDS = 900.0
PLOT = "plot.png"
PARAMETERS = "parameters.yaml"
UNFINISHED = "the notebook did not reach its last cell"


class Experiment:
    """One case on one testbed, step by step.

    Args:
        question: What is asked.
        folder: The question's, with its workloads.
        parameters: Of the case, checked.
        case: Its label, ``question/case``.
        testbed: Where it runs; brought up if it is not.
        run_folder: Where record, chart and plot of the case go.
        session: How the notebook runs.
        run: The run's folder, which gets a report as well; None: ``run_folder``.

    Raises:
        InputError: the testbed cannot run these pods.
        ClusterError, DeployError: it cannot be brought up.
    """

    def __init__(
        self,
        question: Question,
        folder: Path,
        parameters: Any,
        case: str,
        testbed: Testbed,
        run_folder: Path,
        session: Session,
        run: Path | None = None,
    ) -> None:
        self._question = question
        self._folder = folder
        self._parameters = parameters
        self._case = case
        self._testbed = testbed
        self._run_folder = run_folder
        self._run = run
        self._session = session
        self._progress = session.progress
        self._started = datetime.now(UTC)
        self._begin = time.monotonic()
        self._trial: Trial | None = None
        self._control_trial: Trial | None = None
        self._checks: tuple[Check, ...] = ()
        self._control: Control | None = None
        self._load = 0.0
        if not session.attended and not session.ruled:
            self._fail(UNFINISHED)  # whatever ends the kernel, there is a record that says so
        session.guard(self._fail)
        cards = CardSpec(profile="a100-80gb", count=question.needs(parameters))
        self._info = session.bring_up(testbed, ClusterSpec(cards=(cards,)))
        status = testbed.cluster.status()
        check_users(question.plan(parameters), id_range=status.id_range)
        check_cards(question.needs(parameters), [len(node.cards) for node in status.nodes])

    def plan(self) -> Table:
        """Show which pods will run."""
        rows_of = getattr(self._question, "rows", None)
        if rows_of is not None:
            return rows_table(*rows_of(self._parameters))
        plans = self._question.plan(self._parameters)
        members = [(plan, container) for plan in plans for container in plan.containers]
        keys = sorted({key for _, container in members for key in container.limits})
        header = ("Pod", *(key.rpartition("/")[2] for key in keys), "Workload")
        rows = [
            (
                plan.name if len(plan.containers) == 1 else f"{plan.name}/{container.name}",
                *(container.limits.get(key, "-") for key in keys),
                container.workload,
            )
            for plan, container in members
        ]
        return rows_table(header, rows)

    def run(self) -> Table:
        """Run the pods with the limiter and judge them."""
        self._trial = self._control_trial = self._control = None
        self._checks = ()
        with self._alone(), self._progress.step(self._steps()[0]) as step:
            trial = self._trial = self._one_trial("on", step, previous=None)
        self._load = load()
        self._checks = self._question.checks(self._parameters, trial)
        return self._overview(self._checks)

    def control(self) -> Table:
        """Run the same pods, pinned to the same place, without the limiter."""
        previous = self._needs_run()
        self._control_trial = self._control = None
        with (
            self._alone(),
            self._unlimited(),
            self._progress.step(self._steps()[1]) as step,
        ):
            trial = self._control_trial = self._one_trial("off", step, previous=previous)
        self._load = max(self._load, load())
        self._control = self._question.control(self._parameters, trial)
        # What a pod does alone and unlimited is known only now.
        self._checks = self._question.checks(self._parameters, previous, trial)
        return self._overview(self._control.checks, control=True)

    def story(self) -> Table:
        """Show what happened, step by step, where the question tells it."""
        tell = self._question.story  # type: ignore[attr-defined]
        return rows_table(*tell(self._parameters, self._needs_run()))

    def comparison(self) -> Table:
        """Show what was measured with the limiter beside what was without, where there is such."""
        tell = self._question.comparison  # type: ignore[attr-defined]
        return rows_table(*tell(self._parameters, self._needs_run(), self._control_trial))

    def plot(self) -> Picture:
        """Draw what the card counted, with the caps."""
        figure = draw(self._chart())
        path = self._run_folder / PLOT
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        return Picture(path)

    def checks(self) -> Table:
        """Show the checks of the run with the limiter."""
        self._needs_run()
        return checks_table(self._checks)

    def record(self) -> Table:
        """Write the record; this alone is the verdict."""
        trial = self._needs_run()
        asserts_limit = self._question.asserts_limit
        hits = trial.budget_hits
        if self._control_trial is not None:
            hits += self._control_trial.budget_hits
        verdict = case_verdict(
            self._checks, self._control, asserts_limit=asserts_limit, budget_hits=hits
        )
        busy = busy_reason(self._load) if verdict in ("fail", "error") else ""
        record = Record(
            case=self._case,
            verdict=verdict,
            reason="; ".join(filter(None, (budget_reason(hits), busy))),
            asserts_limit=asserts_limit,
            checks=self._checks,
            control=self._control,
            environment=self._environment(trial),
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._begin, 1),
            artifacts=self._artifacts(),
            parameters=plain(self._parameters),
            title=self._question.title,
            meanings=self._meanings(),
        )
        write_text(self._run_folder / CHART, encoded(self._chart()).decode())
        parameters = yaml.safe_dump(record.parameters, sort_keys=False, default_flow_style=None)
        write_text(self._run_folder / PARAMETERS, parameters)
        self._write(record)
        self._session.finish()
        return self._told(record)

    # --- below -----------------------------------------------------------------
    def _needs_run(self) -> Trial:
        if self._trial is None:
            raise InputError("the pods have not run yet", hint="call experiment.run() first")
        return self._trial

    def _steps(self) -> tuple[str, str]:
        usual = ("pods with the limiter", "control: the same pods without the limiter")
        return getattr(self._question, "steps", usual)

    def _unlimited(self) -> contextlib.AbstractContextManager[object]:
        """What makes a control of a run: pods that never run need no library."""
        if hasattr(self._question, "submissions") or hasattr(self._question, "staging"):
            return contextlib.nullcontext()
        return enforcement(self._testbed.kube, "off", self._progress)

    def _meanings(self) -> dict[str, str]:
        return dict(getattr(self._question, "meanings", {}))

    def _overview(self, checks: Sequence[Check], *, control: bool = False) -> Table:
        asserts_limit = self._question.asserts_limit
        return overview(checks, self._meanings(), asserts_limit=asserts_limit, control=control)

    def _chart(self) -> Chart:
        return self._question.chart(self._parameters, self._needs_run(), self._control_trial)

    def _artifacts(self) -> dict[str, str]:
        names = {"record": RECORD, "chart": CHART, "parameters": PARAMETERS}
        if (self._run_folder / PLOT).exists():
            names["plot"] = PLOT
        if self._session.ruled:  # `testbed run` puts it there; papermill where it was told to
            names["notebook"] = "notebook.ipynb"
        return {what: str(self._run_folder / name) for what, name in names.items()}

    def _fail(self, reason: str) -> None:
        """Leave a record that says why there is no verdict."""
        record = no_verdict(
            self._case,
            reason,
            asserts_limit=self._question.asserts_limit,
            parameters=plain(self._parameters),
        )
        self._write(
            msgspec.structs.replace(
                record,
                title=self._question.title,
                started=self._started.isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - self._begin, 1),
                artifacts={"record": str(self._run_folder / RECORD)},
            )
        )

    def _write(self, record: Record) -> None:
        """Write the record, and a report with it where no command does."""
        write_json(self._run_folder / RECORD, record)
        if self._session.ruled:
            return
        report = assembled([record], reproduce=self._command())
        if self._run is not None:
            finish(report, self._run)
        else:
            write_all(report, self._run_folder)

    def _command(self) -> str:
        """Return what runs this case again."""
        if (self._folder.parent / f"{self._case}.yaml").exists():
            return f"testbed run {self._case}"
        parameters = self._run_folder / PARAMETERS
        return f"papermill notebooks/{self._question.name}.ipynb out.ipynb -f {parameters}"

    def _told(self, record: Record) -> Table:
        """Return the record as a table; without anybody to see it, a bad one is an error.

        Raises:
            CheckFailed: a check failed, or all were skipped.
            TestbedError: there is no verdict.
        """
        table = Table(record_text(record), record_html(record))
        if record.verdict == "pass" or self._session.ruled or self._session.attended:
            return table
        self._session.show(table)
        bad = [c for c in record.checks if c.verdict in ("fail", "error")]
        control = "" if record.control is None else record.control.reason
        found = "; ".join(f"{facts.title(c)}: {c.reason}" for c in bad) or control
        why = "; ".join(filter(None, (record.reason, found)))
        what = f"{self._case}: {record.verdict} ({facts.counted(record)})"
        kind = TestbedError if record.verdict == "error" else CheckFailed
        raise kind(what, why=why, artifacts=(self._run or self._run_folder) / FILES["html"])

    def _watch(self, mode: str) -> Callable[[Trial], None] | None:
        """Return what draws a trial while it runs, None where nobody looks on."""
        live = self._session.live
        if live is None:
            return None

        def watch(so_far: Trial) -> None:
            if live.due():
                control = so_far if mode == "off" else None
                first = so_far if mode == "on" else self._needs_run()
                live.draw(self._question.chart(self._parameters, first, control))

        return watch

    def _one_trial(self, mode: str, step: Any, previous: Trial | None) -> Trial:
        kube = self._testbed.kube
        submissions = getattr(self._question, "submissions", None)
        if submissions is not None:
            return submit(
                kube,
                submissions(self._parameters),
                quota=self._question.quota(self._parameters),  # type: ignore[attr-defined]
                asked=mode == "on",
                step=step,
            )
        staging = getattr(self._question, "staging", None)
        if staging is not None:
            with as_plugin(kube) as plugin:
                played = staging(self._parameters, control=mode == "off")
                return stage(kube, plugin, played, mode=mode, step=step)
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
                changes={plan.name: plan.limits_in for plan in plans if plan.limits_in},
                step=step,
                watch=self._watch(mode),
            )
        except BaseException as error:
            if isinstance(error, Exception):  # who interrupts does not want to wait for it
                found = self._testbed.bundle(self._run_folder / f"bundle-{mode}")
                if isinstance(error, TestbedError):
                    error.artifacts = error.artifacts or found
            # A server that was silent for a minute is not asked for another: the next trial
            # tidies up. Else the cause is the error above, whatever comes of the removing.
            if not isinstance(error, Unreachable):
                with contextlib.suppress(TestbedError):
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
        patiently = Patience(time.monotonic, time.sleep)
        patiently(partial(kube.delete, "v1", "Namespace", namespace))
        for plan in plans:
            gone = partial(kube.wait_gone, "v1", "Pod", plan.name, namespace)
            patiently(partial(gone, timeout_s=GONE_SECONDS))

    def _environment(self, trial: Trial) -> Environment:
        told = [e for pod in trial.pods.values() for e in pod.events if "torch" in e]
        first = told[0] if told else {}
        return Environment(
            provider=self._info.provider,
            card=f"{first.get('card', 'unknown')} ({trial.source})",
            kubernetes=self._testbed.kube.version(),
            torch=str(first.get("torch", "unknown")),
            stack=self._info.stack,
            shim=self._info.shim,
            python=platform.python_version(),
            host=host(),
            load=load_text(self._load),
        )

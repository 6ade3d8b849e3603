"""Does a pod get the share of compute that it asked for, whatever it runs?

Pure: says which pods to run and judges what the card granted to each in its turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Chart, make_chart
from testbed.lab.report.relation import Curve, Relation
from testbed.lab.scenario.control import control_of
from testbed.lab.scenario.failure import unreached
from testbed.lab.scenario.question import ContainerPlan, OneCard, PodPlan, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.shares import Share, judge_share, pod_share, step_rate
from testbed.stack import names

PATTERNS = ("deep", "sync", "graph")
#: Launches that a graph holds: to the limiter it is one long kernel (``turns.GRAPH``).
GRAPH = 8
#: Percentage points: over a turn, and over its first second.
POINTS, START_POINTS = 2.0, 3.0
#: Percentage points between the card's count and that of the pod itself.
WORK_POINTS = 4.0
START_SECONDS = 1.0
#: The control must miss what was asked for by this much more than the tolerance.
MARGIN_POINTS = 5.0
#: What a program that waits for each kernel surely gets of a card, percent, by the kernel's
#: length in µs: its host needs up to a few hundred µs between two of them.
SYNC_PCT = ((10_000, 85.0), (1_000, 60.0), (0, 20.0))
#: How much more than its share such a program must be able to use for the share to be demanded:
#: what its host loses now and then it cannot make good otherwise.
SYNC_HEADROOM = 1.25
GPUMEM_MIB = 4096

MEANINGS = {
    "share_card": "The card grants a pod that works alone the share of its time that was asked for,"
    " whatever its kernels are like, and the kernels that the pod itself counts say the same.",
    "start": "Also in the first second of its work a pod has no more than its share.",
}


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    shares: tuple[int, ...]
    kernels_us: tuple[int, ...] = (200, 50_000)
    patterns: tuple[Literal["deep", "sync", "graph"], ...] = PATTERNS
    #: How long each turn is.
    seconds: float = 5.0
    #: How long a pod waits to be released before it goes on alone.
    hold_seconds: float = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A pod's work of one kind."""

    pod: str
    share: int
    kernel_us: int
    pattern: str
    index: int

    @property
    def name(self) -> str:
        return f"{self.pattern}-{self.kernel_us}-{self.pod}"

    @property
    def variant(self) -> str:
        return f"{self.pattern}, {self.kernel_us:,} µs"

    @property
    def unit_us(self) -> int:
        """The longest piece of work that cannot be taken back once it runs."""
        return self.kernel_us * (GRAPH if self.pattern == "graph" else 1)

    def tolerance(self, points: float, seconds: float) -> float:
        """Return percentage points: one piece of work more or less fits any window."""
        return round(points + self.unit_us / 1e4 / seconds, 2)

    @property
    def surely_pct(self) -> float:
        """What the program surely uses of a card without a limiter, percent."""
        if self.pattern != "sync":
            return 90.0
        return next(pct for least, pct in SYNC_PCT if self.kernel_us >= least)


def pod_name(share: int) -> str:
    return f"p{share}"


def turns(parameters: Parameters) -> tuple[Turn, ...]:
    """Return all turns in the order in which the pods take them."""
    kinds = product(parameters.kernels_us, parameters.patterns, parameters.shares)
    return tuple(
        Turn(pod=pod_name(share), share=share, kernel_us=us, pattern=pattern, index=number)
        for number, (us, pattern, share) in enumerate(kinds)
    )


class SmThrottle(OneCard):
    """The question, as the testbed runs it."""

    name = "sm_throttle"
    title = "Does a pod get the share of compute that it asked for, whatever it runs?"
    parameters = Parameters
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def validate(self, parameters: Parameters) -> None:
        """Refuse what cannot run, or what no control could tell."""
        shares = parameters.shares
        if not 1 <= len(shares) <= 8 or len(set(shares)) < len(shares):
            raise InputError(f"shares are {list(shares)}", hint="one to eight different ones")
        if sum(shares) > 100 or not all(1 <= share <= 80 for share in shares):
            raise InputError(
                f"shares are {list(shares)}",
                why="they lie on one card; above 80 % no control could tell a share from none",
                hint="use 1 to 80, at most 100 in sum",
            )
        if not parameters.patterns or not parameters.kernels_us:
            raise InputError("nothing is run", hint="name kernels_us and patterns")
        if not all(50 <= us <= 500_000 for us in parameters.kernels_us):
            raise InputError(
                f"kernels_us are {list(parameters.kernels_us)}",
                why="PyTorch cannot keep a card busy with shorter ones",
                hint="use 50 to 500000; `testbed bench shim` goes down to 5",
            )
        if not 3 <= parameters.seconds <= 120 or not 1 <= parameters.hold_seconds <= 600:
            raise InputError(
                f"seconds is {parameters.seconds:g}, hold_seconds {parameters.hold_seconds:g}",
                hint="use 3 to 120, 1 to 600",
            )
        for share in shares:
            mine = [t for t in turns(parameters) if t.share == share]
            if not any(control_shows(t, parameters.seconds) == "fail" for t in mine):
                raise InputError(
                    f"a share of {share} % cannot be checked",
                    why="without the limiter the same programs may have no more",
                    hint="add the pattern deep, or longer kernels",
                )

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return a pod for each share."""
        return tuple(
            PodPlan(
                name=pod_name(share),
                containers=(
                    ContainerPlan(
                        limits={
                            names.RESOURCE_COUNT: "1",
                            names.RESOURCE_MEMORY: str(GPUMEM_MIB),
                            names.RESOURCE_CORES: str(share),
                        },
                        env={names.ENV_CORE_POLICY: "force"},
                        parameters={
                            "hold_seconds": parameters.hold_seconds,
                            "seconds": parameters.seconds,
                            "turns": [
                                {
                                    "name": turn.name,
                                    "index": turn.index,
                                    "kernel_us": turn.kernel_us,
                                    "pattern": turn.pattern,
                                }
                                for turn in turns(parameters)
                                if turn.share == share
                            ],
                        },
                    ),
                ),
                files=("facts.py", "spin.py", "turns.py"),
                annotations={names.CARD_POLICY: "binpack"},
            )
            for share in parameters.shares
        )

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        found = []
        for turn in turns(parameters):
            found.append(share_card(parameters, turn, trial, control))
            found.append(start(parameters, turn, trial))
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without the limiter: alone each has all that it can use."""
        found: list[Check] = []
        for turn in turns(parameters):
            found += [share_card(parameters, turn, trial, None), start(parameters, turn, trial)]
        had_less = "it had less than its share of an idle card"
        return control_of(found, lambda check: had_less if check.reason.startswith("less") else "")

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return each pod's share over time, and what was asked against what was got."""
        shares = {pod_name(share): float(share) for share in parameters.shares}
        made = make_chart(trial, control, compute=shares)
        return msgspec.structs.replace(made, relations=(asked_and_got(parameters, trial, control),))


def control_shows(turn: Turn, seconds: float) -> Literal["fail", "any"]:
    """Return ``fail`` where the program without the limiter surely has more than its share."""
    allowed = turn.share + turn.tolerance(POINTS, seconds) + MARGIN_POINTS
    return "fail" if turn.surely_pct > allowed else "any"


def asked_and_got(parameters: Parameters, trial: Trial, control: Trial | None) -> Relation:
    """Return a curve for each kind of work: its share of the card over the share asked for."""
    by_kind: dict[str, list[Turn]] = {}
    for turn in sorted(turns(parameters), key=lambda turn: turn.share):
        by_kind.setdefault(turn.variant, []).append(turn)

    def curve(kind: str, of: Trial) -> Curve:
        got = [share_of(turn, of) for turn in by_kind[kind]]
        return Curve(
            label=kind,
            control=of is control,
            xs=tuple(float(turn.share) for turn in by_kind[kind]),
            ys=tuple(None if share is None else round(share, 2) for share in got),
        )

    return Relation(
        title="share of device time, turn by turn",
        x_title="asked for",
        y_title="got",
        unit="%",
        band=POINTS,
        curves=tuple(curve(kind, of) for of in (trial, control) if of for kind in by_kind),
    )


# --- the checks --------------------------------------------------------------------
def _share(
    turn: Turn, trial: Trial, *, first: float = START_SECONDS, last: float | None = None
) -> Share | None:
    """Return what a turn had of the card, None where it is not known.

    Args:
        turn: Whose.
        trial: The run.
        first: Seconds after its beginning.
        last: Likewise; None: to its end.
    """
    window = _window(turn, trial)
    if window is None:
        return None
    begin, end, uuid = window
    return pod_share(trial, turn.pod, uuid, begin + first, end if last is None else begin + last)


def share_of(turn: Turn, trial: Trial) -> float | None:
    """Return the share of a turn after its first second, percent, None where it is not known."""
    found = _share(turn, trial)
    return None if found is None else found.pct


def _rate(turn: Turn, trial: Trial, share: Share) -> float | None:
    """Return kernels a second as the pod counts them, over the time of a share."""
    trace = trial.pods[turn.pod].container("main")
    told = [e for e in trace.events if e["event"] == "steps" and e.get("phase") == turn.name]
    card = trace.event("working")
    assert card is not None
    return step_rate(told, uuid=str(card["uuid"]), start=share.start, end=share.end)


def work_of(turn: Turn, trial: Trial, control: Trial) -> float | None:
    """Return the share of a turn by the pod's own count of kernels, percent.

    Kernels a second, over what the same program did without the limiter, times what the
    card granted it there. None where one of these is not known.
    """
    here, there = _share(turn, trial), _share(turn, control)
    if here is None or there is None:
        return None
    rate, free = _rate(turn, trial, here), _rate(turn, control, there)
    return None if rate is None or not free else rate / free * there.pct


def _window(turn: Turn, trial: Trial) -> tuple[float, float, str] | None:
    if turn.pod not in trial.pods:
        return None
    trace = trial.pods[turn.pod].container("main")
    card = trace.event("working")
    begin, end = trace.event("released", turn.name), trace.event("worked", turn.name)
    if card is None or begin is None or end is None:
        return None
    return float(begin["time"]), float(end["time"]), str(card["uuid"])


def _why(turn: Turn, trial: Trial) -> str:
    if _window(turn, trial) is not None:
        return "the monitor told too little of its share"
    return unreached(trial.pods.get(turn.pod))


def share_card(parameters: Parameters, turn: Turn, trial: Trial, control: Trial | None) -> Check:
    """Is the share what was asked for, as the card granted it and as the pod counts its work?

    Args:
        parameters: The case's.
        turn: Which work.
        trial: The run.
        control: That without the limiter, once it is known. It tells what the program can
            use: who cannot use his share is not topped up, and from him only that is
            demanded; and how much work that is.
    """
    seconds = parameters.seconds - START_SECONDS
    least: float | None = float(turn.share)
    source, note = f"monitor ({trial.source})", ""
    if turn.pattern == "sync":
        free = None if control is None else share_of(turn, control)
        least = None if free is None else min(float(turn.share), free / SYNC_HEADROOM)
        if free is not None and free < turn.share * SYNC_HEADROOM:
            source += f"; without the limiter it has {free:.1f} %"
            note = f"it waits for each kernel, and can use {free:.0f} % at most"
    base = Check(
        name="share_card",
        pod=turn.pod,
        variant=turn.variant,
        verdict="fail",
        asked=float(turn.share),
        tolerance=turn.tolerance(POINTS, seconds),
        unit="%",
        source=source,
        control=control_shows(turn, seconds),
    )
    found = judge_share(
        base, _share(turn, trial), word="share", least=least, unknown=_why(turn, trial)
    )
    if found.verdict == "error" or control is None:
        return found
    work = work_of(turn, trial, control)
    if work is None:
        return msgspec.structs.replace(
            found, verdict="error", reason="too little was told of its work"
        )
    found = msgspec.structs.replace(found, workload=round(work, 2), reason=found.reason or note)
    assert isinstance(found.card, float)
    apart = abs(work - found.card) > turn.tolerance(WORK_POINTS, seconds)
    if found.verdict == "pass" and apart:
        reason = "the pod's own count of kernels says something else"
        return msgspec.structs.replace(found, verdict="fail", reason=reason)
    return found


def start(parameters: Parameters, turn: Turn, trial: Trial) -> Check:
    """Is the share kept from the first second on? From above: learning costs may take."""
    del parameters
    tolerance = turn.tolerance(START_POINTS, START_SECONDS)
    sure = turn.surely_pct > turn.share + tolerance + 2 * MARGIN_POINTS
    base = Check(
        name="start",
        pod=turn.pod,
        variant=turn.variant,
        verdict="fail",
        asked=float(turn.share),
        tolerance=tolerance,
        unit="%",
        source=f"monitor ({trial.source}), first second",
        control="fail" if sure else "any",
    )
    share = _share(turn, trial, first=0.0, last=START_SECONDS + 0.5)
    return judge_share(base, share, word="share", least=None, unknown=_why(turn, trial))


QUESTION = SmThrottle()

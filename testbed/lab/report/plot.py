"""Plots of a trial: what the card counted over time, the caps drawn in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.lab.scenario.question import Trial
from testbed.units import MIB

_COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e")


def pod_series(trial: Trial, pod: str) -> tuple[list[float], list[float]]:
    """Return (seconds since the trial began, GiB) of one pod, one point a sample time."""
    sums: dict[float, int] = {}
    every: set[float] = set()
    uid = trial.pods[pod].uid
    for sample in trial.samples:
        every.add(sample.time)
        if sample.pod_uid == uid:
            sums[sample.time] = sums.get(sample.time, 0) + sample.bytes
    times = sorted(every)
    return [t - trial.started for t in times], [sums.get(t, 0) / MIB / 1024 for t in times]


def memory_over_time(caps: Mapping[str, float], trial: Trial, control: Trial | None) -> Any:
    """Return a figure with one panel for the run and one for its control.

    Args:
        caps: Pod name to its cap, MiB.
        trial: The run with the limiter.
        control: The run without it, if there was one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    trials = [("with the cap", trial)] + ([("control: no limiter", control)] if control else [])
    figure = Figure(figsize=(5.4 * len(trials), 3.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(trials), sharey=True, squeeze=False)[0]
    top = max(cap / 1024 for cap in caps.values())
    for axis, (title, one) in zip(axes, trials, strict=True):
        for number, (pod, cap) in enumerate(caps.items()):
            if pod not in one.pods:
                continue
            colour = _COLOURS[number % len(_COLOURS)]
            times, values = pod_series(one, pod)
            top = max([top, *values])
            axis.step(times, values, where="post", color=colour, label=f"pod {pod}", linewidth=1.4)
            axis.axhline(cap / 1024, color=colour, linestyle="--", linewidth=0.9, alpha=0.8)
            axis.annotate(
                f"cap {pod}: {cap / 1024:g} GiB",
                (0.01, cap / 1024),
                xycoords=("axes fraction", "data"),
                ha="left",
                va="bottom",
                fontsize=7,
                color=colour,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("seconds")
        axis.grid(alpha=0.25)
    # One scale for both panels, so that what passes its cap is seen to.
    axes[0].set_ylim(0, top * 1.08)
    axes[0].legend(fontsize=8, loc="upper right", ncols=len(caps))
    axes[0].set_ylabel("memory on the card, GiB")
    return figure

"""``testbed card``: the emulated cards, and a process on one without a cluster."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import (
    DEFAULT_CARDS,
    Json,
    Output,
    complete_emulated,
    complete_profile,
    format_of,
)
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.card.profiles import Profile
    from testbed.lab.shell import Limits, Session

app = typer.Typer(
    help="Emulated cards: which there are, and a process on one without a cluster.",
    no_args_is_help=True,
)

#: The command's own options come after its name and are its own.
_AS_IT_IS = {"allow_interspersed_args": False}
_GIB, _TERA, _GIGA = 1 << 30, 10**12, 10**9


@app.command(context_settings=_AS_IT_IS)
def shell(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="What to run; a shell by default."),
    ] = None,
    cards: Annotated[
        str,
        typer.Option(
            "--card",
            "--cards",
            help="PROFILE[:COUNT][,…]; `testbed card ls` lists them.",
            autocompletion=complete_emulated,
        ),
    ] = DEFAULT_CARDS,
    gpumem: Annotated[
        int, typer.Option("--gpumem", min=0, help="Memory cap in MiB, held by libvgpu.so.")
    ] = 0,
    gpucores: Annotated[
        int, typer.Option("--gpucores", min=0, max=100, help="Share of compute in percent.")
    ] = 0,
    policy: Annotated[
        str, typer.Option("--policy", help="default, force or disable, for --gpucores.")
    ] = "default",
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe", help="--gpumem may be above the card; the rest lies outside it."
        ),
    ] = False,
    clock: Annotated[
        str, typer.Option("--clock", help="How processes share a card: slices or sharing.")
    ] = "",
    torch: Annotated[
        bool, typer.Option("--torch/--no-torch", help="With PyTorch, or the driver alone.")
    ] = True,
) -> None:
    """Run a command on emulated cards, without a cluster: with PyTorch, driver and limits.

    testbed card shell -- python -c "import torch; print(torch.cuda.mem_get_info())"

    The cards exist while it runs. Its exit status is the command's.
    """
    with errors_as_exit_codes():
        from testbed.card.spec import parse_cards
        from testbed.errors import InputError
        from testbed.lab import shell as lab
        from testbed.lab.progress import ConsoleProgress

        if clock not in ("", "slices", "sharing"):
            raise InputError(f"there is no clock {clock!r}", hint="one of slices, sharing")
        specs = parse_cards(cards)
        limits = lab.Limits(
            mem_mib=gpumem, core_pct=gpucores, policy=policy, oversubscribe=oversubscribe
        )
        wanted = list(command or [os.environ.get("SHELL") or "/bin/sh"])
        with lab.session(
            specs, ConsoleProgress(), limits=limits, with_torch=torch, clock=clock
        ) as session:
            if not command:
                print(_welcome(session, limits), file=sys.stderr, flush=True)
            code = lab.run(wanted, session.environ)
        raise typer.Exit(code)


@app.command(name="ls")
def list_cards(output: Output = Format.table, as_json: Json = False) -> None:
    """List the cards that can be emulated, with their main figures."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.card.profiles import PROFILES
        from testbed.lab.report.table import columns

        rows = [_row(profile) for _, profile in sorted(PROFILES.items())]
        header = ("CARD", "MODEL", "MEMORY", "SMS", "CLOCK", "FP32", "FP16", "BANDWIDTH")
        text = columns(header, rows) + "\n`testbed card show CARD`: every figure with its source"
        emit([_document(profile) for _, profile in sorted(PROFILES.items())], text, chosen)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="CARD", autocompletion=complete_profile)],
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Show every figure of a card: value, how sure it is, where it comes from."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.card.profiles import load
        from testbed.lab.report.table import columns

        profile = load(name)
        rows = [
            (field, f"{figure.value:,}", figure.confidence, figure.source)
            for field, figure in sorted(profile.figures.items())
        ]
        text = f"{profile.name}: {profile.model} (emulated)\n" + columns(
            ("FIGURE", "VALUE", "CONFIDENCE", "SOURCE"), rows
        )
        emit(_document(profile), text, chosen)


def _row(profile: Profile) -> tuple[str, ...]:
    def value(field: str) -> int:
        figure = profile.figures.get(field)
        return figure.value if figure else 0

    return (
        profile.name,
        profile.model,
        f"{value('memory_bytes') / _GIB:.0f} GiB",
        str(value("sm_count")),
        f"{value('clock_khz') / 1000:,.0f} MHz",
        f"{value('fp32_flops') / _TERA:.1f} TFLOPS",
        f"{value('fp16_flops') / _TERA:.0f} TFLOPS",
        f"{value('memory_bandwidth_bps') / _GIGA:,.0f} GB/s",
    )


def _document(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.name,
        "model": profile.model,
        "figures": {
            field: {
                "value": figure.value,
                "confidence": figure.confidence,
                "source": figure.source,
            }
            for field, figure in sorted(profile.figures.items())
        },
    }


def _welcome(session: Session, limits: Limits) -> str:
    lines = [
        f"{i}: {model}, emulated ({uuid})"
        for i, (model, uuid) in enumerate(zip(session.models, session.uuids, strict=True))
    ]
    if limits.any:
        parts = []
        if limits.mem_mib:
            parts.append(f"{limits.mem_mib:,} MiB")
        if limits.core_pct:
            parts.append(f"{limits.core_pct} % of its time (policy {limits.policy})")
        lines.append(f"libvgpu.so holds what runs here to {' and '.join(parts)} of each card.")
    if session.torch:
        lines.append('`python -c "import torch; print(torch.cuda.get_device_name())"`')
    lines.append("Kernels take their time and compute nothing. `exit` ends it, cards and all.")
    return "\n".join(lines)

"""A look at a testbed, as a terminal shows it. Pure: a view in, something to print out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.lab.report.table import columns
from testbed.lab.top.model import CardRow, ContainerRow, Node, View
from testbed.units import GIB, MIB

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDE = 110
_NARROW = 100
_BAR = 10

#: Widest that columns of names get, so that figures keep their place.
_SOFT = {"NAMESPACE": 20, "POD": 40, "CONTAINER": 20, "MODEL": 30, "FLAGS": 40}

_NODES = ("NODE", "STATUS", "CARDS", "PODS", "MEMORY")
_CARDS = ("NODE", "CARD", "MODEL", "UTIL", "MEMORY", "PODS", "PROMISED", "FLAGS")
_CONTAINERS = ("NAMESPACE", "POD", "CONTAINER", "CARD", "MEMORY", "COMPUTE", "WAITS", "FLAGS")
_PENDING = ("NAMESPACE", "POD", "WAITS SINCE", "WHY")


def text(look: View, *, options: str = "") -> str:
    """Return plain tables without colour, for a pipe or a file.

    Args:
        look: What to show.
        options: What the commands that are told need, such as ``--name NAME``.
    """
    parts = [columns(_NODES, [_node(row) for row in look.nodes])]
    parts.append(columns(_CARDS, [_card(row) for row in look.cards]))
    if look.containers:
        parts.append(columns(_CONTAINERS, [_container(row) for row in look.containers]))
    else:
        parts.append("no container uses a card")
    if look.pending:
        parts.append(columns(_PENDING, _pending(look, options)))
    parts += [f"problem: {problem}" for problem in look.problems]
    return "\n\n".join(parts)


def frame(
    look: View, *, width: int, title: str = "", problem: str = "", options: str = ""
) -> RenderableType:
    """Return what a terminal of a width shows, bars where there is room.

    Args:
        look: What to show.
        width: Columns of the terminal.
        title: The first line.
        problem: Why the look is not fresh.
        options: What the commands that are told need, such as ``--name NAME``.
    """
    wide = width >= _WIDE
    parts: list[RenderableType] = []
    if title:
        parts.append(Text(title, style="bold"))
    if problem:
        parts.append(Text(problem, style="bold red"))
    parts.append(_table(_NODES, (_coloured(_node(row), _node_style(row)) for row in look.nodes)))
    parts.append(_table(_CARDS, (_card_cells(row, wide=wide) for row in look.cards)))
    if look.containers:
        header: Sequence[str] = _CONTAINERS
        cells = [_container_cells(row, wide=wide) for row in look.containers]
        if width < _NARROW:
            # The container's name goes into the pod's cell where the pod has several.
            header = [*header[:2], *header[3:]]
            several = _several(look.containers)
            for row, each in zip(look.containers, cells, strict=True):
                name = each.pop(2)
                if (row.namespace, row.pod) in several:
                    each[1] = Text.assemble(each[1], "/", name)
        parts.append(_table(header, cells))
    else:
        parts.append(Text("no container uses a card", style="dim"))
    if look.pending:
        rows = (_coloured(row, "yellow") for row in _pending(look, options))
        parts.append(_table(_PENDING, rows))
    parts += [Text(f"problem: {each}", style="red") for each in look.problems]
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [part, Text("")] if isinstance(part, Table) else [part]
    return Group(*spaced)


def bar(part: float, *, mark: float | None = None, cells: int = _BAR) -> str:
    """Return a bar of a fraction of the whole, with a mark where the limit is.

    Args:
        part: 0 to 1; more is shown as full.
        mark: A limit between 0 and 1, None or 1 without one.
        cells: Characters.
    """
    eighths = round(max(0.0, min(1.0, part)) * cells * 8)
    # Something is not nothing, however little.
    if part > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    drawn = list("█" * full + (_EIGHTHS[rest] if rest else ""))
    drawn += [" "] * (cells - len(drawn))
    if mark is not None and 0 < mark < 1:
        at = min(cells - 1, round(mark * cells))
        if drawn[at] == " ":
            drawn[at] = "│"
    return "".join(drawn)


def _table(header: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in header:
        # Figures are shown whole; what must give way is long names and flags.
        soft = name in _SOFT
        table.add_column(
            name,
            no_wrap=name != "FLAGS",
            overflow="fold" if name == "FLAGS" else "ellipsis",
            min_width=len(name) if name == "FLAGS" or not soft else None,
            max_width=_SOFT.get(name),
        )
    for row in rows:
        table.add_row(*row)
    return table


def _coloured(cells: Sequence[str], style: str) -> list[Text]:
    return [Text(cell, style=style if position < 2 else "") for position, cell in enumerate(cells)]


# --- nodes --------------------------------------------------------------------------


def _node(row: Node) -> tuple[str, ...]:
    status = "Ready" if row.ready else "NotReady"
    cards = str(row.cards) if row.healthy == row.cards else f"{row.healthy} of {row.cards} healthy"
    used = _of(None if row.problem else row.used_bytes, row.memory_bytes)
    return (row.name, status, cards, str(row.pods), used)


def _node_style(row: Node) -> str:
    return "" if row.ready and row.healthy == row.cards else "red"


# --- cards --------------------------------------------------------------------------


def _card(row: CardRow) -> tuple[str, ...]:
    return (
        row.node,
        str(row.index),
        row.model,
        "-" if row.utilization_pct is None else f"{row.utilization_pct:.0f} %",
        _of(row.used_bytes, row.memory_bytes),
        str(row.pods),
        f"{_of(row.promised_mib * MIB, row.mem_mib * MIB)}, {row.promised_pct} %",
        ", ".join(row.flags) or "-",
    )


def _card_cells(row: CardRow, *, wide: bool) -> list[Text]:
    cells = [Text(cell) for cell in _card(row)]
    if wide and row.utilization_pct is not None:
        busy = row.utilization_pct / 100
        cells[3] = _barred(busy, cells[3].plain, "green")
    if wide and row.used_bytes is not None and row.memory_bytes:
        full = row.used_bytes / row.memory_bytes
        cells[4] = _barred(full, cells[4].plain, "cyan")
    if row.flags:
        cells[7].stylize("yellow")
    return cells


# --- containers ---------------------------------------------------------------------


def _container(row: ContainerRow) -> tuple[str, ...]:
    return (
        row.namespace,
        row.pod,
        row.container,
        f"{row.node}/{row.card if row.card >= 0 else '?'}",
        _memory(row),
        _compute(row),
        _waits(row),
        ", ".join(row.flags) or "-",
    )


def _container_cells(row: ContainerRow, *, wide: bool) -> list[Text]:
    cells = [Text(cell) for cell in _container(row)]
    if wide and row.asked_bytes:
        full = row.bytes / row.asked_bytes
        cells[4] = _barred(full, cells[4].plain, "red" if full > 1 else "cyan")
    if wide and row.share_pct is not None:
        limit = row.asked_pct / 100 if row.asked_pct else None
        # Two points are the tolerance of the checks; more than that is over the limit.
        over = limit is not None and row.share_pct / 100 > limit + 0.02
        colour = "red" if over else "green"
        cells[5] = _barred(row.share_pct / 100, cells[5].plain, colour, mark=limit)
    if row.flags:
        serious = any(flag.startswith(("unenforced", "degraded")) for flag in row.flags)
        cells[7].stylize("red" if serious else "yellow")
    return cells


def _several(rows: Iterable[ContainerRow]) -> set[tuple[str, str]]:
    """Return the pods of which more than one container is shown."""
    seen = {(row.namespace, row.pod, row.container) for row in rows}
    pods = Counter((namespace, pod) for namespace, pod, _ in seen)
    return {pod for pod, count in pods.items() if count > 1}


def _memory(row: ContainerRow) -> str:
    outside = f", {_gib(row.swapped_bytes)} swapped" if row.swapped_bytes else ""
    return _of(row.bytes, row.asked_bytes) + outside


def _compute(row: ContainerRow) -> str:
    got = "-" if row.share_pct is None else f"{row.share_pct:.1f}"
    return f"{got} of {row.asked_pct} %" if row.asked_pct else f"{got} %, free"


def _waits(row: ContainerRow) -> str:
    if row.waited is None:
        return "-"
    if row.waited > 1:
        return f"{row.waited:.1f}x {row.waits_for}".strip()
    told = f"{100 * row.waited:.0f} %"
    return f"{told} {row.waits_for}" if row.waits_for and row.waited else told


def _pending(look: View, options: str) -> list[tuple[str, ...]]:
    command = " ".join(filter(None, ("testbed explain", options)))
    return [
        (each.namespace, each.pod, each.since, f"{command} {each.namespace}/{each.pod}")
        for each in look.pending
    ]


# --- figures ------------------------------------------------------------------------


def _barred(part: float, figure: str, colour: str, *, mark: float | None = None) -> Text:
    drawn = Text(bar(part, mark=mark), style=f"{colour} on grey15")
    return Text.assemble(drawn, " ", figure)


def _of(used: int | None, whole: int) -> str:
    """Return ``12 of 30 GiB``; the unit is said twice where the two differ."""
    if used is None:
        return f"- of {_gib(whole)}"
    figure, unit = _gib(used).split()
    same = _gib(whole).endswith(unit) or used == 0
    return f"{figure if same else _gib(used)} of {_gib(whole)}"


def _gib(count: int) -> str:
    if count and count < GIB / 10:
        return f"{count / MIB:.0f} MiB"
    return f"{count / GIB:.1f}".removesuffix(".0") + " GiB"

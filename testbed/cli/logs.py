"""``testbed logs``: of the cluster's processes, of the stack, of any pod."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import DEFAULT_NAME, Json, Name, Namespace, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.logs import Files, Pods
    from testbed.lab.testbed import Testbed


def logs(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[COMPONENT|POD]",
            help="webhook, scheduler, extender, plugin, monitor; etcd, apiserver, kubelet, "
            "containerd, …; or [NAMESPACE/]POD. Without it: what there is.",
        ),
    ] = None,
    name: Name = DEFAULT_NAME,
    namespace: Namespace = "",
    following: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
    since: Annotated[
        str, typer.Option("--since", help="Only what is not older: 90s, 5m, 2h.")
    ] = "",
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only the last lines of each log.")
    ] = None,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Show the log of a part of the testbed, or of a pod (with -o json one document a line)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab import logs as found
        from testbed.lab.testbed import Testbed

        testbed = Testbed(name)
        files = testbed.cluster.log_files()
        if not files:
            testbed.cluster.kubeconfig()  # an error where there is no such testbed
        seconds = found.parse_since(since) if since else 0.0
        if what is None:
            _list(testbed, files, chosen)
            return
        target = found.find(what, files, namespace=namespace, pods=_pods(testbed))
        if isinstance(target, found.Files):
            _files(target, seconds, tail, following, chosen)
        else:
            arguments = found.kubectl_arguments(
                target, since_s=seconds, tail=tail, following=following
            )
            raise typer.Exit(_pod_log(testbed, target, arguments, chosen))


def _pods(testbed: Testbed) -> list[tuple[str, str]]:
    """Return (namespace, name) of all pods, none where the API server does not answer:
    that is when the logs of its own processes are needed most."""
    from testbed.errors import TestbedError

    try:
        items = testbed.kube.list("v1", "Pod")
    except TestbedError:
        return []
    return [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in items]


def _list(testbed: Testbed, files: Mapping[str, Path], output: Format) -> None:
    from testbed.lab import logs as found
    from testbed.lab.report.table import columns

    rows = [("stack", name, "") for name in found.STACK]
    rows += [("cluster", name, str(path)) for name, path in files.items()]
    rows += [("pod", f"{namespace}/{name}", "") for namespace, name in _pods(testbed)]
    emit(
        [{"kind": kind, "name": name, "path": path} for kind, name, path in rows],
        columns(("KIND", "NAME", "FILE"), rows),
        output,
    )


def _files(
    target: Files, seconds: float, tail: int | None, following: bool, output: Format
) -> None:
    import datetime as dt

    from testbed.lab import logs as found

    several = len(target.files) > 1

    def say(source: str, line: str) -> None:
        if output is Format.json:
            print(found.as_json(source, line), flush=following)
        else:
            print(f"[{source}] {line}" if several else line, flush=following)

    now = dt.datetime.now().astimezone()
    ends = {source: found.size_of(path) for source, path in target.files.items()}
    for source, path in target.files.items():
        lines = found.lines_of(path, end=ends[source], tail=tail)
        if seconds:
            lines = list(found.recent(lines, now.timestamp() - seconds, now))
        for line in lines:
            say(source, line)
    # Ctrl-C is how following ends, not an error.
    with contextlib.suppress(KeyboardInterrupt):
        if following:
            for source, line in found.follow(target.files, ends, lambda: False):
                say(source, line)


def _pod_log(testbed: Testbed, target: Pods, arguments: list[str], output: Format) -> int:
    """Run kubectl; return 0, or 2 where it has failed and said why."""
    from testbed.lab import logs as found

    program, environ = testbed.kubectl()
    source = target.pod or target.container
    pipe = subprocess.PIPE if output is Format.json else None
    with subprocess.Popen([program, *arguments], env=environ, stdout=pipe, text=True) as process:
        try:
            for line in process.stdout or ():
                print(found.as_json(*found.split_prefix(line.rstrip("\n"), source)), flush=True)
            return 2 if process.wait() else 0
        except KeyboardInterrupt:
            return 0  # how following ends; kubectl had the signal too
        finally:
            process.terminate()

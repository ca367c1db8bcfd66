"""`p2pmsg statsd`: a StatsD server."""

import argparse
import sys
import time
from dataclasses import fields
from typing import Any

from p2pmsg import statsd as package
from p2pmsg.cli.arguments import address, endpoints, output_file, seconds
from p2pmsg.cli.command import UsageError, command, flag, note, one_line, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import counted
from p2pmsg.errors import P2PError

_SLICE_S = 0.25


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        wrong = f"must be numbers separated by commas, not {text!r}"
        raise UsageError(wrong) from None


@command(
    "statsd",
    option("--listen", "udp://HOST:PORT, tcp://…, unixgram:///PATH, unix:///PATH, and "
           "unixstream:///PATH for Datadog's frames; several separated by commas (default: "
           "udp://127.0.0.1:8125)", "ENDPOINTS", endpoints,
           default=["udp://127.0.0.1:8125"]),
    option("--management", "where statsd's management port answers, such as tcp://127.0.0.1:8126",
           "ENDPOINT"),
    option("--dialect", "how lines are read; etsy is statsd itself (default: strict)",
           choices=list(package.DIALECTS), default="strict"),
    option("--interval", "time between flushes (default: 10)", "S", seconds, default=10.0),
    option("--percentiles", "of timers, such as 50,90,99.9; below 0 for the top (default: 90)",
           "LIST", _percentiles, default=(90.0,)),
    flag("--delete-idle", "forget metrics that were idle instead of sending zeros"),
    option("--publish", "publish each flush here, as JSON under the topic metrics", "ENDPOINT"),
    option("--graphite", "send each flush to carbon", "HOST:PORT", address),
    option("--prometheus", "serve /metrics here", "HOST:PORT", address),
    flag("--console", "show a live table in addition to other outputs"),
    option("--exact", "of p2pmsg.metrics.Client, whose totals are kept exactly", "ENDPOINTS",
           endpoints, default=[]),
    option("--state", "where the totals of --exact survive a crash", "FILE", output_file),
    flag("--reuse-port", "let several collectors share the UDP port"),
    flag("--stats", "report on standard error at the end what was received"),
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def statsd(arguments: argparse.Namespace) -> int:
    """Receive metrics of StatsD and DogStatsD clients, aggregate them, and pass them on.

    Without any output it shows a live table. Ctrl-C and SIGTERM flush what was gathered; the
    status is 0 after SIGTERM, 130 after Ctrl-C. --security is for --publish and --exact.

    For example:
      p2pmsg statsd
      p2pmsg statsd --listen udp://0.0.0.0:8125,tcp://0.0.0.0:8125 --publish tcp://0.0.0.0:5556
      p2pmsg statsd --dialect etsy --graphite carbon:2003 --management tcp://127.0.0.1:8126
      p2pmsg statsd --prometheus 127.0.0.1:9102 --exact tcp://127.0.0.1:9125 --state /var/tmp/totals
    """
    if arguments.state and not arguments.exact:
        raise UsageError("--state needs --exact, whose totals it keeps")
    config = package.AggregateConfig(
        percentiles=arguments.percentiles,
        dialect=package.DIALECTS[arguments.dialect],
        delete_idle=arguments.delete_idle,
    )
    outputs = _outputs(arguments)
    collector = package.Collector(
        arguments.listen,
        publish=arguments.publish,
        outputs=outputs,
        management=arguments.management,
        interval=arguments.interval,
        exact=arguments.exact,
        state=arguments.state,
        reuse_port=arguments.reuse_port,
        config=config,
        security=security_of(arguments),
    )
    endpoints = [*collector.endpoints, collector.management_endpoint, collector.publish_endpoint]
    try:
        note("statsd", ", ".join(endpoint for endpoint in endpoints if endpoint))
        while collector.stats().error is None:
            time.sleep(_SLICE_S)
            is_unread = all(getattr(output, "is_unread", False) for output in outputs)
            if is_unread and not arguments.publish:
                raise BrokenPipeError  # nobody reads the only output
    finally:
        collector.close(timeout=2.0)
        if arguments.stats:
            print(_render(collector.stats()), file=sys.stderr, flush=True)
        _report_inexact_totals(collector.totals())
    raise P2PError(f"the collector has ended: {collector.stats().error}")


def _outputs(arguments: argparse.Namespace) -> list[Any]:
    outputs: list[Any] = []
    if arguments.graphite:
        outputs.append(package.GraphiteOutput(*arguments.graphite))
    if arguments.prometheus:
        outputs.append(package.PrometheusOutput(*arguments.prometheus))
    if arguments.console or not (outputs or arguments.publish):
        outputs.append(package.ConsoleOutput())
    return outputs


def _report_inexact_totals(totals: Any) -> None:
    counts = {
        "messages of deltas are lost": totals.lost,
        "deltas were malformed": totals.malformed,
        "deltas did not fit": totals.cut,
        "clients are unfinished": len(totals.unfinished) + totals.forgotten,
    }
    parts = counted(counts)
    parts += [f"collecting has ended: {totals.failed}"] if totals.failed else []
    if parts:
        note("statsd", f"totals are not exact: {', '.join(parts)}")


def _render(stats: Any) -> str:
    """Return all counters that are not 0, and the latest bad lines."""
    counts = {each.name: getattr(stats, each.name) for each in fields(stats)}
    counts |= {f"{name} failures": n for name, n in stats.output_failures.items()}
    parts = counted({name.replace("_", " "): n for name, n in counts.items() if type(n) is int})
    return "\n".join([", ".join(parts), *(f"  {one_line(bad.text)}" for bad in stats.bad_sample)])

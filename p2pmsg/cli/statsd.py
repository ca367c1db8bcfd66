"""`p2pmsg statsd`: a StatsD server."""

import argparse
import sys
import time
from typing import Any

from p2pmsg.cli.arguments import (
    address,
    bind_endpoint,
    connect_endpoints,
    count,
    output_file,
    seconds,
)
from p2pmsg.cli.command import UsageError, command, flag, note, one_line, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.errors import ConfigError, P2PError
from p2pmsg.statsd.dialect import DIALECTS

_Refused = argparse.ArgumentTypeError
_SLICE_S = 0.25


def _listen_endpoints(text: str) -> list[str]:
    return [_listen_endpoint(part) for part in text.split(",")]


def _listen_endpoint(text: str) -> str:
    from p2pmsg.statsd.listen import parse_listen

    try:
        parse_listen(text, "the place")
    except ConfigError as error:
        raise _Refused(str(error)) from error
    return text


def _percentiles(text: str) -> tuple[float, ...]:
    found = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            raise _Refused(f"must be numbers separated by commas, not {text!r}") from None
        if not -100 <= number <= 100:
            raise _Refused(f"must be from -100 to 100: {part!r}")
        found.append(number)
    return tuple(found)


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(part.strip() for part in text.split(","))
    if not all(fields):
        raise _Refused(f"must be names of fields separated by commas, not {text!r}")
    return fields


@command(
    "statsd",
    option("--listen", "udp://HOST:PORT, tcp://…, unixgram:///PATH, unix:///PATH, and "
           "unixstream:///PATH for Datadog's frames; several separated by commas (default: "
           "udp://127.0.0.1:8125)", "ENDPOINTS", _listen_endpoints,
           default=["udp://127.0.0.1:8125"]),
    option("--management", "where statsd's management port answers, such as tcp://127.0.0.1:8126",
           "ENDPOINT", _listen_endpoint),
    option("--dialect", "how lines are read; etsy is statsd itself (default: strict)",
           choices=list(DIALECTS), default="strict"),
    option("--interval", "time between flushes (default: 10)", "S", seconds, default=10.0),
    option("--percentiles", "of timers, such as 50,90,99.9; below 0 for the top (default: 90)",
           "LIST", _percentiles, default=(90.0,)),
    flag("--delete-idle", "forget metrics that were idle instead of sending zeros"),
    option("--names-max", "names kept; further ones are dropped and counted (default: 200000)", "N",
           count(1), default=200_000),
    option("--publish", "publish each flush here, as JSON under the topic metrics", "ENDPOINT",
           bind_endpoint),
    option("--graphite", "send each flush to carbon", "HOST:PORT", address),
    option("--graphite-protocol", "(default: plaintext)", choices=("plaintext", "pickle"),
           default="plaintext"),
    flag("--new-namespace", "Graphite paths as stats.counters.NAME.rate instead of stats.NAME"),
    option("--timer-metrics", "which fields of timers go to Graphite, such as "
           "count,median,upper_percent, as statsd's calculatedTimerMetrics (default: all)", "LIST",
           _fields, default=()),
    option("--prometheus", "serve /metrics here", "HOST:PORT", address),
    flag("--console", "show a live table in addition to other outputs"),
    option("--exact", "of p2pmsg.metrics.Client, whose totals are kept exactly", "ENDPOINTS",
           connect_endpoints, default=[]),
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
    try:
        from p2pmsg.statsd.collector import Collector
        from p2pmsg.statsd.config import AggregateConfig
    except ModuleNotFoundError as error:
        raise P2PError(f"{error.name} is needed: pip install 'p2pmsg[statsd]'") from error

    config = AggregateConfig(
        percentiles=arguments.percentiles,
        names_max=arguments.names_max,
        dialect=DIALECTS[arguments.dialect],
        delete_idle=arguments.delete_idle,
    )
    outputs = _outputs(arguments)
    collector = Collector(
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
    note("statsd", ", ".join(endpoint for endpoint in endpoints if endpoint))
    try:
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
        from p2pmsg.statsd.outputs.graphite import GraphiteNames, GraphiteOutput

        host, port = arguments.graphite
        names = GraphiteNames(
            legacy=not arguments.new_namespace, timer_metrics=arguments.timer_metrics
        )
        outputs.append(
            GraphiteOutput(host, port, protocol=arguments.graphite_protocol, names=names)
        )
    if arguments.prometheus:
        from p2pmsg.statsd.outputs.prometheus import PrometheusOutput

        outputs.append(PrometheusOutput(*arguments.prometheus))
    if arguments.console or not (outputs or arguments.publish):
        from p2pmsg.statsd.outputs.console import ConsoleOutput

        outputs.append(ConsoleOutput())
    return outputs


def _report_inexact_totals(totals: Any) -> None:
    parts = [f"{totals.lost:,} messages of deltas are lost"] if totals.lost else []
    parts += [f"{totals.malformed:,} deltas were malformed"] if totals.malformed else []
    parts += [f"{totals.cut:,} deltas did not fit"] if totals.cut else []
    parts += [f"collecting has ended: {one_line(totals.failed)}"] if totals.failed else []
    parts += [f"{one_line(each.name)} is {each.reason}" for each in totals.unfinished[:5]]
    more = len(totals.unfinished) - 5 + totals.forgotten
    parts += [f"{more:,} more clients are unfinished"] if more > 0 else []
    if parts:
        note("statsd", f"totals are not exact: {', '.join(parts)}")


def _render(stats: Any) -> str:
    lines = [
        f"{stats.metrics:,} metrics in {stats.packets:,} packets, {stats.names:,} names, "
        f"{stats.flushes:,} flushes; dropped by the kernel: {stats.kernel_drops:,} packets"
    ]
    if stats.bad_lines:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in stats.bad_reasons.items())
        lines.append(f"{stats.bad_lines:,} bad lines: {reasons}")
        lines += [f"  {one_line(bad.text[:100])}" for bad in stats.bad_sample[-3:]]
    if stats.names_cut:
        names = ", ".join(map(one_line, stats.names_cut_sample))
        lines.append(f"{stats.names_cut:,} metrics cut off, of names such as {names}")
    lines += [f"{number:,} {what}" for number, what in _drops(stats) if number]
    return "\n".join(lines)


def _drops(stats: Any) -> list[tuple[int, str]]:
    return [
        (stats.lines_overlong, "lines or frames too long"),
        (stats.lines_unfinished, "last lines or frames cut off with their connection"),
        (stats.connections_refused, "connections refused"),
        (stats.set_values_dropped, "values of sets dropped"),
        (stats.values_dropped, "values of timers dropped"),
        (stats.events_dropped, "events and service checks dropped"),
        (stats.timed_dropped, "metrics with a timestamp dropped"),
        (stats.read_failures, "failures while reading"),
        *((count, f"failures of {name}") for name, count in stats.output_failures.items()),
    ]
